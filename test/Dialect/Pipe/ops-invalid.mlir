// RUN: cleave-opt %s --split-input-file --verify-diagnostics

// expected-error @+1 {{micro_batches must be positive}}
pipe.program @p() attributes {micro_batches = 0 : i64} {
  pipe.return
}

// -----

// expected-error @+1 {{micro_batches must not be more than 1048576}}
pipe.program @p() attributes {micro_batches = 1000000000000 : i64} {
  pipe.return
}

// -----

// expected-error @+1 {{pipe.stages must be a number from 1 to 4096, not 1000000000 : i64}}
pipe.program @p() attributes {micro_batches = 1 : i64, pipe.stages = 1000000000 : i64} {
  pipe.return
}

// -----

// expected-error @+1 {{pipe.stages must be a number from 1 to 4096, not -5 : i64}}
pipe.program @p() attributes {micro_batches = 1 : i64, pipe.stages = -5 : i64} {
  pipe.return
}

// -----

func.func private @f(tensor<?xf32>) -> tensor<?xf32>
pipe.program @p(%x: tensor<?xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{takes and gives tensors of static shapes, of integers or floats, not 'tensor<?xf32>'}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<?xf32>) -> tensor<?xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xindex>
pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{takes and gives tensors of static shapes, of integers or floats, not 'tensor<4xindex>'}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xindex>
  pipe.return
}

// -----

// expected-error @+1 {{schedule: 'F-' is not an action}}
pipe.program @p() attributes {micro_batches = 1 : i64, schedule = "F-"} {
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
pipe.program @p(%x: tensor<8xf32>) -> tensor<8xf32> attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{operand 0 gives the part 'tensor<8xf32>', which takes 'tensor<4xf32>'}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["concat:0"]} : (tensor<8xf32>) -> tensor<8xf32>
  pipe.return %0 : tensor<8xf32>
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
pipe.program @p(%x: tensor<8xf32>) -> tensor<8xf32> attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{result 0 of type 'tensor<8xf32>' needs a part that gives 'tensor<8xf32>', not 'tensor<4xf32>'}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: 0>, results = ["accumulate"]} : (tensor<8xf32>) -> tensor<8xf32>
  pipe.return %0 : tensor<8xf32>
}

// -----

func.func private @f(tensor<3xf32>) -> tensor<3xf32>
pipe.program @p(%x: tensor<7xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{operand 0 of type 'tensor<7xf32>' cannot be split in 2 along dimension 0}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: 0>, results = ["saved"]} : (tensor<7xf32>) -> tensor<3xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{result kind "accumulate" needs a part that runs for each micro-batch}}
  %0 = pipe.invoke @f(%x) {part = "U", once, split = array<i64: -1>, results = ["accumulate"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{result kind "mean" is none of saved, accumulate, concat:<dim>, value, version:<argument>}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["mean"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}

// -----

pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{'f' is not a function}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}

// -----

pipe.program @p(%x: tensor<4xf32>) -> tensor<f32> attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{operand types ('tensor<4xf32>') are not the program's result types ('tensor<f32>')}}
  pipe.return %x : tensor<4xf32>
}

// -----

pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{expected part, stage, once, split, results or unless}}
  %0 = pipe.invoke @f(%x) {parts = "F"} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}

// -----

pipe.program @p(%x: tensor<4xf32>) -> tensor<4xf32> attributes {micro_batches = 1 : i64} {
  // expected-error @+1 {{has no place in a pipe.program, which holds pipe.invoke alone}}
  %0 = graph.neg %x : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return %0 : tensor<4xf32>
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{result 0 is to be a version of argument 1, which the program has not, or of another type}}
  %0 = pipe.invoke @f(%x) {part = "U", split = array<i64: -1>, results = ["version:1"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
pipe.program @p(%x: tensor<4xf32>, %b: tensor<i1>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{unless needs a flag and one operand for each of the 1 results}}
  %0 = pipe.invoke @f(%x, %b) {part = "A", once, split = array<i64: -1, -1>, results = ["value"], unless = array<i64: 1>} : (tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
pipe.program @p(%x: tensor<4xf32>, %b: tensor<i1>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{unless names operand 0 of type 'tensor<4xf32>' in the place of 'tensor<i1>'}}
  %0 = pipe.invoke @f(%x, %b) {part = "A", once, split = array<i64: -1, -1>, results = ["value"], unless = array<i64: 0, 0>} : (tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
pipe.program @p(%x: tensor<4xf32>, %b: tensor<i1>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{unless names operand 2, which it has not}}
  %0 = pipe.invoke @f(%x, %b) {part = "A", once, split = array<i64: -1, -1>, results = ["value"], unless = array<i64: 1, 2>} : (tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
pipe.program @p(%x: tensor<4xf32>, %b: tensor<i1>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{unless needs a part that runs once}}
  %0 = pipe.invoke @f(%x, %b) {part = "A", split = array<i64: -1, -1>, results = ["saved"], unless = array<i64: 1, 0>} : (tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
  pipe.return
}
