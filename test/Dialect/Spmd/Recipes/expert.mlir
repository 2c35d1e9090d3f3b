// RUN: cleave-opt %s --spmd-apply-recipes="mesh=dp=2,ep=2 recipes=expert" | FileCheck %s
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=ep=2,dp=2 recipes=expert" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-verify | FileCheck %s --check-prefix=LOCAL

// Experts lie in parts where each has weights of its own; what is sent to them
// enters, and what they made leaves, also in backward. Samples are split over
// the axis too, behind those that are samples' alone. What adds up experts (%l2)
// needs no crossing.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: graph.name = "up", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"ep"}, {}, {}]>}
// CHECK-SAME: graph.name = "x", graph.role = "input", spmd.sharding = #spmd.sharding<@mesh, [{"dp", "ep"}, {}, {}]>}
// CHECK: %[[S:.*]] = graph.scatter_add
// CHECK: %[[X:.*]] = graph.reshape %[[S]]
// CHECK: %[[XE:.*]] = spmd.constrain %[[X]] to <@mesh, [{?}, {"ep"}, {?}, {?}]>
// CHECK: %[[Y:.*]] = graph.contract "gech,efh->gecf" %[[XE]], %{{.*}}
// CHECK: %[[A:.*]] = graph.relu %[[Y]]
// CHECK: %[[AL:.*]] = spmd.constrain %[[A]] to <@mesh, [{?}, {}, {?}, {?}]>
// CHECK: graph.reshape %[[AL]]
// CHECK: graph.gather
// CHECK: %[[T:.*]] = graph.mul %[[A]], %[[A]]
// CHECK: graph.reduce sum %[[T]]
// CHECK: graph.seed
// CHECK: %[[D:.*]] = graph.reshape {{.*}} -> tensor<8x4x3x5xf32>
// CHECK: %[[DE:.*]] = spmd.constrain %[[D]] to <@mesh, [{?}, {"ep"}, {?}, {?}]>
// CHECK: graph.contract "gecf,gech->efh" %[[DE]], %[[XE]]

// Each crossing is one all-to-all of a device's experts' places and samples; what
// the axis of samples alone splits stays split.

// LOCAL-LABEL: func.func @train(
// LOCAL-SAME: tensor<2x5x6xf32> {graph.name = "up"
// LOCAL-SAME: tensor<2x7x6xf32> {{{.*}}graph.name = "x", {{.*}}#spmd.sharding<@mesh, [{"mb", "dp", "ep"}, {}, {}]>}
// LOCAL-NOT: spmd.all_gather
// LOCAL: spmd.all_to_all {{.*}} over @mesh {"ep"} from 0 to 1 {{.*}}: tensor<2x4x3x6xf32> -> tensor<4x2x3x6xf32>
// LOCAL: graph.contract {{.*}}(tensor<4x2x3x6xf32>, tensor<2x5x6xf32>) -> tensor<4x2x3x5xf32>
// LOCAL: spmd.all_to_all {{.*}} over @mesh {"ep"} from 1 to 0 {{.*}}: tensor<4x2x3x5xf32> -> tensor<2x4x3x5xf32>
// LOCAL: graph.gather {{.*}} {batch = 1
// LOCAL: spmd.all_to_all {{.*}} over @mesh {"ep"} from 0 to 1
// LOCAL: graph.contract "gecf,gech->efh"
// LOCAL: spmd.all_reduce sum {{.*}} over @mesh {"dp"} {{.*}}tensor<2x5x6xf32>
// LOCAL-NOT: spmd.all_to_all
// LOCAL: return
func.func @train(
    %up: tensor<4x5x6xf32> {graph.name = "up", graph.role = "parameter"},
    %x: tensor<8x7x6xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %p: tensor<8x7xi64> {graph.batch_dim = 0 : i64, graph.name = "p", graph.role = "input"},
    %lr: tensor<f32> {graph.name = "lr", graph.role = "scalar"},
    %step: tensor<i64> {graph.name = "step", graph.role = "scalar"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4x5x6xf32> {graph.updates = "up"}) {
  %s = graph.scatter_add %x, %p {dim = 1 : i64, size = 12 : i64, batch = 1 : i64} : (tensor<8x7x6xf32>, tensor<8x7xi64>) -> tensor<8x12x6xf32>
  %d = graph.reshape %s : (tensor<8x12x6xf32>) -> tensor<8x4x3x6xf32>
  %y = graph.contract "gech,efh->gecf" %d, %up : (tensor<8x4x3x6xf32>, tensor<4x5x6xf32>) -> tensor<8x4x3x5xf32>
  %a = graph.relu %y : (tensor<8x4x3x5xf32>) -> tensor<8x4x3x5xf32>
  %f = graph.reshape %a : (tensor<8x4x3x5xf32>) -> tensor<8x12x5xf32>
  %c = graph.gather %f, %p {dim = 1 : i64, batch = 1 : i64} : (tensor<8x12x5xf32>, tensor<8x7xi64>) -> tensor<8x7x5xf32>
  %l1 = graph.reduce sum %c {dims = array<i64: 0, 1, 2>} : (tensor<8x7x5xf32>) -> tensor<f32>
  %t = graph.mul %a, %a : (tensor<8x4x3x5xf32>, tensor<8x4x3x5xf32>) -> tensor<8x4x3x5xf32>
  %l2 = graph.reduce sum %t {dims = array<i64: 0, 1, 2, 3>} : (tensor<8x4x3x5xf32>) -> tensor<f32>
  %loss = graph.add %l1, %l2 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dc = graph.mul %c, %seed : (tensor<8x7x5xf32>, tensor<f32>) -> tensor<8x7x5xf32>
  %ds = graph.scatter_add %dc, %p {dim = 1 : i64, size = 12 : i64, batch = 1 : i64} : (tensor<8x7x5xf32>, tensor<8x7xi64>) -> tensor<8x12x5xf32>
  %dy = graph.reshape %ds : (tensor<8x12x5xf32>) -> tensor<8x4x3x5xf32>
  %dw = graph.contract "gecf,gech->efh" %dy, %d : (tensor<8x4x3x5xf32>, tensor<8x4x3x6xf32>) -> tensor<4x5x6xf32>
  %g = graph.gradient %dw of "up" : (tensor<4x5x6xf32>) -> tensor<4x5x6xf32>
  %new = graph.sgd %up, %g lr %lr, %step {momentum = 0.0 : f64, dampening = 0.0 : f64, weight_decay = 0.0 : f64} : (tensor<4x5x6xf32>, tensor<4x5x6xf32>, tensor<f32>, tensor<i64>) -> tensor<4x5x6xf32>
  return %loss, %new : tensor<f32>, tensor<4x5x6xf32>
}
