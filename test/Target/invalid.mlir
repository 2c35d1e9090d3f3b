// RUN: not cleave-translate --exec-to-llvm %s --split-input-file 2>&1 | FileCheck %s
// RUN: not cleave-translate --exec-to-llvm --cpu=pdp11 %s 2>&1 | FileCheck %s --check-prefix=CPU
// CPU: unknown x86-64 processor 'pdp11'

// CHECK: error: has no native code
exec.kernel @k map [4, 4] (%x: tensor<4xf32>) -> (%y: tensor<4xf32>) {
  %0 = exec.load %x at affine_map<(r, c) -> (r)> : tensor<4xf32> -> f32
  // A function that no target has.
  %1 = math.acosh %0 : f32
  exec.store %1, %y at affine_map<(r, c) -> (r)> : f32, tensor<4xf32>
}

// -----

// CHECK: runs against another exec.scan of its pass
exec.kernel @scans row [4, 4] (%x: tensor<4x4xf32>) -> (%y: tensor<4x4xf32>) {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 4 + c)> : tensor<4x4xf32> -> f32
    %1 = exec.scan %0 : f32
    %2 = exec.scan %1 {reverse} : f32
    exec.store %2, %y at affine_map<(r, c) -> (r * 4 + c)> : f32, tensor<4x4xf32>
    exec.yield
  }
}
