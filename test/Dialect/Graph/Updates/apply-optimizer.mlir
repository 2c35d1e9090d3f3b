// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer | FileCheck %s --check-prefixes=CHECK,ADAMW
// RUN: cleave-opt %s --graph-differentiate \
// RUN:   --graph-apply-optimizer="beta1=0.8 beta2=0.95 eps=1e-6 weight-decay=0.1 max-grad-norm=1.0" | FileCheck %s --check-prefix=CLIP
// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer=optimizer=sgd | FileCheck %s --check-prefix=SGD
// RUN: cleave-opt %s --graph-differentiate \
// RUN:   --graph-apply-optimizer="optimizer=sgd momentum=0.9 nesterov=true weight-decay=0.01" | FileCheck %s --check-prefix=MOMENTUM

// State follows the model's arguments, then the scalars; a frozen parameter has
// no state. Results: the loss, then each parameter and its state.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<5x4xf32> {graph.name = "w", graph.role = "parameter"}
// CHECK-SAME: %[[B:[a-z0-9]+]]: tensor<5xf32> {graph.additive, graph.lr_scale = 5.000000e-01 : f64, graph.name = "b", graph.role = "parameter", graph.weight_decay = 0.000000e+00 : f64}
// CHECK-SAME: {graph.frozen, graph.name = "f"
// CHECK-SAME: %[[T:[a-z0-9]+]]: tensor<8xi64>
// ADAMW-SAME: %[[WM:[a-z0-9]+]]: tensor<5x4xf32> {graph.name = "w.exp_avg", graph.of = "w", graph.role = "state", graph.slot = "exp_avg"}
// ADAMW-SAME: %[[WV:[a-z0-9]+]]: tensor<5x4xf32> {graph.name = "w.exp_avg_sq", graph.of = "w", graph.role = "state", graph.slot = "exp_avg_sq"}
// ADAMW-SAME: %[[BM:[a-z0-9]+]]: tensor<5xf32> {graph.name = "b.exp_avg"
// ADAMW-SAME: %[[BV:[a-z0-9]+]]: tensor<5xf32> {graph.name = "b.exp_avg_sq"
// ADAMW-SAME: %[[LR:[a-z0-9]+]]: tensor<f32> {graph.name = "lr", graph.role = "scalar"}
// ADAMW-SAME: %[[STEP:[a-z0-9]+]]: tensor<i64> {graph.name = "step", graph.role = "scalar"}
// ADAMW-SAME: -> (tensor<f32> {graph.name = "loss"}, tensor<5x4xf32> {graph.updates = "w"}, tensor<5x4xf32> {graph.updates = "w.exp_avg"}, tensor<5x4xf32> {graph.updates = "w.exp_avg_sq"}, tensor<5xf32> {graph.updates = "b"}, tensor<5xf32> {graph.updates = "b.exp_avg"}, tensor<5xf32> {graph.updates = "b.exp_avg_sq"})

// The bias corrections are made in f64, once. Parameters that share a factor
// on the learning rate share the product.

// ADAMW: %[[HALF:.*]] = graph.mul %[[LR]], %{{.*}} : (tensor<f32>, tensor<f32>) -> tensor<f32>
// ADAMW: %[[STEP64:.*]] = graph.cast %[[STEP]] : (tensor<i64>) -> tensor<f64>
// ADAMW: %[[BETA1:.*]] = graph.constant dense<9.000000e-01> : tensor<f64>
// ADAMW: %[[POW1:.*]] = graph.pow %[[BETA1]], %[[STEP64]]
// ADAMW: %[[SUB1:.*]] = graph.sub %{{.*}}, %[[POW1]] : (tensor<f64>, tensor<f64>) -> tensor<f64>
// ADAMW: %[[C1:.*]] = graph.cast %[[SUB1]] : (tensor<f64>) -> tensor<f32>
// ADAMW: %[[POW2:.*]] = graph.pow %{{.*}}, %[[STEP64]]
// ADAMW: %[[SUB2:.*]] = graph.sub %{{.*}}, %[[POW2]]
// ADAMW: %[[ROOT:.*]] = graph.sqrt %[[SUB2]] : (tensor<f64>) -> tensor<f64>
// ADAMW: %[[C2:.*]] = graph.cast %[[ROOT]] : (tensor<f64>) -> tensor<f32>

// A mean over no element stops the step.

// CHECK: %[[COUNT:.*]] = graph.reduce sum %{{.*}} {dims = array<i64: 0>} : (tensor<8xi64>) -> tensor<i64>
// CHECK: %[[COUNTF:.*]] = graph.cast %[[COUNT]]
// CHECK: %[[ANY:.*]] = graph.compare ne %[[COUNTF]], %{{.*}} : (tensor<f32>, tensor<f32>) -> tensor<i1>
// CHECK: graph.check %[[ANY]], "the loss is a mean over no elements: every target of this batch is ignored"
// CHECK: %[[MEAN:.*]] = graph.div %{{.*}}, %[[COUNTF]]
// CHECK-NOT: graph.check
// CHECK: graph.seed %[[MEAN]]

// Without clipping the update follows its gradient.

