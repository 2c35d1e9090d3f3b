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
  // expected-error @+1 {{is not linear in operand 0 ('graph.reduce' at verify-invalid.mlir:17), which is partial on "mb": a partial result escapes}}
  %1 = graph.exp %0 {spmd.global_types = [tensor<f32>], spmd.shardings = [#spmd.sharding<@mesh, []>]}
      : (tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

spmd.mesh @mesh <["mb" = 4]>
func.func @returned(
    %x: tensor<2xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>})
    -> (tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>}) {
  // expected-error @+1 {{result 0 is partial: [], partial = {"mb"}}}
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"mb"}>]} : (tensor<2xf32>) -> tensor<f32>
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
  // expected-error @+1 {{shardings disagree: operand 1 shards dimension 0 over {"y"}, another operand or result over {"x"}}}
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

// -----

// A gather over the wrong axis, which has the right size.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>}) {
  // expected-error @+1 {{takes {"y"} from dimension 0 of a value of sharding [{"x"}, {}], where they are not the minor axes}}
  %0 = spmd.all_gather %x by <@mesh, [{"y"}, {}]> {spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}, {}]>]} : tensor<2x4xf32> -> tensor<4x4xf32>
  return
}

// -----

// The major axis cannot be gathered alone.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<1x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x", "y"}, {}]>}) {
  // expected-error @+1 {{takes {"x"} from dimension 0}}
  %0 = spmd.all_gather %x by <@mesh, [{"x"}, {}]> {spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"y"}, {}]>]} : tensor<1x4xf32> -> tensor<2x4xf32>
  return
}

// -----

// Nor can the major digit: the group is another.
spmd.mesh @mesh <["x" = 4, "y" = 2]>
func.func @f(
    %x: tensor<1x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>}) {
  // expected-error @+1 {{takes {"x":(1)2} from dimension 0}}
  %0 = spmd.all_gather %x by <@mesh, [{"x":(1)2}, {}]> {spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"x":(2)2}, {}]>]} : tensor<1x4xf32> -> tensor<2x4xf32>
  return
}

// -----

// What is left is said to be split over another axis.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<1x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x", "y"}, {}]>}) {
  // expected-error @+1 {{has sharding [{"y"}, {}] of 'tensor<4x4xf32>', expected [{"x"}, {}]}}
  %0 = spmd.all_gather %x by <@mesh, [{"y"}, {}]> {spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"y"}, {}]>]} : tensor<1x4xf32> -> tensor<2x4xf32>
  return
}

// -----

// A sum of copies.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<4x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}, {}]>}) {
  // expected-error @+1 {{reduces over "x" a value that is not partial on it}}
  %0 = spmd.reduce_scatter sum %x by <@mesh, [{"x"}, {}]> {spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"x"}, {}]>]} : tensor<4x4xf32> -> tensor<2x4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>}) {
  // expected-error @+1 {{takes {"y"} from dimension 0}}
  %0 = spmd.all_to_all %x over @mesh {"y"} from 0 to 1 {spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}, {"y"}]>]} : tensor<2x4xf32> -> tensor<4x2xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>}) {
  // expected-error @+1 {{has sharding [{}, {"y"}] of 'tensor<4x4xf32>', expected [{}, {"x"}]}}
  %0 = spmd.all_to_all %x over @mesh {"x"} from 0 to 1 {spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}, {"y"}]>]} : tensor<2x4xf32> -> tensor<4x2xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>}) {
  // expected-error @+1 {{takes {"y"} from dimension 0}}
  %0 = spmd.permute %x from <@mesh, [{"y"}, {}]> to <@mesh, [{"x"}, {}]> {spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"y"}, {}]>]} : tensor<2x4xf32>
  return
}

// -----

// The new axis splits another dimension already.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<2x2xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {"y"}]>}) {
  // expected-error @+1 {{splits over "y" a value of sharding}}
  %0 = spmd.permute %x from <@mesh, [{"x"}, {}]> to <@mesh, [{"y"}, {}]> {spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"x"}, {"y"}]>]} : tensor<2x2xf32>
  return
}

