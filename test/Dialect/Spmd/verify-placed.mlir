// RUN: cleave-opt %s --spmd-propagate --spmd-verify-placed | FileCheck %s

spmd.mesh @mesh <["dp" = 2]>

// CHECK-LABEL: func.func @step
// CHECK: graph.reduce {{.*}}spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"dp"}>]
func.func @step(%x: tensor<8xf32> {graph.name = "x", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>})
    -> (tensor<f32> {graph.name = "sum"}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<8xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
