// RUN: cleave-opt %s --exec-plan-memory --split-input-file --verify-diagnostics

// expected-error @below {{has no exec.program; run --exec-unroll-schedule first}}
module {
}

// -----

func.func private @p(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{has no native form here: neither a kernel nor a command computes it}}
  %0 = graph.neg %x : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
exec.program @e(%x: tensor<4xf32> {graph.name = "x", graph.role = "input"}) -> (tensor<4xf32> {graph.name = "y"}) {
  %0 = exec.run @p(%x) {micro_batch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  exec.return %0 : tensor<4xf32>
}

// -----

func.func private @p(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = exec.copy %x : tensor<4xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
// expected-error @below {{argument 0 has no graph.name}}
exec.program @e(%x: tensor<4xf32>) -> (tensor<4xf32> {graph.name = "y"}) {
  %0 = exec.run @p(%x) {micro_batch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  exec.return %0 : tensor<4xf32>
}

// -----

func.func private @p(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = exec.copy %x : tensor<4xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @q(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = exec.copy %x : tensor<8xf32> -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
exec.program @e(%x: tensor<4xf32> {graph.name = "x", graph.role = "input"}) -> (tensor<4xf32> {graph.name = "y"}) {
  %0 = exec.run @p(%x) {micro_batch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  exec.return %0 : tensor<4xf32>
}
// expected-error @below {{'x' of type 'tensor<8xf32>' has type 'tensor<4xf32>' in another entry}}
exec.program @f(%x: tensor<8xf32> {graph.name = "x", graph.role = "input"}) -> (tensor<8xf32> {graph.name = "z"}) {
  %0 = exec.run @q(%x) {micro_batch = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  exec.return %0 : tensor<8xf32>
}

// -----

func.func private @u(%x: tensor<4xf32> {exec.dies}, %y: tensor<4xf32>) -> (tensor<4xf32> {exec.alias = 0 : i64}) {
  %0 = exec.copy %y into %x : tensor<4xf32>, : tensor<4xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
exec.program @e(%x: tensor<4xf32> {graph.name = "x", graph.role = "parameter"}) -> (tensor<4xf32> {graph.updates = "x"}) {
  // expected-error @below {{operand 0 (parameter "x") is overwritten, but its memory is another operand, too}}
  %0 = exec.run @u(%x, %x) {micro_batch = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  exec.return %0 : tensor<4xf32>
}

// -----

func.func private @u(%x: tensor<4xf32> {exec.dies}, %y: tensor<4xf32>)
    -> (tensor<4xf32> {exec.alias = 0 : i64}, tensor<4xf32> {exec.alias = 0 : i64}) {
  %0 = exec.copy %y : tensor<4xf32> -> tensor<4xf32>
  // expected-error @below {{result 1 takes the memory of argument 0, which another result takes, too}}
  %1 = exec.copy %y : tensor<4xf32> -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
exec.program @e(%x: tensor<4xf32> {graph.name = "x", graph.role = "parameter"}, %y: tensor<4xf32> {graph.name = "y", graph.role = "input"})
    -> (tensor<4xf32> {graph.updates = "x"}, tensor<4xf32> {graph.name = "z"}) {
  %0:2 = exec.run @u(%x, %y) {micro_batch = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  exec.return %0#0, %0#1 : tensor<4xf32>, tensor<4xf32>
}

// -----

func.func private @u(%x: tensor<4xf32> {exec.dies}) -> (tensor<4xf32> {exec.alias = 3 : i64}) {
  // expected-error @below {{result 0 cannot take the memory of argument 3: there is none of its type}}
  %0 = exec.copy %x : tensor<4xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
exec.program @e(%x: tensor<4xf32> {graph.name = "x", graph.role = "parameter"}) -> (tensor<4xf32> {graph.updates = "x"}) {
  %0 = exec.run @u(%x) {micro_batch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  exec.return %0 : tensor<4xf32>
}
