// RUN: cleave-opt %s --graph-guard-indices --split-input-file | FileCheck %s

// A sum may leave the table: it is checked, and what is read stays inside.
// Where something else reads the same sum in the same way, one check is for both.
// CHECK-LABEL: func.func @computed
// CHECK: %[[I:.*]] = graph.add %{{.*}}, %{{.*}} : (tensor<6xi64>, tensor<i64>)
// CHECK: %[[LOW:.*]] = graph.compare ge %[[I]], %[[ZERO:.*]] :
// CHECK: %[[HIGH:.*]] = graph.compare lt %[[I]], %[[TEN:.*]] :
// CHECK: %[[OK:.*]] = graph.and %[[LOW]], %[[HIGH]]
// CHECK: %[[NOT:.*]] = graph.not %[[OK]]
// CHECK: %[[WRONG:.*]] = graph.cast %[[NOT]] : (tensor<6xi1>) -> tensor<6xi64>
// CHECK: %[[COUNT:.*]] = graph.reduce sum %[[WRONG]]
// CHECK: %[[ALL:.*]] = graph.compare eq %[[COUNT]],
// CHECK: graph.check %[[ALL]], "model.py:7: an index is outside of [0, 10)" : tensor<i1>
// CHECK: %[[J:.*]] = graph.select %[[OK]], %[[I]],
// CHECK-NOT: graph.check
// CHECK: graph.gather %{{.*}}, %[[J]]
// CHECK: graph.gather %{{.*}}, %[[J]]
func.func @computed(%t: tensor<10x4xf32> {graph.name = "t", graph.role = "parameter"},
                    %x: tensor<6xi64> {graph.name = "x", graph.role = "input"}) -> (tensor<6x4xf32> {graph.name = "y"}, tensor<6x4xf32> {graph.name = "z"}) {
  %seven = graph.constant dense<7> : tensor<i64>
  %i = graph.add %x, %seven : (tensor<6xi64>, tensor<i64>) -> tensor<6xi64>
  %y = graph.gather %t, %i {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6xi64>) -> tensor<6x4xf32> loc("model.py":7:1)
  %z = graph.gather %t, %i {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6xi64>) -> tensor<6x4xf32>
  return %y, %z : tensor<6x4xf32>, tensor<6x4xf32>
}

// -----

