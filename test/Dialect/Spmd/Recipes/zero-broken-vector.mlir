// A vector whose shards are not divisible rests as it is computed: a finer sharding of its ten
// elements, two on each of six ranks, would not lie within the five of a rank of the heads.

// RUN: cleave-opt %s --spmd-apply-recipes="mesh=dp=3,tp=2 recipes=zero1,megatron" 2>&1 | FileCheck %s
// CHECK: remark: parameter "up.bias" is not sharded over axis "dp", by whose 3 positions its shards are not divisible
// CHECK-LABEL: func.func @train(
// CHECK-SAME: graph.name = "up.bias", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}]>
// CHECK-SAME: graph.name = "up.momentum", {{.*}}spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {"dp"}]>
// CHECK-SAME: graph.name = "bias.momentum", {{.*}}spmd.sharding = #spmd.sharding<@mesh, [{"tp"}]>
func.func @train(%up: tensor<10x6xf32> {graph.name = "up", graph.role = "parameter"},
                 %bias: tensor<10xf32> {graph.name = "up.bias", graph.role = "parameter"},
                 %down: tensor<6x10xf32> {graph.name = "down", graph.role = "parameter"},
                 %mup: tensor<10x6xf32> {graph.name = "up.momentum", graph.of = "up", graph.role = "state", graph.slot = "momentum"},
                 %mbias: tensor<10xf32> {graph.name = "bias.momentum", graph.of = "up.bias", graph.role = "state", graph.slot = "momentum"},
                 %x: tensor<6x6xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}, tensor<10x6xf32> {graph.updates = "up"}, tensor<10xf32> {graph.updates = "up.bias"},
        tensor<10x6xf32> {graph.updates = "up.momentum"}, tensor<10xf32> {graph.updates = "bias.momentum"}) {
  %h = graph.linear %x, %up bias %bias : (tensor<6x6xf32>, tensor<10x6xf32>, tensor<10xf32>) -> tensor<6x10xf32>
  %t = graph.relu %h : (tensor<6x10xf32>) -> tensor<6x10xf32>
  %y = graph.linear %t, %down : (tensor<6x10xf32>, tensor<6x10xf32>) -> tensor<6x6xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<6x6xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dt = graph.reduce sum %t {dims = array<i64: 0>} : (tensor<6x10xf32>) -> tensor<10xf32>
  %db = graph.mul %dt, %seed : (tensor<10xf32>, tensor<f32>) -> tensor<10xf32>
  %dw = graph.contract "bo,bi->oi" %t, %x : (tensor<6x10xf32>, tensor<6x6xf32>) -> tensor<10x6xf32>
  %du = graph.mul %dw, %seed : (tensor<10x6xf32>, tensor<f32>) -> tensor<10x6xf32>
  %gb = graph.gradient %db of "up.bias" : (tensor<10xf32>) -> tensor<10xf32>
  %gu = graph.gradient %du of "up" : (tensor<10x6xf32>) -> tensor<10x6xf32>
  %nmb = graph.add %mbias, %gb : (tensor<10xf32>, tensor<10xf32>) -> tensor<10xf32>
  %nmu = graph.add %mup, %gu : (tensor<10x6xf32>, tensor<10x6xf32>) -> tensor<10x6xf32>
  %nb = graph.sub %bias, %nmb : (tensor<10xf32>, tensor<10xf32>) -> tensor<10xf32>
  %nu = graph.sub %up, %nmu : (tensor<10x6xf32>, tensor<10x6xf32>) -> tensor<10x6xf32>
  return %loss, %nu, %nb, %nmu, %nmb : tensor<f32>, tensor<10x6xf32>, tensor<10xf32>, tensor<10x6xf32>, tensor<10xf32>
}
