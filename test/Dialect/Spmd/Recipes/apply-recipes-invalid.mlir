// RUN: split-file %s %t
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=tp=32 recipes=megatron" 2>&1 | FileCheck %s --check-prefix=PARTS
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=dp=5" 2>&1 | FileCheck %s --check-prefix=SAMPLES
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=dp=2 recipes=megatron" 2>&1 | FileCheck %s --check-prefix=AXIS
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=dp=2 recipes=zero4" 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=dp=0" 2>&1 | FileCheck %s --check-prefix=SIZE
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=dp=2,dp=2" 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=mb=2" 2>&1 | FileCheck %s --check-prefix=MB
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="recipes=dp" 2>&1 | FileCheck %s --check-prefix=MESH
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=cp=2 recipes=ulysses" 2>&1 | FileCheck %s --check-prefix=ATTENTION
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=cp=2 recipes=context" 2>&1 | FileCheck %s --check-prefix=CONTEXT
// RUN: not cleave-opt %t/attention.mlir --spmd-apply-recipes="mesh=cp=9 recipes=context" 2>&1 | FileCheck %s --check-prefix=SEQUENCE
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=dp=2 recipes=zero1" 2>&1 | FileCheck %s --check-prefix=UPDATE

// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=tp=2 recipes=megatron,megatron-sp" 2>&1 | FileCheck %s --check-prefix=BOTH
// BOTH: error: recipes 'megatron' and 'megatron-sp' both split the same things over axis "tp": name one of them
// RUN: cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=x=2" --spmd-propagate 2>&1 | FileCheck %s --check-prefix=IDLE

// IDLE: warning: axis "x" shards nothing: its 2 positions compute the same values; add a recipe that uses it
// PARTS: error: dimension 0 of parameter "up" has size 16, not divisible by the 32 positions of axis "tp": use 2, 4, 8 or 16 positions, or replicate the parameter by a placement
// SAMPLES: error: input "x" has 4 samples, fewer than the 5 positions of axis "dp": use at most 4
// AXIS: error: recipe 'megatron' is bound to axis "tp", which the mesh does not have: it has "dp"
// NAME: error: there is no recipe 'zero4'; there are context, dp, expert, megatron, megatron-sp, ring, summa25d, summa2d, two-ring, ulysses, zero1, zero2, zero3
// SIZE: error: a mesh is written as "dp=2,tp=4": 'dp=0' is not an axis with a positive size
// TWICE: error: the mesh names axis "dp" twice
// MB: error: "mb" is the axis of micro-batches: name another
// MESH: error: a recipe needs a mesh
// ATTENTION: error: recipe 'ulysses': no input has the sequence dimension of an attention
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=cp=2 recipes=ring" 2>&1 | FileCheck %s --check-prefix=RING
// RING: error: recipe 'ring': the model has no attention
// RUN: not cleave-opt %t/router.mlir --spmd-apply-recipes="mesh=cp=2 recipes=ring" 2>&1 | FileCheck %s --check-prefix=RING
// RUN: not cleave-opt %t/scores.mlir --spmd-apply-recipes="mesh=cp=2 recipes=ring" 2>&1 | FileCheck %s --check-prefix=SCORES
// SCORES: scores.mlir:7:{{.*}} error: recipe 'ring': the scores of this softmax are not those of an attention
// CONTEXT: error: recipe 'context': no input has the sequence dimension of an attention
// SEQUENCE: error: dimension 1 of input "x" has size 8, less than the 9 positions of axis "cp": use at most 8
// UPDATE: error: recipe 'zero1': no entry updates parameters

// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=ep=2 recipes=expert" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not cleave-opt %t/experts.mlir --spmd-apply-recipes="mesh=ep=5 recipes=expert" 2>&1 | FileCheck %s --check-prefix=EXPERTS
// RUN: not cleave-opt %t/experts.mlir --spmd-apply-recipes="mesh=ep=8 recipes=expert" 2>&1 | FileCheck %s --check-prefix=TOKENS
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=row=2,col=2 recipes=summa2d,expert(col)" 2>&1 | FileCheck %s --check-prefix=NOFOLD
// NOFOLD: error: recipes 'summa2d' and 'expert' split features and samples over axis "col": an axis has one of them; bind one recipe to another axis
// NONE: error: recipe 'expert': the model has no experts, that is, no batched product in which each batch index has its own weights
// EXPERTS: error: 'graph.contract' op has 4 experts, fewer than the 5 positions of axis "ep"
// TOKENS: error: input "x" has 6 samples, fewer than the 8 positions of axis "ep": use at most 6

// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=row=2,col=4 recipes=summa2d" 2>&1 | FileCheck %s --check-prefix=SQUARE
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=row=3,col=3 recipes=summa2d" 2>&1 | FileCheck %s --check-prefix=BLOCKS
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=row=2,col=2 recipes=summa25d" 2>&1 | FileCheck %s --check-prefix=DEPTH
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=row=2,col=2 recipes=summa2d(row)" 2>&1 | FileCheck %s --check-prefix=AXES
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=row=2,col=2,tp=2 recipes=summa2d,megatron" 2>&1 | FileCheck %s --check-prefix=FEATURES
// RUN: not cleave-opt %t/mlp.mlir --spmd-apply-recipes="mesh=row=2,dp=2 recipes=summa2d(row,dp)" 2>&1 | FileCheck %s --check-prefix=TAKEN
// SQUARE: error: axes "row" and "col" have 2 and 4 positions: products in steps need as many of both
// BLOCKS: error: dimension 1 of parameter "up" comes in 8, which the 3 positions of axis "row" do not divide: use 2, 4 or 8 positions, or replicate the parameter by a placement
// DEPTH: error: recipe 'summa25d' is bound to axis "depth", which the mesh does not have: it has "row", "col"
// AXES: error: recipe 'summa2d' is bound to different axes: summa2d(row,col)
// FEATURES: error: recipes 'summa2d' and 'megatron' both split the features: 'summa2d' those of every product, and what lies in blocks of two kinds cannot be multiplied; name one of them
// TAKEN: error: recipe 'summa2d' splits features over axis "dp", which splits the samples: an axis has one of them; bind the recipe to another axis

//--- experts.mlir
func.func @loss(
    %up: tensor<4x5x8xf32> {graph.name = "up", graph.role = "parameter"},
    %x: tensor<6x4x7x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %y = graph.contract "gech,efh->gecf" %x, %up : (tensor<6x4x7x8xf32>, tensor<4x5x8xf32>) -> tensor<6x4x7x5xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1, 2, 3>} : (tensor<6x4x7x5xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}

//--- mlp.mlir
func.func @loss(
    %up: tensor<16x8xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<8x16xf32> {graph.name = "down", graph.role = "parameter"},
    %g: tensor<8xf32> {graph.name = "g", graph.role = "parameter"},
    %x: tensor<4x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %n, %r = graph.rms_norm %x weight %g {epsilon = 1.0e-6 : f64} : (tensor<4x6x8xf32>, tensor<8xf32>) -> (tensor<4x6x8xf32>, tensor<4x6xf32>)
  %u = graph.linear %n, %up : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
  %d = graph.linear %u, %down : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
  %y = graph.add %d, %x : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1, 2>} : (tensor<4x6x8xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}

//--- attention.mlir
func.func @loss(
    %x: tensor<4x8x2x4xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %q = graph.transpose %x {permutation = array<i64: 0, 2, 1, 3>} : (tensor<4x8x2x4xf32>) -> tensor<4x2x8x4xf32>
  %o, %lse = graph.attention %q, %q, %q {scale = 1.0 : f64, causal}
      : (tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>) -> (tensor<4x2x8x4xf32>, tensor<4x2x8xf32>)
  %loss = graph.reduce sum %o {dims = array<i64: 0, 1, 2, 3>} : (tensor<4x2x8x4xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}

//--- router.mlir
func.func @loss(
    %router: tensor<4x8xf32> {graph.name = "router", graph.role = "parameter"},
    %x: tensor<4x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %logits = graph.linear %x, %router : (tensor<4x6x8xf32>, tensor<4x8xf32>) -> tensor<4x6x4xf32>
  %p = graph.softmax %logits {dim = 2 : i64} : (tensor<4x6x4xf32>) -> tensor<4x6x4xf32>
  %loss = graph.reduce sum %p {dims = array<i64: 0, 1, 2>} : (tensor<4x6x4xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}

//--- scores.mlir
func.func @loss(
    %query: tensor<8x8xf32> {graph.name = "query", graph.role = "parameter"},
    %x: tensor<4x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %q = graph.linear %x, %query : (tensor<4x6x8xf32>, tensor<8x8xf32>) -> tensor<4x6x8xf32>
  %s = graph.contract "bqd,bkd->bqk" %q, %q : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x6xf32>
  %capped = graph.tanh %s : (tensor<4x6x6xf32>) -> tensor<4x6x6xf32>
  %p = graph.exp %capped : (tensor<4x6x6xf32>) -> tensor<4x6x6xf32>
  %loss = graph.reduce sum %p {dims = array<i64: 0, 1, 2>} : (tensor<4x6x6xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
