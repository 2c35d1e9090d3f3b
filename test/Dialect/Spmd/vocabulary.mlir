// RUN: cleave-compile %s --emit=local --mesh=dp=2,tp=2 --recipe=megatron --optimizer=sgd > %t.tp
// RUN: cleave-compile %s --emit=local --mesh=dp=2,tp=2 --recipe=megatron-sp --optimizer=sgd > %t.sp
module {
  func.func @loss(
      %w: tensor<12x8xf32> {graph.name = "w", graph.role = "parameter", graph.aliases = ["head"]},
      %p: tensor<6x8xf32> {graph.name = "p", graph.role = "parameter"},
      %up: tensor<16x8xf32> {graph.name = "up", graph.role = "parameter"},
      %down: tensor<8x16xf32> {graph.name = "down", graph.role = "parameter"},
      %g: tensor<8xf32> {graph.name = "g", graph.role = "parameter"},
      %ids: tensor<4x6xi64> {graph.batch_dim = 0 : i64, graph.name = "ids", graph.role = "input"},
      %t: tensor<4x6xi64> {graph.batch_dim = 0 : i64, graph.name = "t", graph.role = "input"}) -> (tensor<f32> {graph.name = "loss"}) {
    %e = graph.gather %w, %ids {dim = 0 : i64} : (tensor<12x8xf32>, tensor<4x6xi64>) -> tensor<4x6x8xf32>
    %x0 = graph.add %e, %p : (tensor<4x6x8xf32>, tensor<6x8xf32>) -> tensor<4x6x8xf32>
    %n0, %r0 = graph.rms_norm %x0 weight %g {epsilon = 1.0e-6 : f64} : (tensor<4x6x8xf32>, tensor<8xf32>) -> (tensor<4x6x8xf32>, tensor<4x6xf32>)
    %u = graph.linear %n0, %up : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
    %a = graph.gelu %u : (tensor<4x6x16xf32>) -> tensor<4x6x16xf32>
    %d = graph.linear %a, %down : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
    %y = graph.add %d, %x0 : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %n, %r = graph.rms_norm %y weight %g {epsilon = 1.0e-6 : f64} : (tensor<4x6x8xf32>, tensor<8xf32>) -> (tensor<4x6x8xf32>, tensor<4x6xf32>)
    %l3 = graph.linear %n, %w : (tensor<4x6x8xf32>, tensor<12x8xf32>) -> tensor<4x6x12xf32>
    %l = graph.reshape %l3 : (tensor<4x6x12xf32>) -> tensor<24x12xf32>
    %t1 = graph.reshape %t : (tensor<4x6xi64>) -> tensor<24xi64>
    %rows, %lse = graph.cross_entropy %l, %t1 : (tensor<24x12xf32>, tensor<24xi64>) -> (tensor<24xf32>, tensor<24xf32>)
    %sum = graph.reduce sum %rows {dims = array<i64: 0>} : (tensor<24xf32>) -> tensor<f32>
    return %sum : tensor<f32>
  }
}
