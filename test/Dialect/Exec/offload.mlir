// RUN: cleave-opt %s --exec-offload='kinds=state,saved min-saved-bytes=1' | FileCheck %s
// RUN: cleave-opt %s --exec-offload=kinds=masters | FileCheck %s --check-prefix=MASTERS
// RUN: cleave-opt %s --exec-offload= | FileCheck %s --check-prefix=NOTHING
// RUN: cleave-opt %s --exec-offload='kinds=state,saved min-saved-bytes=1' --exec-plan-memory | FileCheck %s --check-prefix=PLAN

// NOTHING-NOT: exec.tier

// What forward saves leaves memory, and is back before its first reader.
// CHECK-LABEL: func.func private @t.F(
// CHECK-SAME: -> (tensor<64xf32> {exec.tier}, tensor<f32>)
// CHECK: %[[Y:.*]] = exec.copy %arg1
// CHECK-NEXT: %[[OUT:.*]] = exec.evict %[[Y]] : tensor<64xf32>
// CHECK: return %[[OUT]],
func.func private @t.F(%w: tensor<64xbf16>, %x: tensor<64xf32>) -> (tensor<64xf32>, tensor<f32>)
    attributes {exec.action = {name = "F*", kind = "forward", stage = 0 : i64}} {
  %y = exec.copy %x : tensor<64xf32> -> tensor<64xf32>
  %l = exec.fill 0.0 : f32 -> tensor<f32>
  return %y, %l : tensor<64xf32>, tensor<f32>
}
// CHECK-LABEL: func.func private @t.B(%arg0: tensor<64xf32> {exec.tier})
// CHECK-NEXT: %[[IN:.*]] = exec.fetch %arg0 : tensor<64xf32>
// CHECK-NEXT: %[[VIEW:.*]] = exec.view %[[IN]]
// CHECK-NEXT: exec.copy %[[VIEW]]
// PLAN: exec.tier_bytes = 512
// PLAN-LABEL: func.func private @t.B(
// PLAN: exec.fetch
// PLAN-NEXT: exec.view
// PLAN-NEXT: exec.copy
func.func private @t.B(%y: tensor<64xf32>) -> tensor<64xf32>
    attributes {exec.action = {name = "B*", kind = "backward", stage = 0 : i64}} {
  %v = exec.view %y : tensor<64xf32> -> tensor<8x8xf32>
  %c = exec.copy %v : tensor<8x8xf32> -> tensor<8x8xf32>
  %g = exec.view %c : tensor<8x8xf32> -> tensor<64xf32>
  return %g : tensor<64xf32>
}
// MASTERS-LABEL: func.func private @t.G(%arg0: tensor<64xf32> {exec.tier})
// MASTERS: %[[P:.*]] = exec.fetch %arg0
// MASTERS: exec.launch @narrow(%[[P]])
func.func private @t.G(%p: tensor<64xf32>) -> tensor<64xbf16>
    attributes {exec.action = {name = "G", kind = "gather", stage = 0 : i64}} {
  %w = exec.launch @narrow(%p) : (tensor<64xf32>) -> tensor<64xbf16>
  return %w : tensor<64xbf16>
}

// A parameter is no state. The new state is evicted when it is computed.
// CHECK-LABEL: func.func private @t.U(
// CHECK-SAME: %arg0: tensor<64xf32>, %arg1: tensor<64xf32> {exec.tier}, %arg2: tensor<64xf32>)
// CHECK-NEXT: %[[M:.*]] = exec.fetch %arg1 : tensor<64xf32>
// CHECK-NEXT: %[[NEW:.*]]:2 = exec.launch @update(%arg0, %[[M]], %arg2)
// CHECK-NEXT: %[[KEPT:.*]] = exec.evict %[[NEW]]#1 : tensor<64xf32> into %arg1 : tensor<64xf32>
// CHECK-NEXT: return %[[NEW]]#0, %[[KEPT]]
// MASTERS-LABEL: func.func private @t.U(%arg0: tensor<64xf32> {exec.tier}, %arg1: tensor<64xf32>,
// MASTERS: %[[NEW:.*]]:2 = exec.launch @update(
// MASTERS: exec.evict %[[NEW]]#0 : tensor<64xf32> into %arg0
// MASTERS-NOT: exec.evict

// The tier has the state at 0 and what is saved behind it; the arena has buffers
// for both while they are in use.
// PLAN: func.func private @t.U(
// PLAN-SAME: exec.memory = [
// PLAN-SAME: {bytes = 256 : i64, kind = "offloaded"}
// PLAN: exec.program @t(
// PLAN-SAME: %arg1: tensor<64xf32> {exec.offset = 0 : i64, exec.tier
// PLAN-SAME: exec.tier_bytes = 512
func.func private @t.U(%p: tensor<64xf32>, %m: tensor<64xf32>, %g: tensor<64xf32>)
    -> (tensor<64xf32> {exec.alias = 0 : i64, exec.update}, tensor<64xf32> {exec.alias = 1 : i64, exec.update})
    attributes {exec.action = {name = "U", kind = "update", stage = 0 : i64}} {
  %0:2 = exec.launch @update(%p, %m, %g) : (tensor<64xf32>, tensor<64xf32>, tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>)
  return %0#0, %0#1 : tensor<64xf32>, tensor<64xf32>
}
exec.program @t(%p: tensor<64xf32> {graph.name = "w", graph.role = "parameter"},
                %m: tensor<64xf32> {graph.name = "m", graph.of = "w", graph.role = "state"},
                %x: tensor<64xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<64xf32> {graph.updates = "w"}, tensor<64xf32> {graph.updates = "m"}) {
  %w = exec.run @t.G(%p) {micro_batch = 0 : i64} : (tensor<64xf32>) -> tensor<64xbf16>
  %0:2 = exec.run @t.F(%w, %x) {micro_batch = 0 : i64} : (tensor<64xbf16>, tensor<64xf32>) -> (tensor<64xf32>, tensor<f32>)
  %1 = exec.run @t.B(%0#0) {micro_batch = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
  %2:2 = exec.run @t.U(%p, %m, %1) {micro_batch = 0 : i64} : (tensor<64xf32>, tensor<64xf32>, tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>)
  exec.return %0#1, %2#0, %2#1 : tensor<f32>, tensor<64xf32>, tensor<64xf32>
}
#map = affine_map<(d0, d1) -> (d1)>
exec.kernel @narrow map [1, 64] (%arg0: tensor<64xf32>) -> (%arg1: tensor<64xbf16>) {
  exec.pass {
    %0 = exec.load %arg0 at #map : tensor<64xf32> -> f32
    %1 = arith.truncf %0 : f32 to bf16
    exec.store %1, %arg1 at #map : bf16, tensor<64xbf16>
    exec.yield
  }
}
exec.kernel @update map [1, 64] (%arg0: tensor<64xf32>, %arg1: tensor<64xf32>, %arg2: tensor<64xf32>) -> (%arg3: tensor<64xf32>, %arg4: tensor<64xf32>) {
  exec.pass {
    %0 = exec.load %arg0 at #map : tensor<64xf32> -> f32
    %1 = exec.load %arg1 at #map : tensor<64xf32> -> f32
    %2 = exec.load %arg2 at #map : tensor<64xf32> -> f32
    %3 = arith.addf %1, %2 : f32
    %4 = arith.subf %0, %3 : f32
    exec.store %4, %arg3 at #map : f32, tensor<64xf32>
    exec.store %3, %arg4 at #map : f32, tensor<64xf32>
    exec.yield
  }
}
