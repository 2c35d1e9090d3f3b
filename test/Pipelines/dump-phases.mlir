// Each file is read again; its first line makes it of the one before, as
// test_dump_phases.py tests.
// RUN: rm -rf %t && cleave-compile %s --dump-phases=%t --mesh=dp=2 --plan=zero1 --precision=bf16 --optimizer=sgd --momentum=0.9 --max-grad-norm=1.0 --plan-only --report=%t.json
// RUN: ls %t | FileCheck %s --check-prefix=FILES
// RUN: cleave-opt %t/0-model.mlir -o /dev/null && cleave-opt %t/4-scheduled.mlir -o /dev/null && cleave-opt %t/5-executable.mlir -o /dev/null
// RUN: head -n 1 %t/2-placed.mlir | FileCheck %s --check-prefix=COMMAND

// FILES: 0-model.mlir
// FILES-NEXT: 1-step.mlir
// FILES-NEXT: 2-placed.mlir
// FILES-NEXT: 3-local.mlir
// FILES-NEXT: 4-scheduled.mlir
// FILES-NEXT: 5-executable.mlir
// FILES-NOT: 6

// COMMAND: // cleave-opt 1-step.mlir --phase-placed='optimizer=sgd momentum=0.90000000000000002 mesh=dp=2 plan=zero1 max-grad-norm=1 precision=bf16{{.*}}' --mlir-print-debuginfo

// A folder that cannot be written to is an error.
// RUN: touch %t.file && not cleave-compile %s --dump-phases=%t.file/x --plan-only 2>&1 | FileCheck %s --check-prefix=DENIED
// DENIED: error: --dump-phases: {{.*}}/x: Not a directory

func.func @loss(%w: tensor<8x4xf32> {graph.name = "w", graph.role = "parameter"},
                %x: tensor<4x4xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.linear %x, %w : (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
  %1 = graph.mul %0, %0 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = graph.reduce sum %1 {dims = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}
