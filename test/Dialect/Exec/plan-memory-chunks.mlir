// RUN: cleave-opt %s --pass-pipeline='builtin.module(exec-unroll-schedule,func.func(exec-select-collectives,exec-decompose,exec-fold-views,exec-select-kernels),exec-fuse,exec-assign-layouts,exec-plan-memory)' | FileCheck %s

spmd.mesh @mesh <["tp" = 2]>

// The second gather begins before the first one is read, although less memory is
// needed if it begins later: for chunks of one collective.
// CHECK-LABEL: func.func private @t.F(
// CHECK: exec.collective all_gather {{.*}}spmd.chunk = array<i64: 0, 0>
// CHECK-NEXT: exec.collective all_gather {{.*}}spmd.chunk = array<i64: 0, 1>
// CHECK: exec.contract
// CHECK: exec.contract
func.func private @t.F(%x: tensor<8x4xf32>, %w: tensor<1x8xf32>) -> (tensor<8x1xf32>, tensor<8x1xf32>) {
  %x1 = graph.neg %x : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %0 = spmd.all_gather %x by <@mesh, [{}, {"tp"}]> {spmd.chunk = array<i64: 0, 0>} : tensor<8x4xf32> -> tensor<8x8xf32>
  %1 = spmd.all_gather %x1 by <@mesh, [{}, {"tp"}]> {spmd.chunk = array<i64: 0, 1>} : tensor<8x4xf32> -> tensor<8x8xf32>
  %2 = graph.linear %0, %w : (tensor<8x8xf32>, tensor<1x8xf32>) -> tensor<8x1xf32>
  %3 = graph.linear %1, %w : (tensor<8x8xf32>, tensor<1x8xf32>) -> tensor<8x1xf32>
  return %2, %3 : tensor<8x1xf32>, tensor<8x1xf32>
}

// CHECK-LABEL: func.func private @t.G(
// CHECK: exec.collective all_gather
// CHECK: exec.contract
// CHECK: exec.collective all_gather
// CHECK: exec.contract
func.func private @t.G(%x: tensor<8x4xf32>, %w: tensor<1x8xf32>) -> (tensor<8x1xf32>, tensor<8x1xf32>) {
  %x1 = graph.neg %x : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %0 = spmd.all_gather %x by <@mesh, [{}, {"tp"}]> : tensor<8x4xf32> -> tensor<8x8xf32>
  %1 = spmd.all_gather %x1 by <@mesh, [{}, {"tp"}]> : tensor<8x4xf32> -> tensor<8x8xf32>
  %2 = graph.linear %0, %w : (tensor<8x8xf32>, tensor<1x8xf32>) -> tensor<8x1xf32>
  %3 = graph.linear %1, %w : (tensor<8x8xf32>, tensor<1x8xf32>) -> tensor<8x1xf32>
  return %2, %3 : tensor<8x1xf32>, tensor<8x1xf32>
}

pipe.program @t(%x: tensor<8x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                %w: tensor<1x8xf32> {graph.name = "w", graph.role = "parameter"})
    -> (tensor<8x1xf32> {graph.name = "a"}, tensor<8x1xf32> {graph.name = "b"}, tensor<8x1xf32> {graph.name = "c"}, tensor<8x1xf32> {graph.name = "d"})
    attributes {micro_batches = 1 : i64, schedule = "F0 B0"} {
  %0, %1 = pipe.invoke @t.F(%x, %w) {part = "F", split = array<i64: 0, -1>, results = ["saved", "saved"]} : (tensor<8x4xf32>, tensor<1x8xf32>) -> (tensor<8x1xf32>, tensor<8x1xf32>)
  %2, %3 = pipe.invoke @t.G(%x, %w) {part = "B", split = array<i64: 0, -1>, results = ["saved", "saved"]} : (tensor<8x4xf32>, tensor<1x8xf32>) -> (tensor<8x1xf32>, tensor<8x1xf32>)
  pipe.return %0, %1, %2, %3 : tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>, tensor<8x1xf32>
}
