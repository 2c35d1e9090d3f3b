// RUN: cleave-opt %s --spmd-pad --split-input-file | FileCheck %s
// RUN: cleave-opt %s --spmd-pad --spmd-propagate --spmd-partition --spmd-verify --split-input-file -o /dev/null

// What joins a dimension that is split grows with it. A sum needs zeros, and so
// do both sides of what is contracted. A value that several ops read is masked
// once for all of them, and zeros give zeros in what is contracted over others.

spmd.mesh @mesh <["dp" = 4]>

// CHECK-LABEL: func.func @samples(
// CHECK-SAME: tensor<8x3xf32> {graph.valid_shape = array<i64: 6, 3>
// CHECK-SAME: -> (tensor<f32>, tensor<8x5xf32> {graph.valid_shape = array<i64: 6, 5>}, tensor<3x5xf32>)
func.func @samples(%x: tensor<6x3xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
                   %w: tensor<3x5xf32>) -> (tensor<f32>, tensor<6x5xf32>, tensor<3x5xf32>) {
  // CHECK: %[[Y:.*]] = graph.exp %{{.*}} : (tensor<8x3xf32>) -> tensor<8x3xf32>
  // CHECK: %[[I:.*]] = graph.iota {dim = 0 : i64} : tensor<8x1xi64>
  // CHECK: %[[N:.*]] = graph.constant dense<6> : tensor<i64>
  // CHECK: %[[IN:.*]] = graph.compare lt %[[I]], %[[N]]
  // CHECK: %[[MY:.*]] = graph.select %[[IN]], %[[Y]], %{{.*}} {graph.padding}
  // CHECK-NEXT: %[[Z:.*]] = graph.contract "bi,io->bo" %[[MY]], %{{.*}} -> tensor<8x5xf32>
  %y = graph.exp %x : (tensor<6x3xf32>) -> tensor<6x3xf32>
  %z = graph.contract "bi,io->bo" %y, %w : (tensor<6x3xf32>, tensor<3x5xf32>) -> tensor<6x5xf32>
  // CHECK-NEXT: graph.reduce sum %[[Z]]
  %l = graph.reduce sum %z {dims = array<i64: 0, 1>} : (tensor<6x5xf32>) -> tensor<f32>
  // CHECK-NEXT: graph.contract "bi,bo->io" %[[MY]], %[[Z]]
  %g = graph.contract "bi,bo->io" %y, %z : (tensor<6x3xf32>, tensor<6x5xf32>) -> tensor<3x5xf32>
  return %l, %z, %g : tensor<f32>, tensor<6x5xf32>, tensor<3x5xf32>
}

// -----

// The padding of an argument is zero, and stays that where zeros give zeros: it
// is not masked. What an op needs whole is cut before it.

spmd.mesh @mesh <["x" = 2, "y" = 2]>

// CHECK-LABEL: func.func @known
func.func @known(%a: tensor<5xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}]>},
                 %b: tensor<5xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"y"}]>})
    -> (tensor<f32>, tensor<f32>, tensor<5xf32>) {
  // Two axes split one class: their product.
  // CHECK: %[[M:.*]] = graph.mul %{{.*}} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  // CHECK-NEXT: graph.reduce sum %[[M]]
  %m = graph.mul %a, %b : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  %s = graph.reduce sum %m {dims = array<i64: 0>} : (tensor<5xf32>) -> tensor<f32>
  // A maximum of zeros and negative numbers is not theirs.
  // CHECK: %[[LEAST:.*]] = graph.constant dense<0xFF800000> : tensor<f32>
  // CHECK-NEXT: %[[MM:.*]] = graph.select %{{.*}}, %[[M]], %[[LEAST]]
  // CHECK-NEXT: graph.reduce max %[[MM]]
  %t = graph.reduce max %m {dims = array<i64: 0>} : (tensor<5xf32>) -> tensor<f32>
  // CHECK: %[[V:.*]] = graph.slice %[[M]] {{.*}} -> tensor<5xf32>
  // CHECK-NEXT: graph.softmax %[[V]]
  %p = graph.softmax %m : (tensor<5xf32>) -> tensor<5xf32>
  return %s, %t, %p : tensor<f32>, tensor<f32>, tensor<5xf32>
}

// -----

// An annotation parts what it splits from what it does not: a gradient is padded
// for the update alone, and what replaces the parameter is cut again.

spmd.mesh @mesh <["dp" = 2]>

