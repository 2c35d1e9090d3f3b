// The ten largest passes say what they decide (--debug-only) and count it
// (--pass-counts).
// RUN: cleave-opt %s --phase-step="optimizer=sgd momentum=0.9 mesh=dp=2 plan=dp compress=topk,density=0.5" --debug-only=graph-apply-optimizer --pass-counts -o %t.1.mlir 2>&1 | FileCheck %s --check-prefix=OPTIMIZER
// OPTIMIZER: @train updates parameter "w"
// OPTIMIZER-NEXT: @train updates parameter "small"
// OPTIMIZER: 2 graph-apply-optimizer - Parameters that are updated
// OPTIMIZER: 2 graph-apply-optimizer - Tensors of the optimizer's state

// RUN: cleave-opt %t.1.mlir --phase-placed="mesh=dp=2 plan=dp compress=topk,density=0.5" --debug-only=spmd-apply-recipes,spmd-compress-gradients,spmd-propagate --pass-counts -o %t.2.mlir 2>&1 | FileCheck %s --check-prefix=PLACED
// PLACED: @train: input "x" is [{"dp"}, {}]
// PLACED: gradient of "small" is not compressed: of fewer than 256 elements
// PLACED: @train: 'graph.linear'{{.*}} is [{"mb", "dp"}, {}]
// PLACED: {{[1-9][0-9]*}} spmd-apply-recipes - Arguments that have a sharding
// PLACED: 1 spmd-compress-gradients - Gradients that are compressed
// PLACED: 1 spmd-compress-gradients - Gradients that are summed as they are
// PLACED: {{[1-9][0-9]*}} spmd-propagate {{ *}}- Results of ops that are partial on an axis
// PLACED: {{[1-9][0-9]*}} spmd-propagate {{ *}}- Results of ops that are sharded over an axis

// RUN: cleave-opt %t.2.mlir --phase-local="mesh=dp=2 plan=dp" --phase-scheduled="mesh=dp=2 plan=dp" --debug-only=pipe-split-stages,pipe-recompute --pass-counts -o %t.4.mlir 2>&1 | FileCheck %s --check-prefix=SCHEDULED
// SCHEDULED: part @train.F of stage 0: reads {{[0-9]+}}, returns {{[0-9]+}}, of which it saves {{[1-9]}}
// SCHEDULED: @train recomputes 1 x graph.mul at {{.*}}, saving
// SCHEDULED: {{[1-9][0-9]*}} pipe-recompute {{ *}}- Bytes of a micro-batch that are therefore not saved
// SCHEDULED: {{[1-9][0-9]*}} pipe-recompute {{ *}}- Ops that backward computes again
// SCHEDULED: {{[1-9][0-9]*}} pipe-split-stages - Parts, each outlined once
// SCHEDULED: {{[1-9][0-9]*}} pipe-split-stages - Values that forward saves for backward

// RUN: cleave-opt %t.4.mlir --phase-executable="mesh=dp=2 plan=dp" --mlir-disable-threading --debug-only=exec-unroll-schedule,exec-select-kernels,exec-fuse,exec-plan-memory --pass-counts -o /dev/null 2>&1 | FileCheck %s --check-prefix=EXECUTABLE
// EXECUTABLE: @train runs {{.*}}train.F train.B
// EXECUTABLE: @train.F calls exec.contract for tensor<2x32xf32>
// EXECUTABLE: @train.F: one kernel of
// EXECUTABLE: @train: {{[0-9]+}} bytes at fixed offsets, then {{[0-9]+}} bytes for {{[0-9]+}} buffers
// EXECUTABLE-NEXT: {bytes = {{[0-9]+}} : i64, kind =
// EXECUTABLE: {{[1-9][0-9]*}} exec-fuse {{ *}}- Graph ops that they compute
// EXECUTABLE: {{[1-9][0-9]*}} exec-fuse {{ *}}- Kernels that were generated
// EXECUTABLE: {{[1-9][0-9]*}} exec-fuse {{ *}}- Launches of them
// EXECUTABLE: {{[1-9][0-9]*}} exec-plan-memory {{ *}}- Buffers that share the memory after them
// EXECUTABLE: {{[1-9][0-9]*}} exec-plan-memory {{ *}}- Bytes of the largest arena
// EXECUTABLE: {{[1-9][0-9]*}} exec-plan-memory {{ *}}- Of these, bytes of tensors with fixed offsets
// EXECUTABLE: {{[1-9][0-9]*}} exec-select-kernels {{ *}}- Contractions that a library computes
// EXECUTABLE: {{[1-9][0-9]*}} exec-unroll-schedule - Actions that are written out
// EXECUTABLE: {{[1-9][0-9]*}} exec-unroll-schedule - Forms of parts that they run

func.func @loss(%w: tensor<32x16xf32> {graph.name = "w", graph.role = "parameter"},
                %b: tensor<32xf32> {graph.name = "small", graph.role = "parameter"},
                %x: tensor<4x16xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.linear %x, %w bias %b : (tensor<4x16xf32>, tensor<32x16xf32>, tensor<32xf32>) -> tensor<4x32xf32>
  %1 = graph.mul %0, %0 : (tensor<4x32xf32>, tensor<4x32xf32>) -> tensor<4x32xf32>
  %2 = graph.mul %1, %0 : (tensor<4x32xf32>, tensor<4x32xf32>) -> tensor<4x32xf32>
  %3 = graph.reduce sum %2 {dims = array<i64: 0, 1>} : (tensor<4x32xf32>) -> tensor<f32>
  return %3 : tensor<f32>
}
