// RUN: cleave-opt %s --spmd-pad --split-input-file --verify-diagnostics

// expected-error @+1 {{the module has no spmd.mesh}}
module {}

// -----

spmd.mesh @mesh <["x" = 2]>

func.func @op_without_rule(%x: tensor<3xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}]>}) -> tensor<3xf32> {
  // expected-error @+1 {{has no sharding rule}}
  %y = arith.negf %x : tensor<3xf32>
  return %y : tensor<3xf32>
}

// -----

spmd.mesh @mesh <["x" = 2]>

func.func @uneven(%x: tensor<3xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}]>}) {
  return
}

// expected-error @+1 {{must have one block to be padded}}
func.func @two_blocks() {
  return
^next:
  return
}

// -----

// expected-error @+1 {{attribute 'graph.valid_shape' must be a positive size for each dimension of the tensor}}
func.func @shape(%x: tensor<3xf32> {graph.valid_shape = array<i64: 3, 1>}) {
  return
}
