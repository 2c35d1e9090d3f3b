// RUN: cleave-opt %s --split-input-file --verify-diagnostics --spmd-compress-gradients="compress=topk,density=0.25,smallest=4"

// Samples are sharded over another axis.
spmd.mesh @mesh <["mb" = 2, "fsdp" = 2, "dp" = 2]> sequential ["mb"]
func.func @train(
    %w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter"},
    // expected-error @+1 {{compressed gradients: samples are not sharded over "dp"}}
    %x: tensor<8x2xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "fsdp"}, {}]>}) -> (tensor<2x4xf32> {graph.updates = "w"}) {
  %done = graph.gradient %w of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %done : tensor<2x4xf32>
}

// -----

// Not as many samples for each worker.
spmd.mesh @mesh <["mb" = 2, "dp" = 2]> sequential ["mb"]
func.func @train(
    %w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter"},
    // expected-error @+1 {{compressed gradients: 6 samples are not divisible by 4, the shards of the batch in all micro-batches}}
    %x: tensor<6x2xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}) -> (tensor<2x4xf32> {graph.updates = "w"}) {
  %done = graph.gradient %w of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %done : tensor<2x4xf32>
}

// -----

// No gradient is a sum over samples.
spmd.mesh @mesh <["mb" = 2, "dp" = 2]> sequential ["mb"]
// expected-error @+1 {{compression 'topk,density=0.25,smallest=4' compresses no gradient of '@train'}}
func.func @train(
    %w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<8x2xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}) -> (tensor<2x4xf32> {graph.updates = "w"}) {
  %done = graph.gradient %w of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %done : tensor<2x4xf32>
}

// -----

// A recipe reduces the gradient into shards.
spmd.mesh @mesh <["mb" = 2, "dp" = 2]> sequential ["mb"]
func.func @train(
    // expected-error @+1 {{compression 'topk,density=0.25,smallest=4' of "w": no rank has the whole gradient}}
    %w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<8x2xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>},
    %g: tensor<8x4xf32> {graph.name = "g", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}) -> (tensor<2x4xf32> {graph.updates = "w"}) {
  %dw = graph.contract "bi,bo->io" %x, %g : (tensor<8x2xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %cut = spmd.constrain %dw to <@mesh, [{"dp"}, {}]> : tensor<2x4xf32>
  %done = graph.gradient %cut of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %done : tensor<2x4xf32>
}

// -----

// A rank has a shard of the tensor.
spmd.mesh @mesh <["mb" = 2, "dp" = 2, "tp" = 2]> sequential ["mb"]
func.func @train(
    // expected-error @+1 {{of "w": its elements are chosen from the whole tensor, of which a rank holds a shard: use unit=shard}}
    %w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter",
        spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
    %x: tensor<8x2xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>},
    %g: tensor<8x4xf32> {graph.name = "g", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}) -> (tensor<2x4xf32> {graph.updates = "w"}) {
  %dw = graph.contract "bi,bo->io" %x, %g : (tensor<8x2xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %done = graph.gradient %dw of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %done : tensor<2x4xf32>
}

// -----

// Dimension 0 of the parameter is uneven.
spmd.mesh @mesh <["mb" = 2, "dp" = 2, "tp" = 2]> sequential ["mb"]
func.func @train(
    // expected-error @+1 {{of "w": a dimension of 3 elements is not divisible by its 2 shards}}
    %w: tensor<3x4xf32> {graph.name = "w", graph.role = "parameter",
        spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %x: tensor<8x3xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>},
    %g: tensor<8x4xf32> {graph.name = "g", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}) -> (tensor<3x4xf32> {graph.updates = "w"}) {
  %dw = graph.contract "bi,bo->io" %x, %g : (tensor<8x3xf32>, tensor<8x4xf32>) -> tensor<3x4xf32>
  %done = graph.gradient %dw of "w" : (tensor<3x4xf32>) -> tensor<3x4xf32>
  return %done : tensor<3x4xf32>
}

// -----

// A worker would have other samples of %x than of %g.
spmd.mesh @mesh <["mb" = 2, "node" = 2, "dp" = 2]> sequential ["mb"]
func.func @train(
    %w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<8x2xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>},
    // expected-error @+1 {{compressed gradients: inputs are sharded in different orders}}
    %g: tensor<8x4xf32> {graph.name = "g", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "node", "dp"}, {}]>}) -> (tensor<2x4xf32> {graph.updates = "w"}) {
  %dw = graph.contract "bi,bo->io" %x, %g : (tensor<8x2xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %done = graph.gradient %dw of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %done : tensor<2x4xf32>
}
