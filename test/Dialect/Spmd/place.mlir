// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=4 --split-input-file | FileCheck %s
// RUN: cleave-opt %s --spmd-seed-shardings=grains=4 --split-input-file | FileCheck %s --check-prefix=GRAINS
// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=3 --spmd-pad --split-input-file | FileCheck %s --check-prefix=UNEVEN

// What micro-batches do not divide is padded: they have 3, 3 and 2 samples.
// UNEVEN: spmd.mesh @mesh <["mb" = 3]>
// UNEVEN: tensor<9x4xf32> {{.*}}graph.valid_shape = array<i64: 8, 4>
// UNEVEN-SAME: tensor<4x12xf32>

// Devices that split samples share the grains.
// GRAINS: spmd.mesh @mesh <["mb" = 4]>
// GRAINS: spmd.mesh @devices <["mb" = 2, "dp" = 2]>

// CHECK: spmd.mesh @mesh <["mb" = 4]> sequential ["mb"]
// CHECK: func.func @f(
// CHECK-SAME: %{{.*}}: tensor<3x4xf32>,
// CHECK-SAME: tensor<8x4xf32> {graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>},
// CHECK-SAME: tensor<4x12xf32> {graph.batch_dim = 1 : i64, spmd.sharding = #spmd.sharding<@mesh, [{}, {"mb"}]>})
func.func @f(%w: tensor<3x4xf32>, %x: tensor<8x4xf32> {graph.batch_dim = 0 : i64},
             %y: tensor<4x12xf32> {graph.batch_dim = 1 : i64}) {
  return
}

// -----

// The axis joins a mesh that is there, before the axes that split the samples.
// CHECK: spmd.mesh @devices <["mb" = 4, "dp" = 2]> sequential ["mb"]
// CHECK: #spmd.sharding<@devices, [{"mb", "dp"}]>
spmd.mesh @devices <["dp" = 2]>
func.func @f(%x: tensor<8xf32> {graph.batch_dim = 0 : i64,
                                spmd.sharding = #spmd.sharding<@devices, [{"dp"}]>}) {
  return
}
