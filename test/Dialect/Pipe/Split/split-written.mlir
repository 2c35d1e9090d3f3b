// RUN: cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=stages=v --pipe-schedule --pipe-verify | FileCheck %s

// What a step writes to buffers of the gradient of the first stage is computed
// and held in this stage alone: the scale, which its backward reads, and the
// history, which only the new scale reads. The maximum is that of all
// micro-batches.

// CHECK-LABEL: pipe.program @train(
// CHECK: pipe.invoke @train.B({{.*}}) {part = "B", split = array<i64: {{.*}}>, results = [{{.*}}"accumulate:max"{{.*}}]}
// CHECK: pipe.invoke @train.U({{.*}}) {part = "U", once, split = {{.*}}, results = ["value", "value", "value"]}
// CHECK: pipe.invoke @train.1U({{.*}}) {part = "U", stage = 1, once, split = {{.*}}, results = ["value"]}

// CHECK-LABEL: func.func private @train.U(
// CHECK-DAG: graph.written %{{.*}} of "scale"
// CHECK-DAG: graph.written %{{.*}} of "history"

// CHECK-LABEL: func.func private @train.1U(
// CHECK-NOT: graph.written
func.func @train(%x: tensor<4x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                 %w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                 %u: tensor<4x4xf32> {graph.name = "u", graph.role = "parameter", graph.frozen},
                 %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                 %scale: tensor<f32> {graph.name = "scale", graph.role = "state"},
                 %history: tensor<2xf32> {graph.name = "history", graph.role = "state"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4x4xf32> {graph.updates = "w"}, tensor<4x4xf32> {graph.updates = "v"},
        tensor<2xf32> {graph.updates = "history"}, tensor<f32> {graph.updates = "scale"}) {
  %h = graph.linear %x, %w : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %k = graph.linear %h, %u : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = graph.tanh %k : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %y = graph.linear %t, %v : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<4x4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dy = graph.mul %y, %seed : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %dv = graph.contract "bo,bi->oi" %dy, %t : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dt = graph.contract "bo,oi->bi" %dy, %v : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dk = graph.mul %dt, %t : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dh = graph.contract "bo,oi->bi" %dk, %u : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %scaled = graph.mul %dh, %scale : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %dw = graph.contract "bo,bi->oi" %scaled, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %gw = graph.gradient %dw of "w" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %gv = graph.gradient %dv of "v" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %w1 = graph.sub %w, %gw : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %v1 = graph.sub %v, %gv : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %amax = graph.reduce max %dh {dims = array<i64: 0, 1>} : (tensor<4x4xf32>) -> tensor<f32>
  %one = graph.reshape %amax : (tensor<f32>) -> tensor<1xf32>
  %old = graph.slice %history {offsets = array<i64: 1>, sizes = array<i64: 1>, strides = array<i64: 1>} : (tensor<2xf32>) -> tensor<1xf32>
  %before = graph.reshape %old : (tensor<1xf32>) -> tensor<f32>
  %most = graph.maximum %before, %amax : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %new = graph.concat %old, %one {dim = 0 : i64} : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
  %history1 = graph.written %new of "history" : (tensor<2xf32>) -> tensor<2xf32>
  %scale1 = graph.written %most of "scale" : (tensor<f32>) -> tensor<f32>
  return %loss, %w1, %v1, %history1, %scale1 : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<2xf32>, tensor<f32>
}
