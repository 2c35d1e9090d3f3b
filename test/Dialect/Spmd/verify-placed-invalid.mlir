// RUN: cleave-opt %s --spmd-verify-placed --split-input-file --verify-diagnostics

// expected-error@below {{the module has no spmd.mesh}}
module {
}

// -----

spmd.mesh @mesh <["dp" = 2]>
// expected-error@below {{argument "x" has no sharding}}
func.func @step(%x: tensor<8xf32> {graph.name = "x"}) {
  return
}

// -----

spmd.mesh @mesh <["dp" = 2]>
func.func @step(%x: tensor<8xf32> {graph.name = "x", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>})
    -> (tensor<8xf32> {graph.name = "y", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) {
  // expected-error@below {{'graph.neg' op result 0 has no sharding}}
  %0 = graph.neg %x : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <["dp" = 2]>
func.func @step(%x: tensor<8xf32> {graph.name = "x", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>})
    -> (tensor<8xf32> {graph.name = "y"}) {
  // expected-error@below {{result "y" has no sharding}}
  %0 = graph.neg %x {spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <["dp" = 2]>
spmd.mesh @other <["dp" = 2]>
// expected-error@below {{argument "x" has a sharding on '@other', not on '@mesh'}}
func.func @step(%x: tensor<8xf32> {graph.name = "x", spmd.sharding = #spmd.sharding<@other, [{"dp"}]>}) {
  return
}

// -----

spmd.mesh @mesh <["dp" = 2]>
// expected-error@below {{argument "x" has an open dimension}}
func.func @step(%x: tensor<8xf32> {graph.name = "x", spmd.sharding = #spmd.sharding<@mesh, [{"dp", ?}]>}) {
  return
}

// -----

spmd.mesh @mesh <["dp" = 2]>
// expected-error@below {{argument "x" is partial}}
func.func @step(%x: tensor<8xf32> {graph.name = "x", spmd.sharding = #spmd.sharding<@mesh, [{}], partial = {"dp"}>}) {
  return
}
