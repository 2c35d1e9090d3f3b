// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=4 --split-input-file --verify-diagnostics

// expected-error @+1 {{argument "ids" has 3 samples, fewer than the 4 micro-batches}}
func.func @f(%w: tensor<3x4xf32>, %x: tensor<3x4xi64> {graph.batch_dim = 0 : i64, graph.name = "ids"}) {
  return
}

// -----

// expected-error @+1 {{argument 1 has 2 samples, fewer than the 4 micro-batches}}
func.func @f(%x: tensor<6xf32> {graph.batch_dim = 0 : i64}, %y: tensor<2xf32> {graph.batch_dim = 0 : i64}) {
  return
}

// -----

spmd.mesh @mesh <["dp" = 2]>

// What devices do not divide is padded, as long as there are enough.
// expected-error @+1 {{has 3 samples on each device, fewer than the 4 micro-batches}}
func.func @f(%x: tensor<5xf32> {graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) {
  return
}

// -----

// expected-error @+1 {{has an axis "mb" already}}
spmd.mesh @mesh <["mb" = 2]>
