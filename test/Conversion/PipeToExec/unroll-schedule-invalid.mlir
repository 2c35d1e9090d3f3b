// RUN: cleave-opt %s --exec-unroll-schedule --split-input-file --verify-diagnostics

func.func private @p.F(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
// expected-error @below {{has no schedule; run --pipe-schedule first}}
pipe.program @p(%x: tensor<4xf32>) -> tensor<4xf32> attributes {micro_batches = 1 : i64} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return %0 : tensor<4xf32>
}

// -----

func.func private @p.F(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
// expected-error @below {{schedule: B0: unknown part}}
pipe.program @p(%x: tensor<4xf32>) -> tensor<4xf32> attributes {micro_batches = 1 : i64, schedule = "F0 B0"} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return %0 : tensor<4xf32>
}

// -----

func.func private @p.F(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
// expected-error @below {{schedule: B0 reads results of F0, which has not run}}
pipe.program @p(%x: tensor<4xf32>) -> tensor<4xf32> attributes {micro_batches = 1 : i64, schedule = "B0 F0"} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = pipe.invoke @p.F(%0) {part = "B", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return %1 : tensor<4xf32>
}

// -----

// A micro-batch that there is not.

func.func private @p.F(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
// expected-error @below {{schedule: F7: there are only 2 micro-batches}}
pipe.program @p(%x: tensor<4xf32>) -> tensor<4xf32> attributes {micro_batches = 2 : i64, schedule = "F0 F7"} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: 0>, results = ["concat:0"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return %0 : tensor<4xf32>
}

// -----

func.func private @p.F(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
// expected-error @below {{schedule: F1 never runs}}
pipe.program @p(%x: tensor<4xf32>) -> tensor<4xf32> attributes {micro_batches = 2 : i64, schedule = "F0"} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: 0>, results = ["concat:0"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return %0 : tensor<4xf32>
}

// -----

func.func private @p.F(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
pipe.program @p(%x: tensor<4xf32>) -> tensor<4xf32> attributes {micro_batches = 1 : i64, schedule = "F0"} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error @below {{is a second part "F"}}
  %1 = pipe.invoke @p.F(%0) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return %1 : tensor<4xf32>
}

// -----

func.func private @p.F(tensor<4xf32>) -> tensor<4xf32>
pipe.program @p(%x: tensor<4xf32>) -> tensor<4xf32> attributes {micro_batches = 1 : i64, schedule = "F0"} {
  // expected-error @below {{'p.F' has no body}}
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return %0 : tensor<4xf32>
}

// -----

// What is saved for each micro-batch is no value of the program, and none that
// a part which runs once could read.

func.func private @p.F(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
pipe.program @p(%x: tensor<4xf32>) -> tensor<2xf32> attributes {micro_batches = 2 : i64, schedule = "F0 F1"} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: 0>, results = ["saved"]} : (tensor<4xf32>) -> tensor<2xf32>
  // expected-error @below {{returns a value that has no single value}}
  pipe.return %0 : tensor<2xf32>
}

// -----

func.func private @p.F(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
func.func private @p.U(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
pipe.program @p(%x: tensor<4xf32>) -> tensor<2xf32> attributes {micro_batches = 2 : i64, schedule = "F0 F1 U"} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: 0>, results = ["saved"]} : (tensor<4xf32>) -> tensor<2xf32>
  // expected-error @below {{runs once, and reads what is saved for each micro-batch}}
  %1 = pipe.invoke @p.U(%0) {part = "U", once, split = array<i64: -1>, results = ["value"]} : (tensor<2xf32>) -> tensor<2xf32>
  pipe.return %1 : tensor<2xf32>
}

// -----

// A place on a sequential axis that is not that of micro-batches.

spmd.mesh @mesh <["mb" = 2, "x" = 4]> sequential ["mb", "x"]
func.func private @p.F(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{depends on more than the micro-batch and the device}}
  %0 = spmd.shard_offset <@mesh, [{"x"}]> of tensor<8xf32> : tensor<1xi64>
  return %x : tensor<4xf32>
}
pipe.program @p(%x: tensor<8xf32>) -> tensor<8xf32> attributes {micro_batches = 2 : i64, schedule = "F0 F1"} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: 0>, results = ["concat:0"]} : (tensor<8xf32>) -> tensor<8xf32>
  pipe.return %0 : tensor<8xf32>
}

// -----

func.func private @p.F(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.neg %x : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
// expected-error @below {{a result updates 'w', which is not the name of an argument}}
pipe.program @p(%x: tensor<4xf32> {graph.name = "x"}) -> (tensor<4xf32> {graph.updates = "w"})
    attributes {micro_batches = 1 : i64, schedule = "F0"} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return %0 : tensor<4xf32>
}

// -----

