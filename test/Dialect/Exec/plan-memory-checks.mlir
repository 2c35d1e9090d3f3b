// RUN: cleave-opt %s --pass-pipeline='builtin.module(exec-unroll-schedule,func.func(exec-decompose,exec-fold-views,exec-select-kernels),exec-assign-layouts,exec-plan-memory)' | FileCheck %s

// A step that is stopped changes nothing: what is overwritten is overwritten
// behind all checks, though an update frees its gradient.

// CHECK-LABEL: func.func private @t.U(
// CHECK: exec.check {{.*}}, "first"
// CHECK: exec.check {{.*}}, "second"
// CHECK-COUNT-2: exec.contract
func.func private @t.U(%w: tensor<16x4xf32>, %v: tensor<16x4xf32>, %g: tensor<16x4xf32>, %h: tensor<16x4xf32>,
                       %n: tensor<i1>, %m: tensor<i1>) -> (tensor<16x4xf32>, tensor<16x4xf32>) {
  %i = graph.constant dense<1.0> : tensor<4x4xf32>
  %1 = graph.contract "ab,cb->ac" %g, %i : (tensor<16x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
  graph.check %n, "first" : tensor<i1>
  %3 = graph.contract "ab,cb->ac" %h, %i : (tensor<16x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
  graph.check %m, "second" : tensor<i1>
  return %1, %3 : tensor<16x4xf32>, tensor<16x4xf32>
}
pipe.program @t(%w: tensor<16x4xf32> {graph.name = "w", graph.role = "parameter"},
                %v: tensor<16x4xf32> {graph.name = "v", graph.role = "parameter"},
                %g: tensor<16x4xf32> {graph.name = "g", graph.role = "input"},
                %h: tensor<16x4xf32> {graph.name = "h", graph.role = "input"},
                %n: tensor<i1> {graph.name = "n", graph.role = "input"},
                %m: tensor<i1> {graph.name = "m", graph.role = "input"})
    -> (tensor<16x4xf32> {graph.updates = "w"}, tensor<16x4xf32> {graph.updates = "v"})
    attributes {micro_batches = 1 : i64, schedule = "U"} {
  %a, %b = pipe.invoke @t.U(%w, %v, %g, %h, %n, %m) {part = "U", once, split = array<i64: -1, -1, -1, -1, -1, -1>, results = ["value", "value"]}
      : (tensor<16x4xf32>, tensor<16x4xf32>, tensor<16x4xf32>, tensor<16x4xf32>, tensor<i1>, tensor<i1>) -> (tensor<16x4xf32>, tensor<16x4xf32>)
  pipe.return %a, %b : tensor<16x4xf32>, tensor<16x4xf32>
}
