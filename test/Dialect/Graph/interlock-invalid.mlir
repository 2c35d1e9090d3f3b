// RUN: cleave-opt %s --split-input-file --verify-diagnostics --graph-interlock="modules=b."
// RUN: not cleave-opt %s --split-input-file --graph-interlock="modules=b. horizon=0" 2>&1 | FileCheck %s --check-prefix=HORIZON
// RUN: not cleave-opt %s --split-input-file --graph-interlock=modules=1 2>&1 | FileCheck %s --check-prefix=ONE
// RUN: not cleave-opt %s --split-input-file --graph-interlock=modules=-3 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// RUN: not cleave-opt %s --split-input-file --graph-interlock 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not cleave-opt %s --split-input-file --graph-interlock=modules=4 2>&1 | FileCheck %s --check-prefix=MANY

// HORIZON: error: the gradient horizon is 0; it must be positive
// ONE: error: 'func.func' op is to be cut into 1 module: a gradient horizon needs two or more; say how many, or with which parameters they begin, from the second on (--modules)
// NEGATIVE: error: 'func.func' op is to be cut into -3 modules
// NONE: error: 'func.func' op is to be cut into one module: a gradient horizon needs two or more; say how many
// MANY: error: 'func.func' op has no numbered list of layers that its head could follow; name a parameter that the head begins with (--head)
// MANY: error: 'func.func' op cannot be cut into 4 modules: there are only 2 positions before the head where only one value of type 'tensor<4xf32>' is live

// expected-error@+1 {{there is no function '@loss'; the module has '@logits'}}
module {
  func.func @logits(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}

// -----

// expected-error@+1 {{computes no loss, which modules lead to}}
func.func @loss(%x: tensor<4xf32> {graph.name = "x", graph.role = "parameter"}) {
  return
}

// -----

// expected-error@+1 {{has a loss that reads no parameter whose name begins with 'b.', where a module is to begin}}
func.func @loss(%a: tensor<4xf32> {graph.name = "a", graph.role = "parameter"},
                %x: tensor<4xf32> {graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %0 = graph.mul %x, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

// Two values go on.
func.func @loss(%a: tensor<4xf32> {graph.name = "a.0.w", graph.role = "parameter"},
                %b: tensor<4xf32> {graph.name = "b.w", graph.role = "parameter"},
                %x: tensor<4xf32> {graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  // expected-note@+1 {{this one, of type 'tensor<4xf32>'}}
  %0 = graph.mul %x, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // expected-note@+1 {{this one, of type 'tensor<4xf32>'}}
  %1 = graph.add %0, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{a module at 'b.' cannot begin here: of the values that depend on parameters, one float value must be live at this point, and 2 values are live}}
  %2 = graph.mul %1, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = graph.add %2, %0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %4 = graph.reduce sum %3 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %4 : tensor<f32>
}

// -----

// expected-error@+1 {{has no numbered list of layers that its head could follow; name a parameter that the head begins with (--head)}}
func.func @loss(%a: tensor<4xf32> {graph.name = "a", graph.role = "parameter"},
                %b: tensor<4xf32> {graph.name = "b.w", graph.role = "parameter"},
                %x: tensor<4xf32> {graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %0 = graph.mul %x, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.mul %0, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = graph.reduce sum %1 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// expected-error@+1 {{has no head after its last layer: no op there reads one value of the hidden state's type, and parameters}}
func.func @loss(%a: tensor<4xf32> {graph.name = "a.0", graph.role = "parameter"},
                %b: tensor<4xf32> {graph.name = "a.1", graph.role = "parameter"},
                %c: tensor<4xf32> {graph.name = "b.0", graph.role = "parameter"},
                %x: tensor<4xf32> {graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %0 = graph.mul %x, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.mul %0, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = graph.mul %1, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = graph.reduce sum %2 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %3 : tensor<f32>
}

// -----

// The name of a parameter to be is taken.
func.func @loss(%a: tensor<4xf32> {graph.name = "a.0", graph.role = "parameter"},
                %b: tensor<4xf32> {graph.name = "b.", graph.role = "parameter"},
                %c: tensor<4xf32> {graph.name = "a.1", graph.role = "parameter"},
                %h: tensor<4xf32> {graph.name = "h", graph.role = "parameter"},
                // expected-error@+1 {{the argument "auxiliary.1.h" has the name that a parameter of an auxiliary head would have; rename it}}
                %taken: tensor<4xf32> {graph.name = "auxiliary.1.h", graph.role = "input"}) -> tensor<f32> {
  %0 = graph.mul %taken, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.mul %0, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = graph.mul %1, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = graph.mul %2, %h : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %4 = graph.reduce sum %3 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %4 : tensor<f32>
}

// -----

// Each copy of a module would write to its buffers.

// expected-error@+1 {{a gradient horizon does not go with buffers that the model writes to, and the new value of buffer "m" is a result: modules are copied, and each copy would write}}
func.func @loss(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                %m: tensor<4xf32> {graph.name = "m", graph.role = "buffer"})
    -> (tensor<f32>, tensor<4xf32> {graph.updates = "m"}) {
  %0 = graph.mul %m, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %1, %0 : tensor<f32>, tensor<4xf32>
}
