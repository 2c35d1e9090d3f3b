// RUN: cleave-translate --exec-to-cuda %s | FileCheck %s

// A running sum that is multiplied by a factor at each column: one thread
// multiplies, and then adds, from the last column on.

// CHECK: float [[SUM:s[0-9]+]] = 0.0f;
// CHECK: if (threadIdx.x == 0) {
// CHECK: const int c = 4 - 1 - i;
// CHECK: [[SUM]] = [[FACTOR:[a-z0-9]+]] * [[SUM]] + [[VALUE:[a-z0-9]+]];
exec.kernel @k row [4, 4] (%a: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (%y: tensor<4x4xf32>) attributes {threads = 32 : i64} {
  exec.pass {
    %0 = exec.load %a at affine_map<(r, c) -> (r * 4 + c)> : tensor<4x4xf32> -> f32
    %1 = exec.load %x at affine_map<(r, c) -> (r * 4 + c)> : tensor<4x4xf32> -> f32
    %2 = exec.scan %1 factor %0 {reverse} : f32
    exec.store %2, %y at affine_map<(r, c) -> (r * 4 + c)> : f32, tensor<4x4xf32>
    exec.yield
  }
}
