// RUN: cleave-opt %s --graph-delay-updates="delay=1,no.such*=2" --split-input-file --verify-diagnostics

// expected-error@+1 {{update delay: 'no.such*' matches no parameter that '@train' trains}}
func.func @train(
    %a: tensor<4xf32> {graph.name = "l.a", graph.role = "parameter"},
    %step: tensor<i64> {graph.name = "step", graph.role = "scalar"})
    -> (tensor<4xf32> {graph.updates = "l.a"}) {
  %ga = graph.gradient %a of "l.a" : (tensor<4xf32>) -> tensor<4xf32>
  return %ga : tensor<4xf32>
}

// -----

// expected-error@+1 {{'@train' has no updates; run --graph-apply-optimizer before}}
func.func @train(
    %a: tensor<4xf32> {graph.name = "no.such", graph.role = "parameter"})
    -> (tensor<4xf32> {graph.updates = "no.such"}) {
  %ga = graph.gradient %a of "no.such" : (tensor<4xf32>) -> tensor<4xf32>
  return %ga : tensor<4xf32>
}

// -----

// expected-error@+1 {{the updates of '@train' are delayed already}}
func.func @train(
    %a: tensor<4xf32> {graph.name = "no.such", graph.role = "parameter"},
    %p: tensor<4xf32> {graph.name = "no.such.pending_1", graph.role = "state", graph.of = "no.such", graph.slot = "pending_1"})
    -> (tensor<4xf32> {graph.updates = "no.such"}) {
  %ga = graph.gradient %a of "no.such" : (tensor<4xf32>) -> tensor<4xf32>
  return %ga : tensor<4xf32>
}