// -----

// Half a sum is not a sum.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<4x1xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}, {"x", "y"}]>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 1>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"x", "y"}>]} : (tensor<4x1xf32>) -> tensor<4xf32>
  // expected-error @+1 {{has sharding [{"x"}] of 'tensor<4xf32>', expected [{"x"}], partial = {"y"}}}
  %1 = spmd.reduce_scatter sum %0 by <@mesh, [{"x"}]> {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"x"}]>]} : tensor<4xf32> -> tensor<2xf32>
  return
}

// -----

// Groups of the wrong positions.
spmd.mesh @mesh <["x" = 4]>
func.func @f(
    %x: tensor<4x2xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}, {"x":(1)2}]>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 1>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"x":(1)2}>]} : (tensor<4x2xf32>) -> tensor<4xf32>
  // expected-error @+1 {{reduces over "x":(2)2 a value that is not partial on it}}
  %1 = spmd.all_reduce sum %0 over @mesh {"x":(2)2} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"x":(1)2}>]} : tensor<4xf32>
  return
}

// -----

spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<4x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>}) {
  // expected-error @+1 {{has sharding [{}, {}] of 'tensor<4x4xf32>', expected [{"x"}, {}] of 'tensor<8x4xf32>'}}
  %0 = spmd.barrier %x after %x {spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}, {}]>]} : tensor<4x4xf32>, tensor<4x4xf32>
  return
}

// -----

// Every shard would draw the same numbers.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>},
    %rng: tensor<2xi64> {spmd.global_type = tensor<2xi64>, spmd.sharding = #spmd.sharding<@mesh, [{}]>}) {
  // expected-error @+1 {{does not read the offset of its shard}}
  %0 = graph.dropout %x, %rng {probability = 0.5 : f64, id = 3 : i64, spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"x"}, {}]>]} : (tensor<2x4xf32>, tensor<2xi64>) -> tensor<2x4xf32>
  return
}

// -----

// The place of another shard.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>},
    %rng: tensor<2xi64> {spmd.global_type = tensor<2xi64>, spmd.sharding = #spmd.sharding<@mesh, [{}]>}) {
  %o = spmd.shard_offset <@mesh, [{"y"}, {}]> of tensor<4x4xf32>
      {spmd.global_types = [tensor<2xi64>], spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<2xi64>
  // expected-error @+1 {{reads the offset of a shard of [{"y"}, {}], which is not the sharding of its operands}}
  %0 = graph.dropout %x, %rng origin %o {global_shape = array<i64: 4, 4>, probability = 0.5 : f64, id = 3 : i64,
      spmd.global_types = [tensor<4x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"x"}, {}]>]}
      : (tensor<2x4xf32>, tensor<2xi64>, tensor<2xi64>) -> tensor<2x4xf32>
  return
}

// -----

// Every shard would hide as if its queries were the first.
spmd.mesh @mesh <["x" = 2]>
func.func @f(
    %q: tensor<1x1x2x4xf32> {spmd.global_type = tensor<1x1x4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}, {}, {"x"}, {}]>},
    %k: tensor<1x1x4x4xf32> {spmd.global_type = tensor<1x1x4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}, {}, {}, {}]>}) {
  // expected-error @+1 {{does not read the offset of its shard}}
  %o, %lse = graph.attention %q, %k, %k {scale = 1.0 : f64, causal,
      spmd.global_types = [tensor<1x1x4x4xf32>, tensor<1x1x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}, {}, {"x"}, {}]>, #spmd.sharding<@mesh, [{}, {}, {"x"}]>]}
      : (tensor<1x1x2x4xf32>, tensor<1x1x4x4xf32>, tensor<1x1x4x4xf32>) -> (tensor<1x1x2x4xf32>, tensor<1x1x2xf32>)
  return
}

