// RUN: split-file %s %t
// RUN: cleave-opt %t/even.mlir --spmd-apply-recipes="mesh=cp=2,tp=2 recipes=megatron,ulysses" | FileCheck %s --check-prefix=EVEN
// RUN: cleave-opt %t/even.mlir --spmd-apply-recipes="mesh=cp=2,tp=2 recipes=megatron,ulysses" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives | FileCheck %s --check-prefix=LOCAL
// RUN: cleave-opt %t/grouped.mlir --spmd-apply-recipes="mesh=cp=2,tp=4 recipes=megatron,ulysses" | FileCheck %s --check-prefix=GROUPED
// RUN: cleave-opt %t/grouped.mlir --spmd-apply-recipes="mesh=cp=4,tp=2 recipes=megatron,ulysses" | FileCheck %s --check-prefix=DIGIT
// RUN: cleave-opt %t/odd.mlir --spmd-apply-recipes="mesh=cp=2,tp=2 recipes=megatron,ulysses" | FileCheck %s --check-prefix=ODD

// Heads that weights shard over one axis are exchanged for positions within each of its shards.

// EVEN: spmd.constrain %{{.*}} to <@mesh, [{?}, {"tp", "cp"}, {?}, {?}]>
// EVEN: graph.attention
// EVEN: spmd.constrain %{{.*}} to <@mesh, [{?}, {?}, {"cp"}, {?}]>

// LOCAL-NOT: all_gather
// LOCAL-COUNT-2: spmd.all_to_all %{{.*}} over @mesh {"cp"} from 2 to 1
// LOCAL: graph.attention {{.*}} (tensor<2x2x8x2xf32>, tensor<2x2x8x2xf32>, tensor<2x2x8x2xf32>)
// LOCAL: spmd.all_to_all %{{.*}} over @mesh {"cp"} from 1 to 2
// LOCAL-NOT: all_gather

// The ranks of "cp" hold the same heads of keys and values, or pairs of them do.

// GROUPED: to <@mesh, [{?}, {"tp", "cp"}, {?}, {?}]>
// GROUPED-NEXT: to <@mesh, [{?}, {"tp"}, {?}, {?}]>
// DIGIT: to <@mesh, [{?}, {"tp", "cp"}, {?}, {?}]>
// DIGIT-NEXT: to <@mesh, [{?}, {"tp", "cp":(1)2}, {?}, {?}]>

// Six heads over four ranks would be padded: each rank of "tp" has them all.

// ODD: to <@mesh, [{?}, {"cp"}, {?}, {?}]>

//--- even.mlir
func.func @loss(%x: tensor<2x8x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %wq: tensor<8x8x2xf32> {graph.name = "wq", graph.role = "parameter"},
    %wk: tensor<8x8x2xf32> {graph.name = "wk", graph.role = "parameter"},
    %wo: tensor<8x2x8xf32> {graph.name = "wo", graph.role = "parameter"}) -> tensor<f32> {
  %q = graph.contract "bsh,had->basd" %x, %wq : (tensor<2x8x8xf32>, tensor<8x8x2xf32>) -> tensor<2x8x8x2xf32>
  %k = graph.contract "bsh,had->basd" %x, %wk : (tensor<2x8x8xf32>, tensor<8x8x2xf32>) -> tensor<2x8x8x2xf32>
  %o, %lse = graph.attention %q, %k, %k {scale = 1.0 : f64} : (tensor<2x8x8x2xf32>, tensor<2x8x8x2xf32>, tensor<2x8x8x2xf32>) -> (tensor<2x8x8x2xf32>, tensor<2x8x8xf32>)
  %y = graph.contract "basd,adh->bsh" %o, %wo : (tensor<2x8x8x2xf32>, tensor<8x2x8xf32>) -> tensor<2x8x8xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1, 2>} : (tensor<2x8x8xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}

//--- grouped.mlir
func.func @loss(%x: tensor<2x8x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %wq: tensor<8x16x2xf32> {graph.name = "wq", graph.role = "parameter"},
    %wk: tensor<8x4x2xf32> {graph.name = "wk", graph.role = "parameter"},
    %wo: tensor<16x2x8xf32> {graph.name = "wo", graph.role = "parameter"}) -> tensor<f32> {
  %q = graph.contract "bsh,had->basd" %x, %wq : (tensor<2x8x8xf32>, tensor<8x16x2xf32>) -> tensor<2x16x8x2xf32>
  %k = graph.contract "bsh,had->basd" %x, %wk : (tensor<2x8x8xf32>, tensor<8x4x2xf32>) -> tensor<2x4x8x2xf32>
  %o, %lse = graph.attention %q, %k, %k {scale = 1.0 : f64} : (tensor<2x16x8x2xf32>, tensor<2x4x8x2xf32>, tensor<2x4x8x2xf32>) -> (tensor<2x16x8x2xf32>, tensor<2x16x8xf32>)
  %y = graph.contract "basd,adh->bsh" %o, %wo : (tensor<2x16x8x2xf32>, tensor<16x2x8xf32>) -> tensor<2x8x8xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1, 2>} : (tensor<2x8x8xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}

//--- odd.mlir
func.func @loss(%x: tensor<2x8x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %wq: tensor<8x6x2xf32> {graph.name = "wq", graph.role = "parameter"},
    %wo: tensor<6x2x8xf32> {graph.name = "wo", graph.role = "parameter"}) -> tensor<f32> {
  %q = graph.contract "bsh,had->basd" %x, %wq : (tensor<2x8x8xf32>, tensor<8x6x2xf32>) -> tensor<2x6x8x2xf32>
  %o, %lse = graph.attention %q, %q, %q {scale = 1.0 : f64} : (tensor<2x6x8x2xf32>, tensor<2x6x8x2xf32>, tensor<2x6x8x2xf32>) -> (tensor<2x6x8x2xf32>, tensor<2x6x8xf32>)
  %y = graph.contract "basd,adh->bsh" %o, %wo : (tensor<2x6x8x2xf32>, tensor<6x2x8xf32>) -> tensor<2x8x8xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1, 2>} : (tensor<2x8x8xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
