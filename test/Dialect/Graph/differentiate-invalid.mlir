// RUN: cleave-opt %s --split-input-file --verify-diagnostics --graph-differentiate

// expected-error@+1 {{there is no function '@loss'; the module has '@logits', '@other'}}
module {
  func.func @logits(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
  func.func @other(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}

// -----

// expected-error@+1 {{'@loss' must have one block}}
func.func private @loss(tensor<f32>) -> tensor<f32>

// -----

// expected-error@+1 {{'@loss' returns no loss to differentiate}}
func.func @loss(%x: tensor<f32> {graph.name = "x", graph.role = "parameter"}) {
  return
}

// -----

// expected-error@+1 {{result 0 of '@loss' has type 'tensor<2xf32>'; the loss must be a float tensor of rank 0}}
func.func @loss(%x: tensor<2xf32> {graph.name = "x", graph.role = "parameter"}) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}

// -----

// expected-error@+1 {{result 0 of '@loss' has type 'tensor<i64>'; the loss must be a float tensor of rank 0}}
func.func @loss(%x: tensor<i64>) -> tensor<i64> {
  return %x : tensor<i64>
}

// -----

// expected-error@+1 {{'@loss' has no parameter to train}}
func.func @loss(%x: tensor<f32> {graph.name = "x", graph.role = "parameter", graph.frozen}) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// expected-error@+1 {{a parameter, argument 0 of '@loss', has no 'graph.name'}}
func.func @loss(%x: tensor<f32> {graph.role = "parameter"}) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

func.func @loss(%x: tensor<f32> {graph.name = "x", graph.role = "parameter"},
                // expected-error@+1 {{two parameters of '@loss' are named "x"}}
                %y: tensor<f32> {graph.name = "x", graph.role = "parameter"}) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

func.func @loss(%x: tensor<f32> {graph.name = "x", graph.role = "parameter"},
                // expected-error@+1 {{parameter "n" has type 'tensor<i64>' and cannot be trained; mark it 'graph.frozen'}}
                %n: tensor<i64> {graph.name = "n", graph.role = "parameter"}) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// expected-error@+1 {{cannot create '@train': the name is taken}}
func.func @loss(%x: tensor<f32> {graph.name = "x", graph.role = "parameter"}) -> tensor<f32> {
  return %x : tensor<f32>
}
// expected-note@+1 {{by this}}
func.func @train() {
  return
}

// -----

// Losses that no parameter moves, and results that the update overwrites.

func.func @loss(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"}) -> tensor<f32> {
  // expected-error@+1 {{the loss of '@loss' is its parameter "w" itself: there is nothing to differentiate; return what ops compute from the parameters}}
  return %w : tensor<f32>
}

// -----

func.func @loss(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"}, %x: tensor<f32>) -> tensor<f32> {
  // expected-error@+1 {{the loss of '@loss' is its argument 1 itself}}
  return %x : tensor<f32>
}

// -----

func.func @loss(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                %x: tensor<4xf32> {graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %0 = graph.exp %w : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{the loss of '@loss' depends on no parameter that is trained: every gradient would be zero; compute it from a parameter, or take 'graph.frozen' from those that it reads}}
  %1 = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

// A flag passes no gradient on.

func.func @loss(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"},
                %x: tensor<f32> {graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %0 = graph.compare lt %w, %x : (tensor<f32>, tensor<f32>) -> tensor<i1>
  // expected-error@+1 {{the loss of '@loss' depends on no parameter that is trained}}
  %1 = graph.cast %0 : (tensor<i1>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

func.func @loss(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"}) -> (tensor<f32>, tensor<4xf32>) {
  %0 = graph.reduce sum %w {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  // expected-error@+1 {{'@loss' returns parameter "w" itself, which the training step overwrites; leave it out: a parameter is read by its name}}
  return %0, %w : tensor<f32>, tensor<4xf32>
}

// -----

// A table of angles that a parameter reaches.

func.func @loss(%x: tensor<1x1x2x4xf32> {graph.name = "x", graph.role = "parameter"},
                %t: tensor<2x4xf32> {graph.name = "t", graph.role = "parameter"}) -> tensor<f32> {
  // expected-error@+1 {{has no gradient for its tables of cosines and sines}}
  %0 = graph.rope %x, %t, %t : (tensor<1x1x2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<1x1x2x4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0, 1, 2, 3>} : (tensor<1x1x2x4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

// Steps are not differentiated again.

func.func @loss(%x: tensor<4xf32> {graph.name = "x", graph.role = "parameter"}) -> tensor<f32> {
  // expected-error@+1 {{has no gradient: it is part of a training step, which is not differentiated again}}
  %0 = graph.gelu_grad %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

func.func @loss(%x: tensor<1x1x2x4xf32> {graph.name = "x", graph.role = "parameter"}) -> tensor<f32> {
  // expected-error@+1 {{has no gradient through its log-sum-exp}}
  %0, %lse = graph.attention %x, %x, %x {scale = 1.0 : f64} : (tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>) -> (tensor<1x1x2x4xf32>, tensor<1x1x2xf32>)
  %1 = graph.reduce sum %lse {dims = array<i64: 0, 1, 2>} : (tensor<1x1x2xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

func.func private @opaque(tensor<f32>) -> tensor<f32>
func.func @loss(%x: tensor<f32> {graph.name = "x", graph.role = "parameter"}) -> tensor<f32> {
  // expected-error@+1 {{lies between a parameter and the loss, and has no gradient}}
  %0 = call @opaque(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
