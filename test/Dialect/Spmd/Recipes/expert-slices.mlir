// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision --spmd-apply-recipes="mesh=cp=4,tp=2 recipes=context,megatron" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s
// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision --spmd-apply-recipes="mesh=cp=2,tp=2 recipes=context,megatron" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=TWO

// Ranks that share a sequence fill places of experts together, and each computes some of them. Where other
// ranks share inner features, outputs are partial sums: these are scattered over them in f32 and rounded, and
// slices are gathered over the sequence. Choices of a token are added up in slices, and only tokens are
// gathered. With more than two ranks of a sequence places are filled in slices, too.

// CHECK-LABEL: func.func @train(
// CHECK: %[[P:.*]] = graph.scatter_add {{.*}} : (tensor<2x4x3xbf16>, tensor<2x4xi64>) -> tensor<2x16x3xf32>
// CHECK: %[[F:.*]] = spmd.reduce_scatter sum %{{.*}} by <@mesh, [{}, {}, {"cp"}, {}]> {{.*}} : tensor<2x4x4x3xf32> -> tensor<2x4x1x3xf32>
// CHECK: %[[R:.*]] = graph.cast %[[F]] {{.*}} -> tensor<2x4x1x3xbf16>
// CHECK: %[[W:.*]] = spmd.all_gather %[[R]] by <@mesh, [{}, {}, {}, {"tp"}]> {{.*}} -> tensor<2x4x1x6xbf16>
// CHECK: graph.contract "gech,efh->gecf" %[[W]]
// CHECK: %[[S:.*]] = spmd.reduce_scatter sum %{{.*}} by <@mesh, [{}, {}, {}, {"tp"}]> {{.*}} : tensor<2x4x1x6xf32> -> tensor<2x4x1x3xf32>
// CHECK: %[[N:.*]] = graph.cast %[[S]] {{.*}} -> tensor<2x4x1x3xbf16>
// CHECK: spmd.all_gather %[[N]] by <@mesh, [{}, {}, {"cp"}, {}]> {{.*}} -> tensor<2x4x4x3xbf16>
// CHECK: %[[T:.*]] = graph.reduce sum %{{.*}} -> tensor<2x2x3xf32>
// CHECK: spmd.all_gather %[[T]] by <@mesh, [{}, {}, {"tp"}]> {{.*}} -> tensor<2x2x6xf32>
// CHECK: graph.seed
// CHECK: graph.scatter_add {{.*}} : (tensor<2x4x3xf32>, tensor<2x4xi64>) -> tensor<2x16x3xf32>
// CHECK: graph.gather {{.*}} : (tensor<2x16x3xf32>, tensor<2x4xi64>) -> tensor<2x4x3xf32>

// TWO-LABEL: func.func @train(
// TWO: graph.scatter_add {{.*}} -> tensor<2x16x6xf32>
// TWO: spmd.reduce_scatter sum %{{.*}} by <@mesh, [{}, {}, {"cp"}, {}]> {{.*}} : tensor<2x4x4x6xf32> -> tensor<2x4x2x6xf32>
// TWO: %[[S:.*]] = spmd.reduce_scatter sum %{{.*}} by <@mesh, [{}, {}, {}, {"tp"}]> {{.*}} : tensor<2x4x2x6xf32> -> tensor<2x4x2x3xf32>
// TWO: %[[N:.*]] = graph.cast %[[S]] {{.*}} -> tensor<2x4x2x3xbf16>
// TWO: spmd.all_gather %[[N]] by <@mesh, [{}, {}, {"cp"}, {}]> {{.*}} -> tensor<2x4x4x3xbf16>
// TWO: %[[T:.*]] = graph.reduce sum %{{.*}} -> tensor<2x4x3xf32>
// TWO: spmd.all_gather %[[T]] by <@mesh, [{}, {}, {"tp"}]> {{.*}} -> tensor<2x4x6xf32>
// TWO: graph.seed
// TWO: graph.scatter_add {{.*}} -> tensor<2x16x6xf32>
func.func @loss(%ids: tensor<2x8xi64> {graph.batch_dim = 0 : i64, graph.name = "ids", graph.role = "input"},
    %places: tensor<2x8x2xi64> {graph.batch_dim = 0 : i64, graph.name = "places", graph.role = "input"},
    %table: tensor<10x6xf32> {graph.name = "table", graph.role = "parameter"},
    %up: tensor<4x10x6xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<4x6x10xf32> {graph.name = "down", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %p = graph.reshape %places : (tensor<2x8x2xi64>) -> tensor<2x16xi64>
  %x = graph.gather %table, %ids {dim = 0 : i64} : (tensor<10x6xf32>, tensor<2x8xi64>) -> tensor<2x8x6xf32>
  %h = graph.gelu %x : (tensor<2x8x6xf32>) -> tensor<2x8x6xf32>
  %one = graph.reshape %h : (tensor<2x8x6xf32>) -> tensor<2x8x1x6xf32>
  %two = graph.broadcast %one : (tensor<2x8x1x6xf32>) -> tensor<2x8x2x6xf32>
  %t = graph.reshape %two : (tensor<2x8x2x6xf32>) -> tensor<2x16x6xf32>
  %s = graph.scatter_add %t, %p {dim = 1 : i64, size = 16 : i64, batch = 1 : i64} : (tensor<2x16x6xf32>, tensor<2x16xi64>) -> tensor<2x16x6xf32>
  %d = graph.reshape %s : (tensor<2x16x6xf32>) -> tensor<2x4x4x6xf32>
  %y = graph.contract "gech,efh->gecf" %d, %up : (tensor<2x4x4x6xf32>, tensor<4x10x6xf32>) -> tensor<2x4x4x10xf32>
  %a = graph.relu %y : (tensor<2x4x4x10xf32>) -> tensor<2x4x4x10xf32>
  %z = graph.contract "gecf,ehf->gech" %a, %down : (tensor<2x4x4x10xf32>, tensor<4x6x10xf32>) -> tensor<2x4x4x6xf32>
  %f = graph.reshape %z : (tensor<2x4x4x6xf32>) -> tensor<2x16x6xf32>
  %c = graph.gather %f, %p {dim = 1 : i64, batch = 1 : i64} : (tensor<2x16x6xf32>, tensor<2x16xi64>) -> tensor<2x16x6xf32>
  %k = graph.reshape %c : (tensor<2x16x6xf32>) -> tensor<2x8x2x6xf32>
  %o = graph.reduce sum %k {dims = array<i64: 2>} : (tensor<2x8x2x6xf32>) -> tensor<2x8x6xf32>
  %r = graph.add %h, %o : (tensor<2x8x6xf32>, tensor<2x8x6xf32>) -> tensor<2x8x6xf32>
  %q = graph.mul %r, %r : (tensor<2x8x6xf32>, tensor<2x8x6xf32>) -> tensor<2x8x6xf32>
  %loss = graph.reduce sum %q {dims = array<i64: 0, 1, 2>} : (tensor<2x8x6xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
