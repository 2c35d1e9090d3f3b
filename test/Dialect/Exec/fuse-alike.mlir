// RUN: cleave-opt %s --exec-fuse --mlir-print-debuginfo --mlir-print-local-scope | FileCheck %s
// RUN: cleave-opt %s --exec-fuse --debug-only=exec-fuse -o %t 2>&1 | FileCheck %s --check-prefix=COPIED
// RUN: cleave-opt %s --exec-fuse --pass-counts -o %t 2>&1 | FileCheck %s --check-prefix=COUNTS

// Parts that differ in names and source lines alone are fused once, and each
// keeps its own lines. Other attributes, operands, or lines that do not
// correspond one to one make another part.

// COPIED: @first: one kernel
// COPIED: @second: as @first
// COPIED: @swapped: one kernel
// COPIED: @dies: one kernel
// COPIED: @mixed: one kernel
// COUNTS-DAG: 5 {{.*}}Launches of them

// CHECK-LABEL: func.func @first(
// CHECK-SAME: loc("a":1:1)
// CHECK: exec.launch @sub_exp(%arg0, %arg1) {{.*}} loc(fused["a":2:1, "a":3:1])
// CHECK-NEXT: return {{.*}} loc("a":4:1)
func.func @first(%a: tensor<8xf32> loc("a":1:1), %b: tensor<8xf32> loc("a":1:2)) -> tensor<8xf32> {
  %0 = graph.sub %a, %b : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("a":2:1)
  %1 = graph.exp %0 : (tensor<8xf32>) -> tensor<8xf32> loc("a":3:1)
  return %1 : tensor<8xf32> loc("a":4:1)
}

// CHECK-LABEL: func.func @second(
// CHECK-SAME: loc("b":1:1)
// CHECK: exec.launch @sub_exp(%arg0, %arg1) {{.*}} loc(fused["b":2:1, "b":3:1])
// CHECK-NEXT: return {{.*}} loc("b":4:1)
func.func @second(%a: tensor<8xf32> loc("b":1:1), %b: tensor<8xf32> loc("b":1:2)) -> tensor<8xf32> {
  %0 = graph.sub %a, %b : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("b":2:1)
  %1 = graph.exp %0 : (tensor<8xf32>) -> tensor<8xf32> loc("b":3:1)
  return %1 : tensor<8xf32> loc("b":4:1)
}

// CHECK-LABEL: func.func @swapped(
// CHECK: exec.launch @sub_exp(%arg1, %arg0)
func.func @swapped(%a: tensor<8xf32> loc("a":1:1), %b: tensor<8xf32> loc("a":1:2)) -> tensor<8xf32> {
  %0 = graph.sub %b, %a : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("a":2:1)
  %1 = graph.exp %0 : (tensor<8xf32>) -> tensor<8xf32> loc("a":3:1)
  return %1 : tensor<8xf32> loc("a":4:1)
}

// CHECK-LABEL: func.func @dies(
// CHECK: exec.launch @sub_exp(%arg0, %arg1)
func.func @dies(%a: tensor<8xf32> {exec.dies} loc("a":1:1), %b: tensor<8xf32> loc("a":1:2)) -> tensor<8xf32> {
  %0 = graph.sub %a, %b : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("a":2:1)
  %1 = graph.exp %0 : (tensor<8xf32>) -> tensor<8xf32> loc("a":3:1)
  return %1 : tensor<8xf32> loc("a":4:1)
}

// CHECK-LABEL: func.func @mixed(
// CHECK: exec.launch @sub_exp(%arg0, %arg1) {{.*}} loc("c":2:1)
func.func @mixed(%a: tensor<8xf32> loc("c":1:1), %b: tensor<8xf32> loc("c":1:2)) -> tensor<8xf32> {
  %0 = graph.sub %a, %b : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc("c":2:1)
  %1 = graph.exp %0 : (tensor<8xf32>) -> tensor<8xf32> loc("c":2:1)
  return %1 : tensor<8xf32> loc("c":4:1)
}
