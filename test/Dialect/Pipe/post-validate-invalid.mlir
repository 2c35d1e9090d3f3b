// RUN: cleave-opt %s --pipe-post-validate --split-input-file --verify-diagnostics

// An update in the next step comes after its checks.
module {
  spmd.mesh @mesh <["mb" = 1, "pp" = 2]> sequential ["mb"]
  // expected-error @below {{updates in the next step, after its checks; remove --post-validation or --optimizer-fusion=forward}}
  pipe.program @p() attributes {micro_batches = 1 : i64, pipe.early_update, pipe.stages = 2 : i64} {
    pipe.return
  }
}

// -----

// An update of each micro-batch.
module {
  spmd.mesh @mesh <["mb" = 2, "pp" = 2]> sequential ["mb"]
  func.func private @train.U(%w: tensor<4xf32>) -> tensor<4xf32> {
    return %w : tensor<4xf32>
  }
  pipe.program @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"})
      -> (tensor<4xf32> {graph.updates = "w"})
      attributes {micro_batches = 2 : i64, pipe.stages = 2 : i64} {
    // expected-error @below {{updates after each micro-batch, and has no update after all of them to validate; remove --post-validation}}
    %0 = pipe.invoke @train.U(%w) {part = "U", split = array<i64: -1>, results = ["value"]} : (tensor<4xf32>) -> tensor<4xf32>
    pipe.return %0 : tensor<4xf32>
  }
}

// -----

// One stage.
module {
  spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]
  // expected-error @below {{has one stage: post-validation needs a pipeline, a mesh with an axis "pp"}}
  pipe.program @p() attributes {micro_batches = 1 : i64} {
    pipe.return
  }
}
