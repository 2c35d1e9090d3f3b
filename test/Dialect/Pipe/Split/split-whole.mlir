// RUN: cleave-opt %s --graph-differentiate --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages | FileCheck %s --check-prefix=EVEN
// RUN: cleave-opt %s --graph-differentiate --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages=keep-whole=true | FileCheck %s --check-prefix=WHOLE
// RUN: cleave-opt %s --graph-differentiate --spmd-apply-recipes=mesh=pp=5 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages=keep-whole=true | FileCheck %s --check-prefix=CANNOT

// Of even stages, both hold the second weight.
// EVEN-LABEL: func.func private @train.F(
// EVEN-COUNT-2: graph.contract
// EVEN-NOT: graph.contract
// EVEN-LABEL: func.func private @train.1F(
// EVEN-COUNT-1: graph.contract
// EVEN-NOT: graph.contract
// EVEN-LABEL: func.func private

// One of them has it.
// WHOLE-LABEL: func.func private @train.F(
// WHOLE-COUNT-1: graph.contract
// WHOLE-NOT: graph.contract
// WHOLE-LABEL: func.func private @train.1F(
// WHOLE-COUNT-2: graph.contract
// WHOLE-NOT: graph.contract
// WHOLE-LABEL: func.func private

// As many stages as there are ops begin wherever they can.
// CANNOT-LABEL: func.func private @train.1F(
// CANNOT-COUNT-1: graph.contract
// CANNOT-NOT: graph.contract
// CANNOT-LABEL: func.func private @train.2F(
// CANNOT-COUNT-1: graph.contract
// CANNOT-NOT: graph.contract
// CANNOT-LABEL: func.func private @train.3F(
func.func @loss(%w: tensor<256x256xf32> {graph.name = "w", graph.role = "parameter"},
                %v: tensor<256x256xf32> {graph.name = "v", graph.role = "parameter"},
                %x: tensor<256x256xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}) {
  %a = graph.contract "bi,oi->bo" %x, %w : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %b = graph.contract "bi,oi->bo" %a, %v : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %c = graph.contract "bi,oi->bo" %b, %v : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %q = graph.mul %c, %c : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %loss = graph.reduce sum %q {dims = array<i64: 0, 1>} : (tensor<256x256xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
