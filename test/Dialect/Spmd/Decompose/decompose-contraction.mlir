// RUN: cleave-opt %s --spmd-decompose-contraction | FileCheck %s
// RUN: cleave-opt %s --spmd-decompose-contraction --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=LOCAL

spmd.mesh @mesh <["row" = 2, "col" = 2]>

// A dimension that is summed over lies in two ways: one part of both operands in
// each step, the next sent before this one's product is made.
// CHECK-LABEL: func.func @ab(
// CHECK: %[[X:.*]] = spmd.constrain %arg0 to <@mesh, [{"row"}, {"col"}]>
// CHECK: %[[W:.*]] = spmd.constrain %arg1 to <@mesh, [{"row"}, {"col"}]>
// CHECK: %[[X0:.*]] = spmd.broadcast %[[X]] over @mesh {"col"} dim 1 part 0 : tensor<4x8xf32> -> tensor<4x4xf32>
// CHECK: %[[W0:.*]] = spmd.broadcast %[[W]] over @mesh {"row"} dim 0 part 0 : tensor<8x6xf32> -> tensor<4x6xf32>
// CHECK: %[[X1:.*]] = spmd.broadcast %[[X]] over @mesh {"col"} dim 1 part 1
// CHECK: %[[W1:.*]] = spmd.broadcast %[[W]] over @mesh {"row"} dim 0 part 1
// CHECK: %[[Y0:.*]] = graph.contract "bi,io->bo" %[[X0]], %[[W0]] : (tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
// CHECK: %[[Y1:.*]] = graph.contract "bi,io->bo" %[[X1]], %[[W1]]
// CHECK: %[[Y:.*]] = graph.add %[[Y0]], %[[Y1]]
// CHECK: spmd.constrain %[[Y]] to <@mesh, [{"row"}, {"col"}]>

// On four devices each has a block of everything.
// LOCAL-LABEL: func.func @ab(
// LOCAL-SAME: tensor<2x4xf32> {{.*}} tensor<4x3xf32>
// LOCAL-COUNT-2: spmd.broadcast {{.*}} : tensor<{{.*}}> -> tensor<
// LOCAL-NOT: all_
// LOCAL: graph.contract "bi,io->bo" %{{.*}} : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
// LOCAL-NOT: all_
// LOCAL: return
func.func @ab(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>},
    %w: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>}) -> tensor<4x6xf32> {
  %y = graph.contract "bi,io->bo" %x, %w {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// A dimension of the weight lies otherwise in the result: a part of the weight
// makes a sum, which becomes that part.
// CHECK-LABEL: func.func @abt(
// CHECK: %[[W0:.*]] = spmd.broadcast %[[W:.*]] over @mesh {"row"} dim 0 part 0
// CHECK: %[[W1:.*]] = spmd.broadcast %[[W]] over @mesh {"row"} dim 0 part 1
// CHECK: %[[P0:.*]] = graph.contract "bo,io->bi" %[[Y:.*]], %[[W0]] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
// CHECK: %[[R0:.*]] = spmd.reduce %[[P0]] over @mesh {"col"} dim 1 part 0 : tensor<4x4xf32> -> tensor<4x8xf32>
// CHECK: %[[P1:.*]] = graph.contract "bo,io->bi" %[[Y]], %[[W1]]
// CHECK: spmd.reduce %[[P1]] into %[[R0]] over @mesh {"col"} dim 1 part 1
// LOCAL-LABEL: func.func @abt(
// LOCAL: %[[P:.*]] = graph.contract {{.*}}partial = {"col"}{{.*}} : (tensor<2x3xf32>, tensor<4x3xf32>) -> tensor<2x4xf32>
// LOCAL: spmd.reduce %[[P]] over @mesh {"col"} dim 1 part 0 {{.*}} : tensor<2x4xf32> -> tensor<2x4xf32>
// LOCAL-NOT: all_
// LOCAL: return
func.func @abt(
    %y: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>},
    %w: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>}) -> tensor<4x8xf32> {
  %x = graph.contract "bo,io->bi" %y, %w {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x6xf32>, tensor<8x6xf32>) -> tensor<4x8xf32>
  return %x : tensor<4x8xf32>
}

// And of the first operand.
// CHECK-LABEL: func.func @atb(
// CHECK: %[[X0:.*]] = spmd.broadcast %[[X:.*]] over @mesh {"col"} dim 1 part 0
// CHECK: %[[X1:.*]] = spmd.broadcast %[[X]] over @mesh {"col"} dim 1 part 1
// CHECK: %[[P0:.*]] = graph.contract "bi,bo->io" %[[X0]], %[[Y:.*]] :
// CHECK: %[[R0:.*]] = spmd.reduce %[[P0]] over @mesh {"row"} dim 0 part 0 : tensor<4x6xf32> -> tensor<8x6xf32>
// CHECK: %[[P1:.*]] = graph.contract "bi,bo->io" %[[X1]], %[[Y]] :
// CHECK: spmd.reduce %[[P1]] into %[[R0]] over @mesh {"row"} dim 0 part 1
// LOCAL-LABEL: func.func @atb(
// LOCAL: %[[P:.*]] = graph.contract {{.*}}partial = {"row"}{{.*}} : (tensor<2x4xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
// LOCAL: spmd.reduce %[[P]] over @mesh {"row"} dim 0 part 0 {{.*}} : tensor<4x3xf32> -> tensor<4x3xf32>
// LOCAL-NOT: all_
// LOCAL: return
func.func @atb(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>},
    %y: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>}) -> tensor<8x6xf32> {
  %w = graph.contract "bi,bo->io" %x, %y {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x8xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  return %w : tensor<8x6xf32>
}

// What all say alike needs no steps.
// CHECK-LABEL: func.func @alike(
// CHECK-NOT: spmd.broadcast
// CHECK: graph.contract "bi,io->bo" %{{.*}} : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
func.func @alike(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>},
    %w: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"col"}, {}]>}) -> tensor<4x6xf32> {
  %y = graph.contract "bi,io->bo" %x, %w {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"col"}, {}]>,
      #spmd.sharding<@mesh, [{"row"}, {?}]>]} : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// Backward has its own: what forward received is not kept.
