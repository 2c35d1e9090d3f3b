// RUN: not cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages=stages=z 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages=stages=w 2>&1 | FileCheck %s --check-prefix=FIRST
// RUN: not cleave-opt %s --spmd-apply-recipes=mesh=pp=3 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages=stages=v 2>&1 | FileCheck %s --check-prefix=COUNT
// RUN: not cleave-opt %s --spmd-apply-recipes=mesh=pp=5 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages 2>&1 | FileCheck %s --check-prefix=MANY
// RUN: not cleave-opt %s --spmd-apply-recipes=mesh=pp=3 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages=at=500 2>&1 | FileCheck %s --check-prefix=AT
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=pp=2 recipes=megatron(pp)" 2>&1 | FileCheck %s --check-prefix=RECIPE
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=pp=2 recipes=w=[pp,-]" 2>&1 | FileCheck %s --check-prefix=PLACEMENT
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=pp=2,tp=2 recipes=x?=[-,pp+tp]" 2>&1 | FileCheck %s --check-prefix=HINT
// RUN: sed 's/"v", graph/"v", spmd.sharding = #spmd.sharding<@mesh, [{"pp"}, {}]>, graph/' %s > %t.mlir
// RUN: sed -i '1i spmd.mesh @mesh <["pp" = 2]>' %t.mlir
// RUN: not cleave-opt %t.mlir --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages 2>&1 | FileCheck %s --check-prefix=SHARDING
// RUN: not cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages=chunks=4611686018427387905 2>&1 | FileCheck %s --check-prefix=CHUNKS
// RUN: not cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages=chunks=5000 2>&1 | FileCheck %s --check-prefix=CHUNKS
// RUN: not cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages=slices=some 2>&1 | FileCheck %s --check-prefix=SLICES

// NAME: split-pipeline-invalid.mlir:{{[0-9]+}}:1: error: 'func.func' op has no parameter whose name begins with 'z', at which a stage is to begin
// FIRST: error: 'func.func' op cannot begin a stage at 'w': the previous stage would be empty
// COUNT: error: 'func.func' op is cut into 3 stages: expected 2 names, one for each stage but the first, got 1
// MANY: error: 'func.func' op cannot be cut into 5 stages: it has only 4 ops that depend on samples and parameters
// AT: error: there are 3 stages: `at` needs a number for each but the first
// CHUNKS: error: there are {{[0-9]+}} chunks for each of 2 pipeline positions, more than 4096 stages: choose fewer chunks
// SLICES: error: slices must be auto, on or off, got 'some'
// PLACEMENT: error: placement 'w=[pp,-]' names axis "pp", whose positions are stages of a pipeline: shard over another axis
// HINT: error: placement 'x?=[-,pp+tp]' names axis "pp", whose positions are stages of a pipeline: shard over another axis
// SHARDING: split-pipeline-invalid.mlir{{.*}}: error: is sharded over axis "pp", whose positions are stages of a pipeline: shard over another axis
// RECIPE: error: recipe 'megatron' is bound to axis "pp", whose positions are stages of a pipeline: bind it to another axis
func.func @train(%w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                 %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                 %x: tensor<6x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<6x4xf32> {graph.name = "y"}) {
  %h = graph.contract "bi,oi->bo" %x, %w : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %t = graph.tanh %h : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %k = graph.contract "bi,oi->bo" %t, %v : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %e = graph.exp %k : (tensor<6x4xf32>) -> tensor<6x4xf32>
  return %e : tensor<6x4xf32>
}
