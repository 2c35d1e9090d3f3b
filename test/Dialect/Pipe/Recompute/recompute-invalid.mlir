// RUN: cleave-opt %s --pipe-recompute --split-input-file --verify-diagnostics

// Passes change the functions of parts: each has one of its own.

func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.add %a, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-note @below {{the first call is here}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error @below {{'f' is called twice: each part must have a function of its own}}
  %1 = pipe.invoke @f(%0) {part = "B", split = array<i64: -1>, results = ["accumulate"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}

// -----

func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-note @below {{the first call is here}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}
pipe.program @q(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @below {{'f' is called twice: each part must have a function of its own}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @below {{'f' has no body of one block}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}
