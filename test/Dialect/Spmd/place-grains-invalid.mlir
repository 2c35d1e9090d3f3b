// RUN: cleave-opt %s --spmd-place=grains=4 --split-input-file --verify-diagnostics

// expected-error @+1 {{the samples are split over 8 devices, which do not divide the 4 grains}}
module {
  spmd.mesh @mesh <["dp" = 8]>
  func.func @f(%x: tensor<8xf32> {graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) {
    return
  }
}

// -----

// expected-error @+1 {{argument 0 has 6 samples, which 4 grains do not divide: use 1 or 2}}
func.func @f(%x: tensor<6xf32> {graph.batch_dim = 0 : i64}) {
  return
}

// -----

module {
  spmd.mesh @mesh <["dp" = 2, "tp" = 2]>
  func.func @f(
      %v: tensor<8xf32> {graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}]>},
      // expected-error @+1 {{is a parameter in parts over "dp", which splits the samples: its gradient would be summed up in another order than that of the grains}}
      %w: tensor<8xf32> {graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>},
      %x: tensor<8xf32> {graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) {
    return
  }
}
