// RUN: cleave-opt %s --spmd-propagate --verify-diagnostics | FileCheck %s

// The cases of MergeFactors.cpp (1 to 8) and of Propagate.cpp (9 to 13): which
// sharding an op has if its tensors disagree, and the remark.

spmd.mesh @mesh <["dp" = 2, "tp" = 2]>

// 1. One axis for two factors: that of more tensors. Rows of %x and of the sum
// outvote the columns of %w, which is the larger one.
// CHECK-LABEL: func.func @case1(
// CHECK: graph.linear {{.*}}[#spmd.sharding<@mesh, [{"tp"}, {}]>]
func.func @case1(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %r: tensor<4x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %w: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{?}, {}]>}) -> tensor<4x16xf32> {
  %0 = graph.linear %x, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = graph.add %0, %r : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  return %1 : tensor<4x16xf32>
}

// 2. As many tensors for each: that of the larger one, %w, wherever it stands.
// CHECK-LABEL: func.func @case2(
// CHECK: graph.linear {{.*}}[#spmd.sharding<@mesh, [{}, {"tp"}]>]
// CHECK: graph.contract {{.*}}[#spmd.sharding<@mesh, [{"tp"}, {}]>]
func.func @case2(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %w: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}) -> (tensor<4x16xf32>, tensor<16x4xf32>) {
  // expected-remark @+1 {{operand 0 shards dimension 0 over {"tp"}, of which "tp" shards another factor of the op}}
  %0 = graph.linear %x, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  // expected-remark @+1 {{operand 1 shards dimension 0 over {"tp"}, of which "tp" shards another factor of the op}}
  %1 = graph.contract "oi,bi->ob" %w, %x : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  return %0, %1 : tensor<4x16xf32>, tensor<16x4xf32>
}

// A rank has 512 elements of %x, of which others share the samples, and 640 of %w.
// CHECK-LABEL: func.func @case2_of_ranks(
// CHECK: graph.linear {{.*}}[#spmd.sharding<@mesh, [{"dp"}, {}, {"tp"}]>]
func.func @case2_of_ranks(
    %x: tensor<32x4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}, {}]>},
    %w: tensor<80x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}) -> tensor<32x4x80xf32> {
  // expected-remark @+1 {{operand 0 shards dimension 1 over {"tp"}, of which "tp" shards another factor of the op}}
  %0 = graph.linear %x, %w : (tensor<32x4x8xf32>, tensor<80x8xf32>) -> tensor<32x4x80xf32>
  return %0 : tensor<32x4x80xf32>
}