// CHECK-LABEL: func.func @update(
// CHECK-SAME: %[[W:[^:]*]]: tensor<3xf32> {graph.name = "w"
// CHECK-SAME: %[[M:[^:]*]]: tensor<4xf32> {graph.name = "m", graph.role = "state", graph.valid_shape = array<i64: 3>,
// CHECK-SAME: -> (tensor<3xf32> {graph.updates = "w"}, tensor<4xf32> {graph.updates = "m", graph.valid_shape = array<i64: 3>})
func.func @update(%w: tensor<3xf32> {graph.name = "w", graph.role = "parameter"},
                  %m: tensor<3xf32> {graph.name = "m", graph.role = "state", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>},
                  %x: tensor<3xf32>, %lr: tensor<f32>)
    -> (tensor<3xf32> {graph.updates = "w"}, tensor<3xf32> {graph.updates = "m"}) {
  // CHECK: %[[G:.*]] = graph.exp %{{.*}} -> tensor<3xf32>
  // CHECK: %[[PG:.*]] = graph.pad %[[G]] {high = array<i64: 1>
  // CHECK: %[[C:.*]] = spmd.constrain %[[PG]]
  // CHECK: %[[D:.*]] = graph.gradient %[[C]] {{.*}}graph.valid_shape = array<i64: 3>
  %g = graph.exp %x : (tensor<3xf32>) -> tensor<3xf32>
  %c = spmd.constrain %g to <@mesh, [{"dp"}]> : tensor<3xf32>
  %d = graph.gradient %c of "w" : (tensor<3xf32>) -> tensor<3xf32>
  // CHECK: %[[PW:.*]] = graph.pad %[[W]]
  // CHECK: %[[CW:.*]] = spmd.constrain %[[PW]]
  %p = spmd.constrain %w to <@mesh, [{"dp"}]> : tensor<3xf32>
  // CHECK: %[[NM:.*]] = graph.add %[[M]], %[[D]] : (tensor<4xf32>, tensor<4xf32>)
  %nm = graph.add %m, %d : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %s = graph.mul %nm, %lr : (tensor<3xf32>, tensor<f32>) -> tensor<3xf32>
  // CHECK: %[[NP:.*]] = graph.sub %[[CW]]
  %np = graph.sub %p, %s : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  // CHECK: %[[R:.*]] = graph.slice %[[NP]]
  // CHECK-NEXT: return %[[R]], %[[NM]]
  return %np, %nm : tensor<3xf32>, tensor<3xf32>
}

// -----

// Random numbers are drawn by the places without padding.

spmd.mesh @mesh <["x" = 2]>

// CHECK-LABEL: func.func @random
func.func @random(%x: tensor<4x3xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"x"}]>}, %rng: tensor<2xi64>) -> tensor<4x3xf32> {
  // CHECK: graph.dropout {{.*}}global_shape = array<i64: 4, 3>{{.*}} -> tensor<4x4xf32>
  %y = graph.dropout %x, %rng {probability = 0.5 : f64, id = 1 : i64} : (tensor<4x3xf32>, tensor<2xi64>) -> tensor<4x3xf32>
  return %y : tensor<4x3xf32>
}

// -----

// Indices of padding are 0, which names something; what they may be at most is
// still the size without padding. Nothing is added to padding.

spmd.mesh @mesh <["x" = 4]>

// CHECK-LABEL: func.func @rows(
// CHECK-SAME: %[[W:[^:]*]]: tensor<8x3xf32> {graph.valid_shape = array<i64: 5, 3>
func.func @rows(%w: tensor<5x3xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>},
                %i: tensor<6xi64> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}]>})
    -> (tensor<6x3xf32>, tensor<f32>, tensor<6x5xi1>) {
  // CHECK: %[[G:.*]] = graph.gather %[[W]], %{{.*}} {dim = 0 : i64, global_size = 5 : i64} : (tensor<8x3xf32>, tensor<8xi64>) -> tensor<8x3xf32>
  %g = graph.gather %w, %i {dim = 0 : i64} : (tensor<5x3xf32>, tensor<6xi64>) -> tensor<6x3xf32>
  // CHECK: %[[M:.*]] = graph.select %{{.*}}, %[[G]], %{{.*}} {graph.padding}
  // CHECK: %[[S:.*]] = graph.scatter_add %[[M]], %{{.*}} {dim = 0 : i64, global_size = 5 : i64, size = 8 : i64}
  %s = graph.scatter_add %g, %i {dim = 0 : i64, size = 5 : i64} : (tensor<6x3xf32>, tensor<6xi64>) -> tensor<5x3xf32>
  // CHECK-NEXT: %[[N:.*]] = graph.mul %[[W]], %[[S]]
  %n = graph.mul %w, %s : (tensor<5x3xf32>, tensor<5x3xf32>) -> tensor<5x3xf32>
  // CHECK-NEXT: graph.reduce sum %[[N]]
  %t = graph.reduce sum %n {dims = array<i64: 0, 1>} : (tensor<5x3xf32>) -> tensor<f32>
  // CHECK-NEXT: graph.one_hot %{{.*}} {size = 5 : i64} : (tensor<8xi64>) -> tensor<8x5xi1>
  %h = graph.one_hot %i {size = 5 : i64} : (tensor<6xi64>) -> tensor<6x5xi1>
  return %g, %t, %h : tensor<6x3xf32>, tensor<f32>, tensor<6x5xi1>
}

