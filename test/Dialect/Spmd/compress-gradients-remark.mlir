// RUN: cleave-opt %s --split-input-file --verify-diagnostics --spmd-compress-gradients="compress=topk,density=0.25,smallest=4" -o /dev/null

// One remark has all gradients that are not compressed, by reasons, of which
// three names are said.
spmd.mesh @mesh <["mb" = 2, "dp" = 2]> sequential ["mb"]
// expected-remark @+2 {{a rank receives 0.50 times the data of a dense sum over "dp"}}
// expected-remark @+1 {{compression 'topk,density=0.25,smallest=4': 6 of 7 gradients are not compressed, 92 of 124 bytes; 1 (32 bytes): no sum over samples: "u"; 4 (28 bytes): of fewer than 4 elements: "a", "b", "c" and 1 more; 1 (32 bytes): sharded over "dp", not summed over it: "e"}}
func.func @train(
    %w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter"},
    %a: tensor<2xf32> {graph.name = "a", graph.role = "parameter"},
    %b: tensor<2xf32> {graph.name = "b", graph.role = "parameter"},
    %c: tensor<2xf32> {graph.name = "c", graph.role = "parameter"},
    %d: tensor<1xf32> {graph.name = "d", graph.role = "parameter"},
    %e: tensor<2x4xf32> {graph.name = "e", graph.role = "parameter",
        spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %u: tensor<2x4xf32> {graph.name = "u", graph.role = "parameter"},
    %x: tensor<8x2xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>},
    %g: tensor<8x4xf32> {graph.name = "g", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}) -> (tensor<2x4xf32> {graph.updates = "w"}) {
  %dw = graph.contract "bi,bo->io" %x, %g : (tensor<8x2xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %0 = graph.gradient %dw of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %s = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<8x2xf32>) -> tensor<2xf32>
  %1 = graph.gradient %s of "a" : (tensor<2xf32>) -> tensor<2xf32>
  %2 = graph.gradient %s of "b" : (tensor<2xf32>) -> tensor<2xf32>
  %3 = graph.gradient %s of "c" : (tensor<2xf32>) -> tensor<2xf32>
  %4 = graph.gradient %d of "d" : (tensor<1xf32>) -> tensor<1xf32>
  %5 = graph.gradient %dw of "e" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %6 = graph.gradient %u of "u" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// -----

// There is none where all are compressed.
spmd.mesh @mesh <["mb" = 2, "dp" = 2]> sequential ["mb"]
// expected-remark @+1 {{a rank receives 0.50 times the data of a dense sum over "dp"}}
func.func @train(
    %w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<8x2xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>},
    %g: tensor<8x4xf32> {graph.name = "g", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}) -> (tensor<2x4xf32> {graph.updates = "w"}) {
  %dw = graph.contract "bi,bo->io" %x, %g : (tensor<8x2xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %0 = graph.gradient %dw of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