// 3. As large, too: the first one.
// CHECK-LABEL: func.func @case3(
// CHECK: graph.linear {{.*}}[#spmd.sharding<@mesh, [{"tp"}, {}]>]
func.func @case3(
    %x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}) -> tensor<8x8xf32> {
  // expected-remark @+1 {{operand 1 shards dimension 0 over {"tp"}, of which "tp" shards another factor of the op}}
  %0 = graph.linear %x, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// 4. An annotation and its operand: the annotation.
// CHECK-LABEL: func.func @case4(
// CHECK: spmd.constrain {{.*}}[#spmd.sharding<@mesh, [{}, {"tp"}]>]
// CHECK: graph.exp {{.*}}[#spmd.sharding<@mesh, [{}, {"tp"}]>]
func.func @case4(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}) -> tensor<4x8xf32> {
  // expected-remark @+1 {{operand 0 shards dimension 0 over {"tp"}, of which "tp" shards another factor of the op}}
  %0 = spmd.constrain %x to <@mesh, [{}, {"tp"}]> : tensor<4x8xf32>
  %1 = graph.exp %0 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// 5. Two axes for one factor: by 1 to 3, here the first.
// CHECK-LABEL: func.func @case5(
// CHECK: graph.add {{.*}}[#spmd.sharding<@mesh, [{"tp"}, {}]>]
func.func @case5(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %y: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>}) -> tensor<4x8xf32> {
  // expected-remark @+1 {{operand 1 shards dimension 0 over {"dp"}, another operand or result over {"tp"}}}
  %0 = graph.add %x, %y : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// 6. A list of axes and the first of them: the list, without a remark.
// CHECK-LABEL: func.func @case6(
// CHECK: graph.add {{.*}}[#spmd.sharding<@mesh, [{"dp", "tp"}, {}]>]
func.func @case6(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %y: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp", "tp"}, {}]>}) -> tensor<4x8xf32> {
  %0 = graph.add %x, %y : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// 7. An axis for a factor that must be replicated: none.
// CHECK-LABEL: func.func @case7(
// CHECK: graph.softmax {{.*}}[#spmd.sharding<@mesh, [{"dp"}, {}]>]
func.func @case7(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}]>}) -> tensor<4x8xf32> {
  // expected-remark @+1 {{operand 0 shards dimension 1 over {"tp"}, which the op needs replicated}}
  %0 = graph.softmax %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// 8. An axis for a minor factor whose major one is not sharded: none.
// CHECK-LABEL: func.func @case8(
// CHECK: graph.reshape {{.*}}[#spmd.sharding<@mesh, [{}]>]
func.func @case8(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<32xf32> {
  // expected-remark @+1 {{axes {"tp"} shard a minor factor of a dimension whose major factor is not fully sharded}}
  %0 = graph.reshape %x : (tensor<4x8xf32>) -> tensor<32xf32>
  return %0 : tensor<32xf32>
}

// 9. A weight wins over activations, of which there are more: the sequence of
// each is annotated, before and after the matmuls.
// CHECK-LABEL: func.func @case9(
// CHECK: graph.linear {{.*}}[#spmd.sharding<@mesh, [{"dp"}, {}, {"tp"}]>]
// CHECK: graph.linear {{.*}}[#spmd.sharding<@mesh, [{"dp"}, {}, {}], partial = {"tp"}>]
func.func @case9(
    %x: tensor<4x8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}, {}]>},
    %up: tensor<8x16xf32> {graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %down: tensor<16x8xf32> {graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<4x8x16xf32> {
  %0 = graph.exp %x : (tensor<4x8x16xf32>) -> tensor<4x8x16xf32>
  %1 = spmd.constrain %0 to <@mesh, [{?}, {"tp"}, {}]> : tensor<4x8x16xf32>
  // expected-remark @+1 {{operand 0 shards dimension 1 over {"tp"}, of which "tp" shards another factor of the op}}
  %2 = graph.linear %1, %up : (tensor<4x8x16xf32>, tensor<8x16xf32>) -> tensor<4x8x8xf32>
  %3 = graph.relu %2 : (tensor<4x8x8xf32>) -> tensor<4x8x8xf32>
  %4 = graph.linear %3, %down : (tensor<4x8x8xf32>, tensor<16x8xf32>) -> tensor<4x8x16xf32>
  %5 = spmd.constrain %4 to <@mesh, [{?}, {"tp"}, {}]> : tensor<4x8x16xf32>
  %6 = graph.add %5, %1 : (tensor<4x8x16xf32>, tensor<4x8x16xf32>) -> tensor<4x8x16xf32>
  return %6 : tensor<4x8x16xf32>
}

// 10. So does its copy in 16 bits: the weight rests sharded over "dp" as well,
// and the copy is gathered. The matmuls are sharded as in 9.
// CHECK-LABEL: func.func @case10(
// CHECK: graph.linear {{.*}}[#spmd.sharding<@mesh, [{"dp"}, {}, {"tp"}]>]
// CHECK: graph.linear {{.*}}[#spmd.sharding<@mesh, [{"dp"}, {}, {}], partial = {"tp"}>]
func.func @case10(
    %x: tensor<4x8x16xbf16> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}, {}]>},
    %up: tensor<8x16xf32> {graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp", "dp"}, {}]>},
    %down: tensor<16x8xf32> {graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}]>}) -> tensor<4x8x16xbf16> {
  %0 = graph.exp %x : (tensor<4x8x16xbf16>) -> tensor<4x8x16xbf16>
  %1 = spmd.constrain %0 to <@mesh, [{?}, {"tp"}, {}]> : tensor<4x8x16xbf16>
  %c = graph.cast %up : (tensor<8x16xf32>) -> tensor<8x16xbf16>
  %u = spmd.constrain %c to <@mesh, [{"tp"}, {}]> : tensor<8x16xbf16>
  // expected-remark @+1 {{operand 0 shards dimension 1 over {"tp"}, of which "tp" shards another factor of the op}}
  %2 = graph.linear %1, %u : (tensor<4x8x16xbf16>, tensor<8x16xbf16>) -> tensor<4x8x8xbf16>
  %3 = graph.relu %2 : (tensor<4x8x8xbf16>) -> tensor<4x8x8xbf16>
  %e = graph.cast %down : (tensor<16x8xf32>) -> tensor<16x8xbf16>
  %d = spmd.constrain %e to <@mesh, [{}, {"tp"}]> : tensor<16x8xbf16>
  %4 = graph.linear %3, %d : (tensor<4x8x8xbf16>, tensor<16x8xbf16>) -> tensor<4x8x16xbf16>
  %5 = spmd.constrain %4 to <@mesh, [{?}, {"tp"}, {}]> : tensor<4x8x16xbf16>
  %6 = graph.add %5, %1 : (tensor<4x8x16xbf16>, tensor<4x8x16xbf16>) -> tensor<4x8x16xbf16>
  return %6 : tensor<4x8x16xbf16>
}

