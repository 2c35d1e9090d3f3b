// RUN: cleave-opt %s --spmd-propagate --split-input-file | FileCheck %s

spmd.mesh @mesh <["mb" = 4]> sequential ["mb"]

// Forward through reshapes, products and norms; a sum over samples is partial.
// CHECK-LABEL: func.func @forward(
// CHECK-SAME: %[[W:.*]]: tensor<5x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {}]>}
func.func @forward(%w: tensor<5x6xf32>,
    %x: tensor<8x3x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}, {}]>})
    -> (tensor<24x5xf32>, tensor<5x6xf32>, tensor<f32>) {
  // CHECK: graph.linear {{.*}}#spmd.sharding<@mesh, [{"mb"}, {}, {}]>
  %0 = graph.linear %x, %w : (tensor<8x3x6xf32>, tensor<5x6xf32>) -> tensor<8x3x5xf32>
  // CHECK: graph.reshape {{.*}}#spmd.sharding<@mesh, [{"mb"}, {}]>
  %1 = graph.reshape %0 : (tensor<8x3x5xf32>) -> tensor<24x5xf32>
  // CHECK: graph.contract {{.*}}#spmd.sharding<@mesh, [{}, {}], partial = {"mb"}>
  %2 = graph.contract "abo,abi->oi" %0, %x : (tensor<8x3x5xf32>, tensor<8x3x6xf32>) -> tensor<5x6xf32>
  // A product with what is whole keeps the sum partial.
  // CHECK: graph.mul {{.*}} partial = {"mb"}
  %3 = graph.mul %2, %w : (tensor<5x6xf32>, tensor<5x6xf32>) -> tensor<5x6xf32>
  // An addition of what is whole does not.
  // CHECK: graph.add {{.*}}#spmd.sharding<@mesh, [{}, {}]>
  %4 = graph.add %3, %w : (tensor<5x6xf32>, tensor<5x6xf32>) -> tensor<5x6xf32>
  // CHECK: graph.reduce max {{.*}}#spmd.sharding<@mesh, [], partial = {max "mb"}>
  %5 = graph.reduce max %1 {dims = array<i64: 0, 1>} : (tensor<24x5xf32>) -> tensor<f32>
  return %1, %4, %5 : tensor<24x5xf32>, tensor<5x6xf32>, tensor<f32>
}

// A sum is complete before it is rounded to fewer bits. More bits keep it
// partial.
// CHECK-LABEL: func.func @round(
func.func @round(
    %x: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>},
    %y: tensor<8x5xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>})
    -> (tensor<6x5xbf16>, tensor<6x5xf64>) {
  // CHECK: graph.contract {{.*}} partial = {"mb"}
  %0 = graph.contract "ab,ac->bc" %x, %y : (tensor<8x6xf32>, tensor<8x5xf32>) -> tensor<6x5xf32>
  // CHECK: graph.cast {{.*}}#spmd.sharding<@mesh, [{}, {}]>{{.*}} -> tensor<6x5xbf16>
  %1 = graph.cast %0 : (tensor<6x5xf32>) -> tensor<6x5xbf16>
  // CHECK: graph.cast {{.*}} partial = {"mb"}{{.*}} -> tensor<6x5xf64>
  %2 = graph.cast %0 : (tensor<6x5xf32>) -> tensor<6x5xf64>
  return %1, %2 : tensor<6x5xbf16>, tensor<6x5xf64>
}

// Backward to what has no operand.
// CHECK-LABEL: func.func @backward(
func.func @backward(%w: tensor<6xf32>,
    %x: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>}) -> tensor<8x6xf32> {
  // CHECK: graph.iota {{.*}}#spmd.sharding<@mesh, [{"mb"}, {}]>
  %0 = graph.iota {dim = 1 : i64} : tensor<8x6xf32>
  // CHECK: graph.broadcast {{.*}}#spmd.sharding<@mesh, [{"mb"}, {}]>
  %1 = graph.broadcast %w : (tensor<6xf32>) -> tensor<8x6xf32>
  %2 = graph.add %0, %1 : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
  %3 = graph.mul %2, %x : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
  return %3 : tensor<8x6xf32>
}

