// RUN: cleave-opt %s --split-input-file --verify-diagnostics --pipe-compress-stages="density=0.5 stages=b"
// RUN: not cleave-opt %s --split-input-file --pipe-compress-stages=density=0 2>&1 | FileCheck %s --check-prefix=ZERO
// RUN: not cleave-opt %s --split-input-file --pipe-compress-stages=density=-0.5 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// RUN: not cleave-opt %s --split-input-file --pipe-compress-stages=density=1.5 2>&1 | FileCheck %s --check-prefix=ABOVE
// RUN: not cleave-opt %s --split-input-file --pipe-compress-stages=density=nan 2>&1 | FileCheck %s --check-prefix=NAN
// RUN: not cleave-opt %s --split-input-file --pipe-compress-stages="density=1 count=1" 2>&1 | FileCheck %s --check-prefix=ONE
// RUN: not cleave-opt %s --split-input-file --pipe-compress-stages="density=1 count=9" 2>&1 | FileCheck %s --check-prefix=MANY

// ZERO: error: density must be above 0 and at most 1, got 0
// NEGATIVE: error: density must be above 0 and at most 1, got -5.000000e-01
// ABOVE: error: density must be above 0 and at most 1, got 1.5
// NAN: error: density must be above 0 and at most 1, got nan
// ONE: error: there is 1 stage: stages that send each other something are two or more
// MANY: error: 'func.func' op cannot be cut into 9 stages: it has only 4 ops that depend on samples and parameters

// The value between the stages has one element of each sample.
func.func @loss(%a: tensor<8xf32> {graph.name = "a", graph.role = "parameter"},
                %b: tensor<4xf32> {graph.name = "b", graph.role = "parameter"},
                %x: tensor<4x8xf32> {graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %0 = graph.mul %x, %a : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  // expected-error@+1 {{stage 1 begins here and reads no rows of floats of another stage: nothing can be compressed}}
  %2 = graph.mul %1, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = graph.reduce sum %2 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %3 : tensor<f32>
}

// -----

// expected-error@+1 {{'func.func' op has no parameter whose name begins with 'b', at which a stage is to begin}}
func.func @loss(%a: tensor<8xf32> {graph.name = "a", graph.role = "parameter"},
                %x: tensor<4x8xf32> {graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %0 = graph.mul %x, %a : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

// expected-error@+1 {{there is no function '@loss'; the module has '@logits'}}
module {
  func.func @logits(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}
