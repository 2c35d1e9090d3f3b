// RUN: cleave-opt %s --split-input-file --verify-diagnostics

// expected-error @+1 {{has two axes "x"}}
spmd.mesh @mesh <["x" = 4, "x" = 2]>

// -----

// expected-error @+1 {{axis "x" has size 0}}
spmd.mesh @mesh <["x" = 0]>

// -----

// expected-error @+1 {{sequential axis "mb" is not an axis}}
spmd.mesh @mesh <["x" = 2]> sequential ["mb"]

// -----

// expected-error @+1 {{attribute 'spmd.sharding': unknown mesh @mesh}}
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}]>}) {
  return
}

// -----

spmd.mesh @mesh <["x" = 2]>
// expected-error @+1 {{attribute 'spmd.sharding': the mesh has no axis "y"}}
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"y"}]>}) {
  return
}

// -----

spmd.mesh @mesh <["x" = 8]>
// expected-error @+1 {{"x":(1)3 is not a sub-axis of "x", which has size 8}}
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x":(1)3}]>}) {
  return
}

// -----

spmd.mesh @mesh <["x" = 8]>
// expected-error @+1 {{axis "x":(2)4 overlaps another one of the sharding}}
func.func @f(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x":(1)4}, {"x":(2)4}]>}) {
  return
}

// -----

// expected-error @+1 {{axis "x" is used twice}}
func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {"x"}]>}) {
  return
}

// -----

spmd.mesh @mesh <["x" = 2]>
// expected-error @+1 {{sharding has 1 dimensions for a value of type 'tensor<4x4xf32>'}}
func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}]>}) {
  return
}

// -----

spmd.mesh @mesh <["x" = 2]>
func.func @f(%x: tensor<4xf32>) {
  // expected-error @+1 {{the mesh has no axis "y"}}
  %0 = spmd.all_reduce sum %x over @mesh {"y"} : tensor<4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2]>
func.func @f() {
  // expected-error @+1 {{expected a result of one value for each dimension}}
  %0 = spmd.shard_offset <@mesh, [{"x"}]> of tensor<4xf32> : tensor<2xi64>
  return
}

// -----

spmd.mesh @mesh <["x" = 2]>
func.func @f(%x: tensor<4xf32>) {
  // expected-error @+1 {{result type 'tensor<3xf32>' is not 'tensor<4xf32>' split by [{"x"}]}}
  %0 = spmd.slice %x by <@mesh, [{"x"}]> : tensor<4xf32> -> tensor<3xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2]>
