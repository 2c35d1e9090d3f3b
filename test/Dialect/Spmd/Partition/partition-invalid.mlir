// RUN: cleave-opt %s --spmd-partition --split-input-file --verify-diagnostics

// expected-error @+1 {{the module has no spmd.mesh}}
module {
}

// -----

spmd.mesh @mesh <["x" = 2]>
// expected-error @+1 {{argument 0 has no sharding; run --spmd-propagate first}}
func.func @f(%x: tensor<4xf32>) {
  return
}

// -----

spmd.mesh @mesh <["x" = 4]>
// expected-error @+1 {{argument 0: dimension 0 of 'tensor<6xf32>' is not divisible by the 4 shards of its sharding [{"x"}]}}
func.func @f(%x: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}]>}) {
  return
}

// -----

spmd.mesh @mesh <["x" = 2]>
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}]>}) {
  // expected-error @+1 {{has no shardings; run --spmd-propagate first}}
  %0 = graph.neg %x : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

// Micro-batches exchange nothing.
spmd.mesh @mesh <["mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>}) {
  // expected-error @+1 {{cannot be partitioned: result 0 has sharding [{"mb"}] and cannot be resharded to [{}]: data would have to move along the sequential axis "mb"}}
  %0 = graph.neg %x {spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

spmd.mesh @mesh <["mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"mb"}]>}) {
  // expected-note @+2 {{operand 0 shards dimension 1 over {"mb"}, which the op needs replicated}}
  // expected-error @+1 {{cannot be partitioned: operand 0 (argument 0) has sharding [{}, {"mb"}] and cannot be resharded to [{}, {}]: data would have to move along the sequential axis "mb"}}
  %0 = graph.softmax %x {spmd.shardings = [#spmd.sharding<@mesh, [{}, {}]>]} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2]>
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}]>}) {
  // expected-error @+1 {{is marked partial as [], partial = {max "x"}, but its operands do not make it so}}
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.shardings = [#spmd.sharding<@mesh, [], partial = {max "x"}>]} : (tensor<4xf32>) -> tensor<f32>
  return
}

// -----

spmd.mesh @mesh <["mb" = 2]> sequential ["mb"]
func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>})
    -> (tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}]>}) {
  // expected-error @+1 {{result 0 has sharding [{"mb"}] and cannot be resharded to [{}]}}
  return %x : tensor<4xf32>
}
