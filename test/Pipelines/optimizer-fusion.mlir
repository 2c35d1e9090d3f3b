// Where updates run, on the command line and in the report.

// RUN: cleave-compile %s --optimizer-fusion=none --check-finite=off --emit=scheduled | FileCheck %s --check-prefix=NONE
// RUN: cleave-compile %s --optimizer-fusion=backward --check-finite=off --emit=scheduled | FileCheck %s --check-prefix=BACKWARD
// RUN: cleave-compile %s --check-finite=off --emit=scheduled | FileCheck %s --check-prefix=BACKWARD
// RUN: cleave-compile %s --emit=scheduled | FileCheck %s --check-prefix=CHECKED
// RUN: not cleave-compile %s --optimizer-fusion=backward --emit=scheduled 2>&1 | FileCheck %s --check-prefix=EARLY
// RUN: not cleave-compile %s --check-finite=maybe --emit=scheduled 2>&1 | FileCheck %s --check-prefix=MAYBE
// RUN: cleave-compile %s --optimizer-fusion=forward --max-grad-norm=1 --emit=scheduled | FileCheck %s --check-prefix=FORWARD
// RUN: not cleave-compile %s --optimizer-fusion=backward --max-grad-norm=1 --check-finite=off --emit=scheduled 2>&1 | FileCheck %s --check-prefix=CLIP
// RUN: not cleave-compile %s --optimizer-fusion=sideways --emit=scheduled 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: cleave-compile %s --optimizer-fusion=forward --max-grad-norm=1 --report=%t.json
// RUN: FileCheck %s --check-prefix=REPORT --input-file %t.json
// RUN: not cleave-compile %s --precision=fp16 --optimizer-fusion=backward --plan-only 2>&1 | FileCheck %s --check-prefix=SCALED
// RUN: not cleave-compile %s --precision=fp16 --check-finite=off --plan-only 2>&1 | FileCheck %s --check-prefix=UNCHECKED
// RUN: not cleave-compile %s --precision=fp16 --mesh=pp=2 --schedule=pipedream --micro-batches=2 --plan-only 2>&1 | FileCheck %s --check-prefix=EACH

// Scaling of the loss needs the check, so that no message says to turn it off.
// SCALED: --optimizer-fusion: "backward" updates after each gradient, and fp16 skips a step of which any gradient overflows; leave the fusion out, or use bf16
// UNCHECKED: --precision: fp16 skips a step of which gradients are not finite
// EACH: --schedule: an asynchronous schedule updates after each micro-batch, and fp16 skips a step of which any gradient overflows; choose a synchronous schedule, or bf16

// NONE: pipe.program @train({{.*}}pipe.optimizer_fusion = "none: it was asked to be apart"{{.*}} schedule = "F0 B0 U"
// BACKWARD: pipe.program @train({{.*}}pipe.optimizer_fusion = "backward"{{.*}} schedule = "F0 B0"}
// FORWARD: pipe.program @train({{.*}}pipe.optimizer_fusion = "forward"{{.*}} schedule = "F0 B0 U"
// CHECKED: pipe.program @train({{.*}}pipe.optimizer_fusion = "none: graph.{{[a-z_]+}} reads the gradients of several parameters{{.*}} schedule = "F0 B0 U"
// CHECKED: graph.check {{.*}}, "the loss is not finite"
// CHECKED: graph.check {{.*}}, "a gradient is not finite"
// EARLY: cleave-compile: --optimizer-fusion: "backward" updates after each gradient, before it is known whether all of them are finite; turn --check-finite off, or leave the fusion out
// MAYBE: cleave-compile: --check-finite is on or off, not 'maybe'
// CLIP: optimizer-fusion.mlir:{{[0-9]+}}:1: error: optimizer fusion into backward is not possible: graph.global_norm reads the gradients of several parameters
// UNKNOWN: cleave-compile: --optimizer-fusion is auto, none, backward or forward, not 'sideways'

// Both gradients, of 64 and 8 elements, and the factor of the clip.
// REPORT-DAG: "gradient": 292
// REPORT-DAG: "train: optimizer fusion forward: each update runs in the next step, before its parameter is read first"
// REPORT-DAG: "train gradients": 292
func.func @loss(%w: tensor<8x8xf32> {graph.name = "w", graph.role = "parameter"}, %b: tensor<8xf32> {graph.name = "b", graph.role = "parameter"},
  %x: tensor<4x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64}) -> (tensor<f32> {graph.name = "loss"}) {
  %y = graph.contract "bi,oi->bo" %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %z = graph.add %y, %b : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %t = graph.tanh %z : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %u = graph.contract "bi,oi->bo" %t, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %l = graph.reduce sum %u {dims = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<f32>
  return %l : tensor<f32>
}