// -----

// Keys that were not rotated, or not as often as the step says.
spmd.mesh @mesh <["x" = 2]>
func.func @f(
    %q: tensor<1x1x2x4xf32> {spmd.global_type = tensor<1x1x4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}, {}, {"x"}, {}]>}) {
  %k = spmd.rotate %q over @mesh {"x"} dim 2 {
      spmd.global_types = [tensor<1x1x4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}, {}, {"x"}, {}]>]} : tensor<1x1x2x4xf32>
  // expected-error @+1 {{has an operand 2 (argument 0) that was not rotated, expected rotated by 1 around {"x"} from the other operands}}
  %o, %lse = graph.attention %q, %k, %q {scale = 1.0 : f64, blocks = 1 : i64, step = 1 : i64,
      spmd.global_types = [tensor<1x1x4x4xf32>, tensor<1x1x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}, {}, {"x"}, {}]>, #spmd.sharding<@mesh, [{}, {}, {"x"}]>]}
      : (tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>) -> (tensor<1x1x2x4xf32>, tensor<1x1x2xf32>)
  return
}

// -----

spmd.mesh @mesh <["x" = 2]>
func.func @f(
    %q: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>}) {
  %k = spmd.rotate %q over @mesh {"x"} dim 0 {
      spmd.global_types = [tensor<4x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"x"}, {}]>]} : tensor<2x4xf32>
  // expected-error @+1 {{returns a value that was rotated by 1 around {"x"}}}
  return %k : tensor<2x4xf32>
}

// -----

// Of a dimension that another axis splits first, each part would turn alone.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %q: tensor<2x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"y", "x"}, {}]>}) {
  // expected-error @+1 {{rotates over {"x"} dimension 0 of a value of sharding [{"y", "x"}, {}], where they are not the major axes}}
  %k = spmd.rotate %q over @mesh {"x"} dim 0 {
      spmd.global_types = [tensor<8x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"y", "x"}, {}]>]} : tensor<2x4xf32>
  return
}

// -----

// Of a dimension that another axis splits first there is no such part.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %q: tensor<2x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"y", "x"}, {}]>}) {
  // expected-error @+1 {{takes a part by {"x"} of dimension 0 of a value of sharding [{"y", "x"}, {}], where they are not the major axes}}
  %k = spmd.broadcast %q over @mesh {"x"} dim 0 part 0 {
      spmd.global_types = [tensor<4x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"y"}, {}]>]} : tensor<2x4xf32> -> tensor<2x4xf32>
  return
}

// -----

// What all have would be added up.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %q: tensor<2x4xf32> {spmd.global_type = tensor<2x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}, {}]>}) {
  // expected-error @+1 {{reduces over "x" a value that is not partial on it in this way: sharding [{}, {}]}}
  %k = spmd.reduce %q over @mesh {"x"} dim 0 part 0 {
      spmd.global_types = [tensor<4x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"x"}, {}]>]} : tensor<2x4xf32> -> tensor<2x4xf32>
  return
}

// -----

// Nor is a part put into what lies otherwise.
spmd.mesh @mesh <["x" = 2, "y" = 2]>
func.func @f(
    %l: tensor<2x2xf32> {spmd.global_type = tensor<2x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}, {"x"}]>},
    %r: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>},
    %c: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"y"}, {}]>}) {
  %p = graph.contract "ai,ib->ab" %l, %r {
      spmd.global_types = [tensor<2x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}], partial = {"x"}>]}
      : (tensor<2x2xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  // expected-error @+1 {{inserts a part with sharding [{"x"}, {}] of 'tensor<4x4xf32>' into an accumulator with sharding [{"y"}, {}] of 'tensor<4x4xf32>'}}
  %k = spmd.reduce %p into %c over @mesh {"x"} dim 0 part 0 {
      spmd.global_types = [tensor<4x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"x"}, {}]>]} : tensor<2x4xf32> -> tensor<2x4xf32>
  return
}