func.func private @p.F(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.neg %x : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
pipe.program @p(%w: tensor<8xf32> {graph.name = "w"}) -> (tensor<8xf32> {graph.updates = "w"})
    attributes {micro_batches = 2 : i64, schedule = "F0 F1"} {
  // expected-error @below {{the new value of argument "w" cannot take the memory of the old: it is not the whole result of one action}}
  %0 = pipe.invoke @p.F(%w) {part = "F", split = array<i64: 0>, results = ["concat:0"]} : (tensor<8xf32>) -> tensor<8xf32>
  pipe.return %0 : tensor<8xf32>
}

// -----

// Two actions share a part: it cannot be told where one of them writes.

func.func private @p.F(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.neg %x : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
pipe.program @p(%w: tensor<4xf32> {graph.name = "w"}, %x: tensor<8xf32> {graph.name = "x"}) -> (tensor<4xf32> {graph.updates = "w"})
    attributes {micro_batches = 2 : i64, schedule = "F0 F1"} {
  // expected-error @below {{the new value of argument "w" cannot take the memory of the old: its part runs several times}}
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: 0>, results = ["value"]} : (tensor<8xf32>) -> tensor<4xf32>
  pipe.return %0 : tensor<4xf32>
}

// -----

// Two results cannot both be what an argument becomes.

func.func private @p.F(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = graph.neg %x : (tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.exp %x : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
// expected-error @below {{several results update argument "w"}}
pipe.program @p(%w: tensor<4xf32> {graph.name = "w"}) -> (tensor<4xf32> {graph.updates = "w"}, tensor<4xf32> {graph.updates = "w"})
    attributes {micro_batches = 1 : i64, schedule = "F0"} {
  %0:2 = pipe.invoke @p.F(%w) {part = "F", split = array<i64: -1>, results = ["saved", "saved"]} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  pipe.return %0#0, %0#1 : tensor<4xf32>, tensor<4xf32>
}

// -----

// expected-error @below {{'tensor<0x4xf32>' has no elements; native code needs at least one in every tensor}}
func.func private @p.F(%x: tensor<0x4xf32>) -> tensor<0x4xf32> {
  return %x : tensor<0x4xf32>
}

// -----

// A version of what another position holds.

spmd.mesh @mesh <["pp" = 2, "mb" = 2]> sequential ["mb"]
func.func private @p.F(%a: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.mul %a, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @p.F1(%a: tensor<4xf32>, %v: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.mul %a, %v : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @p.U1(%a: tensor<4xf32>, %v: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.add %a, %v : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
pipe.program @p(%x: tensor<4xf32>, %w: tensor<4xf32>, %v: tensor<4xf32>) -> tensor<4xf32>
    attributes {micro_batches = 2 : i64, pipe.stages = 2 : i64,
                schedule = "F0 F0>1 F1 F1>1 | 1<F0 1F0 1U0 1<F1 1F1 1U1"} {
  %0 = pipe.invoke @p.F(%x, %w) {part = "F", split = array<i64: -1, -1>, results = ["saved"]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = pipe.invoke @p.F1(%0, %v) {part = "F", stage = 1, split = array<i64: -1, -1>, results = ["saved"]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // expected-error @below {{gives a version of argument 1, which no part at its position reads: let it update what is there}}
  %2 = pipe.invoke @p.U1(%1, %v) {part = "U", stage = 1, split = array<i64: -1, -1>, results = ["version:1"]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  pipe.return %2 : tensor<4xf32>
}

// -----

// Two stages of one position hold a parameter; the first makes its update.

func.func private @p.D(%w: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.sub %w, %g : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @p.D1(%w: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.sub %w, %g : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @p.F(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.mul %w, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @p.F1(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.mul %w, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
// expected-error @below {{schedule: 1D reads a parameter that stage 0 updates at the same position: let D of that stage run first}}
pipe.program @p(%w: tensor<4xf32> {graph.name = "w"}, %g: tensor<4xf32> {graph.name = "g"}, %x: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32> {graph.updates = "w"}, tensor<4xf32> {graph.updates = "w", pipe.copy = 1 : i64})
    attributes {micro_batches = 2 : i64, pipe.early_update, pipe.stages = 2 : i64, schedule = "1D D F0 1F0 F1 1F1"} {
  %0 = pipe.invoke @p.D(%w, %g) {part = "D", once, split = array<i64: -1, -1>, results = ["value"]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = pipe.invoke @p.D1(%w, %g) {part = "D", stage = 1, once, split = array<i64: -1, -1>, results = ["value"]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = pipe.invoke @p.F(%0, %x) {part = "F", split = array<i64: -1, -1>, results = ["saved"]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = pipe.invoke @p.F1(%1, %2) {part = "F", stage = 1, split = array<i64: -1, -1>, results = ["accumulate"]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  pipe.return %3, %0, %1 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