// Attention: samples and heads; keys stay whole.
// CHECK-LABEL: func.func @attention(
func.func @attention(
    %q: tensor<8x4x3x2xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}, {}, {}]>},
    %k: tensor<8x2x3x2xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}, {}, {}]>},
    %g: tensor<8x4x3x2xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}, {}, {}]>})
    -> (tensor<8x4x3x2xf32>, tensor<8x2x3x2xf32>) {
  // CHECK: graph.attention {{.*}}[#spmd.sharding<@mesh, [{"mb"}, {}, {}, {}]>, #spmd.sharding<@mesh, [{"mb"}, {}, {}]>]
  %o, %lse = graph.attention %q, %k, %k {scale = 1.0 : f64, causal}
      : (tensor<8x4x3x2xf32>, tensor<8x2x3x2xf32>, tensor<8x2x3x2xf32>) -> (tensor<8x4x3x2xf32>, tensor<8x4x3xf32>)
  // CHECK: graph.attention_grad
  // CHECK-NOT: partial
  %dq, %dk, %dv = graph.attention_grad %g, %q, %k, %k, %o, %lse {scale = 1.0 : f64, causal}
      : (tensor<8x4x3x2xf32>, tensor<8x4x3x2xf32>, tensor<8x2x3x2xf32>, tensor<8x2x3x2xf32>, tensor<8x4x3x2xf32>, tensor<8x4x3xf32>)
      -> (tensor<8x4x3x2xf32>, tensor<8x2x3x2xf32>, tensor<8x2x3x2xf32>)
  return %dq, %dk : tensor<8x4x3x2xf32>, tensor<8x2x3x2xf32>
}

// -----

// Several axes: heads split in groups, sub-axes, a partial sum over each.
spmd.mesh @mesh <["dp" = 2, "tp" = 4]>

// CHECK-LABEL: func.func @grouped(
func.func @grouped(
    %q: tensor<2x8x3x2xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}, {}, {}]>},
    %k: tensor<2x2x3x2xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp":(1)2}, {}, {}]>},
    %g: tensor<2x8x3x2xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}, {}, {}]>})
    -> tensor<2x2x3x2xf32> {
  // CHECK: graph.attention {{.*}}#spmd.sharding<@mesh, [{"dp"}, {"tp"}, {}]>]
  %o, %lse = graph.attention %q, %k, %k {scale = 1.0 : f64}
      : (tensor<2x8x3x2xf32>, tensor<2x2x3x2xf32>, tensor<2x2x3x2xf32>) -> (tensor<2x8x3x2xf32>, tensor<2x8x3xf32>)
  // A shared key gets summands from the query heads of its group.
  // CHECK: graph.attention_grad {{.*}}#spmd.sharding<@mesh, [{"dp"}, {"tp":(1)2}, {}, {}], partial = {"tp":(2)2}>
  %dq, %dk, %dv = graph.attention_grad %g, %q, %k, %k, %o, %lse {scale = 1.0 : f64}
      : (tensor<2x8x3x2xf32>, tensor<2x8x3x2xf32>, tensor<2x2x3x2xf32>, tensor<2x2x3x2xf32>, tensor<2x8x3x2xf32>, tensor<2x8x3xf32>)
      -> (tensor<2x8x3x2xf32>, tensor<2x2x3x2xf32>, tensor<2x2x3x2xf32>)
  return %dk : tensor<2x2x3x2xf32>
}

