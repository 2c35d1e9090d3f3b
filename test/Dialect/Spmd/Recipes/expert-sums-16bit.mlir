// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision --spmd-apply-recipes="mesh=tp=2 recipes=megatron" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s
// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision --spmd-apply-recipes="mesh=dp=2 recipes=dp" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=WHOLE

// Outputs of experts are partial sums where ranks share inner features. Backward
// reads them rounded, for the gradients of the weights of tokens; then ranks
// would add up all rows. They are not rounded, and ranks add up the sums of each
// token, and the gradients of its weights.

// CHECK-LABEL: func.func @train(
// CHECK: %[[Y:.*]] = graph.grouped_linear {{.*}}partial = {"tp"}{{.*}} -> tensor<4x5x2x8xf32>
// CHECK-NEXT: %[[W:.*]] = graph.reshape
// CHECK-NEXT: %[[P:.*]] = graph.mul %[[Y]], %[[W]] {{.*}}partial = {"tp"}
// CHECK-NEXT: %[[T:.*]] = graph.reduce sum %[[P]] {dims = array<i64: 2>{{.*}}partial = {"tp"}
// CHECK-NEXT: spmd.all_reduce sum %[[T]] over @mesh {"tp"} {{.*}} : tensor<4x5x8xf32>
// CHECK: graph.seed
// CHECK: %[[D:.*]] = graph.mul %{{.*}}, %[[Y]] {{.*}}partial = {"tp"}
// CHECK-NEXT: graph.reduce sum %[[D]] {dims = array<i64: 3>
// CHECK: spmd.all_reduce sum %{{.*}} over @mesh {"tp"} {{.*}} : tensor<4x5x2x1xf32>
// CHECK-NOT: spmd.all_reduce {{.*}}tensor<4x5x2x8xf32>

// Sums of one device are rounded as before.

// WHOLE-LABEL: func.func @train(
// WHOLE: %[[Y:.*]] = graph.grouped_linear {{.*}} -> tensor<2x5x2x8xf32>
// WHOLE-NEXT: graph.cast %[[Y]] {{.*}} -> tensor<2x5x2x8xbf16>
func.func @loss(
    %x: tensor<4x5x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
    %up: tensor<4x8x6xf32> {graph.name = "up", graph.role = "parameter"},
    %bias: tensor<4x6xf32> {graph.name = "bias", graph.role = "parameter"},
    %down: tensor<4x6x8xf32> {graph.name = "down", graph.role = "parameter"},
    %router: tensor<4x8xf32> {graph.name = "router", graph.role = "parameter"}) -> (tensor<f32> {graph.name = "loss"}) {
  %logits = graph.linear %x, %router : (tensor<4x5x8xf32>, tensor<4x8xf32>) -> tensor<4x5x4xf32>
  %v, %i = graph.top_k %logits {k = 2 : i64} : (tensor<4x5x4xf32>) -> (tensor<4x5x2xf32>, tensor<4x5x2xi64>)
  %r = graph.reshape %x : (tensor<4x5x8xf32>) -> tensor<4x5x1x8xf32>
  %rows = graph.broadcast %r : (tensor<4x5x1x8xf32>) -> tensor<4x5x2x8xf32>
  %0 = graph.grouped_linear %rows, %up, %i : (tensor<4x5x2x8xf32>, tensor<4x8x6xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x6xf32>
  %b = graph.gather %bias, %i {dim = 0 : i64} : (tensor<4x6xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x6xf32>
  %1 = graph.add %0, %b : (tensor<4x5x2x6xf32>, tensor<4x5x2x6xf32>) -> tensor<4x5x2x6xf32>
  %2 = graph.relu %1 : (tensor<4x5x2x6xf32>) -> tensor<4x5x2x6xf32>
  %3 = graph.grouped_linear %2, %down, %i : (tensor<4x5x2x6xf32>, tensor<4x6x8xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x8xf32>
  %w = graph.reshape %v : (tensor<4x5x2xf32>) -> tensor<4x5x2x1xf32>
  %4 = graph.mul %3, %w : (tensor<4x5x2x8xf32>, tensor<4x5x2x1xf32>) -> tensor<4x5x2x8xf32>
  %5 = graph.reduce sum %4 {dims = array<i64: 2>} : (tensor<4x5x2x8xf32>) -> tensor<4x5x8xf32>
  %6 = graph.add %x, %5 : (tensor<4x5x8xf32>, tensor<4x5x8xf32>) -> tensor<4x5x8xf32>
  %q = graph.mul %6, %6 : (tensor<4x5x8xf32>, tensor<4x5x8xf32>) -> tensor<4x5x8xf32>
  %7 = graph.reduce sum %q {dims = array<i64: 0, 1, 2>} : (tensor<4x5x8xf32>) -> tensor<f32>
  return %7 : tensor<f32>
}
