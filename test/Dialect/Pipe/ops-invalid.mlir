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

// expected-error @+1 {{attribute 'pipe.stages' must be a number from 1 to 4096}}
pipe.program @p() attributes {micro_batches = 1 : i64, pipe.stages = 1000000000 : i64} {
  pipe.return
}

// -----

// expected-error @+1 {{attribute 'pipe.stages' must be a number from 1 to 4096}}
pipe.program @p() attributes {micro_batches = 1 : i64, pipe.stages = -5 : i64} {
  pipe.return
}

// -----

func.func private @f(tensor<?xf32>) -> tensor<?xf32>
pipe.program @p(%x: tensor<?xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{operands and results must be tensors of static shapes, of integers or floats, got 'tensor<?xf32>'}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<?xf32>) -> tensor<?xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xindex>
pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{operands and results must be tensors of static shapes, of integers or floats, got 'tensor<4xindex>'}}
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
  // expected-error @+1 {{operand 0 (argument 0) passes 'tensor<8xf32>' to the part, which expects 'tensor<4xf32>'}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["concat:0"]} : (tensor<8xf32>) -> tensor<8xf32>
  pipe.return %0 : tensor<8xf32>
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
pipe.program @p(%x: tensor<8xf32>) -> tensor<8xf32> attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{result 0 of type 'tensor<8xf32>' needs a part that returns 'tensor<8xf32>', got 'tensor<4xf32>'}}
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: 0>, results = ["accumulate"]} : (tensor<8xf32>) -> tensor<8xf32>
  pipe.return %0 : tensor<8xf32>
}

// -----

func.func private @f(tensor<3xf32>) -> tensor<3xf32>
pipe.program @p(%x: tensor<7xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{operand 0 (argument 0) of type 'tensor<7xf32>' cannot be split into 2 micro-batches along dimension 0}}
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
  // expected-error @+1 {{result kind "mean" must be saved, accumulate, accumulate:max, accumulate:min, concat:<dim>, value or version:<argument>}}
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
  // expected-error @+1 {{operand types ('tensor<4xf32>') must be the program's result types ('tensor<f32>')}}
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
  // expected-error @+1 {{is not allowed in a pipe.program, which may contain only pipe.invoke}}
  %0 = graph.neg %x : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return %0 : tensor<4xf32>
}

// -----

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{result 0 is a version of argument 1, but '@p' has none of this number and type}}
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
  // expected-error @+1 {{unless names operand 0 (argument 0) of type 'tensor<4xf32>', expected 'tensor<i1>'}}
  %0 = pipe.invoke @f(%x, %b) {part = "A", once, split = array<i64: -1, -1>, results = ["value"], unless = array<i64: 0, 0>} : (tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
  pipe.return
}

// -----

func.func private @f(tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
pipe.program @p(%x: tensor<4xf32>, %b: tensor<i1>) attributes {micro_batches = 2 : i64} {
  // expected-error @+1 {{unless names operand 2, but there are only 2}}
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

// -----

// One result, the new value of two arguments.

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
pipe.program @p(%a: tensor<4xf32> {graph.name = "a"}, %b: tensor<4xf32> {graph.name = "b"}) -> (tensor<4xf32> {graph.updates = "a"}, tensor<4xf32> {graph.updates = "b"}) attributes {micro_batches = 1 : i64} {
  // expected-error @+1 {{the new value of argument "b" is that of 'a', too: let the part return it once for each of them}}
  %0 = pipe.invoke @f(%a) {part = "U", once, split = array<i64: -1>, results = ["value"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return %0, %0 : tensor<4xf32>, tensor<4xf32>
}

// -----

func.func private @p.F(tensor<f32>) -> tensor<f32>
pipe.program @p(%x: tensor<f32>) attributes {micro_batches = 1 : i64} {
  // expected-error @+1 {{part "F1" must consist of letters}}
  %0 = pipe.invoke @p.F(%x) {part = "F1", split = array<i64: -1>, results = ["value"]} : (tensor<f32>) -> tensor<f32>
  pipe.return
}

// -----

func.func private @p.F(tensor<f32>) -> tensor<f32>
pipe.program @p(%x: tensor<f32>) attributes {micro_batches = 1 : i64} {
  // expected-error @+1 {{expected `part = "..."`}}
  %0 = pipe.invoke @p.F(%x) {split = array<i64: -1>, results = ["value"]} : (tensor<f32>) -> tensor<f32>
  pipe.return
}

// -----

func.func private @p.F(tensor<f32>) -> tensor<f32>
// expected-error @+1 {{must end in pipe.return}}
pipe.program @p(%x: tensor<f32>) attributes {micro_batches = 1 : i64} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: -1>, results = ["value"]} : (tensor<f32>) -> tensor<f32>
}
