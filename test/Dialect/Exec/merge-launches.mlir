// RUN: cleave-opt %s --exec-merge-launches=moved-bytes=1024 --split-input-file | FileCheck %s
// RUN: cleave-opt %s --exec-merge-launches=moved-bytes=1024 --exec-plan-memory --split-input-file | FileCheck %s --check-prefix=PLAN

// Squares of gradients, and updates, across what is between them: each update
// takes the memory of its own parameter.

exec.kernel @add map [1, 1024] (%a: tensor<1024xf32>, %b: tensor<1024xf32>) -> (%y: tensor<1024xf32>) {
  exec.pass {
    %0 = exec.load %a at affine_map<(r, c) -> (c)> : tensor<1024xf32> -> f32
    %1 = exec.load %b at affine_map<(r, c) -> (c)> : tensor<1024xf32> -> f32
    %2 = arith.addf %0, %1 : f32
    exec.store %2, %y at affine_map<(r, c) -> (c)> : f32, tensor<1024xf32>
    exec.yield
  }
}
exec.kernel @square row [1, 1024] (%a: tensor<1024xf32>) -> (%y: tensor<f32>) {
  %s = exec.pass -> f32 {
    %0 = exec.load %a at affine_map<(r, c) -> (c)> : tensor<1024xf32> -> f32
    %1 = arith.mulf %0, %0 : f32
    %2 = exec.reduce sum %1 : f32
    exec.yield %2 : f32
  }
  exec.store %s, %y at affine_map<(r, c) -> (0)> : f32, tensor<f32>
}

// CHECK-LABEL: func.func private @t.U(
// CHECK-SAME: %[[A:.*]]: tensor<1024xf32>, %[[B:.*]]: tensor<1024xf32>, %[[G:.*]]: tensor<1024xf32>, %[[H:.*]]: tensor<1024xf32>)
// CHECK-NEXT: %[[S:.*]]:2 = exec.launch @square(%[[G]], %[[H]]) {uses = 2 : i64}
// CHECK-NEXT: %{{.*}} = exec.copy
// CHECK-NEXT: %[[N:.*]]:2 = exec.launch @add(%[[A]], %[[G]], %[[B]], %[[H]]) {inplace = [array<i64: 0, 0>], uses = 2 : i64}
// CHECK-NEXT: return %[[N]]#0, %[[N]]#1, %[[S]]#0, %[[S]]#1
// PLAN: exec.launch @add({{.*}}) {exec.buffers = array<i64: 0, 1>
func.func private @t.U(%a: tensor<1024xf32>, %b: tensor<1024xf32>, %g: tensor<1024xf32>, %h: tensor<1024xf32>)
    -> (tensor<1024xf32> {exec.alias = 0 : i64, exec.update}, tensor<1024xf32> {exec.alias = 1 : i64, exec.update},
        tensor<f32>, tensor<f32>, tensor<1024xf32>) {
  %s = exec.launch @square(%g) : (tensor<1024xf32>) -> tensor<f32>
  %c = exec.copy %h : tensor<1024xf32> -> tensor<1024xf32>
  %0 = exec.launch @add(%a, %g) {inplace = [array<i64: 0, 0>]} : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<1024xf32>
  %t = exec.launch @square(%h) : (tensor<1024xf32>) -> tensor<f32>
  %1 = exec.launch @add(%b, %h) {inplace = [array<i64: 0, 0>]} : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<1024xf32>
  return %0, %1, %s, %t, %c : tensor<1024xf32>, tensor<1024xf32>, tensor<f32>, tensor<f32>, tensor<1024xf32>
}
exec.program @t(%a: tensor<1024xf32> {graph.name = "a", graph.role = "parameter"},
                %b: tensor<1024xf32> {graph.name = "b", graph.role = "parameter"},
                %g: tensor<1024xf32> {graph.name = "g", graph.role = "input"},
                %h: tensor<1024xf32> {graph.name = "h", graph.role = "input"})
    -> (tensor<1024xf32> {graph.updates = "a"}, tensor<1024xf32> {graph.updates = "b"},
        tensor<f32> {graph.name = "s"}, tensor<f32> {graph.name = "t"}, tensor<1024xf32> {graph.name = "c"}) {
  %0:5 = exec.run @t.U(%a, %b, %g, %h) {micro_batch = 0 : i64}
      : (tensor<1024xf32>, tensor<1024xf32>, tensor<1024xf32>, tensor<1024xf32>)
      -> (tensor<1024xf32>, tensor<1024xf32>, tensor<f32>, tensor<f32>, tensor<1024xf32>)
  exec.return %0#0, %0#1, %0#2, %0#3, %0#4 : tensor<1024xf32>, tensor<1024xf32>, tensor<f32>, tensor<f32>, tensor<1024xf32>
}

