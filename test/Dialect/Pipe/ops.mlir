// RUN: cleave-opt %s --verify-roundtrip | FileCheck %s

// CHECK-LABEL: pipe.program @train(
// CHECK-SAME: graph.name = "w"
// CHECK-SAME: attributes {micro_batches = 2 : i64, schedule = "P0 P1 F0 B0 F1 B1 U"}
pipe.program @train(%w: tensor<4xf32> {graph.name = "w"},
                    %x: tensor<8x4xf32> {graph.name = "x"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4xf32>, tensor<8x4xf32>)
    attributes {micro_batches = 2 : i64, schedule = "P0 P1 F0 B0 F1 B1 U"} {
  // CHECK: pipe.invoke @train.P(%{{.*}}) {part = "P", split = array<i64: 0>, results = ["accumulate"]}
  %n = pipe.invoke @train.P(%x) {part = "P", split = array<i64: 0>, results = ["accumulate"]}
      : (tensor<8x4xf32>) -> tensor<f32>
  // CHECK: results = ["saved", "accumulate", "concat:0"]
  %s, %loss, %y = pipe.invoke @train.F(%w, %x, %n)
      {part = "F", split = array<i64: -1, 0, -1>, results = ["saved", "accumulate", "concat:0"]}
      : (tensor<4xf32>, tensor<8x4xf32>, tensor<f32>) -> (tensor<4x4xf32>, tensor<f32>, tensor<8x4xf32>)
  %g = pipe.invoke @train.B(%s) {part = "B", split = array<i64: -1>, results = ["accumulate"]}
      : (tensor<4x4xf32>) -> tensor<4xf32>
  // CHECK: {part = "U", once, split = array<i64: -1, -1>, results = ["value"]}
  %w2 = pipe.invoke @train.U(%w, %g) {part = "U", once, split = array<i64: -1, -1>, results = ["value"]}
      : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  pipe.return %loss, %w2, %y : tensor<f32>, tensor<4xf32>, tensor<8x4xf32>
}
func.func private @train.P(tensor<4x4xf32>) -> tensor<f32>
func.func private @train.F(tensor<4xf32>, tensor<4x4xf32>, tensor<f32>) -> (tensor<4x4xf32>, tensor<f32>, tensor<4x4xf32>)
func.func private @train.B(tensor<4x4xf32>) -> tensor<4xf32>
func.func private @train.U(tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
