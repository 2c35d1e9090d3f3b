// RUN: cleave-opt %s --pass-pipeline='builtin.module(func.func(exec-decompose))' | FileCheck %s

// Padded tensors that tile their sum lie side by side, in the order of their
// places, not of the sum.

// CHECK-LABEL: func.func @tiles(
// CHECK-SAME: %[[Q:[a-z0-9]+]]: tensor<8xf32>, %[[K:[a-z0-9]+]]: tensor<4xf32>, %[[V:[a-z0-9]+]]: tensor<4xf32>
// CHECK-NEXT: %[[C:.*]] = graph.concat %[[Q]], %[[K]], %[[V]] {dim = 0 : i64}
// CHECK-NEXT: return %[[C]]
func.func @tiles(%q: tensor<8xf32>, %k: tensor<4xf32>, %v: tensor<4xf32>) -> tensor<16xf32> {
  %0 = graph.pad %v {value = 0.0 : f64, low = array<i64: 12>, high = array<i64: 0>, interior = array<i64: 0>} : (tensor<4xf32>) -> tensor<16xf32>
  %1 = graph.pad %q {value = 0.0 : f64, low = array<i64: 0>, high = array<i64: 8>, interior = array<i64: 0>} : (tensor<8xf32>) -> tensor<16xf32>
  %2 = graph.pad %k {value = 0.0 : f64, low = array<i64: 8>, high = array<i64: 4>, interior = array<i64: 0>} : (tensor<4xf32>) -> tensor<16xf32>
  %3 = graph.add %1, %2 : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  %4 = graph.add %0, %3 : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  return %4 : tensor<16xf32>
}

// Those that overlap, leave a gap, or are padded by another value stay a sum.

// CHECK-LABEL: func.func @overlap(
// CHECK: graph.add
func.func @overlap(%a: tensor<3xf32>, %b: tensor<3xf32>) -> tensor<5xf32> {
  %0 = graph.pad %a {value = 0.0 : f64, low = array<i64: 0>, high = array<i64: 2>, interior = array<i64: 0>} : (tensor<3xf32>) -> tensor<5xf32>
  %1 = graph.pad %b {value = 0.0 : f64, low = array<i64: 2>, high = array<i64: 0>, interior = array<i64: 0>} : (tensor<3xf32>) -> tensor<5xf32>
  %2 = graph.add %0, %1 : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  return %2 : tensor<5xf32>
}

// CHECK-LABEL: func.func @gap(
// CHECK: graph.add
func.func @gap(%a: tensor<2xf32>, %b: tensor<2xf32>) -> tensor<5xf32> {
  %0 = graph.pad %a {value = 0.0 : f64, low = array<i64: 0>, high = array<i64: 3>, interior = array<i64: 0>} : (tensor<2xf32>) -> tensor<5xf32>
  %1 = graph.pad %b {value = 0.0 : f64, low = array<i64: 3>, high = array<i64: 0>, interior = array<i64: 0>} : (tensor<2xf32>) -> tensor<5xf32>
  %2 = graph.add %0, %1 : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  return %2 : tensor<5xf32>
}