// -----

// Launches of which one needs the result of another, through a view, or through
// a reader between them, stay apart; one that depends on none joins the last.

exec.kernel @next map [1, 2] (%a: tensor<2xf32>) -> (%y: tensor<2xf32>) {
  exec.pass {
    %0 = exec.load %a at affine_map<(r, c) -> (c)> : tensor<2xf32> -> f32
    exec.store %0, %y at affine_map<(r, c) -> (c)> : f32, tensor<2xf32>
    exec.yield
  }
}

// CHECK-LABEL: func.func private @t.F(
// CHECK-SAME: %[[A:.*]]: tensor<2xf32>, %[[B:.*]]: tensor<2xf32>)
// CHECK-NEXT: %[[ONE:.*]] = exec.launch @next(%[[A]]) :
// CHECK-NEXT: %[[C:.*]] = exec.copy %[[ONE]]
// CHECK-NEXT: %[[TWO:.*]] = exec.launch @next(%[[C]]) :
// CHECK-NEXT: %[[V:.*]] = exec.view %[[TWO]]
// CHECK-NEXT: %[[W:.*]] = exec.view %[[V]]
// CHECK-NEXT: %[[THREE:.*]]:2 = exec.launch @next(%[[W]], %[[B]]) {uses = 2 : i64}
// CHECK-NEXT: return %[[THREE]]#0, %[[THREE]]#1
func.func private @t.F(%a: tensor<2xf32>, %b: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %0 = exec.launch @next(%a) : (tensor<2xf32>) -> tensor<2xf32>
  %1 = exec.copy %0 : tensor<2xf32> -> tensor<2xf32>
  %2 = exec.launch @next(%1) : (tensor<2xf32>) -> tensor<2xf32>
  %v = exec.view %2 : tensor<2xf32> -> tensor<1x2xf32>
  %w = exec.view %v : tensor<1x2xf32> -> tensor<2xf32>
  %3 = exec.launch @next(%w) : (tensor<2xf32>) -> tensor<2xf32>
  %4 = exec.launch @next(%b) : (tensor<2xf32>) -> tensor<2xf32>
  return %3, %4 : tensor<2xf32>, tensor<2xf32>
}
exec.program @t(%a: tensor<2xf32> {graph.name = "a", graph.role = "input"},
                %b: tensor<2xf32> {graph.name = "b", graph.role = "input"})
    -> (tensor<2xf32> {graph.name = "c"}, tensor<2xf32> {graph.name = "d"}) {
  %0:2 = exec.run @t.F(%a, %b) {micro_batch = 0 : i64}
      : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  exec.return %0#0, %0#1 : tensor<2xf32>, tensor<2xf32>
}

// -----

// What is summed first would live longer, and is larger than `moved-bytes`. The
// sums of what is there at the same time are one launch.

exec.kernel @sum row [1, 1024] (%a: tensor<1024xf32>) -> (%y: tensor<f32>) {
  %s = exec.pass -> f32 {
    %0 = exec.load %a at affine_map<(r, c) -> (c)> : tensor<1024xf32> -> f32
    %1 = exec.reduce sum %0 : f32
    exec.yield %1 : f32
  }
  exec.store %s, %y at affine_map<(r, c) -> (0)> : f32, tensor<f32>
}