func.func @f(%x: tensor<4xf32>) {
  // expected-error @+1 {{cannot ask for a partial result}}
  %0 = spmd.constrain %x to <@mesh, [{}], partial = {"x"}> : tensor<4xf32>
  return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // expected-error @+1 {{attribute 'spmd.shardings': needs one entry for each of the 1 results}}
  %0 = graph.neg %x {spmd.shardings = []} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

// expected-error @+1 {{attribute 'spmd.other': is unknown}}
func.func @f(%x: tensor<4xf32> {spmd.other}) {
  return
}

// -----

// expected-error @+1 {{`?` must come last}}
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{?, "x"}]>}) {
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{operand type 'tensor<4x4xf32>' is not 'tensor<4x8xf32>' split by [{"x"}, {}]}}
  %0 = spmd.all_gather %x by <@mesh, [{"x"}, {}]> : tensor<4x4xf32> -> tensor<4x8xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{cannot move data along the sequential axis "mb"}}
  %0 = spmd.all_gather %x by <@mesh, [{"x", "mb"}, {}]> : tensor<4x4xf32> -> tensor<16x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{cannot make a partial result}}
  %0 = spmd.all_gather %x by <@mesh, [{}, {}], partial = {"x"}> : tensor<4x4xf32> -> tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{result type 'tensor<4x4xf32>' is not 'tensor<4x4xf32>' split by [{"x"}, {}]}}
  %0 = spmd.reduce_scatter sum %x by <@mesh, [{"x"}, {}]> : tensor<4x4xf32> -> tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{cannot move data along the sequential axis "mb"}}
  %0 = spmd.reduce_scatter sum %x by <@mesh, [{"mb"}, {}]> : tensor<4x4xf32> -> tensor<2x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{axis "x" overlaps another one}}
  %0 = spmd.all_to_all %x over @mesh {"x", "x"} from 0 to 1 : tensor<4x4xf32> -> tensor<16x1xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{unknown mesh @other}}
  %0 = spmd.all_to_all %x over @other {"x"} from 0 to 1 : tensor<4x4xf32> -> tensor<8x2xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{cannot move data along the sequential axis "mb"}}
  %0 = spmd.all_to_all %x over @mesh {"mb"} from 0 to 1 : tensor<4x4xf32> -> tensor<8x2xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{expected two different dimensions of 'tensor<4x4xf32>', got 0 and 2}}
  %0 = spmd.all_to_all %x over @mesh {"x"} from 0 to 2 : tensor<4x4xf32> -> tensor<8x2xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{expected two different dimensions of 'tensor<4x4xf32>', got 1 and 1}}
  %0 = spmd.all_to_all %x over @mesh {"x"} from 1 to 1 : tensor<4x4xf32> -> tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 3]>
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{dimension 1 of 'tensor<4x4xf32>' is not divisible by 3}}
  %0 = spmd.all_to_all %x over @mesh {"x"} from 0 to 1 : tensor<4x4xf32> -> tensor<12x2xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{result type 'tensor<4x4xf32>' must be 'tensor<8x2xf32>'}}
  %0 = spmd.all_to_all %x over @mesh {"x"} from 0 to 1 : tensor<4x4xf32> -> tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{replaces 2 parts of dimension 0 by 1}}
  %0 = spmd.permute %x from <@mesh, [{"x"}, {}]> to <@mesh, [{}, {"x"}]> : tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 24, "y" = 6, "z" = 4]>
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{has digits of one axis that cross each other}}
  %0 = spmd.permute %x from <@mesh, [{"x":(1)4}, {"y"}]> to <@mesh, [{"z"}, {"x":(1)6}]> : tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{cannot move data along the sequential axis "mb"}}
  %0 = spmd.permute %x from <@mesh, [{"x"}, {}]> to <@mesh, [{"mb"}, {}]> : tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{the mesh has no axis "z"}}
  %0 = spmd.permute %x from <@mesh, [{"x"}, {}]> to <@mesh, [{"z"}, {}]> : tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{has no part 2, only 2 parts}}
  %0 = spmd.broadcast %x over @mesh {"x"} dim 0 part 2 : tensor<4x4xf32> -> tensor<2x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{has no dimension 2 in 'tensor<4x4xf32>'}}
  %0 = spmd.broadcast %x over @mesh {"x"} dim 2 part 0 : tensor<4x4xf32> -> tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<1x4xf32>) {
  // expected-error @+1 {{type 'tensor<1x4xf32>' is not one of the 2 parts of 'tensor<4x4xf32>' along dimension 0}}
  %0 = spmd.reduce %x over @mesh {"x"} dim 0 part 0 : tensor<1x4xf32> -> tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>) {
  // expected-error @+1 {{cannot move data along the sequential axis "mb"}}
  %0 = spmd.reduce %x over @mesh {"mb"} dim 0 part 0 : tensor<4x4xf32> -> tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>, %s: tensor<3xi64>) {
  // expected-error @+1 {{cannot move data along the sequential axis "mb"}}
  %0 = spmd.all_to_all_rows %x from %s to %s over @mesh {"mb"} : tensor<4x4xf32>, tensor<3xi64> -> tensor<8x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>, %s: tensor<3xi64>) {
  // expected-error @+1 {{result type 'tensor<8x5xf32>' must have rows like those of 'tensor<4x4xf32>'}}
  %0 = spmd.all_to_all_rows %x from %s to %s over @mesh {"x"} : tensor<4x4xf32>, tensor<3xi64> -> tensor<8x5xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>, %s: tensor<3xi64>) {
  // expected-error @+1 {{result type 'tensor<8x4xbf16>' must have rows like those of 'tensor<4x4xf32>'}}
  %0 = spmd.all_to_all_rows %x from %s to %s over @mesh {"x"} : tensor<4x4xf32>, tensor<3xi64> -> tensor<8x4xbf16>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>, %s: tensor<3xi64>) {
  // expected-error @+1 {{needs 5 offsets, or as many for each of 4 positions, not 3}}
  %0 = spmd.all_to_all_rows %x from %s to %s over @mesh {"x", "y"} : tensor<4x4xf32>, tensor<3xi64> -> tensor<8x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2, "mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32>, %s: tensor<6xi64>) {
  // expected-error @+1 {{dimension 0 of 'tensor<4x4xf32>' or 'tensor<7x4xf32>' is not divisible by 2}}
  %0 = spmd.all_to_all_rows %x from %s to %s over @mesh {"x"} : tensor<4x4xf32>, tensor<6xi64> -> tensor<7x4xf32>
  return
}
