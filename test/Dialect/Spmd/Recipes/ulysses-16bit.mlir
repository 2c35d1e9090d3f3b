// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision --spmd-apply-recipes="mesh=cp=2 recipes=ulysses" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s
// RUN: cleave-opt %s --graph-differentiate --spmd-apply-recipes="mesh=cp=2 recipes=ulysses" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=WIDE
// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision=keep-chosen --graph-fp8=history=2 --spmd-apply-recipes="mesh=cp=2 recipes=ulysses" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=WIDE

// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision --spmd-apply-recipes="mesh=node=2,cp=2 recipes=context(node),ulysses" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=OVER

// Gradients of queries, keys and values are sums in f32. What is exchanged is of 16 bits, as
// these were, also where an op reads it in f32.

// CHECK-LABEL: func.func @train(
// CHECK-NOT: spmd.all_to_all {{.*}}f32>
// CHECK: graph.attention_grad
// CHECK-COUNT-3: spmd.all_to_all %{{.*}} over @mesh {"cp"} from 1 to 2 {{.*}} : tensor<2x2x8x2xbf16> -> tensor<2x4x4x2xbf16>
// CHECK-NOT: spmd.all_to_all

// In f32 there are as many, and with 8 bits, whose scales would follow from rounded ones.

// WIDE-LABEL: func.func @train(
// WIDE: graph.attention_grad
// WIDE-COUNT-3: spmd.all_to_all %{{.*}} over @mesh {"cp"} from 1 to 2 {{.*}} : tensor<2x2x8x2xf32> -> tensor<2x4x4x2xf32>
// WIDE-NOT: spmd.all_to_all
// Over another axis keys' gradients are summed in f32, before they are rounded.

// OVER-LABEL: func.func @train(
// OVER: graph.attention_grad
// OVER-DAG: spmd.reduce_scatter sum %{{.*}} by <@mesh, [{}, {}, {"node"}, {}]> {{.*}} : tensor<2x2x8x2xf32> -> tensor<2x2x4x2xf32>
// OVER-DAG: spmd.all_to_all %{{.*}} over @mesh {"cp"} from 1 to 2 {{.*}} : tensor<2x2x4x2xbf16> -> tensor<2x4x2x2xbf16>
// OVER-NOT: spmd.all_to_all {{.*}}f32>
func.func @loss(%x: tensor<2x8x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %wq: tensor<4x8x2xf32> {graph.name = "wq", graph.role = "parameter"},
    %bq: tensor<2xf32> {graph.name = "bq", graph.role = "parameter"},
    %wk: tensor<4x8x2xf32> {graph.name = "wk", graph.role = "parameter"},
    %wo: tensor<4x2x8xf32> {graph.name = "wo", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %p = graph.contract "bsh,ahd->basd" %x, %wq : (tensor<2x8x8xf32>, tensor<4x8x2xf32>) -> tensor<2x4x8x2xf32>
  %q = graph.add %p, %bq : (tensor<2x4x8x2xf32>, tensor<2xf32>) -> tensor<2x4x8x2xf32>
  %k = graph.contract "bsh,ahd->basd" %x, %wk : (tensor<2x8x8xf32>, tensor<4x8x2xf32>) -> tensor<2x4x8x2xf32>
  %o, %lse = graph.attention %q, %k, %k {scale = 1.0 : f64} : (tensor<2x4x8x2xf32>, tensor<2x4x8x2xf32>, tensor<2x4x8x2xf32>) -> (tensor<2x4x8x2xf32>, tensor<2x4x8xf32>)
  %y = graph.contract "basd,adh->bsh" %o, %wo : (tensor<2x4x8x2xf32>, tensor<4x2x8xf32>) -> tensor<2x8x8xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1, 2>} : (tensor<2x8x8xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
