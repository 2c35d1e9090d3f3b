// RUN: cleave-opt %s --spmd-decompose-contraction --split-input-file --verify-diagnostics

spmd.mesh @mesh <["row" = 2, "col" = 4]>
func.func @f(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) {
  // expected-error @+1 {{shards a dimension of size 8 over "col" and over "row", which have 4 and 2 positions: steps need equal numbers of positions}}
  %y = graph.contract "bi,io->bo" %x, %w {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

spmd.mesh @mesh <["row" = 3, "col" = 3]>
func.func @f(%x: tensor<3x8xf32>, %w: tensor<8x6xf32>) {
  // expected-error @+1 {{has a dimension of size 8, not divisible by the 3 positions of "col"}}
  %y = graph.contract "bi,io->bo" %x, %w {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<3x8xf32>, tensor<8x6xf32>) -> tensor<3x6xf32>
  return
}

// -----

spmd.mesh @mesh <["row" = 2, "col" = 2]>
func.func @f(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) {
  // expected-error @+1 {{has two dimensions that are sharded in two ways: steps need exactly one}}
  %y = graph.contract "bi,io->bo" %x, %w {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"col"}, {"row"}]>]} : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  return
}

// -----

spmd.mesh @mesh <["row" = 2, "col" = 2]>
func.func @f(%x: tensor<4x8xf32>) {
  // expected-error @+1 {{cannot be decomposed into steps}}
  %y = graph.add %x, %x {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

spmd.mesh @mesh <["row" = 2, "col" = 2]>
func.func @f(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) {
  // expected-error @+1 {{attribute 'spmd.steps': needs two operands and a result, and a sharding of each}}
  %y = graph.contract "bi,io->bo" %x, %w {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // expected-error @+1 {{attribute 'spmd.held': must hold numbers of operands}}
  %y = graph.neg %x {spmd.held = array<i64: 1>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}