// CHECK-LABEL: func.func @columns_then_rows(
func.func @columns_then_rows(
    %x: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %up: tensor<12x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %down: tensor<8x12xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<6x8xf32> {
  // CHECK: graph.linear {{.*}}#spmd.sharding<@mesh, [{"dp"}, {"tp"}]>
  %0 = graph.linear %x, %up : (tensor<6x8xf32>, tensor<12x8xf32>) -> tensor<6x12xf32>
  %1 = graph.relu %0 : (tensor<6x12xf32>) -> tensor<6x12xf32>
  // CHECK: graph.linear {{.*}}#spmd.sharding<@mesh, [{"dp"}, {}], partial = {"tp"}>
  %2 = graph.linear %1, %down : (tensor<6x12xf32>, tensor<8x12xf32>) -> tensor<6x8xf32>
  // CHECK: graph.reshape {{.*}}#spmd.sharding<@mesh, [{"dp"}], partial = {"tp"}>
  %3 = graph.reshape %2 : (tensor<6x8xf32>) -> tensor<48xf32>
  // CHECK: spmd.constrain {{.*}}#spmd.sharding<@mesh, [{"dp"}, {}], partial = {"tp"}>
  %4 = graph.linear %1, %down : (tensor<6x12xf32>, tensor<8x12xf32>) -> tensor<6x8xf32>
  %5 = spmd.constrain %4 to <@mesh, [{"dp"}, {}]> : tensor<6x8xf32>
  // What two readers would both have to reduce is reduced before them.
  // CHECK: graph.linear {{.*}}#spmd.sharding<@mesh, [{"dp"}, {}]>]
  %6 = graph.linear %1, %down : (tensor<6x12xf32>, tensor<8x12xf32>) -> tensor<6x8xf32>
  %7 = graph.reshape %6 : (tensor<6x8xf32>) -> tensor<48xf32>
  %8 = graph.neg %6 : (tensor<6x8xf32>) -> tensor<6x8xf32>
  return %5 : tensor<6x8xf32>
}

// An annotation wins, whatever its operand says; what is summed over an axis
// and split by it is no longer partial.
// CHECK-LABEL: func.func @annotated(
func.func @annotated(
    %x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"dp"}]>},
    %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"dp"}]>}) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = spmd.constrain %x to <@mesh, [{"tp"}, {}]> : tensor<8x8xf32>
  // CHECK: graph.exp {{.*}}#spmd.sharding<@mesh, [{"tp"}, {}]>
  %1 = graph.exp %0 : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK: graph.linear {{.*}}[#spmd.sharding<@mesh, [{}, {}], partial = {"dp"}>]
  %2 = graph.linear %x, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK: spmd.constrain {{.*}} to <@mesh, [{}, {"dp"}]> {spmd.shardings = [#spmd.sharding<@mesh, [{}, {"dp"}]>]}
  %3 = spmd.constrain %2 to <@mesh, [{}, {"dp"}]> : tensor<8x8xf32>
  return %1, %3 : tensor<8x8xf32>, tensor<8x8xf32>
}

// An axis that an annotation names splits what it says, and not the open
// dimension that arguments would split by it; axes before it stay there.
// CHECK-LABEL: func.func @crossing(
func.func @crossing(
    %x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp", "tp"}, {}]>},
    %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<8x8xf32> {
  // CHECK: graph.exp {{.*}}[#spmd.sharding<@mesh, [{"dp", "tp"}, {}]>]
  %0 = graph.exp %x : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK: spmd.constrain {{.*}}[#spmd.sharding<@mesh, [{"dp"}, {"tp"}]>]
  %1 = spmd.constrain %0 to <@mesh, [{?}, {"tp"}]> : tensor<8x8xf32>
  // CHECK: graph.add {{.*}}[#spmd.sharding<@mesh, [{"dp"}, {"tp"}]>]
  %2 = graph.add %1, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK: spmd.constrain {{.*}}[#spmd.sharding<@mesh, [{"dp", "tp"}, {}]>]
  %3 = spmd.constrain %2 to <@mesh, [{?}, {}]> : tensor<8x8xf32>
  %4 = graph.add %3, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %4 : tensor<8x8xf32>
}

// An open dimension of an argument takes what its uses say; a closed one not.
// CHECK-LABEL: func.func @open(
// CHECK-SAME: %{{.*}}: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>}
func.func @open(
    %x: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{?}, {}]>},
    %y: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>}) -> tensor<6x8xf32> {
  %0 = graph.add %x, %y : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
  return %0 : tensor<6x8xf32>
}

// What replaces an argument lies as that does.
// CHECK-LABEL: func.func @update(
// CHECK-SAME: -> (tensor<6x8xf32> {graph.updates = "w", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>})
func.func @update(
    %g: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
    %w: tensor<6x8xf32> {graph.name = "w", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<6x8xf32> {graph.updates = "w"}) {
  // CHECK: graph.neg {{.*}}#spmd.sharding<@mesh, [{}, {"tp"}]>
  %0 = graph.neg %g : (tensor<6x8xf32>) -> tensor<6x8xf32>
  return %0 : tensor<6x8xf32>
}

// -----

// An annotation speaks of devices: samples stay split into micro-batches.
spmd.mesh @mesh <["mb" = 2, "dp" = 2, "tp" = 2]> sequential ["mb"]

// CHECK-LABEL: func.func @constrained_samples(
func.func @constrained_samples(
    %x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}) -> tensor<8x8xf32> {
  // CHECK: spmd.constrain {{.*}} to <@mesh, [{"tp"}, {"dp"}]> {spmd.shardings = [#spmd.sharding<@mesh, [{"mb", "tp"}, {"dp"}]>]}
  %0 = spmd.constrain %x to <@mesh, [{"tp"}, {"dp"}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// Of an axis whose major digit splits a dimension already, the minor one may
// split another.
spmd.mesh @mesh <["b" = 4, "c" = 2]>

// CHECK-LABEL: func.func @digits(
func.func @digits(
    %x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"b":(1)2}, {"b":(2)2}]>},
    %y: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"b":(1)2}, {}]>}) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  // CHECK: graph.neg {{.*}}#spmd.sharding<@mesh, [{"b":(1)2}, {"b":(2)2}]>
  %0 = graph.neg %x : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = spmd.constrain %0 to <@mesh, [{"b", "c"}, {}]> : tensor<8x8xf32>
  // CHECK: graph.neg {{.*}}#spmd.sharding<@mesh, [{"b", "c"}, {}]>
  %2 = graph.neg %y : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = spmd.constrain %2 to <@mesh, [{"b", "c"}, {}]> : tensor<8x8xf32>
  return %1, %3 : tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

