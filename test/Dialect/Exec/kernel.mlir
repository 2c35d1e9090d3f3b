// RUN: cleave-opt %s | cleave-opt | FileCheck %s

// CHECK-LABEL: exec.kernel @softmax row [4, 8]
// CHECK-SAME: (%{{.*}}: tensor<4x8xf32>) -> (%{{.*}}: tensor<4x8xf32>) attributes {threads = 32 : i64}
exec.kernel @softmax row [4, 8] (%x: tensor<4x8xf32>) -> (%y: tensor<4x8xf32>)
    attributes {threads = 32 : i64} {
  // CHECK: exec.pass -> f32 {
  %max = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 8 + c)> : tensor<4x8xf32> -> f32
    // CHECK: exec.reduce max %{{.*}} : f32
    %1 = exec.reduce max %0 : f32
    exec.yield %1 : f32
  }
  // CHECK: exec.keep : tensor<8xf32>
  %e = exec.keep : tensor<8xf32>
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 8 + c)> : tensor<4x8xf32> -> f32
    %1 = arith.subf %0, %max : f32
    %2 = math.exp %1 : f32
    exec.store %2, %e at affine_map<(r, c) -> (c)> : f32, tensor<8xf32>
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  exec.pass {
    %0 = exec.load %e at affine_map<(r, c) -> (c)> : tensor<8xf32> -> f32
    %1 = arith.divf %0, %sum : f32
    exec.store %1, %y at affine_map<(r, c) -> (r * 8 + c)> : f32, tensor<4x8xf32>
    exec.yield
  }
}

// CHECK-LABEL: exec.kernel @embed gather
exec.kernel @embed gather [4, 8] (%w: tensor<16x8xf32>, %ids: tensor<4xi64>)
    -> (%y: tensor<4x8xf32>) {
  %id = exec.load %ids at affine_map<(r, c) -> (r)> : tensor<4xi64> -> i64
  exec.pass {
    // CHECK: exec.load %{{.*}}[%{{.*}}] at #
    %0 = exec.load %w[%id] at affine_map<(r, c)[i] -> (i * 8 + c)> : tensor<16x8xf32> -> f32
    exec.store %0, %y at affine_map<(r, c) -> (r * 8 + c)> : f32, tensor<4x8xf32>
    exec.yield
  }
}

// CHECK-LABEL: exec.kernel @bias_gradient column
exec.kernel @bias_gradient column [4, 8] (%x: tensor<4x8xf32>, %rng: tensor<2xi64>)
    -> (%y: tensor<8xf32>) attributes {groups = 2 : i64} {
  %seed = exec.load %rng at affine_map<(r, c) -> (0)> : tensor<2xi64> -> i64
  %step = exec.load %rng at affine_map<(r, c) -> (1)> : tensor<2xi64> -> i64
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 8 + c)> : tensor<4x8xf32> -> f32
    // CHECK: exec.philox %{{.*}}, %{{.*}} at #{{.*}} {id = 3 : i64}
    %bits = exec.philox %seed, %step at affine_map<(r, c) -> (r * 8 + c)> {id = 3 : i64}
    // CHECK: exec.philox %[[A:.*]], %[[B:.*]] id %[[A]] base %[[B]] at #{{.*}} {base_multiple = 64 : i64}
    %other = exec.philox %seed, %step id %seed base %step at affine_map<(r, c) -> (r * 8 + c)> {base_multiple = 64 : i64}
    %limit = arith.constant 1000 : i32
    %keep = arith.cmpi uge, %bits, %limit : i32
    %zero = arith.constant 0.0 : f32
    %1 = arith.select %keep, %0, %zero : f32
    // CHECK: exec.accumulate sum
    exec.accumulate sum %1, %y at affine_map<(r, c) -> (c)> : f32, tensor<8xf32>
    exec.yield
  }
}

// CHECK-LABEL: func.func @f
func.func @f(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: exec.launch @softmax(%{{.*}}) {inplace = [array<i64: 0, 0>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %y = exec.launch @softmax(%x) {inplace = [array<i64: 0, 0>]}
      : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
