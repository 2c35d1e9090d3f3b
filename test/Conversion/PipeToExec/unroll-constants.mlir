// RUN: cleave-opt %s --exec-unroll-schedule | FileCheck %s

// A place on an axis of one position is a constant of `graph`, of which the
// module has no op yet.

spmd.mesh @mesh <["mb" = 2, "x" = 1]> sequential ["mb", "x"]
// CHECK-LABEL: func.func private @p.F
// CHECK: graph.constant
func.func private @p.F(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = spmd.shard_offset <@mesh, [{"x"}]> of tensor<8xf32> : tensor<1xi64>
  return %x : tensor<4xf32>
}
pipe.program @p(%x: tensor<8xf32>) -> tensor<8xf32> attributes {micro_batches = 2 : i64, schedule = "F0 F1"} {
  %0 = pipe.invoke @p.F(%x) {part = "F", split = array<i64: 0>, results = ["concat:0"]} : (tensor<8xf32>) -> tensor<8xf32>
  pipe.return %0 : tensor<8xf32>
}