// What a session is given it looks at, however a model moves it.
// CHECK-LABEL: func.func @moved
// CHECK-NOT: graph.check
func.func @moved(%l: tensor<2x4x10xf32> {graph.name = "l", graph.role = "input"},
                 %x: tensor<2x5xi64> {graph.name = "x", graph.role = "input"},
                 %p: tensor<1x4xi64> {graph.name = "p", graph.role = "buffer"}) -> (tensor<2x4xf32> {graph.name = "y"}, tensor<4x10xf32> {graph.name = "z"}) {
  %s = graph.slice %x {offsets = array<i64: 0, 2>, sizes = array<i64: 2, 3>, strides = array<i64: 1, 1>} : (tensor<2x5xi64>) -> tensor<2x3xi64>
  %t = graph.pad %s {value = -1.000000e+02 : f64, low = array<i64: 0, 0>, high = array<i64: 0, 1>, interior = array<i64: 0, 0>} : (tensor<2x3xi64>) -> tensor<2x4xi64>
  %y, %lse = graph.cross_entropy %l, %t : (tensor<2x4x10xf32>, tensor<2x4xi64>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  %q = graph.reshape %p : (tensor<1x4xi64>) -> tensor<4xi64>
  %row = graph.reshape %l : (tensor<2x4x10xf32>) -> tensor<8x10xf32>
  %z = graph.gather %row, %q {dim = 0 : i64} : (tensor<8x10xf32>, tensor<4xi64>) -> tensor<4x10xf32>
  return %y, %z : tensor<2x4xf32>, tensor<4x10xf32>
}

// -----

// A border that is no row is none that a session could see.
// CHECK-LABEL: func.func @border
// CHECK: graph.check %{{.*}}, "{{.*}}an index is outside of [0, 10)"
func.func @border(%t: tensor<10x4xf32> {graph.name = "t", graph.role = "parameter"},
                  %x: tensor<3xi64> {graph.name = "x", graph.role = "input"}) -> (tensor<4x4xf32> {graph.name = "y"}) {
  %p = graph.pad %x {value = -1.000000e+00 : f64, low = array<i64: 1>, high = array<i64: 0>, interior = array<i64: 0>} : (tensor<3xi64>) -> tensor<4xi64>
  %y = graph.gather %t, %p {dim = 0 : i64} : (tensor<10x4xf32>, tensor<4xi64>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}

// -----

// Targets may be left out.
// CHECK-LABEL: func.func @targets
// CHECK: graph.or
// CHECK: graph.check %{{.*}}, "{{.*}}an index is outside of [0, 10) and is not -100, which is left out"
func.func @targets(%l: tensor<4x10xf32> {graph.name = "l", graph.role = "input"},
                   %x: tensor<4xi64> {graph.name = "x", graph.role = "input"}) -> (tensor<4xf32> {graph.name = "y"}) {
  %i = graph.neg %x : (tensor<4xi64>) -> tensor<4xi64>
  %y, %lse = graph.cross_entropy %l, %i : (tensor<4x10xf32>, tensor<4xi64>) -> (tensor<4xf32>, tensor<4xf32>)
  return %y : tensor<4xf32>
}

// -----

// Ranges of integers: places, chosen experts, clamped distances, counts of
// flags, and what is picked from constants.
// CHECK-LABEL: func.func @known
// CHECK-NOT: graph.check
func.func @known(%t: tensor<10x4xf32> {graph.name = "t", graph.role = "parameter"},
                 %f: tensor<6x10xf32> {graph.name = "f", graph.role = "input"},
                 %x: tensor<6xi64> {graph.name = "x", graph.role = "input"}) -> (tensor<6x4xf32> {graph.name = "a"}, tensor<6x2x4xf32> {graph.name = "b"}, tensor<6x4xf32> {graph.name = "c"}, tensor<6x4xf32> {graph.name = "d"}) {
  %one = graph.constant dense<1> : tensor<i64>
  %nine = graph.constant dense<9> : tensor<i64>
  %zero = graph.constant dense<0> : tensor<i64>
  %places = graph.iota {dim = 0 : i64, start = 3 : i64} : tensor<6xi64>
  %next = graph.add %places, %one : (tensor<6xi64>, tensor<i64>) -> tensor<6xi64>
  %a = graph.gather %t, %next {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6xi64>) -> tensor<6x4xf32>
  %v, %chosen = graph.top_k %f {k = 2 : i64} : (tensor<6x10xf32>) -> (tensor<6x2xf32>, tensor<6x2xi64>)
  %b = graph.gather %t, %chosen {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6x2xi64>) -> tensor<6x2x4xf32>
  %low = graph.maximum %x, %zero : (tensor<6xi64>, tensor<i64>) -> tensor<6xi64>
  %clamped = graph.minimum %low, %nine : (tensor<6xi64>, tensor<i64>) -> tensor<6xi64>
  %c = graph.gather %t, %clamped {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6xi64>) -> tensor<6x4xf32>
  %flags = graph.compare lt %x, %nine : (tensor<6xi64>, tensor<i64>) -> tensor<6xi1>
  %numbers = graph.cast %flags : (tensor<6xi1>) -> tensor<6xi64>
  %count = graph.cumulative_sum %numbers {dim = 0 : i64} : (tensor<6xi64>) -> tensor<6xi64>
  %d = graph.gather %t, %count {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6xi64>) -> tensor<6x4xf32>
  return %a, %b, %c, %d : tensor<6x4xf32>, tensor<6x2x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>
}

// -----

// Nothing is known of what floats become.
// CHECK-LABEL: func.func @from_floats
// CHECK: graph.check
func.func @from_floats(%t: tensor<10x4xf32> {graph.name = "t", graph.role = "parameter"},
                       %f: tensor<6xf32> {graph.name = "f", graph.role = "input"}) -> (tensor<6x4xf32> {graph.name = "y"}) {
  %zero = graph.constant dense<0.0> : tensor<f32>
  %g = graph.maximum %f, %zero : (tensor<6xf32>, tensor<f32>) -> tensor<6xf32>
  %i = graph.cast %g : (tensor<6xf32>) -> tensor<6xi64>
  %y = graph.gather %t, %i {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6xi64>) -> tensor<6x4xf32>
  return %y : tensor<6x4xf32>
}

// -----

// A buffer that a step writes is looked at where it is read.
// CHECK-LABEL: func.func @written
// CHECK: graph.check
// CHECK: graph.gather
func.func @written(%t: tensor<10x4xf32> {graph.name = "t", graph.role = "parameter"},
                   %i: tensor<6xi64> {graph.name = "i", graph.role = "buffer"}) -> (tensor<6x4xf32> {graph.name = "y"}, tensor<6xi64> {graph.updates = "i"}) {
  %y = graph.gather %t, %i {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6xi64>) -> tensor<6x4xf32>
  %j = graph.add %i, %i : (tensor<6xi64>, tensor<6xi64>) -> tensor<6xi64>
  return %y, %j : tensor<6x4xf32>, tensor<6xi64>
}
