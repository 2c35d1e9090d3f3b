// A norm over all heads of a recurrence is summed in parts, so that the heads can be sharded; one of
// a latent width, which no op has heads in, is not.

// RUN: cleave-opt %s --split-input-file --spmd-apply-recipes="mesh=tp=2 recipes=megatron" | FileCheck %s
// RUN: cleave-opt %s --split-input-file --spmd-apply-recipes="mesh=tp=2 recipes=megatron" --spmd-propagate --spmd-partition --spmd-verify | FileCheck %s --check-prefix=LOCAL

// CHECK-LABEL: func.func @logits(
// CHECK-SAME: graph.name = "up", {{[^}]*}}[{"tp"}, {}]>
// CHECK-SAME: graph.name = "skip", {{[^}]*}}[{"tp"}]>
// CHECK-SAME: graph.name = "scale", {{[^}]*}}[{"tp"}]>
// CHECK-SAME: graph.name = "down", {{[^}]*}}[{}, {"tp"}]>
// CHECK-NOT: graph.rms_norm
// CHECK: graph.reduce sum {{.*}} {dims = array<i64: 2>}
// CHECK: graph.rsqrt

// A number of each row, and the output.
// LOCAL-LABEL: func.func @logits(
// LOCAL-COUNT-2: spmd.all_reduce
// LOCAL-NOT: spmd.all_
func.func @logits(%up: tensor<8x6xf32> {graph.name = "up", graph.role = "parameter"},
                  %skip: tensor<4xf32> {graph.name = "skip", graph.role = "parameter"},
                  %scale: tensor<8xf32> {graph.name = "scale", graph.role = "parameter"},
                  %down: tensor<6x8xf32> {graph.name = "down", graph.role = "parameter"},
                  %x: tensor<2x3x6xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64}) -> tensor<2x3x6xf32> {
  %h = graph.linear %x, %up : (tensor<2x3x6xf32>, tensor<8x6xf32>) -> tensor<2x3x8xf32>
  %r = graph.reshape %h : (tensor<2x3x8xf32>) -> tensor<2x3x4x2xf32>
  %k = graph.reshape %skip : (tensor<4xf32>) -> tensor<4x1xf32>
  %m = graph.mul %r, %k : (tensor<2x3x4x2xf32>, tensor<4x1xf32>) -> tensor<2x3x4x2xf32>
  %j = graph.reshape %m : (tensor<2x3x4x2xf32>) -> tensor<2x3x8xf32>
  %n, %rstd = graph.rms_norm %j weight %scale {epsilon = 1.0e-05 : f64} : (tensor<2x3x8xf32>, tensor<8xf32>) -> (tensor<2x3x8xf32>, tensor<2x3xf32>)
  %y = graph.linear %n, %down : (tensor<2x3x8xf32>, tensor<6x8xf32>) -> tensor<2x3x6xf32>
  return %y : tensor<2x3x6xf32>
}

// -----

// CHECK-LABEL: func.func @latent(
// CHECK-SAME: graph.name = "up", {{[^}]*}}[{"tp"}, {}]>
// CHECK-SAME: graph.name = "narrow", graph.role = "parameter"}
// CHECK: graph.rms_norm
// LOCAL-LABEL: func.func @latent(
func.func @latent(%up: tensor<8x6xf32> {graph.name = "up", graph.role = "parameter"},
                  %narrow: tensor<4x6xf32> {graph.name = "narrow", graph.role = "parameter"},
                  %wide: tensor<6x4xf32> {graph.name = "wide", graph.role = "parameter"},
                  %down: tensor<6x8xf32> {graph.name = "down", graph.role = "parameter"},
                  %x: tensor<2x3x6xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64}) -> tensor<2x3x6xf32> {
  %l = graph.linear %x, %narrow : (tensor<2x3x6xf32>, tensor<4x6xf32>) -> tensor<2x3x4xf32>
  %n, %rstd = graph.rms_norm %l {epsilon = 1.0e-05 : f64} : (tensor<2x3x4xf32>) -> (tensor<2x3x4xf32>, tensor<2x3xf32>)
  %w = graph.linear %n, %wide : (tensor<2x3x4xf32>, tensor<6x4xf32>) -> tensor<2x3x6xf32>
  %h = graph.linear %w, %up : (tensor<2x3x6xf32>, tensor<8x6xf32>) -> tensor<2x3x8xf32>
  %r = graph.relu %h : (tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
  %y = graph.linear %r, %down : (tensor<2x3x8xf32>, tensor<6x8xf32>) -> tensor<2x3x6xf32>
  return %y : tensor<2x3x6xf32>
}
