// RUN: cleave-opt %s --spmd-verify --split-input-file --verify-diagnostics

spmd.mesh @mesh <["mb" = 4]>
// expected-error @+1 {{argument 0 has type 'tensor<4xf32>', which is not 'tensor<8xf32>' split by [{"mb"}]}}
func.func @wrong_shape(
    %x: tensor<4xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>}) {
  return
}

// -----

// A sum that was forgotten.
spmd.mesh @mesh <["mb" = 4]>
func.func @escapes(
    %x: tensor<2xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>})
    -> (tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"mb"}>]} : (tensor<2xf32>) -> tensor<f32>
  // expected-error @+1 {{is not linear in operand 0, which is partial on "mb": a partial result escapes}}
  %1 = graph.exp %0 {spmd.global_types = [tensor<f32>], spmd.shardings = [#spmd.sharding<@mesh, []>]}
      : (tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

spmd.mesh @mesh <["mb" = 4]>
func.func @returned(
    %x: tensor<2xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>})
    -> (tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"mb"}>]} : (tensor<2xf32>) -> tensor<f32>
  // expected-error @+1 {{result 0 is partial: [], partial = {"mb"}}}
  return %0 : tensor<f32>
}

// -----

// A sum that is claimed to be whole.
spmd.mesh @mesh <["mb" = 4]>
func.func @hidden(
    %x: tensor<2xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>})
    -> (tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>}) {
  // expected-error @+1 {{result 0 is marked [] but is [], partial = {"mb"}}}
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, []>]} : (tensor<2xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// A sum that is taken twice.
spmd.mesh @mesh <["mb" = 4]>
func.func @twice(
    %x: tensor<2xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"mb"}>]} : (tensor<2xf32>) -> tensor<f32>
  %1 = spmd.all_reduce sum %0 over @mesh {"mb"} {spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, []>]} : tensor<f32>
  // expected-error @+1 {{reduces over "mb" a value that is not partial on it}}
  %2 = spmd.all_reduce sum %1 over @mesh {"mb"} {spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, []>]} : tensor<f32>
  return
}

// -----

// A sum over the wrong axis.
spmd.mesh @mesh <["mb" = 4, "dp" = 2]>
func.func @wrong_axis(
    %x: tensor<2xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"mb"}>]} : (tensor<2xf32>) -> tensor<f32>
  // expected-error @+1 {{reduces over "dp" a value that is not partial on it}}
  %1 = spmd.all_reduce sum %0 over @mesh {"dp"} {spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, []>]} : tensor<f32>
  return
}

// -----

// A maximum in place of a sum.
spmd.mesh @mesh <["mb" = 4]>
func.func @wrong_kind(
    %x: tensor<2xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"mb"}>]} : (tensor<2xf32>) -> tensor<f32>
  // expected-error @+1 {{reduces over "mb" a value that is not partial on it}}
  %1 = spmd.all_reduce max %0 over @mesh {"mb"} {spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, []>]} : tensor<f32>
  return
}

// -----

// A sum added to what is whole would count that once for each position.
spmd.mesh @mesh <["mb" = 4]>
func.func @not_joint(
    %b: tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>},
    %x: tensor<2xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"mb"}>]} : (tensor<2xf32>) -> tensor<f32>
  // expected-error @+1 {{is not linear in operand 0}}
  %1 = graph.add %0, %b {spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"mb"}>]} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @mismatch(
    %a: tensor<2xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}]>},
    %b: tensor<2xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"y"}]>}) {
  // expected-error @+1 {{shardings disagree: operand 1 splits dimension 0 over {"y"}, another operand or result over {"x"}}}
  %0 = graph.add %a, %b {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"x"}]>]} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

spmd.mesh @mesh <["mb" = 4]>
func.func @bare(
    %x: tensor<2xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>}) {
  // expected-error @+1 {{result 0 has no sharding or no global type}}
  %0 = graph.neg %x : (tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

spmd.mesh @mesh <["mb" = 2]>
func.func @split_twice(
    %x: tensor<4xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>}) {
  // expected-error @+1 {{splits over "mb" a value of sharding [{"mb"}]}}
  %0 = spmd.slice %x by <@mesh, [{"mb"}]> {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"mb"}]>]} : tensor<4xf32> -> tensor<2xf32>
  return
}
