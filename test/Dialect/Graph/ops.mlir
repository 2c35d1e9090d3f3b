// RUN: cleave-opt %s | cleave-opt | FileCheck %s
// RUN: cleave-opt %s --mlir-print-op-generic | cleave-opt | FileCheck %s

// Each op parses, prints and verifies; what is printed parses again.

// CHECK-LABEL: func @elementwise
func.func @elementwise(%x: tensor<4x8xf32>, %b: tensor<8xf32>, %rng: tensor<2xi64>) -> tensor<4x8xf32> {
  // CHECK: graph.constant dense<1.000000e+00> : tensor<f32>
  %one = graph.constant dense<1.0> : tensor<f32>
  // CHECK: graph.iota {dim = 1 : i64} : tensor<4x8xi64>
  %i = graph.iota {dim = 1 : i64} : tensor<4x8xi64>
  // CHECK: graph.add %{{.*}}, %{{.*}} : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %0 = graph.add %x, %b : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %1 = graph.mul %0, %one : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  // CHECK: graph.gelu %{{.*}} {tanh}
  %2 = graph.gelu %1 {tanh} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK: graph.compare lt
  %3 = graph.compare lt %2, %0 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xi1>
  %4 = graph.select %3, %2, %one : (tensor<4x8xi1>, tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  // CHECK: graph.dropout %{{.*}}, %{{.*}} {id = 3 : i64, probability = 1.000000e-01 : f64}
  %5 = graph.dropout %4, %rng {id = 3 : i64, probability = 0.1 : f64} : (tensor<4x8xf32>, tensor<2xi64>) -> tensor<4x8xf32>
  // CHECK: graph.uniform %{{.*}} {id = 4 : i64} : (tensor<2xi64>) -> tensor<4x8xf32>
  %u = graph.uniform %rng {id = 4 : i64} : (tensor<2xi64>) -> tensor<4x8xf32>
  // CHECK: graph.cast
  %6 = graph.cast %i : (tensor<4x8xi64>) -> tensor<4x8xf32>
  %7 = graph.add %5, %6 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %7 : tensor<4x8xf32>
}

// CHECK-LABEL: func @shape
func.func @shape(%x: tensor<4x8xf32>, %ids: tensor<3x5xi64>, %o: tensor<1xi64>) -> tensor<4xf32> {
  // CHECK: graph.reshape
  %0 = graph.reshape %x : (tensor<4x8xf32>) -> tensor<2x2x8xf32>
  // CHECK: graph.transpose %{{.*}} {permutation = array<i64: 2, 0, 1>}
  %1 = graph.transpose %0 {permutation = array<i64: 2, 0, 1>} : (tensor<2x2x8xf32>) -> tensor<8x2x2xf32>
  // CHECK: graph.slice
  %2 = graph.slice %1 {offsets = array<i64: 1, 0, 0>, sizes = array<i64: 3, 2, 2>, strides = array<i64: 2, 1, 1>} : (tensor<8x2x2xf32>) -> tensor<3x2x2xf32>
  // CHECK: graph.pad
  %3 = graph.pad %2 {value = 0.0 : f64, low = array<i64: 1, 0, 0>, high = array<i64: 2, 0, 0>, interior = array<i64: 1, 0, 0>} : (tensor<3x2x2xf32>) -> tensor<8x2x2xf32>
  // CHECK: graph.concat
  %4 = graph.concat %1, %3 {dim = 1 : i64} : (tensor<8x2x2xf32>, tensor<8x2x2xf32>) -> tensor<8x4x2xf32>
  // CHECK: graph.gather
  %5 = graph.gather %x, %ids {dim = 0 : i64, padding_index = 0 : i64} : (tensor<4x8xf32>, tensor<3x5xi64>) -> tensor<3x5x8xf32>
  // CHECK: graph.scatter_add
  %6 = graph.scatter_add %5, %ids {dim = 0 : i64, size = 4 : i64} : (tensor<3x5x8xf32>, tensor<3x5xi64>) -> tensor<4x8xf32>
  // CHECK: graph.gather %{{.*}}, %{{.*}} origin %{{.*}} {dim = 0 : i64, global_size = 12 : i64} : (tensor<4x8xf32>, tensor<3x5xi64>, tensor<1xi64>) -> tensor<3x5x8xf32>
  %g = graph.gather %x, %ids origin %o {dim = 0 : i64, global_size = 12 : i64} : (tensor<4x8xf32>, tensor<3x5xi64>, tensor<1xi64>) -> tensor<3x5x8xf32>
  // CHECK: graph.scatter_add %{{.*}}, %{{.*}} origin %{{.*}} {dim = 0 : i64, global_size = 12 : i64, size = 4 : i64}
  %s = graph.scatter_add %g, %ids origin %o {dim = 0 : i64, size = 4 : i64, global_size = 12 : i64} : (tensor<3x5x8xf32>, tensor<3x5xi64>, tensor<1xi64>) -> tensor<4x8xf32>
  // CHECK: %[[G:.*]] = graph.gather %{{.*}}, %{{.*}} {batch = 1 : i64, dim = 1 : i64} : (tensor<3x5x8xf32>, tensor<3x5xi64>) -> tensor<3x5x8xf32>
  %gb = graph.gather %g, %ids {dim = 1 : i64, batch = 1 : i64} : (tensor<3x5x8xf32>, tensor<3x5xi64>) -> tensor<3x5x8xf32>
  // CHECK: graph.scatter_add %[[G]], %{{.*}} {batch = 1 : i64, dim = 1 : i64, size = 4 : i64} : (tensor<3x5x8xf32>, tensor<3x5xi64>) -> tensor<3x4x8xf32>
  %sb = graph.scatter_add %gb, %ids {dim = 1 : i64, size = 4 : i64, batch = 1 : i64} : (tensor<3x5x8xf32>, tensor<3x5xi64>) -> tensor<3x4x8xf32>
  // CHECK: graph.top_k %{{.*}} {k = 2 : i64} : (tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>)
  %v, %i = graph.top_k %x {k = 2 : i64} : (tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>)
  // CHECK: %[[ORDER:.*]], %[[INVERSE:.*]], %[[OFFSETS:.*]] = graph.sort_rows %{{.*}} origin %{{.*}} {global_size = 9 : i64, size = 3 : i64} : (tensor<4xi64>, tensor<1xi64>) -> (tensor<4xi64>, tensor<4xi64>, tensor<1x4xi64>)
  %four = graph.constant dense<[0, 2, 0, 8]> : tensor<4xi64>
  %order, %inverse, %offsets = graph.sort_rows %four origin %o {size = 3 : i64, global_size = 9 : i64} : (tensor<4xi64>, tensor<1xi64>) -> (tensor<4xi64>, tensor<4xi64>, tensor<1x4xi64>)
  %weights = graph.constant dense<1.0> : tensor<3x8x5xf32>
  // CHECK: %[[P:.*]] = graph.grouped_contract %{{.*}}, %{{.*}}, %[[OFFSETS]] : (tensor<4x8xf32>, tensor<3x8x5xf32>, tensor<1x4xi64>) -> tensor<4x5xf32>
  %products = graph.grouped_contract %x, %weights, %offsets : (tensor<4x8xf32>, tensor<3x8x5xf32>, tensor<1x4xi64>) -> tensor<4x5xf32>
  // CHECK: graph.grouped_contract_weight_grad %{{.*}}, %[[P]], %[[OFFSETS]] {transpose} : (tensor<4x8xf32>, tensor<4x5xf32>, tensor<1x4xi64>) -> tensor<3x5x8xf32>
  %of_weights = graph.grouped_contract_weight_grad %x, %products, %offsets {transpose} : (tensor<4x8xf32>, tensor<4x5xf32>, tensor<1x4xi64>) -> tensor<3x5x8xf32>
  // CHECK: graph.one_hot %{{.*}} {ignore_index = -100 : i64, size = 9 : i64} : (tensor<3x5xi64>) -> tensor<3x5x9xi1>
  %h = graph.one_hot %ids {size = 9 : i64, ignore_index = -100 : i64} : (tensor<3x5xi64>) -> tensor<3x5x9xi1>
  // CHECK: graph.one_hot %{{.*}} origin %{{.*}} {global_size = 9 : i64, size = 3 : i64} : (tensor<3x5xi64>, tensor<1xi64>) -> tensor<3x5x3xi1>
  %hs = graph.one_hot %ids origin %o {size = 3 : i64, global_size = 9 : i64} : (tensor<3x5xi64>, tensor<1xi64>) -> tensor<3x5x3xi1>
  // CHECK: graph.reduce max
  %7 = graph.reduce max %6 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %7 : tensor<4xf32>
}

// CHECK-LABEL: func @groups
func.func @groups(%x: tensor<3x5x8xf32>, %w: tensor<6x8x2xf32>, %i: tensor<3x5xi64>, %o: tensor<1xi64>) -> tensor<6x2x8xf32> {
  // CHECK: %[[Y:.*]] = graph.grouped_linear %{{.*}}, %{{.*}}, %{{.*}} : (tensor<3x5x8xf32>, tensor<6x8x2xf32>, tensor<3x5xi64>) -> tensor<3x5x2xf32>
  %0 = graph.grouped_linear %x, %w, %i : (tensor<3x5x8xf32>, tensor<6x8x2xf32>, tensor<3x5xi64>) -> tensor<3x5x2xf32>
  // CHECK: graph.grouped_linear %[[Y]], %{{.*}}, %{{.*}} origin %{{.*}} {global_size = 12 : i64, transpose} : (tensor<3x5x2xf32>, tensor<6x8x2xf32>, tensor<3x5xi64>, tensor<1xi64>) -> tensor<3x5x8xf32>
  %1 = graph.grouped_linear %0, %w, %i origin %o {global_size = 12 : i64, transpose} : (tensor<3x5x2xf32>, tensor<6x8x2xf32>, tensor<3x5xi64>, tensor<1xi64>) -> tensor<3x5x8xf32>
  // CHECK: graph.grouped_linear_weight_grad %{{.*}}, %[[Y]], %{{.*}} {size = 6 : i64, transpose} : (tensor<3x5x8xf32>, tensor<3x5x2xf32>, tensor<3x5xi64>) -> tensor<6x2x8xf32>
  %2 = graph.grouped_linear_weight_grad %1, %0, %i {size = 6 : i64, transpose} : (tensor<3x5x8xf32>, tensor<3x5x2xf32>, tensor<3x5xi64>) -> tensor<6x2x8xf32>
  return %2 : tensor<6x2x8xf32>
}

// CHECK-LABEL: func @neural
func.func @neural(%x: tensor<2x4x8xf32>, %w: tensor<16x8xf32>, %b: tensor<16xf32>, %g: tensor<8xf32>, %t: tensor<2x4xi64>) -> tensor<2x4xf32> {
  // CHECK: graph.layer_norm %{{.*}} weight %{{.*}} bias %{{.*}} {epsilon = 1.000000e-05 : f64}
  %n, %mean, %rstd = graph.layer_norm %x weight %g bias %g {epsilon = 1.0e-5 : f64} : (tensor<2x4x8xf32>, tensor<8xf32>, tensor<8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4xf32>, tensor<2x4xf32>)
  // CHECK: graph.rms_norm
  %r, %rr = graph.rms_norm %n weight %g {epsilon = 1.0e-6 : f64} : (tensor<2x4x8xf32>, tensor<8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4xf32>)
  // CHECK: graph.linear %{{.*}}, %{{.*}} bias %{{.*}} :
  %l = graph.linear %r, %w bias %b : (tensor<2x4x8xf32>, tensor<16x8xf32>, tensor<16xf32>) -> tensor<2x4x16xf32>
  // CHECK: graph.cross_entropy %{{.*}}, %{{.*}} :
  %loss, %lse = graph.cross_entropy %l, %t : (tensor<2x4x16xf32>, tensor<2x4xi64>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  // CHECK: graph.head_loss %{{.*}}, %{{.*}} bias %{{.*}} targets %{{.*}} gradient %{{.*}} {chunk_rows = 4 : i64}
  %h:4 = graph.head_loss %r, %w bias %b targets %t gradient %lse {chunk_rows = 4 : i64} : (tensor<2x4x8xf32>, tensor<16x8xf32>, tensor<16xf32>, tensor<2x4xi64>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4x8xf32>, tensor<16x8xf32>, tensor<16xf32>)
  return %loss : tensor<2x4xf32>
}

// CHECK-LABEL: func @attention
func.func @attention(%q: tensor<2x4x6x8xf32>, %k: tensor<2x2x6x8xf32>, %v: tensor<2x2x6x8xf32>, %bias: tensor<1x4x6x6xf32>, %mask: tensor<2x1x1x6xi1>, %rng: tensor<2xi64>) -> tensor<2x4x6x8xf32> {
  // CHECK: graph.attention %{{.*}}, %{{.*}}, %{{.*}} bias %{{.*}} mask %{{.*}} rng %{{.*}} {causal, dropout = 1.000000e-01 : f64, dropout_id = 2 : i64, scale = 2.500000e-01 : f64}
  %o, %lse = graph.attention %q, %k, %v bias %bias mask %mask rng %rng {causal, scale = 0.25 : f64, dropout = 0.1 : f64, dropout_id = 2 : i64} : (tensor<2x4x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<1x4x6x6xf32>, tensor<2x1x1x6xi1>, tensor<2xi64>) -> (tensor<2x4x6x8xf32>, tensor<2x4x6x2xf32>)
  return %o : tensor<2x4x6x8xf32>
}

// CHECK-LABEL: func @training
func.func @training(%p: tensor<8xf32>, %d: tensor<8xf32>, %lr: tensor<f32>, %flag: tensor<i1>, %step: tensor<i64>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  // CHECK: graph.seed
  %s = graph.seed %lr : (tensor<f32>) -> tensor<f32>
  // CHECK: graph.gradient %{{.*}} of "p"
  %g = graph.gradient %d of "p" : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK: graph.written %{{.*}} of "count"
  %c = graph.written %step of "count" : (tensor<i64>) -> tensor<i64>
  // CHECK: graph.global_norm
  %n = graph.global_norm %g, %d : (tensor<8xf32>, tensor<8xf32>) -> tensor<f32>
  // CHECK: graph.check %{{.*}}, "no valid token" : tensor<i1>
  graph.check %flag, "no valid token" : tensor<i1>
  // CHECK: graph.check %{{.*}}, "rank {rank} has {0}" room with %{{.*}} : tensor<2xi64> : tensor<i1>
  %numbers = graph.constant dense<[3, 4]> : tensor<2xi64>
  graph.check %flag, "rank {rank} has {0}" room with %numbers : tensor<2xi64> : tensor<i1>
  // CHECK: graph.sgd %{{.*}}, %{{.*}} buffer %{{.*}} lr %{{.*}}, %{{.*}} scale %{{.*}}
  %p1, %b1 = graph.sgd %p, %g buffer %d lr %lr, %step scale %n {momentum = 0.9 : f64, dampening = 0.0 : f64, weight_decay = 0.0 : f64, nesterov} : (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<i64>, tensor<f32>) -> (tensor<8xf32>, tensor<8xf32>)
  // CHECK: graph.adamw
  %p2, %m2, %v2 = graph.adamw %p1, %g, %b1, %d lr %lr, %s, %s scale %n {beta1 = 0.9 : f64, beta2 = 0.999 : f64, epsilon = 1.0e-8 : f64, weight_decay = 0.01 : f64} : (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>)
  return %p2, %m2, %v2 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}

// CHECK-LABEL: func @compressed
func.func @compressed(%p: tensor<3x8x2xf32>, %m: tensor<4x20xi1>) -> tensor<3x8x2xf32> {
  // CHECK: graph.pack_bits %{{.*}} : (tensor<4x20xi1>) -> tensor<4x3xi8>
  %b = graph.pack_bits %m : (tensor<4x20xi1>) -> tensor<4x3xi8>
  // CHECK: graph.unpack_bits %{{.*}} : (tensor<4x3xi8>) -> tensor<4x20xi1>
  %u = graph.unpack_bits %b : (tensor<4x3xi8>) -> tensor<4x20xi1>
  // CHECK: graph.orthonormalize %{{.*}} : (tensor<3x8x2xf32>) -> tensor<3x8x2xf32>
  %q = graph.orthonormalize %p : (tensor<3x8x2xf32>) -> tensor<3x8x2xf32>
  return %q : tensor<3x8x2xf32>
}
