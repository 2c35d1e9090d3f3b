// A plan beside its closed form, and what makes it too dear.

// RUN: cleave-compile %s --mesh=dp=2,tp=2 --plan=megatron,zero1 --check-cost --explain=cost --plan-only | FileCheck %s
// CHECK: of one rank of each pipeline position, in a step
// CHECK-NEXT: operations: form {{.*}}, plan {{.*}}, ratio 0.9
// CHECK-NEXT: parameters at rest: form 12.1 KiB, plan 12.1 KiB, ratio 1.000
// CHECK-NEXT: optimizer state: form 12.1 KiB, plan 12.1 KiB, ratio 1.000
// CHECK-NEXT: all_gather over "dp": form 6.0 KiB, plan 6.0 KiB, ratio 1.000 (updated parameters)
// CHECK-NEXT: all_reduce over "dp": form 0 B, plan {{[0-9]+}} B
// CHECK-NEXT: all_reduce over "tp": form {{.*}}, plan {{.*}}, ratio 1.000 (three numbers of each row of the loss; sums of b s h of each branch; the input gradient of the head; rows looked up)
// CHECK-NEXT: reduce_scatter over "dp": form 6.0 KiB, plan 6.0 KiB, ratio 1.000 (gradients, to shards)
// CHECK-NOT: excess

// Of micro-batches, stages and recomputation.
// RUN: cleave-compile %s --mesh=dp=2,pp=2 --micro-batches=2 --recompute=full --check-cost --explain=cost --plan-only | FileCheck %s --check-prefix=STAGES
// STAGES: send over "pp": form 8.0 KiB, plan {{8.*}} KiB, ratio 1.0
// STAGES-SAME: (the residual stream at boundaries)

// What is written to the report.
// RUN: cleave-compile %s --mesh=dp=2 --plan-only --report=- | FileCheck %s --check-prefix=JSON
// JSON: "cost": {
// JSON-NEXT: "excesses": [],
// JSON-NEXT: "kept": [
// JSON-NEXT: {
// JSON-NEXT: "elements": 6272,
// JSON-NEXT: "ranks": 2,
// JSON-NEXT: "term": "stream"
// JSON: "elements": 16384,
// JSON-NEXT: "ranks": 2,
// JSON-NEXT: "term": "mlp"
// JSON: "missing": null,
// JSON-NEXT: "model_operations": 3932160,
// JSON-NEXT: "operations": {
// JSON-NEXT: "form":
// JSON-NEXT: "plan":
// JSON-NEXT: "ratio": 1
// JSON: "sent": [
// JSON: "kind": "all_reduce",
// JSON-NEXT: "terms": "gradients"

// Samples that the mesh does not divide are computed by each rank.
// RUN: sed 's/, graph.batch_dim = 0 : i64//' %s > %t.mlir
// RUN: not cleave-compile %t.mlir --mesh=dp=2 --check-cost --plan-only 2>&1 | FileCheck %s --check-prefix=EXCESS
// EXCESS: error: a rank computes {{.*}} operations in a step, and its closed form {{.*}}: {{[23]}}.{{[0-9]+}} times as many

// Work that ranks repeat is said, with the place where most of it is.
// RUN: cleave-compile %t.mlir --mesh=dp=2 --remarks --explain=cost --plan-only > %t.out 2>&1
// RUN: FileCheck %s --check-prefix=ALIKE --input-file=%t.out
// ALIKE-DAG: remark: the 2 ranks of axis "dp" compute 2.00 times the operations of a step together
// ALIKE-DAG: replicated: the 2 ranks of "dp" compute 2.00 times the operations of a step together, most of the repeated ones at check-cost.mlir
// RUN: cleave-compile %t.mlir --mesh=dp=2 --explain=summary --plan-only | FileCheck %s --check-prefix=SUMMARY
// SUMMARY: replicated: the 2 ranks of "dp" compute 2.00 times
// RUN: cleave-compile %s --mesh=dp=2 --remarks --explain=cost --plan-only 2>&1 | FileCheck %s --check-prefix=SHARED
// SHARED-NOT: ranks of {{.*}} compute

