// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision --spmd-apply-recipes="mesh=tp=2 recipes=megatron-sp,expert(tp)" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s
// RUN: cleave-opt %s --graph-differentiate --spmd-apply-recipes="mesh=tp=2 recipes=megatron-sp,expert(tp)" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=WIDE

// Outputs of experts are rounded to 16 bits for each token. The gradients that
// tokens send to experts are so, too, before ranks that share the sequence gather
// them. Without mixed precision the experts compute in 32 bits; what the model
// rounds itself is sent as it is there.

// CHECK-LABEL: func.func @train(
// CHECK: graph.seed
// CHECK: %[[SCALED:.*]] = graph.mul {{.*}} : (tensor<4x3x8xf32>, tensor<4x3x1xf32>)
// CHECK: %[[ROUNDED:.*]] = graph.cast %[[SCALED]] {{.*}} -> tensor<4x3x8xbf16>
// CHECK: %[[SENT:.*]] = spmd.all_gather %[[ROUNDED]] by <@mesh, [{}, {"tp"}, {}]> {{.*}} : tensor<4x3x8xbf16> -> tensor<4x6x8xbf16>
// CHECK: %[[READ:.*]] = graph.cast %[[SENT]] {{.*}} -> tensor<4x6x8xf32>
// CHECK: graph.scatter_add %[[READ]],
// CHECK-NOT: spmd.all_gather {{.*}}f32>
// CHECK: return

// WIDE-LABEL: func.func @train(
// WIDE: spmd.all_gather {{.*}} : tensor<4x3x8xf32> -> tensor<4x6x8xf32>
// WIDE: graph.seed
func.func @loss(%x: tensor<4x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %p: tensor<4x6xi64> {graph.batch_dim = 0 : i64, graph.name = "p", graph.role = "input"},
    %w: tensor<4x6xf32> {graph.batch_dim = 0 : i64, graph.name = "w", graph.role = "input"},
    %up: tensor<10x8xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<8x10xf32> {graph.name = "down", graph.role = "parameter"},
    %experts: tensor<4x8x8xf32> {graph.name = "experts", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %h = graph.linear %x, %up : (tensor<4x6x8xf32>, tensor<10x8xf32>) -> tensor<4x6x10xf32>
  %a = graph.relu %h : (tensor<4x6x10xf32>) -> tensor<4x6x10xf32>
  %y = graph.linear %a, %down : (tensor<4x6x10xf32>, tensor<8x10xf32>) -> tensor<4x6x8xf32>
  %r = graph.add %x, %y : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %s = graph.scatter_add %r, %p {dim = 1 : i64, size = 12 : i64, batch = 1 : i64} : (tensor<4x6x8xf32>, tensor<4x6xi64>) -> tensor<4x12x8xf32>
  %d = graph.reshape %s : (tensor<4x12x8xf32>) -> tensor<4x4x3x8xf32>
  %e = graph.contract "gech,efh->gecf" %d, %experts : (tensor<4x4x3x8xf32>, tensor<4x8x8xf32>) -> tensor<4x4x3x8xf32>
  %f = graph.reshape %e : (tensor<4x4x3x8xf32>) -> tensor<4x12x8xf32>
  %c = graph.gather %f, %p {dim = 1 : i64, batch = 1 : i64} : (tensor<4x12x8xf32>, tensor<4x6xi64>) -> tensor<4x6x8xf32>
  %w1 = graph.reshape %w : (tensor<4x6xf32>) -> tensor<4x6x1xf32>
  %m = graph.mul %c, %w1 : (tensor<4x6x8xf32>, tensor<4x6x1xf32>) -> tensor<4x6x8xf32>
  %b = graph.cast %m : (tensor<4x6x8xf32>) -> tensor<4x6x8xbf16>
  %z = graph.cast %b : (tensor<4x6x8xbf16>) -> tensor<4x6x8xf32>
  %t = graph.add %r, %z : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %q = graph.mul %t, %t : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %loss = graph.reduce sum %q {dims = array<i64: 0, 1, 2>} : (tensor<4x6x8xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
