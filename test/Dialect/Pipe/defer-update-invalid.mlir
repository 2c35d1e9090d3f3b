// RUN: cleave-opt %s --split-input-file --verify-diagnostics --pipe-defer-update

// What is made of samples is not known in the next step.
spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]
func.func @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                 %x: tensor<4xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4xf32> {graph.updates = "w"}) {
  %a = graph.mul %w, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %loss = graph.reduce sum %a {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dw = graph.mul %x, %seed : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %g = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
  %p = graph.mul %w, %g : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // expected-error @+1 {{is an update that depends on samples: --optimizer-fusion=forward cannot defer it to the next step}}
  %w1 = graph.sub %p, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %loss, %w1 : tensor<f32>, tensor<4xf32>
}

// -----

// A result that reads the new parameter belongs to this step.
spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]
func.func @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                 %x: tensor<4xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4xf32> {graph.updates = "w"}, tensor<f32> {graph.name = "size"}) {
  %a = graph.mul %w, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %loss = graph.reduce sum %a {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dw = graph.mul %x, %seed : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %g = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
  %w1 = graph.sub %w, %g : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // expected-error @+1 {{this reads the result of an update, which --optimizer-fusion=forward defers to the next step}}
  %size = graph.reduce sum %w1 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %loss, %w1, %size : tensor<f32>, tensor<4xf32>, tensor<f32>
}

// -----

// There is nothing to defer.
spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]
// expected-error @+1 {{has no update that depends on a gradient and that --optimizer-fusion=forward could defer}}
func.func @train(%x: tensor<4xf32> {graph.name = "x", graph.role = "input"}) -> (tensor<f32> {graph.name = "loss"}) {
  %loss = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  return %seed : tensor<f32>
}

// -----

// The name of the entry is taken.
spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]
func.func private @update()
// expected-error @+1 {{defers updates to the next step, and the name '@update' of the entry for the last of them is already used}}
func.func @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                 %x: tensor<4xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4xf32> {graph.updates = "w"}) {
  %a = graph.mul %w, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %loss = graph.reduce sum %a {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dw = graph.mul %x, %seed : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %g = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
  %w1 = graph.sub %w, %g : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %loss, %w1 : tensor<f32>, tensor<4xf32>
}
