// RUN: cleave-opt %s --graph-differentiate | FileCheck %s

// What the model adds, in whatever shape, is marked; what it multiplies by, or
// reads in both ways, is not.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4x4xf32> {graph.name = "w"
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4xf32> {graph.additive, graph.name = "b"
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4xf32> {graph.name = "scale"
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4xf32> {graph.additive, graph.name = "shift"
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4xf32> {graph.name = "both"
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4xf32> {graph.name = "curved"
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4xf32> {graph.additive, graph.name = "taken"
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4xf32> {graph.name = "unused"
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<2x4xf32> {graph.batch_dim
func.func @loss(%w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                %b: tensor<4xf32> {graph.name = "b", graph.role = "parameter"},
                %scale: tensor<4xf32> {graph.name = "scale", graph.role = "parameter"},
                %shift: tensor<4xf32> {graph.name = "shift", graph.role = "parameter"},
                %both: tensor<4xf32> {graph.name = "both", graph.role = "parameter"},
                %curved: tensor<4xf32> {graph.name = "curved", graph.role = "parameter"},
                %taken: tensor<4xf32> {graph.name = "taken", graph.role = "parameter"},
                %unused: tensor<4xf32> {graph.name = "unused", graph.role = "parameter"},
                %x: tensor<2x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64}) -> tensor<f32> {
  %0 = graph.linear %x, %w bias %b : (tensor<2x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %1:3 = graph.layer_norm %0 weight %scale bias %shift {epsilon = 1.0e-5 : f64} : (tensor<2x4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<2x4xf32>, tensor<2xf32>, tensor<2xf32>)
  %2 = graph.add %1#0, %both : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %3 = graph.mul %2, %both : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %4 = graph.exp %curved : (tensor<4xf32>) -> tensor<4xf32>
  %5 = graph.add %3, %4 : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %6 = graph.reshape %taken : (tensor<4xf32>) -> tensor<1x4xf32>
  %7 = graph.sub %5, %6 : (tensor<2x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
  %8 = graph.reduce sum %7 {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  return %8 : tensor<f32>
}
