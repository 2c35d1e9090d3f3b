// RUN: cleave-opt %s --split-input-file --canonicalize --verify-diagnostics | FileCheck %s

// Operands of a contraction may have different formats of 8 bits.
// CHECK-LABEL: func.func @contract(
// CHECK: graph.contract "bo,oh->bh" %{{.*}}, %{{.*}} {result_element = f32} : (tensor<4x8xf8E5M2>, tensor<8x16xf8E4M3FN>) -> tensor<4x16xf32>
func.func @contract(%g: tensor<4x8xf8E5M2>, %w: tensor<8x16xf8E4M3FN>) -> tensor<4x16xf32> {
  %0 = graph.contract "bo,oh->bh" %g, %w {result_element = f32} : (tensor<4x8xf8E5M2>, tensor<8x16xf8E4M3FN>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}

// f32 has all values of both formats; of one format, the other rounds.
// CHECK-LABEL: func.func @casts(
// CHECK-SAME: %[[X:.*]]: tensor<4xf8E4M3FN>, %[[Y:.*]]: tensor<4xf32>
// CHECK-DAG: %[[E:.*]] = graph.cast %[[X]] : (tensor<4xf8E4M3FN>) -> tensor<4xf8E5M2>
// CHECK-DAG: %[[N:.*]] = graph.cast %[[Y]] : (tensor<4xf32>) -> tensor<4xf8E5M2>
// CHECK-DAG: %[[W:.*]] = graph.cast %[[N]] : (tensor<4xf8E5M2>) -> tensor<4xf32>
// CHECK: return %[[X]], %[[E]], %[[W]] :
func.func @casts(%x: tensor<4xf8E4M3FN>, %y: tensor<4xf32>) -> (tensor<4xf8E4M3FN>, tensor<4xf8E5M2>, tensor<4xf32>) {
  %0 = graph.cast %x : (tensor<4xf8E4M3FN>) -> tensor<4xf32>
  %1 = graph.cast %0 : (tensor<4xf32>) -> tensor<4xf8E4M3FN>
  %2 = graph.cast %0 : (tensor<4xf32>) -> tensor<4xf8E5M2>
  %3 = graph.cast %y : (tensor<4xf32>) -> tensor<4xf8E5M2>
  %4 = graph.cast %3 : (tensor<4xf8E5M2>) -> tensor<4xf32>
  return %1, %2, %4 : tensor<4xf8E4M3FN>, tensor<4xf8E5M2>, tensor<4xf32>
}

// -----

func.func @element(%g: tensor<4x8xf8E5M2>, %w: tensor<8x16xf8E4M3FN>) -> tensor<4x16xf8E5M2> {
  // expected-error@+2 {{operands of 'f8E5M2' and 'f8E4M3FN' need a result_element}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.contract "bo,oh->bh" %g, %w : (tensor<4x8xf8E5M2>, tensor<8x16xf8E4M3FN>) -> tensor<4x16xf8E5M2>
  return %0 : tensor<4x16xf8E5M2>
}

// -----

func.func @wider(%g: tensor<4x8xbf16>, %w: tensor<8x16xf8E4M3FN>) -> tensor<4x16xf32> {
  // expected-error@+2 {{operands have different element types, 'bf16' and 'f8E4M3FN'; insert a graph.cast}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.contract "bo,oh->bh" %g, %w {result_element = f32} : (tensor<4x8xbf16>, tensor<8x16xf8E4M3FN>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}

// -----

func.func @add(%a: tensor<4xf8E4M3FN>, %b: tensor<4xf8E5M2>) -> tensor<4xf8E4M3FN> {
  // expected-error@+2 {{operands have different element types, 'f8E4M3FN' and 'f8E5M2'; insert a graph.cast}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.add %a, %b : (tensor<4xf8E4M3FN>, tensor<4xf8E5M2>) -> tensor<4xf8E4M3FN>
  return %0 : tensor<4xf8E4M3FN>
}

// -----

func.func @other(%a: tensor<4xf8E4M3FNUZ>) -> tensor<4xf32> {
  // expected-error@+1 {{operand #0 must be tensor of static shape}}
  %0 = graph.cast %a : (tensor<4xf8E4M3FNUZ>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
