// RUN: cleave-opt %s --split-input-file --verify-diagnostics --graph-apply-optimizer
// RUN: not cleave-opt %S/apply-optimizer.mlir --graph-differentiate --graph-apply-optimizer=optimizer=adam 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not cleave-opt %S/apply-optimizer.mlir --graph-differentiate --graph-apply-optimizer=beta1=1.0 2>&1 | FileCheck %s --check-prefix=BETA
// RUN: not cleave-opt %S/apply-optimizer.mlir --graph-differentiate --graph-apply-optimizer=beta2=-0.5 2>&1 | FileCheck %s --check-prefix=BETA
// RUN: not cleave-opt %S/apply-optimizer.mlir --graph-differentiate --graph-apply-optimizer=eps=nan 2>&1 | FileCheck %s --check-prefix=EPS
// RUN: not cleave-opt %S/apply-optimizer.mlir --graph-differentiate --graph-apply-optimizer=max-grad-norm=-1 2>&1 | FileCheck %s --check-prefix=CLIP
// RUN: not cleave-opt %S/apply-optimizer.mlir --graph-differentiate --graph-apply-optimizer="optimizer=sgd nesterov=true" 2>&1 | FileCheck %s --check-prefix=NESTEROV
// RUN: not cleave-opt %S/apply-optimizer.mlir --graph-differentiate --graph-apply-optimizer --graph-apply-optimizer 2>&1 | FileCheck %s --check-prefix=TWICE

// NAME: error: unknown optimizer 'adam'; there are adamw, sgd
// BETA: error: optimizer: beta{{[12]}} of adamw is {{.*}}; it must be at least 0 and below 1
// EPS: error: optimizer: eps of adamw is nan; it must be finite and not negative
// CLIP: error: optimizer: the norm to clip to must not be negative
// NESTEROV: error: optimizer: Nesterov's momentum needs momentum and no dampening
// TWICE: error: '@train' has an optimizer already

// expected-error@+1 {{there is no function '@train'; the module has '@loss'}}
module {
  func.func @loss() {
    return
  }
}

// -----

// expected-error@+1 {{parameter "w" has no graph.gradient in '@train'; run --graph-differentiate before}}
func.func @train(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

func.func @train(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"}) -> tensor<f32> {
  %0 = graph.gradient %w of "w" : (tensor<f32>) -> tensor<f32>
  // expected-error@+1 {{is the second gradient of "w"}}
  %1 = graph.gradient %w of "w" : (tensor<f32>) -> tensor<f32>
  return %w : tensor<f32>
}

// -----

// expected-error@+1 {{'@train' has no parameter to train}}
func.func @train(%w: tensor<f32> {graph.name = "w", graph.role = "parameter", graph.frozen}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

// expected-error@+1 {{attribute 'graph.lr_scale' must be an f64 that is finite and not negative}}
func.func @train(%w: tensor<f32> {graph.name = "w", graph.lr_scale = -1.0 : f64}) {
  return
}

// -----

// expected-error@+1 {{attribute 'graph.weight_decay' must be an f64 that is finite and not negative}}
func.func @train(%w: tensor<f32> {graph.name = "w", graph.weight_decay = 1.0 : f32}) {
  return
}

// -----

// expected-error@+1 {{a result of '@train' updates "x", which is no buffer of its type}}
func.func @train(%w: tensor<f32> {graph.name = "w", graph.role = "parameter"},
                 %x: tensor<f32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32>, tensor<f32> {graph.updates = "x"}) {
  %0 = graph.gradient %x of "w" : (tensor<f32>) -> tensor<f32>
  %1 = graph.mul %w, %x : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %1, %0 : tensor<f32>, tensor<f32>
}
