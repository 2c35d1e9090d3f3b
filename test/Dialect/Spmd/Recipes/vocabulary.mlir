// RUN: cleave-compile %s --emit=local --mesh=tp=2 --plan=megatron --optimizer=sgd --check-finite=off 2>/dev/null | FileCheck %s --implicit-check-not="= spmd.all_" --implicit-check-not="= spmd.reduce_scatter" --implicit-check-not="= spmd.permute"
// RUN: cleave-compile %s --emit=local --mesh=tp=2 --plan=megatron-sp --optimizer=sgd 2>/dev/null | FileCheck %s --check-prefix=SP
// RUN: cleave-compile %s --emit=local --mesh=tp=5 --plan=megatron --optimizer=sgd 2>/dev/null | FileCheck %s --check-prefix=PADDED
// RUN: cleave-compile %s --emit=local --mesh=tp=20 --plan=megatron --optimizer=sgd 2>/dev/null | FileCheck %s --check-prefix=WHOLE

// All that is moved with the vocabulary in two parts: 4x6x8 numbers for the
// embedding and each product, and three times 4x6 for the loss. The table's
// gradient needs nothing.

// CHECK-LABEL: func.func @evaluate(
// CHECK-SAME: tensor<6x8xf32> {graph.aliases = ["head"], graph.name = "w"
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x6x8xf32>
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x6x8xf32>
// CHECK: graph.linear {{.*}} -> tensor<4x6x6xf32>
// CHECK: spmd.all_reduce max %{{.*}} : tensor<4x6xf32>
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x6xf32>
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x6xf32>
// CHECK-LABEL: func.func @train(
// CHECK: %[[ROWS:.*]] = graph.gather %{{.*}}, %{{.*}} origin %{{.*}} : (tensor<6x8xf32>, tensor<4x6xi64>, tensor<1xi64>)
// CHECK: spmd.all_reduce sum %[[ROWS]] over @mesh {"tp"}
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x6x8xf32>
// CHECK: graph.seed
// CHECK: %[[L:.*]] = graph.linear {{.*}} -> tensor<4x6x6xf32>
// CHECK: %[[LARGEST:.*]] = graph.reduce max %[[L]]
// CHECK: spmd.all_reduce max %[[LARGEST]] over @mesh {"tp"} {{.*}} : tensor<4x6xf32>
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x6xf32>
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x6xf32>
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x6x8xf32>
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x6x8xf32>
// CHECK: graph.scatter_add {{.*}} origin {{.*}} size = 6 : i64

// Between, rows are split along the sequence: the embedding's sum is scattered,
// and the head's input is gathered once.

// SP-LABEL: func.func @train(
// SP: %[[ROWS:.*]] = graph.gather
// SP: spmd.reduce_scatter sum %[[ROWS]]
// SP: spmd.reduce_scatter sum %{{.*}} : tensor<4x6x8xf32> -> tensor<4x3x8xf32>
// SP: graph.seed
// SP: %[[X:.*]] = spmd.all_gather %{{.*}} : tensor<4x3x8xf32> -> tensor<4x6x8xf32>
// SP: graph.linear %[[X]]
// SP-NOT: spmd.all_gather
// SP: spmd.all_reduce max %{{.*}} : tensor<4x6xf32>
// SP: spmd.all_reduce sum %{{.*}} : tensor<4x6xf32>
// SP: spmd.all_reduce sum %{{.*}} : tensor<4x6xf32>
// SP: %[[DX:.*]] = graph.contract "abv,vh->abh"
// SP: spmd.reduce_scatter sum %[[DX]]

// What the devices do not divide is padded: padding has no probability, and no
// token names it.

