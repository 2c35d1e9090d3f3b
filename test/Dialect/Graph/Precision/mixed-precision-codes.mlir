// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer="optimizer=adamw8bit" --graph-mixed-precision --cse | FileCheck %s

// An update that keeps its state as codes, which are integers, decides nothing of
// what forward and backward compute: they are in 16 bits, as beside any update.

// CHECK-LABEL: func.func @train(
// CHECK: graph.linear {{.*}} {result_element = f32} : (tensor<8x64xbf16>, tensor<64x64xbf16>)
// CHECK: graph.relu {{.*}} : (tensor<8x64xbf16>) -> tensor<8x64xbf16>
// CHECK: graph.contract {{.*}} {result_element = f32} : (tensor<8x64xbf16>, tensor<8x64xbf16>) -> tensor<64x64xf32>
// CHECK: graph.gradient %{{.*}} of "w" : (tensor<64x64xf32>)
// CHECK: graph.encode {{.*}} : (tensor<64x64xf32>)
func.func @loss(%w: tensor<64x64xf32> {graph.name = "w", graph.role = "parameter"},
                %x: tensor<8x64xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %y = graph.linear %x, %w : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  %z = graph.relu %y : (tensor<8x64xf32>) -> tensor<8x64xf32>
  %l = graph.reduce sum %z {dims = array<i64: 0, 1>} : (tensor<8x64xf32>) -> tensor<f32>
  return %l : tensor<f32>
}
