// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=u1,u2,u3 chunks=2 slices=on stage-map=v" | FileCheck %s
// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=u1,u2,u3 chunks=2 slices=on" | FileCheck %s --check-prefix=EACH
// RUN: not cleave-opt %s --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=u1,u2,u3 chunks=2 slices=on stage-map=w" 2>&1 | FileCheck %s --check-prefix=NAME

// Four stages at two positions, in the shape of a V: the second and the third are at one, and what
// the second computes is whole.

// CHECK-LABEL: func.func private @v.F(
// CHECK: spmd.reduce_scatter
// CHECK-LABEL: func.func private @v.1F(
// CHECK: spmd.all_gather
// CHECK: spmd.all_reduce
// CHECK-LABEL: func.func private @v.2F(
// CHECK-NOT: spmd.all_gather
// CHECK: spmd.reduce_scatter
// CHECK-LABEL: func.func private @v.3F(
// CHECK: spmd.all_gather

// Where stages go around, each sends to the next position.

// EACH-LABEL: func.func private @v.1F(
// EACH: spmd.all_gather
// EACH: spmd.reduce_scatter
// EACH-LABEL: func.func private @v.2F(
// EACH: spmd.all_gather

// NAME: error: stage-map: unknown stage map 'w'; write modular, v or bidirectional
spmd.mesh @mesh <["pp" = 2, "tp" = 2]>
func.func @v(%u0: tensor<8x4xf32> {graph.name = "u0", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
             %w0: tensor<4x8xf32> {graph.name = "w0", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
             %u1: tensor<8x4xf32> {graph.name = "u1", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
             %w1: tensor<4x8xf32> {graph.name = "w1", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
             %u2: tensor<8x4xf32> {graph.name = "u2", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
             %w2: tensor<4x8xf32> {graph.name = "w2", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
             %u3: tensor<8x4xf32> {graph.name = "u3", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
             %w3: tensor<4x8xf32> {graph.name = "w3", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
             %a: tensor<8x4xf32> {graph.name = "a", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<8x4xf32> {graph.name = "z"}) {
  %h0 = graph.contract "bi,oi->bo" %a, %u0 : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  %y0 = graph.contract "bi,oi->bo" %h0, %w0 : (tensor<8x8xf32>, tensor<4x8xf32>) -> tensor<8x4xf32>
  %h1 = graph.contract "bi,oi->bo" %y0, %u1 : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  %y1 = graph.contract "bi,oi->bo" %h1, %w1 : (tensor<8x8xf32>, tensor<4x8xf32>) -> tensor<8x4xf32>
  %h2 = graph.contract "bi,oi->bo" %y1, %u2 : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  %y2 = graph.contract "bi,oi->bo" %h2, %w2 : (tensor<8x8xf32>, tensor<4x8xf32>) -> tensor<8x4xf32>
  %h3 = graph.contract "bi,oi->bo" %y2, %u3 : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  %y3 = graph.contract "bi,oi->bo" %h3, %w3 : (tensor<8x8xf32>, tensor<4x8xf32>) -> tensor<8x4xf32>
  return %y3 : tensor<8x4xf32>
}