// ADAMW: %[[GW:.*]] = graph.gradient %{{.*}} of "w"
// ADAMW-NEXT: %[[W1:.*]], %[[WM1:.*]], %[[WV1:.*]] = graph.adamw %[[W]], %[[GW]], %[[WM]], %[[WV]] lr %[[LR]], %[[C1]], %[[C2]] {beta1 = 9.000000e-01 : f64, beta2 = 0.99899999999999999 : f64, epsilon = 1.000000e-08 : f64, weight_decay = 1.000000e-02 : f64}
// ADAMW-NEXT: %[[GB:.*]] = graph.gradient %{{.*}} of "b"
// ADAMW-NEXT: %[[B1:.*]], %[[BM1:.*]], %[[BV1:.*]] = graph.adamw %[[B]], %[[GB]], %[[BM]], %[[BV]] lr %[[HALF]], %[[C1]], %[[C2]] {{.*}}weight_decay = 0.000000e+00 : f64}
// ADAMW: return %[[MEAN]], %[[W1]], %[[WM1]], %[[WV1]], %[[B1]], %[[BM1]], %[[BV1]]

// CLIP-LABEL: func.func @train(
// CLIP-SAME: -> (tensor<f32> {graph.name = "loss"}, tensor<f32> {graph.name = "grad_norm"}, tensor<5x4xf32> {graph.updates = "w"}
// CLIP: %[[GW:.*]] = graph.gradient %{{.*}} of "w"
// CLIP-NEXT: %[[GB:.*]] = graph.gradient %{{.*}} of "b"
// CLIP-NEXT: %[[NORM:.*]] = graph.global_norm %[[GW]], %[[GB]]
// CLIP-NEXT: %[[INF:.*]] = graph.constant dense<0x7F800000> : tensor<f32>
// CLIP-NEXT: %[[FINITE:.*]] = graph.compare lt %[[NORM]], %[[INF]]
// CLIP-NEXT: graph.check %[[FINITE]], "the norm of the gradients is not finite"
// CLIP-DAG: %[[MAX:.*]] = graph.constant dense<1.000000e+00> : tensor<f32>
// CLIP-DAG: %[[EPS:.*]] = graph.constant dense<9.99999997E-7> : tensor<f32>
// CLIP: %[[SUM:.*]] = graph.add %[[NORM]], %[[EPS]]
// CLIP: %[[QUOTIENT:.*]] = graph.div %[[MAX]], %[[SUM]]
// CLIP: %[[SCALE:.*]] = graph.minimum %[[QUOTIENT]], %{{.*}}
// CLIP: graph.adamw %{{.*}}, %[[GW]], %{{.*}} scale %[[SCALE]] {beta1 = 8.000000e-01 : f64, beta2 = 0.94999999999999996 : f64, epsilon = 9.9999999999999995E-7 : f64, weight_decay = 1.000000e-01 : f64}
// CLIP: graph.adamw %{{.*}}, %[[GB]], %{{.*}} scale %[[SCALE]] {{.*}}weight_decay = 0.000000e+00 : f64}
// CLIP: return %{{.*}}, %[[NORM]],

// SGD-LABEL: func.func @train(
// SGD-NOT: "state"
// SGD-SAME: %[[LR:[a-z0-9]+]]: tensor<f32> {graph.name = "lr", graph.role = "scalar"}, %[[STEP:[a-z0-9]+]]: tensor<i64> {graph.name = "step", graph.role = "scalar"})
// SGD-SAME: -> (tensor<f32> {graph.name = "loss"}, tensor<5x4xf32> {graph.updates = "w"}, tensor<5xf32> {graph.updates = "b"})
// SGD-NOT: graph.pow
// SGD: graph.sgd %{{.*}}, %{{.*}} lr %[[LR]], %[[STEP]] {dampening = 0.000000e+00 : f64, momentum = 0.000000e+00 : f64, weight_decay = 0.000000e+00 : f64} :

// MOMENTUM-LABEL: func.func @train(
// MOMENTUM-SAME: %[[WB:[a-z0-9]+]]: tensor<5x4xf32> {graph.name = "w.momentum_buffer", graph.of = "w", graph.role = "state", graph.slot = "momentum_buffer"}
// MOMENTUM-SAME: tensor<5xf32> {graph.updates = "b"}, tensor<5xf32> {graph.updates = "b.momentum_buffer"})
// MOMENTUM: graph.sgd %{{.*}}, %{{.*}} buffer %[[WB]] lr %{{.*}}, %{{.*}} {dampening = 0.000000e+00 : f64, momentum = 9.000000e-01 : f64, nesterov, weight_decay = 1.000000e-02 : f64}

func.func @loss(
    %w: tensor<5x4xf32> {graph.name = "w", graph.role = "parameter"},
    %b: tensor<5xf32> {graph.name = "b", graph.role = "parameter", graph.lr_scale = 0.5 : f64, graph.weight_decay = 0.0 : f64},
    %f: tensor<4x4xf32> {graph.name = "f", graph.role = "parameter", graph.frozen},
    %x: tensor<8x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
    %t: tensor<8xi64> {graph.name = "t", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}) {
  %h = graph.linear %x, %f : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %logits = graph.linear %h, %w bias %b : (tensor<8x4xf32>, tensor<5x4xf32>, tensor<5xf32>) -> tensor<8x5xf32>
  %rows, %lse = graph.cross_entropy %logits, %t : (tensor<8x5xf32>, tensor<8xi64>) -> (tensor<8xf32>, tensor<8xf32>)
  %sum = graph.reduce sum %rows {dims = array<i64: 0>} : (tensor<8xf32>) -> tensor<f32>
  %ignore = graph.constant dense<-100> : tensor<i64>
  %valid = graph.compare ne %t, %ignore : (tensor<8xi64>, tensor<i64>) -> tensor<8xi1>
  %ones = graph.cast %valid : (tensor<8xi1>) -> tensor<8xi64>
  %count = graph.reduce sum %ones {dims = array<i64: 0>} : (tensor<8xi64>) -> tensor<i64>
  %countf = graph.cast %count : (tensor<i64>) -> tensor<f32>
  %loss = graph.div %sum, %countf : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