// What no form speaks of is said.
// RUN: not cleave-compile %s --mesh=dp=2 --compress=powersgd,rank=2 --check-cost --plan-only 2>&1 | FileCheck %s --check-prefix=NONE
// NONE: error: no closed form for compressed gradients, so its cost cannot be checked
// RUN: not cleave-compile %s --mesh=dp=2 --plan='up=[dp,-]' --check-cost --plan-only 2>&1 | FileCheck %s --check-prefix=PLACED
// PLACED: error: no closed form for the placement up=[dp,-], so its cost cannot be checked
// RUN: cleave-compile %s --mesh=dp=2 --compress=powersgd,rank=2 --explain=cost --plan-only | FileCheck %s --check-prefix=SAID
// SAID: cost: no closed form for compressed gradients
// RUN: not cleave-compile %s --check-cost --emit=local 2>&1 | FileCheck %s --check-prefix=EMIT
// EMIT: --check-cost is of the plan of a step: it excludes --emit, but of memory, --fit and --measure-machine

func.func @loss(
    %table: tensor<64x16xf32> {graph.name = "table", graph.role = "parameter"},
    %up: tensor<64x16xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<16x64xf32> {graph.name = "down", graph.role = "parameter"},
    %scale: tensor<16xf32> {graph.name = "scale", graph.role = "parameter"},
    %up2: tensor<64x16xf32> {graph.name = "up2", graph.role = "parameter"},
    %down2: tensor<16x64xf32> {graph.name = "down2", graph.role = "parameter"},
    %head: tensor<64x16xf32> {graph.name = "head", graph.role = "parameter"},
    %ids: tensor<4x32xi64> {graph.name = "ids", graph.role = "input", graph.batch_dim = 0 : i64},
    %labels: tensor<4x32xi64> {graph.name = "labels", graph.role = "input", graph.batch_dim = 0 : i64}) -> (tensor<f32> {graph.name = "loss"}) {
  %x = graph.gather %table, %ids {dim = 0 : i64} : (tensor<64x16xf32>, tensor<4x32xi64>) -> tensor<4x32x16xf32>
  %n, %rstd = graph.rms_norm %x weight %scale {epsilon = 1.0e-05 : f64} : (tensor<4x32x16xf32>, tensor<16xf32>) -> (tensor<4x32x16xf32>, tensor<4x32xf32>)
  %u = graph.linear %n, %up : (tensor<4x32x16xf32>, tensor<64x16xf32>) -> tensor<4x32x64xf32>
  %w = graph.relu %u : (tensor<4x32x64xf32>) -> tensor<4x32x64xf32>
  %d = graph.linear %w, %down : (tensor<4x32x64xf32>, tensor<16x64xf32>) -> tensor<4x32x16xf32>
  %y = graph.add %x, %d : (tensor<4x32x16xf32>, tensor<4x32x16xf32>) -> tensor<4x32x16xf32>
  %u2 = graph.linear %y, %up2 : (tensor<4x32x16xf32>, tensor<64x16xf32>) -> tensor<4x32x64xf32>
  %w2 = graph.relu %u2 : (tensor<4x32x64xf32>) -> tensor<4x32x64xf32>
  %d2 = graph.linear %w2, %down2 : (tensor<4x32x64xf32>, tensor<16x64xf32>) -> tensor<4x32x16xf32>
  %z = graph.add %y, %d2 : (tensor<4x32x16xf32>, tensor<4x32x16xf32>) -> tensor<4x32x16xf32>
  %l = graph.linear %z, %head : (tensor<4x32x16xf32>, tensor<64x16xf32>) -> tensor<4x32x64xf32>
  %rows, %lse = graph.cross_entropy %l, %labels : (tensor<4x32x64xf32>, tensor<4x32xi64>) -> (tensor<4x32xf32>, tensor<4x32xf32>)
  %sum = graph.reduce sum %rows {dims = array<i64: 0, 1>} : (tensor<4x32xf32>) -> tensor<f32>
  return %sum : tensor<f32>
}
