// RUN: cleave-opt %s --split-input-file --verify-diagnostics

func.func @dims(%x: tensor<2x5xf32>) -> tensor<2x5xf32> {
  // expected-error @+1 {{needs an entry of worker_dims for each operand}}
  %y = graph.per_worker "graph.neg" of %x at [] to [0] with {} : (tensor<2x5xf32>) -> tensor<2x5xf32>
  return %y : tensor<2x5xf32>
}

// -----

func.func @last(%x: tensor<2x5xf32>) -> tensor<2x5xf32> {
  // expected-error @+1 {{operand of type 'tensor<2x5xf32>' cannot have the workers in dimension 1}}
  %y = graph.per_worker "graph.neg" of %x at [1] to [0] with {} : (tensor<2x5xf32>) -> tensor<2x5xf32>
  return %y : tensor<2x5xf32>
}

// -----

func.func @counts(%x: tensor<3x5xf32>) -> tensor<2x5xf32> {
  // expected-error @+1 {{operand of type 'tensor<3x5xf32>' has 3 workers, not 2 as the others}}
  %y = graph.per_worker "graph.neg" of %x at [0] to [0] with {} : (tensor<3x5xf32>) -> tensor<2x5xf32>
  return %y : tensor<2x5xf32>
}

// -----

func.func @unknown(%x: tensor<2x5xf32>) -> tensor<2x5xf32> {
  // expected-error @+1 {{there is no op 'graph.negate' that a worker could compute}}
  %y = graph.per_worker "graph.negate" of %x at [0] to [0] with {} : (tensor<2x5xf32>) -> tensor<2x5xf32>
  return %y : tensor<2x5xf32>
}

// -----

func.func @type(%x: tensor<2x5xf32>) -> tensor<2x4xf32> {
  // expected-error @+2 {{'graph.neg' op inferred type(s) 'tensor<5xf32>' are incompatible with return type(s) of operation 'tensor<4xf32>'}}
  // expected-error @+1 {{failed to infer returned types}}
  %y = graph.per_worker "graph.neg" of %x at [0] to [0] with {} : (tensor<2x5xf32>) -> tensor<2x4xf32>
  return %y : tensor<2x4xf32>
}