// CHECK-LABEL: func.func private @t.B(
// CHECK-NEXT: %[[A:.*]] = exec.copy
// CHECK-NEXT: %{{.*}} = exec.launch @sum(%[[A]]) :
// CHECK-NEXT: %[[B:.*]] = exec.copy
// CHECK-NEXT: %[[C:.*]] = exec.copy
// CHECK-NEXT: %{{.*}}:2 = exec.launch @sum(%[[B]], %[[C]]) {uses = 2 : i64}
// CHECK-NEXT: return
func.func private @t.B(%a: tensor<1024xf32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %0 = exec.copy %a : tensor<1024xf32> -> tensor<1024xf32>
  %1 = exec.launch @sum(%0) : (tensor<1024xf32>) -> tensor<f32>
  %2 = exec.copy %a : tensor<1024xf32> -> tensor<1024xf32>
  %3 = exec.copy %2 : tensor<1024xf32> -> tensor<1024xf32>
  %4 = exec.launch @sum(%2) : (tensor<1024xf32>) -> tensor<f32>
  %5 = exec.launch @sum(%3) : (tensor<1024xf32>) -> tensor<f32>
  return %1, %4, %5 : tensor<f32>, tensor<f32>, tensor<f32>
}
exec.program @t(%a: tensor<1024xf32> {graph.name = "a", graph.role = "input"})
    -> (tensor<f32> {graph.name = "c"}, tensor<f32> {graph.name = "d"}, tensor<f32> {graph.name = "e"}) {
  %0:3 = exec.run @t.B(%a) {micro_batch = 0 : i64} : (tensor<1024xf32>) -> (tensor<f32>, tensor<f32>, tensor<f32>)
  exec.return %0#0, %0#1, %0#2 : tensor<f32>, tensor<f32>, tensor<f32>
}

// -----

// An update that reads what another one replaces is not run with it.

exec.kernel @step map [1, 2] (%a: tensor<2xf32>, %g: tensor<2xf32>) -> (%y: tensor<2xf32>) {
  exec.pass {
    %0 = exec.load %a at affine_map<(r, c) -> (c)> : tensor<2xf32> -> f32
    %1 = exec.load %g at affine_map<(r, c) -> (c)> : tensor<2xf32> -> f32
    %2 = arith.subf %0, %1 : f32
    exec.store %2, %y at affine_map<(r, c) -> (c)> : f32, tensor<2xf32>
    exec.yield
  }
}

// CHECK-LABEL: func.func private @t.U(
// CHECK-NEXT: %{{.*}} = exec.launch @step(%arg1, %arg0) {inplace = [array<i64: 0, 0>]} :
// CHECK-NEXT: %{{.*}} = exec.launch @step(%arg0, %arg2) {inplace = [array<i64: 0, 0>]} :
func.func private @t.U(%a: tensor<2xf32>, %b: tensor<2xf32>, %g: tensor<2xf32>)
    -> (tensor<2xf32> {exec.alias = 0 : i64, exec.update}, tensor<2xf32> {exec.alias = 1 : i64, exec.update}) {
  %0 = exec.launch @step(%a, %g) {inplace = [array<i64: 0, 0>]} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %1 = exec.launch @step(%b, %a) {inplace = [array<i64: 0, 0>]} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %0, %1 : tensor<2xf32>, tensor<2xf32>
}
exec.program @t(%a: tensor<2xf32> {graph.name = "a", graph.role = "parameter"},
                %b: tensor<2xf32> {graph.name = "b", graph.role = "parameter"},
                %g: tensor<2xf32> {graph.name = "g", graph.role = "input"})
    -> (tensor<2xf32> {graph.updates = "a"}, tensor<2xf32> {graph.updates = "b"}) {
  %0:2 = exec.run @t.U(%a, %b, %g) {micro_batch = 0 : i64}
      : (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  exec.return %0#0, %0#1 : tensor<2xf32>, tensor<2xf32>
}
