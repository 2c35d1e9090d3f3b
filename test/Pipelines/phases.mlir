// The last pass of each phase is its verifier, with each set of options.
// RUN: cleave-opt %s --phase-model --dump-pass-pipeline -o %t.0.mlir 2>&1 | FileCheck %s --check-prefix=MODEL
// RUN: cleave-opt %t.0.mlir --phase-step="optimizer=sgd max-grad-norm=1.0 precision=bf16" --dump-pass-pipeline -o %t.1.mlir 2>&1 | FileCheck %s --check-prefix=STEP
// RUN: cleave-opt %t.1.mlir --phase-placed="precision=bf16 mesh=dp=2 plan=zero1" --dump-pass-pipeline -o %t.2.mlir 2>&1 | FileCheck %s --check-prefix=PLACED
// RUN: cleave-opt %t.2.mlir --phase-local="precision=bf16 mesh=dp=2 plan=zero1 merge-matmuls=on" --dump-pass-pipeline -o %t.3.mlir 2>&1 | FileCheck %s --check-prefix=LOCAL
// RUN: cleave-opt %t.3.mlir --phase-scheduled="precision=bf16 mesh=dp=2 plan=zero1 collective-chunks=2" --dump-pass-pipeline -o %t.4.mlir 2>&1 | FileCheck %s --check-prefix=SCHEDULED
// RUN: cleave-opt %t.4.mlir --phase-executable="precision=bf16 mesh=dp=2 plan=zero1" --dump-pass-pipeline -o %t.5.mlir 2>&1 | FileCheck %s --check-prefix=EXECUTABLE
// RUN: cleave-opt %t.5.mlir --exec-verify-executable | FileCheck %s --check-prefix=LAST

// MODEL: graph-verify-model{
// MODEL-NEXT: {{^\)}}
// STEP: graph-mixed-precision{
// STEP: graph-verify-step{{$}}
// STEP-NEXT: {{^\)}}
// PLACED: spmd-propagate,
// PLACED-NEXT: spmd-verify-placed{{$}}
// PLACED-NEXT: {{^\)}}
// LOCAL: spmd-merge-matmuls{
// LOCAL-NEXT: spmd-verify,
// LOCAL-NEXT: spmd-keep-rows{{$}}
// LOCAL-NEXT: {{^\)}}
// SCHEDULED: spmd-chunk-collectives{
// SCHEDULED-NEXT: pipe-verify{{$}}
// SCHEDULED-NEXT: {{^\)}}
// EXECUTABLE: exec-plan-memory{
// EXECUTABLE-NEXT: exec-verify-executable{{$}}
// EXECUTABLE-NEXT: {{^\)}}
// LAST: exec.program @train

// Options are refused as cleave-compile refuses them.
// RUN: not cleave-opt %s --phase-step="precision=fp4" 2>&1 | FileCheck %s --check-prefix=CHOICE
// RUN: not cleave-opt %s --phase-step="merge-matmuls=on" 2>&1 | FileCheck %s --check-prefix=RULE
// RUN: not cleave-opt %s --phase-step="optimizer=sgd beta1=0.5" 2>&1 | FileCheck %s --check-prefix=SETTING
// RUN: not cleave-opt %s --phase-step="optimizer=sdg" 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not cleave-opt %s --phase-scheduled="recompute=auto" 2>&1 | FileCheck %s --check-prefix=AUTO
// CHOICE: --precision is f32, bf16, fp16 or fp8, not 'fp4'
// RULE: --merge-matmuls on needs --precision bf16 or fp16
// SETTING: beta1 has no effect with optimizer=sgd
// NAME: unknown optimizer 'sdg'
// AUTO: --recompute auto is decided by cleave-compile

// What does not hold after a phase is an error of that phase.
// RUN: not cleave-opt %t.1.mlir --phase-model 2>&1 | FileCheck %s --check-prefix=NOMODEL
// RUN: not cleave-opt %t.2.mlir --spmd-verify 2>&1 | FileCheck %s --check-prefix=NOLOCAL
// RUN: not cleave-opt %t.4.mlir --exec-verify-executable 2>&1 | FileCheck %s --check-prefix=NOEXEC
// NOMODEL: error: there is no function '@loss'
// NOLOCAL: has no sharding or no global type
// NOEXEC: error: has no planned memory

func.func @loss(%w: tensor<8x4xf32> {graph.name = "w", graph.role = "parameter"},
                %x: tensor<4x4xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.linear %x, %w : (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
  %1 = graph.mul %0, %0 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = graph.reduce sum %1 {dims = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}