// CHECK-LABEL: func.func @backward(
// CHECK: graph.seed
// CHECK: %[[X:.*]] = spmd.barrier %arg0 after %[[DY:.*]] :
// CHECK: %[[SPLIT:.*]] = spmd.constrain %[[X]]
// CHECK: spmd.broadcast %[[SPLIT]] over @mesh {"col"} dim 1 part 0
func.func @backward(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>},
    %l: tensor<f32>) -> tensor<8x6xf32> {
  %g = graph.seed %l : (tensor<f32>) -> tensor<f32>
  %dy = graph.broadcast %g : (tensor<f32>) -> tensor<4x6xf32>
  %w = graph.contract "bi,bo->io" %x, %dy {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x8xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  return %w : tensor<8x6xf32>
}

// Products that read the same take their steps together, where the first is:
// what the second reads else can be there.
// CHECK-LABEL: func.func @together(
// CHECK: %[[V:.*]] = graph.neg %arg2
// CHECK-COUNT-3: spmd.constrain
// CHECK: %[[X0:.*]] = spmd.broadcast %[[X:.*]] over @mesh {"col"} dim 1 part 0 :
// CHECK: %[[W0:.*]] = spmd.broadcast %[[W:.*]] over @mesh {"row"} dim 0 part 0 :
// CHECK: %[[V0:.*]] = spmd.broadcast %{{.*}} over @mesh {"row"} dim 0 part 0 :
// CHECK: graph.contract "bi,io->bo" %[[X0]], %[[W0]]
// CHECK: %[[X1:.*]] = spmd.broadcast %[[X]] over @mesh {"col"} dim 1 part 1 :
// CHECK: %[[W1:.*]] = spmd.broadcast %[[W]]
// CHECK: graph.contract "bi,io->bo" %[[X0]], %[[V0]]
// CHECK: spmd.broadcast {{.*}} part 1
// CHECK: graph.contract "bi,io->bo" %[[X1]], %[[W1]]
// CHECK: graph.contract "bi,io->bo" %[[X1]],
// CHECK: graph.exp
func.func @together(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>},
    %w: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>},
    %v: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>}) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %0 = graph.contract "bi,io->bo" %x, %w {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %1 = graph.exp %0 : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %2 = graph.neg %v : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %3 = graph.contract "bi,io->bo" %x, %2 {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  return %1, %3 : tensor<4x6xf32>, tensor<4x6xf32>
}

// Or where the last is, behind which what reads the first is put. In backward
// one barrier stands before what all read.
// CHECK-LABEL: func.func @together_behind(
// CHECK: %[[DY:.*]] = graph.broadcast
// CHECK: %[[DZ:.*]] = graph.contract "bo,po->bp" %[[DY]], %arg1
// CHECK: spmd.barrier %arg0 after %[[DZ]]
// CHECK-NOT: spmd.barrier
// CHECK-COUNT-2: spmd.broadcast
// CHECK-NOT: spmd.broadcast
// CHECK: spmd.constrain
// CHECK: graph.exp
func.func @together_behind(
    %x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>},
    %k: tensor<6x6xf32>,
    %l: tensor<f32>) -> (tensor<8x6xf32>, tensor<8x6xf32>) {
  %g = graph.seed %l : (tensor<f32>) -> tensor<f32>
  %dy = graph.broadcast %g : (tensor<f32>) -> tensor<4x6xf32>
  %w = graph.contract "bi,bo->io" %x, %dy {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x8xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %e = graph.exp %w : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %dz = graph.contract "bo,po->bp" %dy, %k : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
  %v = graph.contract "bi,bo->io" %x, %dz {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x8xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  return %e, %v : tensor<8x6xf32>, tensor<8x6xf32>
}

// What must wait for the first is sent the same again.
// CHECK-LABEL: func.func @apart(
// CHECK: spmd.broadcast %[[W:.*]] over @mesh {"row"} dim 0 part 0 :
// CHECK: spmd.broadcast %[[W]] over @mesh {"row"} dim 0 part 1 :
// CHECK: graph.exp
// CHECK: spmd.broadcast {{.*}} over @mesh {"row"} dim 0 part 0 {apart = 1 : i64}
// CHECK: spmd.broadcast {{.*}} over @mesh {"row"} dim 0 part 1 {apart = 1 : i64}
// LOCAL-LABEL: func.func @apart(
// LOCAL-COUNT-8: spmd.broadcast
func.func @apart(
    %x: tensor<4x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>},
    %w: tensor<6x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>}) -> tensor<4x6xf32> {
  %0 = graph.contract "bi,io->bo" %x, %w {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
  %1 = graph.exp %0 : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %2 = graph.contract "bi,io->bo" %1, %w {spmd.steps = [
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>,
      #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
  return %2 : tensor<4x6xf32>
}
