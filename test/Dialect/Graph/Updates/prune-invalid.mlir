// RUN: cleave-opt %s --split-input-file --verify-diagnostics --graph-prune=prune=2:4
// RUN: not cleave-opt %s --split-input-file --graph-prune=prune=3:2 2>&1 | FileCheck %s --check-prefix=PATTERN
// RUN: not cleave-opt %s --split-input-file --graph-prune=prune=1 2>&1 | FileCheck %s --check-prefix=ALL
// RUN: not cleave-opt %s --split-input-file --graph-prune=prune=-0.5 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// RUN: not cleave-opt %s --split-input-file --graph-prune=prune=0.5,linear 2>&1 | FileCheck %s --check-prefix=SCHEDULE
// RUN: not cleave-opt %s --split-input-file --graph-prune=prune=0.5,every=2 2>&1 | FileCheck %s --check-prefix=SETTING
// RUN: not cleave-opt %s --split-input-file --graph-prune=prune=0.5,steps=0 2>&1 | FileCheck %s --check-prefix=STEPS
// RUN: not cleave-opt %s --split-input-file --graph-prune=prune=2:4,cubic 2>&1 | FileCheck %s --check-prefix=CUBIC
// RUN: not cleave-opt %s --split-input-file --graph-quantize=type=int4 2>&1 | FileCheck %s --check-prefix=TYPE
// PATTERN: pruning '3:2': the pattern of groups is 2:4, not '3:2'
// ALL: pruning '1': the share of elements that are zero must be above 0 and below 1, got 1
// NEGATIVE: must be above 0 and below 1, got -0.5
// SCHEDULE: unknown schedule 'linear'; there are constant and cubic
// SETTING: unknown setting 'every'; there is steps
// STEPS: steps must be a positive integer, got '0'
// CUBIC: half of each group is zero, which has no schedule of its own
// TYPE: unknown quantization 'int4'; there is int8

// Two contractions sum over different dimensions of one weight.
// expected-error @+1 {{pruning: '@train' trains no weight of a contraction that can be pruned}}
func.func @train(
    // expected-remark @+1 {{"w" is not pruned: contractions sum over different dimensions of it}}
    %w: tensor<8x8xf32> {graph.name = "w", graph.role = "parameter"},
    // expected-remark @+1 {{"v" is not pruned: its 6 inputs are not divisible by 4}}
    %v: tensor<4x6xf32> {graph.name = "v", graph.role = "parameter"},
    // expected-remark @+1 {{"u" is not pruned: no contraction reads it}}
    %u: tensor<4x8xf32> {graph.name = "u", graph.role = "parameter"},
    %x: tensor<4x8xf32> {graph.name = "x", graph.role = "input"},
    %z: tensor<4x6xf32> {graph.name = "z", graph.role = "input"},
    %step: tensor<i64> {graph.name = "step", graph.role = "scalar"})
    -> (tensor<4x8xf32>, tensor<4x4xf32>, tensor<8x8xf32> {graph.updates = "w"}, tensor<4x6xf32> {graph.updates = "v"}, tensor<4x8xf32> {graph.updates = "u"}) {
  %y = graph.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %a = graph.contract "ro,oi->ri" %y, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %b = graph.linear %z, %v : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  return %a, %b, %w, %v, %u : tensor<4x8xf32>, tensor<4x4xf32>, tensor<8x8xf32>, tensor<4x6xf32>, tensor<4x8xf32>
}

// -----

// expected-error @+1 {{pruning needs the number of the update: run --graph-apply-optimizer before}}
func.func @train(%w: tensor<8x8xf32> {graph.name = "w", graph.role = "parameter"}) -> tensor<8x8xf32> {
  return %w : tensor<8x8xf32>
}
