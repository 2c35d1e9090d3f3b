// RUN: split-file %s %t
// RUN: not cleave-opt %t/role.mlir --spmd-apply-recipes="mesh=dp=2 recipes=zero3" 2>&1 | FileCheck %s --check-prefix=ROLE
// RUN: not cleave-opt %t/role.mlir --spmd-apply-recipes="mesh=tp=2 recipes=megatron" 2>&1 | FileCheck %s --check-prefix=ROLE
// RUN: not cleave-opt %t/type.mlir --spmd-apply-recipes="mesh=dp=2 recipes=zero3" 2>&1 | FileCheck %s --check-prefix=TYPE
// RUN: not cleave-opt %t/groups.mlir --spmd-apply-recipes="mesh=cp=8 recipes=ulysses" 2>&1 | FileCheck %s --check-prefix=GROUPS
// RUN: cleave-opt %t/groups.mlir --spmd-apply-recipes="mesh=cp=4 recipes=ulysses" | FileCheck %s --check-prefix=REPLICATED
// RUN: not cleave-opt %t/shared.mlir --spmd-apply-recipes="mesh=cp=8 recipes=ulysses" 2>&1 | FileCheck %s --check-prefix=SHARED
// RUN: cleave-opt %t/shared.mlir --spmd-apply-recipes="mesh=cp=4 recipes=ulysses" | FileCheck %s --check-prefix=ALONE

// What is a parameter of one entry is that of all entries.

// ROLE: role.mlir:[[#]]:25: error: 'w' is a parameter 'tensor<8x4xf32>' of @train and no parameter of @logits: give it one role and one type, or names of its own
// TYPE: type.mlir:[[#]]:25: error: 'w' is a parameter 'tensor<8x4xf32>' of @train and 'tensor<4x4xf32>' of @logits: give it one role and one type, or names of its own

// Heads: query heads that share one key-value head are sharded alone.

// GROUPS: error: 'graph.attention' op has 4 query heads and 2 key-value heads, too few for the 8 positions of axis "cp", over which ulysses shards heads: use 2 or 4 positions, or the recipe 'ring' or 'context', which shard the sequence alone
// Two neighbours hold the same key-value head.
// REPLICATED: spmd.constrain %{{.*}} to <@mesh, [{?}, {"cp"}, {?}, {?}]>
// REPLICATED-COUNT-2: spmd.constrain %{{.*}} to <@mesh, [{?}, {"cp":(1)2}, {?}, {?}]>
// ALONE-COUNT-1: spmd.constrain
// ALONE-NOT: spmd.constrain
// SHARED: error: 'graph.attention' op has 4 heads, too few for the 8 positions of axis "cp", over which ulysses shards heads: use 2 or 4 positions, or the recipe 'ring' or 'context'

//--- role.mlir
func.func @train(%w: tensor<8x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<4x4xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<8x4xf32> {graph.updates = "w"}) {
  %y = graph.add %w, %w : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}
func.func @logits(
                        %w: tensor<8xf32> {graph.name = "w", graph.role = "buffer"}) -> tensor<8xf32> {
  %y = graph.neg %w : (tensor<8xf32>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}

//--- type.mlir
func.func @train(%w: tensor<8x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<4x4xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<8x4xf32> {graph.updates = "w"}) {
  %y = graph.add %w, %w : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}
func.func @logits(
                        %w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"}) -> tensor<4x4xf32> {
  %y = graph.neg %w : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}

//--- shared.mlir
func.func @loss(%x: tensor<2x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %wq: tensor<8x4x2xf32> {graph.name = "wq", graph.role = "parameter"},
    %wk: tensor<8x1x2xf32> {graph.name = "wk", graph.role = "parameter"}) -> tensor<f32> {
  %q = graph.contract "bsh,had->basd" %x, %wq : (tensor<2x6x8xf32>, tensor<8x4x2xf32>) -> tensor<2x4x6x2xf32>
  %k = graph.contract "bsh,had->basd" %x, %wk : (tensor<2x6x8xf32>, tensor<8x1x2xf32>) -> tensor<2x1x6x2xf32>
  %o, %lse = graph.attention %q, %k, %k {scale = 1.0 : f64} : (tensor<2x4x6x2xf32>, tensor<2x1x6x2xf32>, tensor<2x1x6x2xf32>) -> (tensor<2x4x6x2xf32>, tensor<2x4x6xf32>)
  %loss = graph.reduce sum %o {dims = array<i64: 0, 1, 2, 3>} : (tensor<2x4x6x2xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}

//--- groups.mlir
func.func @loss(%x: tensor<2x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %wq: tensor<8x4x2xf32> {graph.name = "wq", graph.role = "parameter"},
    %wk: tensor<8x2x2xf32> {graph.name = "wk", graph.role = "parameter"}) -> tensor<f32> {
  %q = graph.contract "bsh,had->basd" %x, %wq : (tensor<2x6x8xf32>, tensor<8x4x2xf32>) -> tensor<2x4x6x2xf32>
  %k = graph.contract "bsh,had->basd" %x, %wk : (tensor<2x6x8xf32>, tensor<8x2x2xf32>) -> tensor<2x2x6x2xf32>
  %o, %lse = graph.attention %q, %k, %k {scale = 1.0 : f64} : (tensor<2x4x6x2xf32>, tensor<2x2x6x2xf32>, tensor<2x2x6x2xf32>) -> (tensor<2x4x6x2xf32>, tensor<2x4x6xf32>)
  %loss = graph.reduce sum %o {dims = array<i64: 0, 1, 2, 3>} : (tensor<2x4x6x2xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
