// RUN: cleave-opt %s --pipe-schedule --pipe-verify | FileCheck %s
// RUN: cleave-opt %s "--pipe-schedule=schedule='F1 F0 F2'" --pipe-verify | FileCheck %s --check-prefix=HAND
// RUN: not cleave-opt %s "--pipe-schedule=schedule='F1 F0'" --pipe-verify 2>&1 | FileCheck %s --check-prefix=BAD
// RUN: not cleave-opt %s "--pipe-schedule=schedule=?" 2>&1 | FileCheck %s --check-prefix=TEXT

func.func private @f(tensor<4xf32>) -> tensor<4xf32>
// CHECK: schedule = "F0 F1 F2"
// HAND: schedule = "F1 F0 F2"
// BAD: schedule: F2 never runs
// TEXT: '?' is not an action; write <stage><part><micro-batch>, as in F0 or 2B1
pipe.program @p(%x: tensor<4xf32>) attributes {micro_batches = 3 : i64} {
  %0 = pipe.invoke @f(%x) {part = "F", split = array<i64: -1>, results = ["saved"]} : (tensor<4xf32>) -> tensor<4xf32>
  pipe.return
}
