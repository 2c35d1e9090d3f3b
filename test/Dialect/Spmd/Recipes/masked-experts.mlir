// Experts to which a matmul with a mask of a softmax sends tokens: they are one
// class with the router's, which stays replicated. Only matmuls in which they
// are a batch dimension are sharded over them; the mask and what leaves are not.

// RUN: cleave-opt %s --spmd-apply-recipes="mesh=ep=2 recipes=expert" | FileCheck %s
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=ep=3 recipes=expert" 2>&1 | FileCheck %s --check-prefix=THREE
// THREE: error: 'graph.contract' op has 4 experts, not divisible by the 3 positions of axis "ep"

// CHECK-LABEL: func.func @loss(
// CHECK-SAME: %{{[^:]*}}: tensor<4x8xf32> {graph.name = "gate", graph.role = "parameter"}
// CHECK-SAME: graph.name = "up", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"ep"}, {}, {}]>}
// CHECK-SAME: graph.name = "x", graph.role = "input", spmd.sharding = #spmd.sharding<@mesh, [{"ep"}, {}, {}]>}
// CHECK: %[[P:.*]] = graph.softmax
// CHECK: %[[S:.*]] = graph.contract "gse,gsm->egsm" %{{.*}}, %{{.*}}
// CHECK: %[[SE:.*]] = spmd.constrain %[[S]] to <@mesh, [{"ep"}, {?}, {?}, {?}]>
// CHECK: %[[H:.*]] = graph.contract "egsm,emh->egsh" %[[SE]], %{{.*}}
// CHECK: %[[HE:.*]] = spmd.constrain %[[H]] to <@mesh, [{"ep"}, {?}, {?}, {?}]>
// CHECK: %[[HL:.*]] = spmd.constrain %[[HE]] to <@mesh, [{}, {?}, {?}, {?}]>
// CHECK: graph.contract "gse,egsh->gsh" %{{.*}}, %[[HL]]
func.func @loss(
    %gate: tensor<4x8xf32> {graph.name = "gate", graph.role = "parameter"},
    %up: tensor<4x8x5xf32> {graph.name = "up", graph.role = "parameter"},
    %x: tensor<6x3x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %logits = graph.linear %x, %gate : (tensor<6x3x8xf32>, tensor<4x8xf32>) -> tensor<6x3x4xf32>
  %p = graph.softmax %logits : (tensor<6x3x4xf32>) -> tensor<6x3x4xf32>
  %s = graph.contract "gse,gsm->egsm" %p, %x : (tensor<6x3x4xf32>, tensor<6x3x8xf32>) -> tensor<4x6x3x8xf32>
  %h = graph.contract "egsm,emh->egsh" %s, %up : (tensor<4x6x3x8xf32>, tensor<4x8x5xf32>) -> tensor<4x6x3x5xf32>
  %y = graph.contract "gse,egsh->gsh" %p, %h : (tensor<6x3x4xf32>, tensor<4x6x3x5xf32>) -> tensor<6x3x5xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1, 2>} : (tensor<6x3x5xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
