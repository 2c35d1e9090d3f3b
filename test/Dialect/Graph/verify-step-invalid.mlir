// RUN: cleave-opt %s --graph-verify-step --split-input-file --verify-diagnostics

// A model is not a step yet.
// expected-error@below {{no entry has a result that updates a parameter}}
module {
  func.func @loss(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"})
      -> (tensor<f32> {graph.name = "loss"}) {
    %0 = graph.neg %w : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// Gradients are not updates.
func.func @train(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<f32> {graph.name = "w.grad", graph.of = "w"}) {
  %0 = graph.neg %w : (tensor<f32>) -> tensor<f32>
  %1 = graph.seed %0 : (tensor<f32>) -> tensor<f32>
  %2 = graph.neg %1 : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'graph.gradient' op is of "w", which no result updates}}
  %3 = graph.gradient %2 of "w" : (tensor<f32>) -> tensor<f32>
  return %0, %3 : tensor<f32>, tensor<f32>
}

// -----

func.func @train(%w: tensor<f32> {graph.frozen, graph.name = "w", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<f32> {graph.updates = "w"}) {
  %0 = graph.neg %w : (tensor<f32>) -> tensor<f32>
  %1 = graph.seed %0 : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'graph.gradient' op is of "w", which is not a trained parameter of '@train', nor state of one}}
  %2 = graph.gradient %1 of "w" : (tensor<f32>) -> tensor<f32>
  return %0, %2 : tensor<f32>, tensor<f32>
}

// -----

func.func @train(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<f32> {graph.updates = "w"}) {
  %0 = graph.neg %w : (tensor<f32>) -> tensor<f32>
  %1 = graph.seed %0 : (tensor<f32>) -> tensor<f32>
  %2 = graph.gradient %1 of "w" : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'graph.gradient' op is the second gradient of "w"}}
  %3 = graph.gradient %1 of "w" : (tensor<f32>) -> tensor<f32>
  %4 = graph.add %2, %3 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0, %4 : tensor<f32>, tensor<f32>
}

// -----

func.func @train(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<f32> {graph.updates = "v"}) {
  // expected-error@below {{the new value of "v" updates an argument that '@train' does not have}}
  %0 = graph.neg %w : (tensor<f32>) -> tensor<f32>
  return %0, %0 : tensor<f32>, tensor<f32>
}

// -----

func.func @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"})
    -> (tensor<f32> {graph.updates = "w"}) {
  // expected-error@below {{the new value of parameter "w" has type 'tensor<f32>', and the argument has type 'tensor<4xf32>'}}
  %0 = graph.reduce sum %w {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @train(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"})
    -> (tensor<f32> {graph.updates = "w"}, tensor<f32> {graph.updates = "w"}) {
  // expected-error@below {{the new value of parameter "w" is the second one of it}}
  %0 = graph.neg %w : (tensor<f32>) -> tensor<f32>
  return %0, %0 : tensor<f32>, tensor<f32>
}

// -----

func.func @train(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"}) -> tensor<f32> {
  // expected-error@below {{result 0 has neither 'graph.name' nor 'graph.updates'}}
  %0 = graph.neg %w : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @train(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}) {
  // expected-error@below {{'math.absf' op is not an op of a model}}
  %0 = math.absf %w : tensor<f32>
  return %0 : tensor<f32>
}