// CHECK-LABEL: func.func @ones(
// CHECK: graph.add
func.func @ones(%a: tensor<2xf32>, %b: tensor<2xf32>) -> tensor<4xf32> {
  %0 = graph.pad %a {value = 1.0 : f64, low = array<i64: 0>, high = array<i64: 2>, interior = array<i64: 0>} : (tensor<2xf32>) -> tensor<4xf32>
  %1 = graph.pad %b {value = 0.0 : f64, low = array<i64: 2>, high = array<i64: 0>, interior = array<i64: 0>} : (tensor<2xf32>) -> tensor<4xf32>
  %2 = graph.add %0, %1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// The border of windows is an image of its own; windows without one stay.

// CHECK-LABEL: func.func @patches(
// CHECK-NEXT: %[[P:.*]] = graph.pad %{{.*}} {high = array<i64: 0, 0, 1, 2>, interior = array<i64: 0, 0, 0, 0>, low = array<i64: 0, 0, 1, 2>, value = 0.000000e+00 : f64}
// CHECK-NEXT: %[[W:.*]] = graph.patches %[[P]] {{.*}}padding = array<i64: 0, 0>{{.*}} -> tensor<1x4x6x2x3x3xf32>
// CHECK-NEXT: return %[[W]]
func.func @patches(%x: tensor<1x2x4x4xf32>) -> tensor<1x4x6x2x3x3xf32> {
  %0 = graph.patches %x {kernel = array<i64: 3, 3>, stride = array<i64: 1, 1>, padding = array<i64: 1, 2>, dilation = array<i64: 1, 1>} : (tensor<1x2x4x4xf32>) -> tensor<1x4x6x2x3x3xf32>
  return %0 : tensor<1x4x6x2x3x3xf32>
}

// The adjoint adds what each place in the window gives, spread by the stride,
// and cuts the border off.

// CHECK-LABEL: func.func @patches_grad(
// CHECK: %[[T:.*]] = graph.transpose %{{.*}} {permutation = array<i64: 0, 3, 4, 5, 1, 2>}
// CHECK: graph.slice %[[T]] {offsets = array<i64: 0, 0, 0, 0, 0, 0>, sizes = array<i64: 1, 3, 1, 1, 2, 2>
// CHECK: %[[A:.*]] = graph.pad %{{.*}} {high = array<i64: 0, 0, 0, 1>, interior = array<i64: 0, 0, 0, 1>, low = array<i64: 0, 0, 0, 0>
// CHECK: graph.slice %[[T]] {offsets = array<i64: 0, 0, 0, 1, 0, 0>
// CHECK: %[[B:.*]] = graph.pad %{{.*}} {high = array<i64: 0, 0, 0, 0>, interior = array<i64: 0, 0, 0, 1>, low = array<i64: 0, 0, 0, 1>
// CHECK: %[[S:.*]] = graph.add %[[A]], %[[B]] : {{.*}} -> tensor<1x3x2x4xf32>
// CHECK: graph.slice %[[S]] {offsets = array<i64: 0, 0, 0, 1>, sizes = array<i64: 1, 3, 2, 2>
func.func @patches_grad(%g: tensor<1x2x2x3x1x2xf32>) -> tensor<1x3x2x2xf32> {
  %0 = graph.patches_grad %g {image = array<i64: 2, 2>, kernel = array<i64: 1, 2>, stride = array<i64: 1, 2>, padding = array<i64: 0, 1>, dilation = array<i64: 1, 1>} : (tensor<1x2x2x3x1x2xf32>) -> tensor<1x3x2x2xf32>
  return %0 : tensor<1x3x2x2xf32>
}

// Each round adds twice as many neighbours, from below or from above.

// CHECK-LABEL: func.func @sums(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<3x5xf32>
// CHECK: graph.slice %[[X]] {offsets = array<i64: 0, 0>, sizes = array<i64: 3, 4>
// CHECK: %[[M1:.*]] = graph.pad {{.*}}low = array<i64: 0, 1>
// CHECK: %[[S1:.*]] = graph.add %[[X]], %[[M1]]
// CHECK: graph.slice %[[S1]] {offsets = array<i64: 0, 0>, sizes = array<i64: 3, 3>
// CHECK: %[[M2:.*]] = graph.pad {{.*}}low = array<i64: 0, 2>
// CHECK: %[[S2:.*]] = graph.add %[[S1]], %[[M2]]
// CHECK: graph.slice %[[S2]] {offsets = array<i64: 0, 0>, sizes = array<i64: 3, 1>
// CHECK: %[[M4:.*]] = graph.pad {{.*}}low = array<i64: 0, 4>
// CHECK: %[[S4:.*]] = graph.add %[[S2]], %[[M4]]
// CHECK: return %[[S4]]
func.func @sums(%x: tensor<3x5xf32>) -> tensor<3x5xf32> {
  %0 = graph.cumulative_sum %x {dim = 1 : i64} : (tensor<3x5xf32>) -> tensor<3x5xf32>
  return %0 : tensor<3x5xf32>
}

// CHECK-LABEL: func.func @sums_reversed(
// CHECK: graph.slice %{{.*}} {offsets = array<i64: 0, 1>, sizes = array<i64: 3, 1>
// CHECK: graph.pad {{.*}}high = array<i64: 0, 1>, {{.*}}low = array<i64: 0, 0>
// CHECK: graph.add
// CHECK-NOT: graph.add
// CHECK: return
func.func @sums_reversed(%x: tensor<3x2xf32>) -> tensor<3x2xf32> {
  %0 = graph.cumulative_sum %x {dim = 1 : i64, reverse} : (tensor<3x2xf32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}

// Rows are added along the first dimension; a padding index goes along.

// CHECK-LABEL: func.func @scatter(
// CHECK: %[[T:.*]] = graph.transpose %{{.*}} {permutation = array<i64: 1, 2, 0, 3>} : (tensor<2x3x5x4xf32>) -> tensor<3x5x2x4xf32>
// CHECK: %[[S:.*]] = graph.scatter_add %[[T]], %{{.*}} {dim = 0 : i64, padding_index = 7 : i64, size = 9 : i64} : {{.*}} -> tensor<9x2x4xf32>
// CHECK: graph.transpose %[[S]] {permutation = array<i64: 1, 0, 2>} : (tensor<9x2x4xf32>) -> tensor<2x9x4xf32>
func.func @scatter(%u: tensor<2x3x5x4xf32>, %i: tensor<3x5xi64>) -> tensor<2x9x4xf32> {
  %0 = graph.scatter_add %u, %i {dim = 1 : i64, size = 9 : i64, padding_index = 7 : i64} : (tensor<2x3x5x4xf32>, tensor<3x5xi64>) -> tensor<2x9x4xf32>
  return %0 : tensor<2x9x4xf32>
}

// On a shard as well.

// CHECK-LABEL: func.func @scatter_shard(
// CHECK: graph.scatter_add %{{.*}}, %{{.*}} origin %{{.*}} {dim = 0 : i64, global_size = 18 : i64, size = 9 : i64}
func.func @scatter_shard(%u: tensor<2x3x4xf32>, %i: tensor<3xi64>, %o: tensor<1xi64>) -> tensor<2x9x4xf32> {
  %0 = graph.scatter_add %u, %i origin %o {dim = 1 : i64, size = 9 : i64, global_size = 18 : i64} : (tensor<2x3x4xf32>, tensor<3xi64>, tensor<1xi64>) -> tensor<2x9x4xf32>
  return %0 : tensor<2x9x4xf32>
}

// In batches: what a batch adds goes to the places of that batch, and what has
// no place in it goes nowhere.

// CHECK-LABEL: func.func @scatter_batches(
// CHECK-SAME: %[[U:.*]]: tensor<2x3x5x4xf32>, %[[I:.*]]: tensor<2x5xi64>
// CHECK-DAG: %[[SIZE:.*]] = graph.constant dense<9> : tensor<i64>
// CHECK-DAG: %[[NONE:.*]] = graph.constant dense<-1> : tensor<i64>
// CHECK-DAG: %[[SKIP:.*]] = graph.constant dense<7> : tensor<i64>
// CHECK-DAG: %[[B:.*]] = graph.iota {dim = 0 : i64} : tensor<2x1xi64>
// CHECK: %[[F:.*]] = graph.mul %[[B]], %[[SIZE]]
// CHECK: %[[P:.*]] = graph.add %[[I]], %[[F]]
// CHECK: graph.compare lt %[[I]]
// CHECK: graph.compare ge %[[I]], %[[SIZE]]
// CHECK: graph.compare eq %[[I]], %[[SKIP]]
// CHECK: %[[M:.*]] = graph.transpose %[[U]] {permutation = array<i64: 0, 2, 1, 3>}
// CHECK: graph.scatter_add %{{.*}}, %{{.*}} {dim = 0 : i64, size = 18 : i64} : (tensor<10x3x4xf32>, tensor<10xi64>) -> tensor<18x3x4xf32>
// CHECK: graph.transpose %{{.*}} {permutation = array<i64: 0, 2, 1, 3>} : (tensor<2x9x3x4xf32>) -> tensor<2x3x9x4xf32>
func.func @scatter_batches(%u: tensor<2x3x5x4xf32>, %i: tensor<2x5xi64>) -> tensor<2x3x9x4xf32> {
  %0 = graph.scatter_add %u, %i {dim = 2 : i64, size = 9 : i64, padding_index = 7 : i64, batch = 1 : i64} : (tensor<2x3x5x4xf32>, tensor<2x5xi64>) -> tensor<2x3x9x4xf32>
  return %0 : tensor<2x3x9x4xf32>
}

// CHECK-LABEL: func.func @seed(
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<f32>, %[[SCALE:[a-z0-9]+]]: tensor<f32>
// CHECK-NEXT: %[[ONE:.*]] = graph.constant dense<1.000000e+00> : tensor<f32>
// CHECK-NEXT: return %[[ONE]], %[[SCALE]]
func.func @seed(%l: tensor<f32>, %s: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %0 = graph.seed %l : (tensor<f32>) -> tensor<f32>
  %1 = graph.seed %l scale %s : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0, %1 : tensor<f32>, tensor<f32>
}

// Of 16 bits rope computes in f32 and rounds once; not where the f32 result has
// another reader, or another type is read than is given.
// CHECK-LABEL: func.func @rope_of_narrow(
// CHECK-SAME: %[[X:[^:]*]]: tensor<1x2x4x8xbf16>
// CHECK: %[[Y:.*]] = graph.rope %[[X]], %{{.*}}, %{{.*}} {adjoint, interleaved} : (tensor<1x2x4x8xbf16>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<1x2x4x8xbf16>
// CHECK: graph.rope %{{.*}} -> tensor<1x2x4x8xf32>
// CHECK: graph.rope %{{.*}} -> tensor<1x2x4x8xf32>
// CHECK: return %[[Y]]
func.func @rope_of_narrow(%x: tensor<1x2x4x8xbf16>, %c: tensor<4x8xf32>, %s: tensor<4x8xf32>)
    -> (tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf16>) {
  %0 = graph.cast %x : (tensor<1x2x4x8xbf16>) -> tensor<1x2x4x8xf32>
  %1 = graph.rope %0, %c, %s {adjoint, interleaved} : (tensor<1x2x4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<1x2x4x8xf32>
  %2 = graph.cast %1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xbf16>
  %3 = graph.rope %0, %c, %s : (tensor<1x2x4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<1x2x4x8xf32>
  %4 = graph.cast %3 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xbf16>
  %5 = graph.rope %0, %c, %s {adjoint} : (tensor<1x2x4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<1x2x4x8xf32>
  %6 = graph.cast %5 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf16>
  return %2, %4, %3, %6 : tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf16>
}

// The largest of 16-bit numbers is that of the same numbers in f32; sums have
// the type that precision has given them.
// CHECK-LABEL: func.func @extremes_of_narrow(
// CHECK: %[[X:.*]] = graph.cast %arg0 : (tensor<6x4xbf16>) -> tensor<6x4xf32>
// CHECK: %[[M:.*]] = graph.reduce max %[[X]] {dims = array<i64: 0>} : (tensor<6x4xf32>) -> tensor<4xf32>
// CHECK: graph.cast %[[M]] : (tensor<4xf32>) -> tensor<4xbf16>
// CHECK: graph.reduce min %{{.*}} : (tensor<6x4xf32>) -> tensor<6xf32>
// CHECK: graph.reduce sum %arg0 {{.*}} : (tensor<6x4xbf16>) -> tensor<4xbf16>
func.func @extremes_of_narrow(%x: tensor<6x4xbf16>, %y: tensor<6x4xf16>)
    -> (tensor<4xbf16>, tensor<6xf16>, tensor<4xbf16>) {
  %0 = graph.reduce max %x {dims = array<i64: 0>} : (tensor<6x4xbf16>) -> tensor<4xbf16>
  %1 = graph.reduce min %y {dims = array<i64: 1>} : (tensor<6x4xf16>) -> tensor<6xf16>
  %2 = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<6x4xbf16>) -> tensor<4xbf16>
  return %0, %1, %2 : tensor<4xbf16>, tensor<6xf16>, tensor<4xbf16>
}
