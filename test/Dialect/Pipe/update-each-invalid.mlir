// RUN: cleave-opt %s --pipe-update-each=micro-batches=2 --split-input-file --verify-diagnostics

// What two stages hold.
module {
  spmd.mesh @mesh <["mb" = 1, "pp" = 2]> sequential ["mb"]
  // expected-error @below {{'w' is held by stages 0 and 1, which an asynchronous schedule updates at different times}}
  func.func private @train.U(%w: tensor<4xf32>) -> tensor<4xf32> {
    return %w : tensor<4xf32>
  }
  pipe.program @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"})
      -> (tensor<4xf32> {graph.updates = "w"}, tensor<4xf32> {graph.updates = "w", pipe.copy = 1 : i64})
      attributes {micro_batches = 1 : i64} {
    %0 = pipe.invoke @train.U(%w) {part = "U", once, split = array<i64: -1>, results = ["value"]} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = pipe.invoke @train.U(%w) {part = "U", stage = 1, once, split = array<i64: -1>, results = ["value"]} : (tensor<4xf32>) -> tensor<4xf32>
    pipe.return %0, %1 : tensor<4xf32>, tensor<4xf32>
  }
}

// -----

// An update that waits for another stage.
module {
  spmd.mesh @mesh <["mb" = 1, "pp" = 2]> sequential ["mb"]
  func.func private @train.N(%w: tensor<4xf32>) -> tensor<f32> {
    %0 = graph.reduce sum %w {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  // expected-error @below {{the update of stage 1 reads this of stage 0: with an asynchronous schedule no stage waits for the gradients of earlier ones}}
  func.func private @train.U(%w: tensor<4xf32>, %n: tensor<f32>) -> tensor<4xf32> {
    %0 = graph.mul %w, %n : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  pipe.program @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                      %v: tensor<4xf32> {graph.name = "v", graph.role = "parameter"})
      -> (tensor<4xf32> {graph.updates = "w"})
      attributes {micro_batches = 1 : i64} {
    %0 = pipe.invoke @train.N(%v) {part = "N", once, split = array<i64: -1>, results = ["value"]} : (tensor<4xf32>) -> tensor<f32>
    %1 = pipe.invoke @train.U(%w, %0) {part = "U", stage = 1, once, split = array<i64: -1, -1>, results = ["value"]} : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    pipe.return %1 : tensor<4xf32>
  }
}

// -----

// A check of what is updated.
module {
  spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]
  func.func private @train.U(%w: tensor<i1>) -> tensor<i1> {
    // expected-error @below {{of gradients stops a step as a whole, of which an asynchronous schedule has made updates by then}}
    graph.check %w, "no" : tensor<i1>
    return %w : tensor<i1>
  }
  pipe.program @train(%w: tensor<i1> {graph.name = "w", graph.role = "parameter"})
      -> (tensor<i1> {graph.updates = "w"})
      attributes {micro_batches = 1 : i64} {
    %0 = pipe.invoke @train.U(%w) {part = "U", once, split = array<i64: -1>, results = ["value"]} : (tensor<i1>) -> tensor<i1>
    pipe.return %0 : tensor<i1>
  }
}

// -----

// A check of more than inputs.
module {
  spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]
  func.func private @train.F(%w: tensor<f32>) -> tensor<f32> {
    // expected-error @below {{is read by a check, and depends on more than inputs}}
    %0 = graph.compare lt %w, %w : (tensor<f32>, tensor<f32>) -> tensor<i1>
    graph.check %0, "no" : tensor<i1>
    return %w : tensor<f32>
  }
  pipe.program @train(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"})
      -> (tensor<f32> {graph.name = "loss"})
      attributes {micro_batches = 1 : i64} {
    %0 = pipe.invoke @train.F(%w) {part = "F", split = array<i64: -1>, results = ["value"]} : (tensor<f32>) -> tensor<f32>
    pipe.return %0 : tensor<f32>
  }
}

// -----

// What has no mean.
module {
  spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]
  // expected-error @below {{result "y" of 'p' ('tensor<4xf32>') must be a number: an asynchronous schedule returns its mean over micro-batches}}
  func.func private @p.F(%w: tensor<4xf32>) -> tensor<4xf32> {
    return %w : tensor<4xf32>
  }
  pipe.program @p(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"})
      -> (tensor<4xf32> {graph.name = "y"})
      attributes {micro_batches = 1 : i64} {
    %0 = pipe.invoke @p.F(%w) {part = "F", split = array<i64: -1>, results = ["value"]} : (tensor<4xf32>) -> tensor<4xf32>
    pipe.return %0 : tensor<4xf32>
  }
}

// -----

// Micro-batches that are there already.
module {
  spmd.mesh @mesh <["mb" = 2]> sequential ["mb"]
  // expected-error @below {{has 2 micro-batches already; place it with one}}
  pipe.program @p() attributes {micro_batches = 2 : i64} {
    pipe.return
  }
}

// -----

// A buffer that micro-batches read.
module {
  spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]
  func.func private @train.U(%m: tensor<4xf32>) -> tensor<4xf32> {
    return %m : tensor<4xf32>
  }
  // expected-error @below {{writes to buffer 'm', which an asynchronous schedule would do while other micro-batches read it; use a synchronous schedule}}
  pipe.program @train(%m: tensor<4xf32> {graph.name = "m", graph.role = "buffer"})
      -> (tensor<4xf32> {graph.updates = "m"})
      attributes {micro_batches = 1 : i64} {
    %0 = pipe.invoke @train.U(%m) {part = "U", once, split = array<i64: -1>, results = ["value"]} : (tensor<4xf32>) -> tensor<4xf32>
    pipe.return %0 : tensor<4xf32>
  }
}

// -----

// An updated value that another part reads.
module {
  spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]
  func.func private @train.U(%w: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @below {{the new value of parameter "w" of 'train' is also read by other parts, which asynchronous schedules do not support}}
    %0 = graph.neg %w : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @train.V(%w: tensor<4xf32>) -> tensor<f32> {
    %0 = graph.reduce sum %w {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  pipe.program @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"})
      -> (tensor<4xf32> {graph.updates = "w"}, tensor<f32> {graph.name = "sum"})
      attributes {micro_batches = 1 : i64} {
    %0 = pipe.invoke @train.U(%w) {part = "U", once, split = array<i64: -1>, results = ["value"]} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = pipe.invoke @train.V(%0) {part = "V", once, split = array<i64: -1>, results = ["value"]} : (tensor<4xf32>) -> tensor<f32>
    pipe.return %0, %1 : tensor<4xf32>, tensor<f32>
  }
}

// -----

// An update of nothing.
module {
  spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]
  func.func private @train.U(%w: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @below {{a result of 'train' updates 'v', but there is no argument of this name and type}}
    %0 = graph.neg %w : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  pipe.program @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"})
      -> (tensor<4xf32> {graph.updates = "v"})
      attributes {micro_batches = 1 : i64} {
    %0 = pipe.invoke @train.U(%w) {part = "U", once, split = array<i64: -1>, results = ["value"]} : (tensor<4xf32>) -> tensor<4xf32>
    pipe.return %0 : tensor<4xf32>
  }
}

// -----

// The name of the axis that the pass adds.
module {
  // expected-error @below {{already has an axis "updates"; rename it}}
  spmd.mesh @mesh <["updates" = 2]>
  pipe.program @p() attributes {micro_batches = 1 : i64} {
    pipe.return
  }
}

// -----

// No mesh.
// expected-error @below {{has no mesh; run --spmd-seed-shardings first}}
module {
  pipe.program @p() attributes {micro_batches = 1 : i64} {
    pipe.return
  }
}