// PADDED-LABEL: func.func @train(
// PADDED-SAME: tensor<3x8xf32> {graph.aliases = ["head"], graph.name = "w", graph.role = "parameter", graph.valid_shape = array<i64: 12, 8>,
// PADDED: graph.gather {{.*}} origin {{.*}} global_size = 12 : i64
// PADDED: %[[L:.*]] = graph.linear {{.*}} -> tensor<4x6x3xf32>
// PADDED: %[[M:.*]] = graph.select %{{.*}}, %[[L]], %{{.*}} {graph.padding
// PADDED: graph.reduce max %[[M]]
// PADDED: graph.reduce sum
// PADDED: graph.reduce sum
// PADDED: %[[S:.*]] = graph.select %{{.*}}, %{{.*}}, %{{.*}} {graph.padding
// PADDED: graph.contract "abv,vh->abh" %[[S]], %{{.*}} -> tensor<4x6x8xf32>
// PADDED: graph.contract "abv,abh->vh" %[[S]], %{{.*}} -> tensor<3x8xf32>
// PADDED: graph.scatter_add {{.*}} global_size = 12 : i64{{.*}} size = 3 : i64

// What has less than one place for each device stays whole, and one op.

// WHOLE-LABEL: func.func @train(
// WHOLE-SAME: tensor<12x8xf32> {graph.aliases = ["head"], graph.name = "w"
// WHOLE: graph.head_loss
func.func @loss(
    %w: tensor<12x8xf32> {graph.name = "w", graph.role = "parameter", graph.aliases = ["head"]},
    %p: tensor<6x8xf32> {graph.name = "p", graph.role = "parameter"},
    %up: tensor<20x8xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<8x20xf32> {graph.name = "down", graph.role = "parameter"},
    %g: tensor<8xf32> {graph.name = "g", graph.role = "parameter"},
    %ids: tensor<4x6xi64> {graph.batch_dim = 0 : i64, graph.name = "ids", graph.role = "input"},
    %t: tensor<4x6xi64> {graph.batch_dim = 0 : i64, graph.name = "t", graph.role = "input"}) -> (tensor<f32> {graph.name = "loss"}) {
  %e = graph.gather %w, %ids {dim = 0 : i64} : (tensor<12x8xf32>, tensor<4x6xi64>) -> tensor<4x6x8xf32>
  %x = graph.add %e, %p : (tensor<4x6x8xf32>, tensor<6x8xf32>) -> tensor<4x6x8xf32>
  %n, %r = graph.rms_norm %x weight %g {epsilon = 1.0e-6 : f64} : (tensor<4x6x8xf32>, tensor<8xf32>) -> (tensor<4x6x8xf32>, tensor<4x6xf32>)
  %u = graph.linear %n, %up : (tensor<4x6x8xf32>, tensor<20x8xf32>) -> tensor<4x6x20xf32>
  %a = graph.gelu %u : (tensor<4x6x20xf32>) -> tensor<4x6x20xf32>
  %d = graph.linear %a, %down : (tensor<4x6x20xf32>, tensor<8x20xf32>) -> tensor<4x6x8xf32>
  %y = graph.add %d, %x : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %n1, %r1 = graph.rms_norm %y weight %g {epsilon = 1.0e-6 : f64} : (tensor<4x6x8xf32>, tensor<8xf32>) -> (tensor<4x6x8xf32>, tensor<4x6xf32>)
  %l3 = graph.linear %n1, %w : (tensor<4x6x8xf32>, tensor<12x8xf32>) -> tensor<4x6x12xf32>
  %l = graph.reshape %l3 : (tensor<4x6x12xf32>) -> tensor<24x12xf32>
  %t1 = graph.reshape %t : (tensor<4x6xi64>) -> tensor<24xi64>
  %rows, %lse = graph.cross_entropy %l, %t1 : (tensor<24x12xf32>, tensor<24xi64>) -> (tensor<24xf32>, tensor<24xf32>)
  %sum = graph.reduce sum %rows {dims = array<i64: 0>} : (tensor<24xf32>) -> tensor<f32>
  return %sum : tensor<f32>
}
