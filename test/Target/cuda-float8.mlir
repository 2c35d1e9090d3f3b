// RUN: cleave-translate --exec-to-cuda %s | FileCheck %s

// Floats of 8 bits are those of the CUDA headers, computed with in f32. The
// headers' conversions saturate, as those to f8E4M3FN do; in f8E5M2 what is too
// large becomes infinity.
// CHECK: #include <cuda_fp8.h>
// CHECK: __nv_fp8_e5m2 toE5M2(T x) {
// CHECK-LABEL: cleave_kernel_narrow(const float *in0, __nv_fp8_e4m3 *out0, __nv_fp8_e5m2 *out1) {
// CHECK: = (__nv_fp8_e4m3)v
// CHECK: = toE5M2(v
// CHECK: storeVector<4>(out0 + row * 768 + c, v{{[0-9]+}});
// CHECK: storeVector<4>(out1 + row * 768 + c, v{{[0-9]+}});
exec.kernel @narrow map [4, 768] (%x: tensor<4x768xf32>) -> (%y: tensor<4x768xf8E4M3FN>, %z: tensor<4x768xf8E5M2>)
    attributes {vector = 4 : i64, alignment = array<i64: 16, 4, 4>} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 768 + c)> : tensor<4x768xf32> -> f32
    %1 = arith.truncf %0 : f32 to f8E4M3FN
    %2 = arith.truncf %0 : f32 to f8E5M2
    exec.store %1, %y at affine_map<(r, c) -> (r * 768 + c)> : f8E4M3FN, tensor<4x768xf8E4M3FN>
    exec.store %2, %z at affine_map<(r, c) -> (r * 768 + c)> : f8E5M2, tensor<4x768xf8E5M2>
    exec.yield
  }
}

// CHECK-LABEL: cleave_kernel_widen(const __nv_fp8_e4m3 *in0, const __nv_fp8_e5m2 *in1, float *out0) {
// CHECK: = (float)v
// CHECK: = (float)v
exec.kernel @widen map [4, 768] (%x: tensor<4x768xf8E4M3FN>, %y: tensor<4x768xf8E5M2>) -> (%z: tensor<4x768xf32>)
    attributes {vector = 4 : i64, alignment = array<i64: 4, 4, 16>} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 768 + c)> : tensor<4x768xf8E4M3FN> -> f8E4M3FN
    %1 = exec.load %y at affine_map<(r, c) -> (r * 768 + c)> : tensor<4x768xf8E5M2> -> f8E5M2
    %2 = arith.extf %0 : f8E4M3FN to f32
    %3 = arith.extf %1 : f8E5M2 to f32
    %4 = arith.addf %2, %3 : f32
    exec.store %4, %z at affine_map<(r, c) -> (r * 768 + c)> : f32, tensor<4x768xf32>
    exec.yield
  }
}

// CHECK-LABEL: cleave_kernel_of_f64(const double *in0, __nv_fp8_e4m3 *out0, __nv_fp8_e5m2 *out1) {
exec.kernel @of_f64 map [4, 768] (%x: tensor<4x768xf64>) -> (%y: tensor<4x768xf8E4M3FN>, %z: tensor<4x768xf8E5M2>) {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 768 + c)> : tensor<4x768xf64> -> f64
    %1 = arith.truncf %0 : f64 to f8E4M3FN
    %2 = arith.truncf %0 : f64 to f8E5M2
    exec.store %1, %y at affine_map<(r, c) -> (r * 768 + c)> : f8E4M3FN, tensor<4x768xf8E4M3FN>
    exec.store %2, %z at affine_map<(r, c) -> (r * 768 + c)> : f8E5M2, tensor<4x768xf8E5M2>
    exec.yield
  }
}
