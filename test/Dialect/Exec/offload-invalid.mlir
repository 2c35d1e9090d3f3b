// RUN: not cleave-opt %s --exec-offload=kinds=weights --split-input-file 2>&1 | FileCheck %s --check-prefix=KIND
// RUN: not cleave-opt %s --exec-offload=kinds=masters --split-input-file 2>&1 | FileCheck %s --check-prefix=MASTERS
// RUN: cleave-opt %s --exec-plan-memory --split-input-file --verify-diagnostics

// KIND: error: offload: unknown kind 'weights'; known are state, masters and saved
// MASTERS: error: offload: there are no masters: parameters of which forward and backward read copies of a narrower type, as with --precision=bf16

func.func private @t.U(%m: tensor<8xf32> {exec.tier}, %g: tensor<8xf32>)
    -> (tensor<8xf32> {exec.alias = 0 : i64}) {
  // expected-error@+1 {{'exec.copy' op operand 0 (argument 0) is in the second tier: it must be fetched first}}
  %0 = exec.copy %m : tensor<8xf32> -> tensor<8xf32>
  %1 = exec.evict %0 : tensor<8xf32> into %m : tensor<8xf32>
  return %1 : tensor<8xf32>
}
exec.program @t(%m: tensor<8xf32> {graph.name = "m", graph.role = "state", exec.tier},
                %g: tensor<8xf32> {graph.name = "g", graph.role = "input"})
    -> (tensor<8xf32> {graph.updates = "m"}) {
  %0 = exec.run @t.U(%m, %g) {micro_batch = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  exec.return %0 : tensor<8xf32>
}

// -----

func.func private @t.U(%m: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{'exec.fetch' op operand 0 (argument 0) is not in the second tier}}
  %0 = exec.fetch %m : tensor<8xf32>
  return %0 : tensor<8xf32>
}
exec.program @t(%m: tensor<8xf32> {graph.name = "m", graph.role = "state"})
    -> (tensor<8xf32> {graph.name = "o"}) {
  %0 = exec.run @t.U(%m) {micro_batch = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  exec.return %0 : tensor<8xf32>
}

// -----

// A fetch behind its reader.
func.func private @t.U(%m: tensor<8xf32> {exec.tier}) -> tensor<8xf32> {
  // expected-error@+1 {{operand #0 does not dominate this use}}
  %1 = exec.copy %0 : tensor<8xf32> -> tensor<8xf32>
  // expected-note@+1 {{operand defined here}}
  %0 = exec.fetch %m : tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

func.func private @t.U(%m: tensor<8xf32>) -> tensor<8xf32> {
  return %m : tensor<8xf32>
}
exec.program @t(%m: tensor<8xf32> {graph.name = "m", graph.role = "state", exec.tier})
    -> (tensor<8xf32> {graph.name = "o"}) {
  // expected-error@+1 {{operand 0 (state "m") is in the second tier, other than the part's argument}}
  %0 = exec.run @t.U(%m) {micro_batch = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  exec.return %0 : tensor<8xf32>
}

// -----

func.func private @t.U(%m: tensor<8x4xf32, #exec.layout<[8, 1]>> {exec.tier}) -> tensor<8x4xf32> {
  // expected-error@+1 {{'exec.fetch' op needs a value without gaps in memory}}
  %0 = exec.fetch %m : tensor<8x4xf32, #exec.layout<[8, 1]>>
  %1 = exec.copy %0 : tensor<8x4xf32, #exec.layout<[8, 1]>> -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
