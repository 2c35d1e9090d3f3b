// RUN: cleave-opt %s --spmd-propagate --split-input-file --verify-diagnostics

// expected-error @+1 {{the module has no spmd.mesh}}
module {
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @conflict(%a: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}]>},
                    %b: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"y"}]>}) -> tensor<4xf32> {
  // expected-remark @+1 {{shardings disagree: operand 1 shards dimension 0 over {"y"}, another operand or result over {"x"}}}
  %0 = graph.add %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

spmd.mesh @mesh <["x" = 2]>
func.func @needed_whole(%a: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"x"}]>}) -> tensor<4x4xf32> {
  // expected-remark @+1 {{operand 0 shards dimension 1 over {"x"}, which the op needs replicated}}
  %0 = graph.softmax %a : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}

// -----

spmd.mesh @mesh <["x" = 2]>
func.func private @g(tensor<4xf32>) -> tensor<4xf32>
func.func @call(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{has no sharding rule}}
  %0 = func.call @g(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
