// RUN: cleave-opt %s --pass-pipeline='builtin.module(func.func(exec-select-collectives))' --verify-diagnostics --split-input-file

spmd.mesh @mesh <["mb" = 3, "dp" = 2]> sequential ["mb"]
func.func @sequential(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{runs along the sequential axis "mb"; run --pipe-split-stages first}}
  %0 = spmd.all_reduce sum %x over @mesh {"mb"} : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

spmd.mesh @mesh <["dp" = 2]>
func.func @type(%x: tensor<4xi8>) -> tensor<4xi8> {
  // expected-error @+1 {{cannot combine elements of type 'i8' in this reduction}}
  %0 = spmd.all_reduce sum %x over @mesh {"dp"} : tensor<4xi8>
  return %0 : tensor<4xi8>
}

// -----

spmd.mesh @mesh <["dp" = 2]>
func.func @starts(%x: tensor<4xf32>) -> tensor<8xf32> {
  // expected-error @+1 {{dst_starts needs 2 indices, not 1}}
  %0 = exec.collective all_gather %x over @mesh #spmd.axes<{"dp"}> {block = array<i64: 4>, dst_starts = array<i64: 0>} : tensor<4xf32> -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <["dp" = 2]>
func.func @outside(%x: tensor<4xf32>) -> tensor<8xf32> {
  // expected-error @+1 {{block at 5 of dimension 0 is not inside 'tensor<8xf32>'}}
  %0 = exec.collective all_gather %x over @mesh #spmd.axes<{"dp"}> {block = array<i64: 4>, dst_starts = array<i64: 0, 5>} : tensor<4xf32> -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <["dp" = 2]>
func.func @sources(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{sources needs 2 members of the group}}
  %0 = exec.collective permute %x over @mesh #spmd.axes<{"dp"}> {block = array<i64: 4>, sources = array<i64: 1, 2>} : tensor<4xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

spmd.mesh @mesh <["dp" = 2]>
func.func @device_values() -> tensor<2xi64> {
  // expected-error @+1 {{axis "tp"}}
  %0 = exec.constant #exec.device_values<[0, 4] plus #spmd.sharding<@mesh, [{"tp"}, {}]> times [2]> -> tensor<2xi64>
  return %0 : tensor<2xi64>
}

// -----

spmd.mesh @mesh <["dp" = 2]>
func.func @device_type() -> tensor<3xi64> {
  // expected-error @+1 {{of device values must have type 'tensor<2xi64>', not 'tensor<3xi64>'}}
  %0 = exec.constant #exec.device_values<[0, 4] plus #spmd.sharding<@mesh, [{"dp"}, {}]> times [2]> -> tensor<3xi64>
  return %0 : tensor<3xi64>
}
