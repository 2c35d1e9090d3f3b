// RUN: cleave-opt %s --split-input-file --verify-diagnostics --graph-differentiate --graph-apply-optimizer="optimizer=sgd"

module {
  // expected-error @+1 {{parameter "w": the module has no update '@own' in '@updates'}}
  func.func @loss(%x: tensor<2x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}, %w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter", graph.optimizer = {rule = "@own"}}) -> (tensor<f32> {graph.name = "loss"}) {
    %y = graph.linear %x, %w : (tensor<2x8xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
    %loss = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
    return %loss : tensor<f32>
  }
}

// -----

module {
  module @updates {
    func.func @own(%p: tensor<4x8xf32> {graph.role = "parameter"}) -> tensor<4x8xf32> {
      return %p : tensor<4x8xf32>
    }
  }
  // expected-error @+1 {{parameter "w": the update '@own' has not the arguments parameter and gradient first}}
  func.func @loss(%x: tensor<2x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}, %w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter", graph.optimizer = {rule = "@own"}}) -> (tensor<f32> {graph.name = "loss"}) {
    %y = graph.linear %x, %w : (tensor<2x8xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
    %loss = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
    return %loss : tensor<f32>
  }
}

// -----

module {
  module @updates {
    func.func @own(%p: tensor<4x8xf32> {graph.role = "parameter"}, %g: tensor<4x8xf32> {graph.role = "gradient"}, %m: tensor<4x8xf32> {graph.name = "m", graph.role = "state"}) -> tensor<4x8xf32> {
      return %p : tensor<4x8xf32>
    }
  }
  // expected-error @+1 {{parameter "w": the update '@own' does not return its parameter and its state}}
  func.func @loss(%x: tensor<2x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}, %w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter", graph.optimizer = {rule = "@own"}}) -> (tensor<f32> {graph.name = "loss"}) {
    %y = graph.linear %x, %w : (tensor<2x8xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
    %loss = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
    return %loss : tensor<f32>
  }
}

// -----

module {
  module @updates {
    func.func @own(%p: tensor<8x4xf32> {graph.role = "parameter"}, %g: tensor<8x4xf32> {graph.role = "gradient"}) -> tensor<8x4xf32> {
      return %p : tensor<8x4xf32>
    }
  }
  // expected-error @+1 {{parameter "w": its update '@own' is of another shape than 4x8}}
  func.func @loss(%x: tensor<2x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}, %w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter", graph.optimizer = {rule = "@own"}}) -> (tensor<f32> {graph.name = "loss"}) {
    %y = graph.linear %x, %w : (tensor<2x8xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
    %loss = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
    return %loss : tensor<f32>
  }
}

// -----

module {
  module @updates {
    func.func @own(%p: tensor<4x8xf32> {graph.role = "parameter"}, %g: tensor<4x8xf32> {graph.role = "gradient"}, %m: tensor<4xf32> {graph.name = "m", graph.role = "state"}) -> (tensor<4x8xf32>, tensor<4xf32>) {
      return %p, %m : tensor<4x8xf32>, tensor<4xf32>
    }
  }
  // expected-error @+1 {{parameter "w": state 'm' of its update '@own' has neither the parameter's shape nor is it a number}}
  func.func @loss(%x: tensor<2x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}, %w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter", graph.optimizer = {rule = "@own"}}) -> (tensor<f32> {graph.name = "loss"}) {
    %y = graph.linear %x, %w : (tensor<2x8xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
    %loss = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
    return %loss : tensor<f32>
  }
}