// A reader of smaller shards reduces those, after it scatters the value: a
// gradient that is a sum over "dp" and "cp", of which a rank keeps a shard over
// "dp".
spmd.mesh @mesh <["dp" = 2, "cp" = 2]>

// CHECK-LABEL: func.func @scattered_first(
func.func @scattered_first(
    %x: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp", "cp"}, {}]>},
    %y: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp", "cp"}, {}]>}) -> tensor<6x4xf32> {
  // CHECK: graph.contract {{.*}}[#spmd.sharding<@mesh, [{}, {}], partial = {"dp", "cp"}>]
  %0 = graph.contract "sa,sb->ab" %x, %y : (tensor<8x6xf32>, tensor<8x4xf32>) -> tensor<6x4xf32>
  // CHECK: spmd.constrain {{.*}}[#spmd.sharding<@mesh, [{"dp"}, {}]>]
  %1 = spmd.constrain reduced %0 to <@mesh, [{"dp"}, {}]> : tensor<6x4xf32>
  return %1 : tensor<6x4xf32>
}

// -----

// Of a partial sum one reader needs shards, and another could pass it on to a
// smaller result. To reduce that beside the shards takes longer than to reduce
// shards for both.
spmd.mesh @mesh <["cp" = 2]>

// CHECK-LABEL: func.func @shards_for_both(
func.func @shards_for_both(
    %x: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"cp"}]>},
    %w: tensor<6x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"cp"}, {}]>},
    %v: tensor<4x3xf32>,
    %s: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"cp"}, {}]>}) -> (tensor<8x4xf32>, tensor<8x3xf32>) {
  // CHECK: graph.contract "si,io->so" {{.*}}[#spmd.sharding<@mesh, [{"cp"}, {}]>]
  %0 = graph.contract "si,io->so" %x, %w : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
  %1 = graph.mul %0, %s : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK: graph.contract "so,op->sp"
  %2 = graph.contract "so,op->sp" %0, %v : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32>
  %3 = spmd.constrain %2 to <@mesh, [{"cp"}, {}]> : tensor<8x3xf32>
  return %1, %3 : tensor<8x4xf32>, tensor<8x3xf32>
}
