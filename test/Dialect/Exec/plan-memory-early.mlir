// RUN: cleave-opt %s --pass-pipeline='builtin.module(exec-unroll-schedule,func.func(exec-select-collectives,exec-decompose,exec-fold-views,exec-select-kernels),exec-fuse,exec-assign-layouts,exec-plan-memory)' | FileCheck %s

spmd.mesh @mesh <["dp" = 2]>

// A few numbers of inputs are summed over ranks first, in the order in which
// they are given; neither larger sums nor those of what is computed are.
// CHECK-LABEL: func.func private @t.F(
// CHECK: %[[A:.*]] = exec.launch @reduce(%arg2)
// CHECK-NEXT: %[[SUM:.*]] = exec.collective all_reduce %[[A]] over
// CHECK-NOT: exec.collective
// CHECK: exec.contract
// CHECK: exec.collective all_reduce {{.*}} tensor<4x8xf32>
// CHECK: exec.launch @div{{.*}}%[[SUM]]
// CHECK: exec.collective all_reduce {{.*}} tensor<f32>
func.func private @t.F(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>, %n: tensor<4xf32>) -> (tensor<4x8xf32>, tensor<f32>) {
  %y = graph.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %neg = graph.neg %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %large = spmd.all_reduce sum %neg over @mesh {"dp"} : tensor<4x8xf32>
  %z = graph.mul %y, %large : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %own = graph.reduce sum %n {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %count = spmd.all_reduce sum %own over @mesh {"dp"} : tensor<f32>
  %all = graph.reduce sum %z {dims = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<f32>
  %mean = graph.div %all, %count : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %loss = spmd.all_reduce sum %mean over @mesh {"dp"} : tensor<f32>
  return %z, %loss : tensor<4x8xf32>, tensor<f32>
}

pipe.program @t(%x: tensor<4x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                %w: tensor<8x8xf32> {graph.name = "w", graph.role = "parameter"},
                %n: tensor<4xf32> {graph.name = "n", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<4x8xf32> {graph.name = "z"}, tensor<f32> {graph.name = "loss"})
    attributes {micro_batches = 1 : i64, schedule = "F0"} {
  %0, %1 = pipe.invoke @t.F(%x, %w, %n) {part = "F", split = array<i64: 0, -1, 0>, results = ["saved", "saved"]} : (tensor<4x8xf32>, tensor<8x8xf32>, tensor<4xf32>) -> (tensor<4x8xf32>, tensor<f32>)
  pipe.return %0, %1 : tensor<4x8xf32>, tensor<f32>
}
