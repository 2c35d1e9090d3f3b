// RUN: cleave-opt %s --spmd-apply-recipes=mesh=pp=3 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --pipe-split-stages=stages=b,c --split-input-file --verify-diagnostics

// The update of @c reads a scalar of @b, which only the stage of @b can compute
// before updates. It depends on the norm of all gradients, which the first
// stage computes then: part N of a stage cannot wait for an earlier stage's.

func.func @train(%a: tensor<8x8xf32> {graph.name = "a", graph.role = "parameter"}, %b: tensor<8x8xf32> {graph.name = "b", graph.role = "parameter"}, %c: tensor<8x8xf32> {graph.name = "c", graph.role = "parameter"},
  %x: tensor<4x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
  -> (tensor<f32> {graph.name = "loss"}, tensor<8x8xf32> {graph.updates = "a"}, tensor<8x8xf32> {graph.updates = "b"}, tensor<8x8xf32> {graph.updates = "c"}) {
  %v = graph.contract "bi,oi->bo" %x, %a : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %y = graph.tanh %v : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %z = graph.contract "bi,oi->bo" %y, %b : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %w = graph.contract "bi,oi->bo" %z, %c : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %l = graph.reduce sum %w {dims = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<f32>
  %one = graph.constant dense<1.0> : tensor<f32>
  %s = graph.seed %one : (tensor<f32>) -> tensor<f32>
  %dw = graph.mul %s, %w : (tensor<f32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %gc = graph.contract "bo,bi->oi" %dw, %z : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %c0 = graph.gradient %gc of "c" : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %dz = graph.contract "bo,oi->bi" %dw, %c : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %ez = graph.mul %dz, %z : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %gb = graph.contract "bo,bi->oi" %ez, %y : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %b0 = graph.gradient %gb of "b" : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %dy = graph.contract "bo,oi->bi" %ez, %b : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %ey = graph.mul %dy, %v : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %ga = graph.contract "bo,bi->oi" %ey, %x : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %a0 = graph.gradient %ga of "a" : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %sa = graph.reduce sum %a0 {dims = array<i64: 0, 1>} : (tensor<8x8xf32>) -> tensor<f32>
  %sb = graph.reduce sum %b0 {dims = array<i64: 0, 1>} : (tensor<8x8xf32>) -> tensor<f32>
  // expected-error @+1 {{is computed before the updates in stage 0 for stage 1, which computes for earlier stages only: begin the stages elsewhere (--stages)}}
  %sum = graph.add %sa, %sb : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %scaled = graph.mul %b, %sum : (tensor<8x8xf32>, tensor<f32>) -> tensor<8x8xf32>
  %factor = graph.reduce sum %scaled {dims = array<i64: 0, 1>} : (tensor<8x8xf32>) -> tensor<f32>
  %da = graph.mul %a0, %sum : (tensor<8x8xf32>, tensor<f32>) -> tensor<8x8xf32>
  %na = graph.add %a, %da : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %nb = graph.add %b, %b0 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %dc = graph.mul %c0, %factor : (tensor<8x8xf32>, tensor<f32>) -> tensor<8x8xf32>
  %nc = graph.add %c, %dc : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %l, %na, %nb, %nc : tensor<f32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
