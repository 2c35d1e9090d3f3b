// RUN: cleave-opt %s --spmd-seed-shardings=grains=4 --split-input-file --verify-diagnostics

// expected-error @+1 {{the number of grains, 4, is not divisible by the 8 shards of the samples}}
module {
  spmd.mesh @mesh <["dp" = 8]>
  func.func @f(%x: tensor<8xf32> {graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) {
    return
  }
}

// -----

// expected-error @+1 {{argument 0 has 6 samples, not divisible by 4 grains: use 1 or 2}}
func.func @f(%x: tensor<6xf32> {graph.batch_dim = 0 : i64}) {
  return
}

// -----

module {
  spmd.mesh @mesh <["dp" = 2, "tp" = 2]>
  func.func @f(
      %v: tensor<8xf32> {graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}]>},
      // expected-error @+1 {{parameter is sharded over "dp", which also shards the samples: its gradient would be summed in another order than that of the grains}}
      %w: tensor<8xf32> {graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>},
      %x: tensor<8xf32> {graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) {
    return
  }
}
