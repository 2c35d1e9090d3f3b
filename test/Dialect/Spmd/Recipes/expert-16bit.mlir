// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision --spmd-apply-recipes="mesh=ep=2 recipes=expert" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s
// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision --spmd-apply-recipes="mesh=ep=2,tp=2 recipes=expert,megatron" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=SUMS
// RUN: cleave-opt %s --graph-differentiate --spmd-apply-recipes="mesh=ep=2 recipes=expert" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=WIDE

// Places of experts are sums in f32 of tokens and of gradients. Values that experts read as 16 bits are
// sent as such, forward and backward, and so are their gradients.

// CHECK-LABEL: func.func @train(
// CHECK-NOT: spmd.all_to_all {{.*}}f32>
// CHECK: spmd.all_to_all %{{.*}} over @mesh {"ep"} from 0 to 1 {{.*}} : tensor<4x4x4x6xbf16> -> tensor<8x2x4x6xbf16>
// CHECK: graph.contract "gech,efh->gecf"
// CHECK: spmd.all_to_all %{{.*}} over @mesh {"ep"} from 1 to 0 {{.*}} : tensor<8x2x4x9xbf16> -> tensor<4x4x4x9xbf16>
// CHECK: spmd.all_to_all %{{.*}} over @mesh {"ep"} from 0 to 1 {{.*}} : tensor<4x4x4x9xbf16> -> tensor<8x2x4x9xbf16>
// CHECK: %[[SUM:.*]] = graph.contract "gecf,efh->gech" {{.*}} -> tensor<8x2x4x6xf32>
// CHECK: %[[SENT:.*]] = graph.cast %[[SUM]] {{.*}} -> tensor<8x2x4x6xbf16>
// CHECK: spmd.all_to_all %[[SENT]] over @mesh {"ep"} from 1 to 0 {{.*}} : tensor<8x2x4x6xbf16> -> tensor<4x4x4x6xbf16>
// CHECK-NOT: spmd.all_to_all

// Where ranks share the inner features of experts this gradient is a partial sum.
// It is scattered in f32, and rounded, and sent as slices, which tokens read. So
// are outputs, if the ranks divide their features.

// SUMS-LABEL: func.func @train(
// SUMS: spmd.all_reduce sum %{{.*}} over @mesh {"tp"} {{.*}} : tensor<8x2x4x9xf32>
// SUMS-NOT: spmd.all_to_all {{.*}}f32>
// SUMS: graph.seed
// SUMS-NOT: spmd.all_to_all {{.*}}f32>
// SUMS: %[[SUM:.*]] = spmd.reduce_scatter sum %{{.*}} by <@mesh, [{}, {}, {}, {"tp"}]> {{.*}} : tensor<8x2x4x6xf32> -> tensor<8x2x4x3xf32>
// SUMS: %[[SENT:.*]] = graph.cast %[[SUM]] {{.*}} -> tensor<8x2x4x3xbf16>
// SUMS: spmd.all_to_all %[[SENT]] over @mesh {"ep"} from 1 to 0 {{.*}} : tensor<8x2x4x3xbf16> -> tensor<4x4x4x3xbf16>
// SUMS-NOT: spmd.all_gather
// SUMS: graph.gather {{.*}} : (tensor<4x16x3xf32>, tensor<4x8xi64>) -> tensor<4x8x3xf32>
// SUMS-NOT: spmd.all_to_all

// WIDE-LABEL: func.func @train(
// WIDE-COUNT-4: spmd.all_to_all {{.*}}f32>
// WIDE-NOT: spmd.all_to_all
func.func @loss(%x: tensor<8x8x6xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %p: tensor<8x8xi64> {graph.batch_dim = 0 : i64, graph.name = "p", graph.role = "input"},
    %scale: tensor<6xf32> {graph.name = "scale", graph.role = "parameter"},
    %up: tensor<4x10x6xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<4x10x9xf32> {graph.name = "down", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %m = graph.mul %x, %scale : (tensor<8x8x6xf32>, tensor<6xf32>) -> tensor<8x8x6xf32>
  %s = graph.scatter_add %m, %p {dim = 1 : i64, size = 16 : i64, batch = 1 : i64} : (tensor<8x8x6xf32>, tensor<8x8xi64>) -> tensor<8x16x6xf32>
  %d = graph.reshape %s : (tensor<8x16x6xf32>) -> tensor<8x4x4x6xf32>
  %y = graph.contract "gech,efh->gecf" %d, %up : (tensor<8x4x4x6xf32>, tensor<4x10x6xf32>) -> tensor<8x4x4x10xf32>
  %a = graph.relu %y : (tensor<8x4x4x10xf32>) -> tensor<8x4x4x10xf32>
  %z = graph.contract "gecf,efh->gech" %a, %down : (tensor<8x4x4x10xf32>, tensor<4x10x9xf32>) -> tensor<8x4x4x9xf32>
  %f = graph.reshape %z : (tensor<8x4x4x9xf32>) -> tensor<8x16x9xf32>
  %c = graph.gather %f, %p {dim = 1 : i64, batch = 1 : i64} : (tensor<8x16x9xf32>, tensor<8x8xi64>) -> tensor<8x8x9xf32>
  %q = graph.mul %c, %c : (tensor<8x8x9xf32>, tensor<8x8x9xf32>) -> tensor<8x8x9xf32>
  %loss = graph.reduce sum %q {dims = array<i64: 0, 1, 2>} : (tensor<8x8x9xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
