// RUN: cleave-opt %s --pipe-verify --split-input-file --verify-diagnostics

// expected-error @+1 {{has no schedule; run --pipe-schedule first}}
pipe.program @none() attributes {micro_batches = 1 : i64} {
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
// expected-error @+1 {{schedule: B0 reads results of F0, which has not run}}
pipe.program @early(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64, schedule = "B0 F0 F1 B1"} {
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = pipe.invoke @f(%0) {part = "B", split = array<i64: -1>, results = ["accumulate"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
// expected-error @+1 {{schedule: B0 reads results of F1, which has not run}}
pipe.program @whole(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64, schedule = "F0 B0 F1 B1"} {
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["accumulate"]} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = pipe.invoke @f(%0) {part = "B", split = array<i64: -1>, results = ["accumulate"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
// expected-error @+1 {{schedule: F1 never runs}}
pipe.program @dropped(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64, schedule = "F0"} {
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}

// -----

// A device has what is sent to it for all of its stages: two of three here.

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
// expected-error @+1 {{schedule: F0>2 transfers to pipeline position 1 the same values as F0>1; remove one of them}}
pipe.program @again(%x: tensor<4xf32>) attributes {micro_batches = 1 : i64, stage_map = "v", pipe.stages = 3 : i64,
    schedule = "F0 F0>1 F0>2 | 1<F0 1F0 2<F0 2F0"} {
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = pipe.invoke @f(%0) {part = "F", stage = 1, split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = pipe.invoke @f(%0) {part = "F", stage = 2, split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}

// -----

// Part N of the later stage has a copy of %p, which the update of the first
// stage does not reach.

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
func.func private @u(tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
pipe.program @stale(%p: tensor<4xf32> {graph.name = "p"}) -> (tensor<4xf32> {graph.updates = "p"})
    attributes {micro_batches = 1 : i64, pipe.stages = 2 : i64,
    schedule = "F0 0<1N U | 1N 1N>0"} {
  %0 = pipe.invoke @f(%p) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error @+1 {{part 'N' of stage 1 reads the copy of 'p' at pipeline position 1, which '@stale' updates at position 0 only: the copy would keep its initial value}}
  %1 = pipe.invoke @f(%p) {part = "N", stage = 1, once, split = array<i64: -1>, results = ["value"]} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = pipe.invoke @u(%p, %1) {part = "U", once, split = array<i64: -1, -1>, results = ["value"]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  pipe.return %2 : tensor<4xf32>
}
