// RUN: cleave-opt %s --spmd-apply-recipes="mesh=dp=2,tp=2 recipes=layers.*.up=[tp,-],down?=[-,dp+tp],zero1" | FileCheck %s
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=tp=3 recipes=up?=[tp,-],x=[-,tp,-]" 2>&1 | FileCheck %s --check-prefix=HINT
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=tp=3 recipes=up=[tp,-]" 2>&1 | FileCheck %s --check-prefix=PARTS
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=tp=3 recipes=qkv=[tp,tp]" 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=tp=2 recipes=*.dwn=[tp,-]" 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=tp=2 recipes=*.down=[tp,-],down=[-,tp]" 2>&1 | FileCheck %s --check-prefix=BOTH

// HINT: remark: "layers.0.up" is not placed as 'up?=[tp,-]': dimension 0 has size 16, not divisible by the 3 positions of axis "tp": use 2, 4, 8 or 16 positions, or replicate the dimension ('-')
// PARTS: error: "layers.0.up" cannot be placed as 'up=[tp,-]': dimension 0 has size 16, not divisible by the 3 positions of axis "tp": use 2, 4, 8 or 16 positions, or replicate the dimension ('-')
// TWICE: error: 'qkv=[tp,tp]' splits two dimensions over axis "tp"
// NAME: error: placement '*.dwn=[tp,-]' matches no parameter and no input; the closest name is "layers.0.down"
// BOTH: error: "layers.0.down" matches two placements, '*.down=[tp,-]' and 'down=[-,tp]'

// A placed weight is not gathered: what it makes is split as it is. State lies
// as its parameter does, and rests in parts of that.
// CHECK-LABEL: func.func @train
// CHECK-SAME: graph.name = "layers.0.up"{{.*}}spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>
// CHECK-SAME: graph.name = "layers.0.down"{{.*}}spmd.sharding = #spmd.sharding<@mesh, [{}, {"dp", "tp"}]>
// CHECK-SAME: graph.name = "momentum"{{.*}}spmd.sharding = #spmd.sharding<@mesh, [{"tp", "dp"}, {}]>
func.func @train(
    %up: tensor<16x8xf32> {graph.name = "layers.0.up", graph.role = "parameter"},
    %down: tensor<8x16xf32> {graph.name = "layers.0.down", graph.role = "parameter"},
    %state: tensor<16x8xf32> {graph.name = "momentum", graph.of = "layers.0.up", graph.role = "state"},
    %x: tensor<4x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %u = graph.linear %x, %up : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
  %d = graph.linear %u, %down : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
  %loss = graph.reduce sum %d {dims = array<i64: 0, 1, 2>} : (tensor<4x6x8xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
