// RUN: cleave-opt %s --pipe-split-stages="at=500 slices=off" --pipe-schedule --pipe-verify | FileCheck %s

// Backward gathers again what forward has gathered. No gradient has come to it
// then: it stands with the gradient that reads it, since backward of the last stage
// comes first.

// CHECK-LABEL: func.func private @train.1B(
// CHECK: spmd.all_gather
// CHECK: graph.mul
// CHECK-NOT: func.func private @train.B(
spmd.mesh @mesh <["mb" = 2, "tp" = 2, "pp" = 2]> sequential ["mb"]
func.func @train(%w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter", spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
                 %x: tensor<3x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64, spmd.global_type = tensor<6x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>})
    -> (tensor<f32> {graph.name = "loss", spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>},
        tensor<2x4xf32> {graph.name = "grad", spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}) {
  %h = graph.contract "bi,oi->bo" %x, %w {spmd.global_types = [tensor<6x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"mb"}, {"tp"}]>]} : (tensor<3x4xf32>, tensor<2x4xf32>) -> tensor<3x2xf32>
  %g = spmd.all_gather %h by <@mesh, [{}, {"tp"}]> {spmd.global_types = [tensor<6x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"mb"}, {}]>]} : tensor<3x2xf32> -> tensor<3x4xf32>
  %q = graph.mul %g, %g {spmd.global_types = [tensor<6x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"mb"}, {}]>]} : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
  %l = graph.reduce sum %q {dims = array<i64: 0, 1>, spmd.global_types = [tensor<f32>], spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"mb"}>]} : (tensor<3x4xf32>) -> tensor<f32>
  %loss = spmd.all_reduce sum %l over @mesh {"mb"} {spmd.global_types = [tensor<f32>], spmd.shardings = [#spmd.sharding<@mesh, []>]} : tensor<f32>
  %seed = graph.seed %l {spmd.global_types = [tensor<f32>], spmd.shardings = [#spmd.sharding<@mesh, []>]} : (tensor<f32>) -> tensor<f32>
  %again = spmd.barrier %h after %seed {spmd.global_types = [tensor<6x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"mb"}, {"tp"}]>]} : tensor<3x2xf32>, tensor<f32>
  %g2 = spmd.all_gather %again by <@mesh, [{}, {"tp"}]> {spmd.global_types = [tensor<6x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"mb"}, {}]>]} : tensor<3x2xf32> -> tensor<3x4xf32>
  %m = graph.mul %g2, %q {spmd.global_types = [tensor<6x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"mb"}, {}]>]} : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
  %d = graph.mul %m, %seed {spmd.global_types = [tensor<6x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"mb"}, {}]>]} : (tensor<3x4xf32>, tensor<f32>) -> tensor<3x4xf32>
  %dh = spmd.slice %d by <@mesh, [{}, {"tp"}]> {spmd.global_types = [tensor<6x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"mb"}, {"tp"}]>]} : tensor<3x4xf32> -> tensor<3x2xf32>
  %p = graph.contract "bo,bi->oi" %dh, %x {spmd.global_types = [tensor<4x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}, {}], partial = {"mb"}>]} : (tensor<3x2xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  %dw = spmd.all_reduce sum %p over @mesh {"mb"} {spmd.global_types = [tensor<4x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}, {}]>]} : tensor<2x4xf32>
  %grad = graph.gradient %dw of "w" {spmd.global_types = [tensor<4x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}, {}]>]} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %loss, %grad : tensor<f32>, tensor<2x4xf32>
}