// -----

// Micro-batches are not cut and padded again at an annotation.

spmd.mesh @mesh <["mb" = 2, "dp" = 2]> sequential ["mb"]

// CHECK-LABEL: func.func @samples_again(
// CHECK-SAME: tensor<8xf32> {graph.valid_shape = array<i64: 6>
func.func @samples_again(%x: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>}) -> tensor<6xf32> {
  // CHECK-NOT: graph.pad
  // CHECK: spmd.constrain %{{.*}} : tensor<8xf32>
  %y = graph.exp %x : (tensor<6xf32>) -> tensor<6xf32>
  %c = spmd.constrain %y to <@mesh, [{"dp"}]> : tensor<6xf32>
  return %c : tensor<6xf32>
}

// -----

// That nothing but zero lies behind each row says nothing of more rows: 3 rows
// of 2 become 4, and of 8 elements the last 2 are masked.

spmd.mesh @mesh <["x" = 2]>

// CHECK-LABEL: func.func @joined(
func.func @joined(%x: tensor<3x2xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>}, %y: tensor<3x1xf32>) -> tensor<f32> {
  %e = graph.exp %y : (tensor<3x1xf32>) -> tensor<3x1xf32>
  %m = graph.mul %x, %e : (tensor<3x2xf32>, tensor<3x1xf32>) -> tensor<3x2xf32>
  // CHECK: %[[R:.*]] = graph.reshape %{{.*}} : (tensor<4x2xf32>) -> tensor<8xf32>
  %r = graph.reshape %m : (tensor<3x2xf32>) -> tensor<6xf32>
  // CHECK: %[[N:.*]] = graph.constant dense<6> : tensor<i64>
  // CHECK: %[[M:.*]] = graph.select %{{.*}}, %[[R]], %{{.*}} {graph.padding}
  // CHECK: graph.reduce sum %[[M]]
  %s = graph.reduce sum %r {dims = array<i64: 0>} : (tensor<6xf32>) -> tensor<f32>
  return %s : tensor<f32>
}

// -----

// What nothing splits unevenly stays as it is.

spmd.mesh @mesh <["x" = 2]>

// CHECK-LABEL: func.func @even
// CHECK-NOT: valid_shape
func.func @even(%x: tensor<4x3xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"x"}, {}]>}) -> tensor<4x3xf32> {
  %y = graph.exp %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  return %y : tensor<4x3xf32>
}

// -----

// A mask of samples is cut into micro-batches: what is masked in the same shape, and
// holds none, has a mask of its own.
spmd.mesh @mesh <["mb" = 2, "dp" = 4]> sequential ["mb"]

// CHECK-LABEL: func.func @masks(
func.func @masks(%x: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}]>},
                 %w: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) -> (tensor<f32>, tensor<f32>) {
  // CHECK: graph.iota {{.*}} : tensor<8xi64>
  // CHECK: graph.select
  // CHECK: graph.iota
  // CHECK: graph.select
  %a = graph.exp %x : (tensor<6xf32>) -> tensor<6xf32>
  %s = graph.reduce sum %a {dims = array<i64: 0>} : (tensor<6xf32>) -> tensor<f32>
  %b = graph.exp %w : (tensor<6xf32>) -> tensor<6xf32>
  %t = graph.reduce sum %b {dims = array<i64: 0>} : (tensor<6xf32>) -> tensor<f32>
  return %s, %t : tensor<f32>, tensor<f32>
}

// -----

// What one op reads is masked for this op alone.

spmd.mesh @mesh <["dp" = 4]>

// CHECK-LABEL: func.func @one(
func.func @one(%x: tensor<6x3xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>}) -> tensor<f32> {
  // CHECK: %[[Y:.*]] = graph.exp
  // CHECK-NEXT: %[[Z:.*]] = graph.exp %[[Y]]
  // CHECK: %[[M:.*]] = graph.select %{{.*}}, %[[Z]], %{{.*}} {graph.padding}
  // CHECK: graph.reduce sum %[[M]]
  %y = graph.exp %x : (tensor<6x3xf32>) -> tensor<6x3xf32>
  %z = graph.exp %y : (tensor<6x3xf32>) -> tensor<6x3xf32>
  %l = graph.reduce sum %z {dims = array<i64: 0, 1>} : (tensor<6x3xf32>) -> tensor<f32>
  return %l : tensor<f32>
}
