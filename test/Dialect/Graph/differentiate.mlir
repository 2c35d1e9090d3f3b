// RUN: cleave-opt %s --split-input-file --graph-differentiate | FileCheck %s

// The entry stays; its copy ends in a seed, the adjoints in reverse order, and
// the gradient of each parameter behind its first reader.

// CHECK-LABEL: func.func @loss(
// CHECK-NOT: graph.seed
// CHECK: return %{{.*}} : tensor<f32>
// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<3x4xf32> {graph.name = "w", graph.role = "parameter"}
// CHECK-SAME: %[[B:[a-z0-9]+]]: tensor<3xf32>
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<2x4xf32>
// CHECK-SAME: -> (tensor<f32> {graph.name = "loss"},
// CHECK-SAME: tensor<3x4xf32> {graph.name = "w.grad", graph.of = "w"},
// CHECK-SAME: tensor<3xf32> {graph.name = "b.grad", graph.of = "b"})
// CHECK: %[[Y:.*]] = graph.linear %[[X]], %[[W]] bias %[[B]]
// CHECK: %[[T:.*]] = graph.tanh %[[Y]]
// CHECK: %[[L:.*]] = graph.reduce sum %[[T]]
// CHECK: %[[S:.*]] = graph.seed %[[L]] : (tensor<f32>) -> tensor<f32>
// CHECK: %[[G:.*]] = graph.broadcast %[[S]] : (tensor<f32>) -> tensor<2x3xf32>
// CHECK: %[[TT:.*]] = graph.mul %[[T]], %[[T]]
// CHECK: %[[SLOPE:.*]] = graph.sub %{{.*}}, %[[TT]]
// CHECK: %[[DY:.*]] = graph.mul %[[G]], %[[SLOPE]]
// CHECK-NOT: graph.contract "ao,oi->ai"
// CHECK: %[[DW:.*]] = graph.contract "ao,ai->oi" %[[DY]], %[[X]]
// CHECK: %[[DB:.*]] = graph.reduce sum %[[DY]] {dims = array<i64: 0>}
// CHECK: %[[GW:.*]] = graph.gradient %[[DW]] of "w"
// CHECK: %[[GB:.*]] = graph.gradient %[[DB]] of "b"
// CHECK: return %[[L]], %[[GW]], %[[GB]]
func.func @loss(
    %w: tensor<3x4xf32> {graph.name = "w", graph.role = "parameter"},
    %b: tensor<3xf32> {graph.name = "b", graph.role = "parameter"},
    %x: tensor<2x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.linear %x, %w bias %b : (tensor<2x4xf32>, tensor<3x4xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %1 = graph.tanh %0 : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %2 = graph.reduce sum %1 {dims = array<i64: 0, 1>} : (tensor<2x3xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// Frozen parameters are not entered: below the trained adapter nothing is
// differentiated. A tied parameter's uses are added, from the last to the first.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[F0:[a-z0-9]+]]: tensor<4x4xf32> {graph.frozen, graph.name = "f0"
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<4x4xf32> {graph.aliases = ["tied"], graph.name = "a"
// CHECK-SAME: %[[F1:[a-z0-9]+]]: tensor<4x4xf32> {graph.frozen, graph.name = "f1"
// CHECK-SAME: graph.name = "a.grad"
// CHECK-NOT: f0.grad
// CHECK: %[[H0:.*]] = graph.linear %{{.*}}, %[[F0]]
// CHECK: %[[H1:.*]] = graph.linear %[[H0]], %[[A]]
// CHECK: %[[H2:.*]] = graph.linear %[[H1]], %[[F1]]
// CHECK: %[[H3:.*]] = graph.linear %[[H2]], %[[A]]
// CHECK: %[[G3:.*]] = graph.broadcast
// CHECK-NEXT: %[[G2:.*]] = graph.contract "ao,oi->ai" %[[G3]], %[[A]]
// CHECK-NEXT: %[[LATE:.*]] = graph.contract "ao,ai->oi" %[[G3]], %[[H2]]
// CHECK-NEXT: %[[G1:.*]] = graph.contract "ao,oi->ai" %[[G2]], %[[F1]]
// CHECK-NEXT: %[[EARLY:.*]] = graph.contract "ao,ai->oi" %[[G1]], %[[H0]]
// CHECK-NEXT: %[[SUM:.*]] = graph.add %[[LATE]], %[[EARLY]]
// CHECK-NEXT: graph.gradient %[[SUM]] of "a"
// CHECK-NEXT: return
func.func @loss(
    %f0: tensor<4x4xf32> {graph.name = "f0", graph.role = "parameter", graph.frozen},
    %a: tensor<4x4xf32> {graph.name = "a", graph.role = "parameter", graph.aliases = ["tied"]},
    %f1: tensor<4x4xf32> {graph.name = "f1", graph.role = "parameter", graph.frozen},
    %x: tensor<2x4xf32> {graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %0 = graph.linear %x, %f0 : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = graph.linear %0, %a : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %2 = graph.linear %1, %f1 : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %3 = graph.linear %2, %a : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %4 = graph.reduce sum %3 {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  return %4 : tensor<f32>
}

// -----

// What the loss does not depend on has a zero gradient; through an integer
// nothing flows.

// CHECK-LABEL: func.func @train(
// CHECK: %[[S:.*]] = graph.seed
// CHECK-NEXT: %[[Z0:.*]] = graph.constant dense<0.000000e+00> : tensor<3xf32>
// CHECK-NEXT: graph.gradient %[[Z0]] of "unused"
// CHECK: %[[Z1:.*]] = graph.constant dense<0.000000e+00> : tensor<2xf32>
// CHECK-NEXT: graph.gradient %[[Z1]] of "rounded"
func.func @loss(
    %unused: tensor<3xf32> {graph.name = "unused", graph.role = "parameter"},
    %rounded: tensor<2xf32> {graph.name = "rounded", graph.role = "parameter"},
    %w: tensor<f32> {graph.name = "w", graph.role = "parameter"}) -> tensor<f32> {
  %0 = graph.cast %rounded : (tensor<2xf32>) -> tensor<2xi64>
  %1 = graph.cast %0 : (tensor<2xi64>) -> tensor<2xf32>
  %2 = graph.reduce sum %1 {dims = array<i64: 0>} : (tensor<2xf32>) -> tensor<f32>
  %3 = graph.mul %2, %w : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %3 : tensor<f32>
}

// -----

// A broadcast operand's gradient is summed back to the operand's shape.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[ROW:[a-z0-9]+]]: tensor<4xf32>
// CHECK-SAME: %[[COL:[a-z0-9]+]]: tensor<3x1xf32>
// CHECK-SAME: %[[ONE:[a-z0-9]+]]: tensor<f32>
// CHECK: %[[G:.*]] = graph.broadcast %{{.*}} : (tensor<f32>) -> tensor<3x4xf32>
// CHECK: %[[T:.*]] = graph.mul %[[G]], %[[ONE]]
// CHECK: %[[P:.*]] = graph.mul %[[G]], %{{.*}} : (tensor<3x4xf32>, tensor<3x4xf32>)
// CHECK: %[[DONE:.*]] = graph.reduce sum %[[P]] {dims = array<i64: 0, 1>} : (tensor<3x4xf32>) -> tensor<f32>
// CHECK: graph.gradient %[[DONE]] of "one"
// CHECK: %[[DROW:.*]] = graph.reduce sum %[[T]] {dims = array<i64: 0>} : (tensor<3x4xf32>) -> tensor<4xf32>
// CHECK: %[[N:.*]] = graph.neg %[[T]]
// CHECK: %[[R:.*]] = graph.reduce sum %[[N]] {dims = array<i64: 1>} : (tensor<3x4xf32>) -> tensor<3xf32>
// CHECK: %[[DCOL:.*]] = graph.reshape %[[R]] : (tensor<3xf32>) -> tensor<3x1xf32>
// CHECK: graph.gradient %[[DROW]] of "row"
// CHECK: graph.gradient %[[DCOL]] of "col"
func.func @loss(
    %row: tensor<4xf32> {graph.name = "row", graph.role = "parameter"},
    %col: tensor<3x1xf32> {graph.name = "col", graph.role = "parameter"},
    %one: tensor<f32> {graph.name = "one", graph.role = "parameter"}) -> tensor<f32> {
  %0 = graph.sub %row, %col : (tensor<4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
  %1 = graph.mul %0, %one : (tensor<3x4xf32>, tensor<f32>) -> tensor<3x4xf32>
  %2 = graph.reduce sum %1 {dims = array<i64: 0, 1>} : (tensor<3x4xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// Movements: the adjoint of a strided slice is a padding with gaps, that of a
// concatenation its slices, that of a gather a scatter.

// CHECK-LABEL: func.func @train(
// CHECK: graph.slice %{{.*}} {offsets = array<i64: 0, 0>, sizes = array<i64: 2, 3>, strides = array<i64: 1, 1>}
// CHECK: graph.slice %{{.*}} {offsets = array<i64: 0, 3>, sizes = array<i64: 2, 4>, strides = array<i64: 1, 1>}
// CHECK: graph.pad %{{.*}} {high = array<i64: 0, 1>, interior = array<i64: 0, 1>, low = array<i64: 0, 1>, value = 0.000000e+00 : f64} : (tensor<2x3xf32>) -> tensor<2x7xf32>
// CHECK: graph.transpose %{{.*}} {permutation = array<i64: 1, 0>} : (tensor<2x7xf32>) -> tensor<7x2xf32>
// CHECK: graph.scatter_add %{{.*}}, %{{.*}} {dim = 0 : i64, padding_index = 1 : i64, size = 9 : i64} : (tensor<7x2xf32>, tensor<7xi64>) -> tensor<9x2xf32>
func.func @loss(
    %w: tensor<9x2xf32> {graph.name = "w", graph.role = "parameter"},
    %v: tensor<2x4xf32> {graph.name = "v", graph.role = "parameter"},
    %ids: tensor<7xi64> {graph.name = "ids", graph.role = "input"}) -> tensor<f32> {
  %0 = graph.gather %w, %ids {dim = 0 : i64, padding_index = 1 : i64} : (tensor<9x2xf32>, tensor<7xi64>) -> tensor<7x2xf32>
  %1 = graph.transpose %0 {permutation = array<i64: 1, 0>} : (tensor<7x2xf32>) -> tensor<2x7xf32>
  %2 = graph.slice %1 {offsets = array<i64: 0, 1>, sizes = array<i64: 2, 3>, strides = array<i64: 1, 2>} : (tensor<2x7xf32>) -> tensor<2x3xf32>
  %3 = graph.concat %2, %v {dim = 1 : i64} : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x7xf32>
  %4 = graph.reduce sum %3 {dims = array<i64: 0, 1>} : (tensor<2x7xf32>) -> tensor<f32>
  return %4 : tensor<f32>
}

// -----

// Contractions: each side's gradient contracts with the other; a dimension
// that one operand alone has is repeated.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[L:[a-z0-9]+]]: tensor<2x3x5xf32>
// CHECK-SAME: %[[R:[a-z0-9]+]]: tensor<2x4x3xf32>
// CHECK: %[[C:.*]] = graph.contract "bkl,bmk->bm" %[[G:.*]], %[[R]]
// CHECK: %[[DL:.*]] = graph.contract "bm,bmk->bk" %{{.*}}, %[[R]] : (tensor<2x4xf32>, tensor<2x4x3xf32>) -> tensor<2x3xf32>
// CHECK: %[[DL1:.*]] = graph.reshape %[[DL]] : (tensor<2x3xf32>) -> tensor<2x3x1xf32>
// CHECK: graph.broadcast %[[DL1]] : (tensor<2x3x1xf32>) -> tensor<2x3x5xf32>
// CHECK: graph.contract "bm,bkl->bmk" %{{.*}}, %[[L]] : (tensor<2x4xf32>, tensor<2x3x5xf32>) -> tensor<2x4x3xf32>
func.func @loss(
    %l: tensor<2x3x5xf32> {graph.name = "l", graph.role = "parameter"},
    %r: tensor<2x4x3xf32> {graph.name = "r", graph.role = "parameter"}) -> tensor<f32> {
  %0 = graph.contract "bkl,bmk->bm" %l, %r : (tensor<2x3x5xf32>, tensor<2x4x3xf32>) -> tensor<2x4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

// Attention, norms, dropout and RoPE have adjoint ops; inputs and parameters
// have one each.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<8xf32>
// CHECK-SAME: %[[B:[a-z0-9]+]]: tensor<1x2x1x4xf32>
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<1x2x4x8xf32>
// CHECK: %[[N:.*]], %[[RSTD:.*]] = graph.rms_norm
// CHECK: %[[D:.*]] = graph.dropout
// CHECK: %[[P:.*]] = graph.rope
// CHECK: %[[O:.*]], %[[LSE:.*]] = graph.attention
// CHECK: %[[G:.*]] = graph.broadcast
// CHECK: %[[DQ:.*]], %[[DK:.*]], %[[DV:.*]] = graph.attention_grad %[[G]], %[[P]], %[[P]], %[[D]], %[[O]], %[[LSE]] bias %[[B]] {causal, scale = 3.500000e-01 : f64}
// CHECK: graph.attention_bias_grad %[[G]], %[[P]], %[[P]], %[[D]], %[[O]], %[[LSE]] bias %[[B]] {causal, scale = 3.500000e-01 : f64}
// CHECK: %[[DP:.*]] = graph.add %[[DQ]], %[[DK]]
// CHECK: %[[DR:.*]] = graph.rope %[[DP]], %{{.*}}, %{{.*}} {adjoint}
// CHECK: %[[DD:.*]] = graph.add %[[DV]], %[[DR]]
// CHECK: %[[DN:.*]] = graph.dropout %[[DD]], %{{.*}} {id = 7 : i64, probability = 5.000000e-01 : f64}
// CHECK-NOT: graph.rms_norm_grad
// CHECK: graph.rms_norm_weight_grad %[[DN]], %[[X]], %[[RSTD]]
func.func @loss(
    %w: tensor<8xf32> {graph.name = "w", graph.role = "parameter"},
    %b: tensor<1x2x1x4xf32> {graph.name = "b", graph.role = "parameter"},
    %x: tensor<1x2x4x8xf32> {graph.name = "x", graph.role = "input"},
    %cos: tensor<4x8xf32> {graph.name = "cos", graph.role = "buffer"},
    %sin: tensor<4x8xf32> {graph.name = "sin", graph.role = "buffer"},
    %rng: tensor<2xi64> {graph.name = "rng", graph.role = "rng"}) -> tensor<f32> {
  %n, %rstd = graph.rms_norm %x weight %w {epsilon = 1.0e-6 : f64} : (tensor<1x2x4x8xf32>, tensor<8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %d = graph.dropout %n, %rng {probability = 0.5 : f64, id = 7 : i64} : (tensor<1x2x4x8xf32>, tensor<2xi64>) -> tensor<1x2x4x8xf32>
  %p = graph.rope %d, %cos, %sin : (tensor<1x2x4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<1x2x4x8xf32>
  %o, %lse = graph.attention %p, %p, %d bias %b {scale = 0.35 : f64, causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x1x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x2xf32>)
  %l = graph.reduce sum %o {dims = array<i64: 0, 1, 2, 3>} : (tensor<1x2x4x8xf32>) -> tensor<f32>
  return %l : tensor<f32>
}

// -----

// A statistic that is a result of a norm has a gradient as well.

// CHECK-LABEL: func.func @train(
// CHECK: %{{.*}}, %[[MEAN:.*]], %[[RSTD:.*]] = graph.layer_norm
// CHECK: %[[RR:.*]] = graph.mul %[[RSTD]], %[[RSTD]]
// CHECK: graph.mul %[[RSTD]], %[[RR]]
// CHECK: graph.constant dense<-2.500000e-01> : tensor<f32>
// CHECK-NOT: graph.layer_norm_grad
// CHECK: graph.gradient
func.func @loss(%x: tensor<2x4xf32> {graph.name = "x", graph.role = "parameter"}) -> tensor<f32> {
  %n, %mean, %rstd = graph.layer_norm %x {epsilon = 1.0e-5 : f64} : (tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2xf32>, tensor<2xf32>)
  %l = graph.reduce sum %rstd {dims = array<i64: 0>} : (tensor<2xf32>) -> tensor<f32>
  return %l : tensor<f32>
}

// -----

// The gradient of a recurrence is the recurrence from the other side, with the
// factor of the next place.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<2x4xf32>
// CHECK: %[[H:.*]] = graph.linear_scan %[[A]], %[[A]] {dim = 1 : i64}
// CHECK: %[[NEXT:.*]] = graph.slice %[[A]] {offsets = array<i64: 0, 1>, sizes = array<i64: 2, 3>
// CHECK: %[[F:.*]] = graph.pad %[[NEXT]]
// CHECK: %[[G:.*]] = graph.linear_scan %[[F]], %{{.*}} {dim = 1 : i64, reverse}
// CHECK: %[[LAST:.*]] = graph.slice %[[H]] {offsets = array<i64: 0, 0>, sizes = array<i64: 2, 3>
// CHECK: %[[BEFORE:.*]] = graph.pad %[[LAST]]
// CHECK: graph.mul %[[G]], %[[BEFORE]]
func.func @loss(%a: tensor<2x4xf32> {graph.name = "a", graph.role = "parameter"}) -> tensor<f32> {
  %h = graph.linear_scan %a, %a {dim = 1 : i64} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %l = graph.reduce sum %h {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  return %l : tensor<f32>
}
