// RUN: cleave-opt %s --graph-verify-model --split-input-file --verify-diagnostics

// expected-error@below {{there is no function '@loss'; the module has '@score'}}
module {
  func.func @score(%x: tensor<f32> {graph.name = "x"}) -> tensor<f32> {
    return %x : tensor<f32>
  }
}

// -----

func.func private @external(tensor<f32>)
// expected-error@below {{a value, argument 1 of '@loss', has no 'graph.name'}}
func.func @loss(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"}, %x: tensor<f32>) -> tensor<f32> {
  %0 = graph.mul %w, %x : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @loss(
    %w: tensor<f32> {graph.name = "w", graph.role = "parameter"},
    // expected-error@below {{two arguments of '@loss' are named "w"; a tied tensor is one argument with 'graph.aliases'}}
    %v: tensor<f32> {graph.name = "w", graph.role = "parameter"}) -> tensor<f32> {
  %0 = graph.mul %w, %v : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error@below {{result 0 of '@loss' has type 'tensor<4xf32>'; the loss must be a float tensor of rank 0}}
func.func @loss(%w: tensor<4xf32> {graph.name = "w"}) -> tensor<4xf32> {
  %0 = graph.neg %w : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// expected-error@below {{result "count" of '@loss' has type 'tensor<i64>'; the loss must be a float tensor of rank 0}}
func.func @loss(%w: tensor<f32> {graph.name = "w"}, %n: tensor<i64> {graph.name = "n"})
    -> (tensor<f32>, tensor<i64> {graph.loss, graph.name = "count"}) {
  return %w, %n : tensor<f32>, tensor<i64>
}

// -----

// expected-error@below {{'@loss' returns no loss to differentiate}}
func.func @loss(%w: tensor<f32> {graph.name = "w"}) {
  return
}

// -----

func.func @loss(%w: tensor<f32> {graph.name = "w"}) -> tensor<f32> {
  // expected-error@below {{'arith.constant' op is not an op of a model}}
  %0 = arith.constant dense<1.0> : tensor<f32>
  return %0 : tensor<f32>
}
