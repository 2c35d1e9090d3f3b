// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --pipe-split-stages --split-input-file --verify-diagnostics

// A sum over all samples of what depends on a parameter cannot be known before
// forward.
func.func @f(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
             %x: tensor<6x4xf32> {graph.batch_dim = 0 : i64}) -> tensor<6x4xf32> {
  %a = graph.mul %x, %w : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  // expected-error @+1 {{is a sum over micro-batches of values that depend on parameters, and each micro-batch reads it}}
  %s = graph.reduce sum %a {dims = array<i64: 0>} : (tensor<6x4xf32>) -> tensor<4xf32>
  // expected-note @+1 {{it is read here}}
  %e = graph.exp %s : (tensor<4xf32>) -> tensor<4xf32>
  %b = graph.div %a, %e : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  return %b : tensor<6x4xf32>
}

// -----

// Nor is a maximum of such values.
func.func @f(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
             %x: tensor<6x4xf32> {graph.batch_dim = 0 : i64}) -> tensor<6x4xf32> {
  %a = graph.mul %x, %w : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  // expected-error @+1 {{this is a max over micro-batches of values that depend on parameters, and each micro-batch reads it}}
  %m = graph.reduce max %a {dims = array<i64: 0>} : (tensor<6x4xf32>) -> tensor<4xf32>
  // expected-note @+1 {{it is read here}}
  %b = graph.sub %a, %m : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  return %b : tensor<6x4xf32>
}

// -----

// A gradient is finished after all micro-batches.
func.func @f(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
             %x: tensor<6x4xf32> {graph.batch_dim = 0 : i64}) -> tensor<6x4xf32> {
  %one = graph.constant dense<1.0> : tensor<f32>
  %s = graph.seed %one : (tensor<f32>) -> tensor<f32>
  %t = graph.mul %x, %s : (tensor<6x4xf32>, tensor<f32>) -> tensor<6x4xf32>
  %g = graph.reduce sum %t {dims = array<i64: 0>} : (tensor<6x4xf32>) -> tensor<4xf32>
  %d = graph.gradient %g of "w" : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error @+1 {{depends on a finished gradient and on one micro-batch}}
  %y = graph.mul %x, %d : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  return %y : tensor<6x4xf32>
}