// 11. An axis of an annotation that is not applied yet is used for no other
// dimension of the value: the rows of %1 stay without it.
// CHECK-LABEL: func.func @case11(
// CHECK: spmd.constrain {{.*}}[#spmd.sharding<@mesh, [{"dp"}, {"tp"}]>]
func.func @case11(
    %x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp", "tp"}, {}]>}) -> tensor<8x8xf32> {
  %0 = graph.exp %x : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // expected-remark @+1 {{operand 0 shards dimension 0 over {"dp", "tp"}, of which "tp" shards another factor of the op}}
  %1 = spmd.constrain %0 to <@mesh, [{?}, {"tp"}]> : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}

// 12. A partial sum is not sharded over its axis because of a reader: both sums
// are added first, and then reduced.
// CHECK-LABEL: func.func @case12(
// CHECK-COUNT-2: graph.linear {{.*}}partial = {"tp"}>]
// CHECK: graph.add {{.*}}[#spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>]
// CHECK: spmd.constrain {{.*}}[#spmd.sharding<@mesh, [{"tp"}, {}]>]
func.func @case12(
    %x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
    %v: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
    %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<8x8xf32> {
  %0 = graph.linear %x, %v : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = graph.linear %x, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = graph.add %0, %1 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = spmd.constrain %2 to <@mesh, [{"tp"}, {}]> : tensor<8x8xf32>
  return %3 : tensor<8x8xf32>
}

// 13. A gradient has an axis of its parameter in no other dimension: the inputs
// of %x claim "tp", and lose it to the outputs, though nothing else shards them
// yet.
// CHECK-LABEL: func.func @case13(
// CHECK: graph.contract {{.*}}[#spmd.sharding<@mesh, [{"tp"}, {}]>]
// CHECK: graph.gradient {{.*}}[#spmd.sharding<@mesh, [{"tp"}, {}]>]
func.func @case13(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
    %dy: tensor<4x16xf32>,
    %w: tensor<16x8xf32> {graph.name = "w", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}) -> tensor<16x8xf32> {
  %e = graph.exp %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // expected-remark @+1 {{operand 1 shards dimension 1 over {"tp"}, of which "tp" shards another factor of the op}}
  %0 = graph.contract "bo,bi->oi" %dy, %e : (tensor<4x16xf32>, tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = graph.gradient %0 of "w" : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %2 = graph.add %w, %1 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return %2 : tensor<16x8xf32>
}
