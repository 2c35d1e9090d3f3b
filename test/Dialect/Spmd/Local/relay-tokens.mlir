// RUN: cleave-compile %s --mesh=node=2,ep=2 "--plan=expert(node),expert(ep)" --optimizer=sgd --momentum=0 --expert-buffer=worst --emit=local | FileCheck %s
// RUN: cleave-compile %s --mesh=node=2,ep=2 "--plan=expert(node),expert(ep)" --optimizer=sgd --momentum=0 --expert-buffer=1 --emit=local | FileCheck %s --check-prefix=BOUND
// RUN: cleave-compile %s --mesh=node=2,ep=2 "--plan=expert(node),expert(ep)" --optimizer=sgd --momentum=0 --expert-buffer=worst --precision=bf16 --emit=local | FileCheck %s --check-prefix=NARROW
// RUN: cleave-compile %s --mesh=ep=2,node=2 "--plan=expert(ep),expert(node)" --optimizer=sgd --momentum=0 --emit=local | FileCheck %s --check-prefix=INSIDE
// RUN: sed -e 's/{k = 2/{k = 1/' -e 's/4x5x2/4x5x1/g' %s > %t.mlir && cleave-compile %t.mlir --mesh=node=2,ep=2 "--plan=expert(node),expert(ep)" --remarks --emit=local 2>&1 | FileCheck %s --check-prefix=ONE
// RUN: not cleave-compile %s --mesh=ep=4 --plan=expert --expert-dispatch=hierarchical --emit=local 2>&1 | FileCheck %s --check-prefix=REFUSED
// RUN: not cleave-compile %s --mesh=dp=4 --plan=zero1 --expert-dispatch=hierarchical --emit=local 2>&1 | FileCheck %s --check-prefix=NONE

// Pairs of a token and a node that has an expert of it are sorted by node, and
// sent with the choices and their weights.

// CHECK-LABEL: func.func @train(
// CHECK: %[[ORDER:.*]], %[[INVERSE:.*]], %[[OFFSETS:.*]] = graph.sort_rows %{{.*}} {global_size = 3 : i64, size = 2 {{.*}} (tensor<10xi64>)
// CHECK: spmd.all_gather %{{.*}} by <@mesh, [{"node"}, {}]> {{.*}} : tensor<1x2xi64> -> tensor<2x2xi64>
// CHECK: %[[I:.*]] = spmd.all_to_all_rows %{{.*}} from %[[S:.*]] to %[[R:.*]] over @mesh {"node"} {graph.even_rows = 8 {{.*}} : tensor<10x2xi64>, tensor<3xi64> -> tensor<10x2xi64>
// CHECK: %[[O:.*]] = spmd.shard_offset <@mesh, [{"node"}]> of tensor<4xi64>
// CHECK: %[[X:.*]] = spmd.all_to_all_rows %{{.*}} from %[[S]] to %[[R]] over @mesh {"node"} {{.*}} : tensor<10x8xf32>, tensor<3xi64> -> tensor<10x8xf32>

// On the node rows are those of choices, of its experts.

// CHECK: graph.sort_rows %{{.*}} origin %[[O]] {global_size = 5 : i64, size = 2 {{.*}} : (tensor<20xi64>, tensor<1xi64>)
// CHECK: spmd.all_gather %{{.*}} by <@mesh, [{"ep"}, {}]> {{.*}} : tensor<1x2xi64> -> tensor<2x2xi64>
// CHECK: %[[XE:.*]] = spmd.all_to_all_rows %{{.*}} over @mesh {"ep"} {graph.even_rows = 10 {{.*}} : tensor<20x8xf32>, tensor<3xi64> -> tensor<40x8xf32>
// CHECK: graph.grouped_contract %[[XE]], %arg1, %{{.*}} {graph.even_rows = 10
// CHECK: spmd.all_to_all_rows %{{.*}} over @mesh {"node"} {{.*}} : tensor<10x2xf32>, tensor<3xi64> -> tensor<10x2xf32>
// CHECK: spmd.all_to_all_rows %{{.*}} over @mesh {"ep"} {{.*}} : tensor<40x8xf32>, tensor<3xi64> -> tensor<20x8xf32>

// Outputs are added on the node, and over nodes.

// CHECK: graph.mul %{{.*}} tensor<1x10x2x8xf32>
// CHECK: graph.reduce sum %{{.*}} {dims = array<i64: 2>{{.*}} : (tensor<1x10x2x8xf32>) -> tensor<1x10x8xf32>
// CHECK: %[[Z:.*]] = spmd.all_to_all_rows %{{.*}} from %[[R]] to %[[S]] over @mesh {"node"} {{.*}} : tensor<10x8xf32>, tensor<3xi64> -> tensor<10x8xf32>
// CHECK: graph.gather %[[Z]], %[[INVERSE]]
// CHECK: graph.reduce sum %{{.*}} {dims = array<i64: 1>{{.*}} : (tensor<5x2x8xf32>) -> tensor<5x8xf32>

// Backward goes the same way. The gradient of a weight is read of its node.

// CHECK: graph.seed
// CHECK-NOT: graph.sort_rows
// CHECK: spmd.all_to_all_rows %{{.*}} from %[[S]] to %[[R]] over @mesh {"node"} {{.*}} : tensor<10x1x8xf32>
// CHECK: spmd.all_to_all_rows %{{.*}} over @mesh {"ep"} {{.*}} -> tensor<40x8xf32>
// CHECK: %[[DW:.*]] = graph.grouped_contract_weight_grad %{{.*}} -> tensor<1x6x8xf32>
// CHECK-NEXT: graph.gradient %[[DW]] of "down"
// CHECK: %[[DU:.*]] = graph.grouped_contract_weight_grad %[[XE]], {{.*}} -> tensor<1x8x6xf32>
// CHECK-NEXT: graph.gradient %[[DU]] of "up"

// Both ways have a bound and a check.

// BOUND-LABEL: func.func @train(
// BOUND: graph.check %{{.*}}, "relay-tokens.mlir:{{[0-9]+}}: up: rank {rank} receives {0} rows, and has room for 8 (--expert-buffer=1); --expert-buffer={1/8} has room for the most that a rank receives" room
// BOUND: spmd.all_to_all_rows %{{.*}} over @mesh {"node"} {{.*}} : tensor<10x8xf32>, tensor<3xi64> -> tensor<8x8xf32>
// BOUND: graph.check %{{.*}}, "relay-tokens.mlir:{{[0-9]+}}: up: rank {rank} receives {0} rows, and has room for 10 (--expert-buffer=1); --expert-buffer={1/10} has room for the most that a rank receives" room
// BOUND: spmd.all_to_all_rows %{{.*}} over @mesh {"ep"} {{.*}} : tensor<16x8xf32>, tensor<3xi64> -> tensor<10x8xf32>

// Tokens are sent in 16 bits if experts read these; sums are not rounded.

// NARROW-LABEL: func.func @train(
// NARROW: spmd.all_to_all_rows %{{.*}} over @mesh {"node"} {{.*}} : tensor<10x8xbf16>
// NARROW: spmd.all_to_all_rows %{{.*}} over @mesh {"ep"} {{.*}} : tensor<20x8xbf16>
// NARROW: spmd.all_to_all_rows %{{.*}} over @mesh {"ep"} {{.*}} : tensor<40x8xbf16>
// NARROW: spmd.all_to_all_rows %{{.*}} over @mesh {"node"} {{.*}} : tensor<10x8xf32>

// With the node inside, or one axis, rows are sent at once.

// INSIDE-LABEL: func.func @train(
// INSIDE: spmd.all_to_all_rows %{{.*}} over @mesh {"ep", "node"}

// ONE: remark: a row for each choice is sent over "node", since a token chooses one group
// ONE-LABEL: func.func @train(
// ONE: spmd.all_to_all_rows %{{.*}} over @mesh {"node", "ep"}

// REFUSED: relay-tokens.mlir:{{[0-9:]+}}: error: --expert-dispatch=hierarchical needs experts and tokens sharded over an axis "node" and further ones inside it, not over "ep"
// NONE: --expert-dispatch needs the recipe `expert` in --plan

func.func @loss(
    %x: tensor<4x5x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
    %up: tensor<4x8x6xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<4x6x8xf32> {graph.name = "down", graph.role = "parameter"},
    %router: tensor<4x8xf32> {graph.name = "router", graph.role = "parameter"}) -> (tensor<f32> {graph.name = "loss"}) {
  %logits = graph.linear %x, %router : (tensor<4x5x8xf32>, tensor<4x8xf32>) -> tensor<4x5x4xf32>
  %v, %i = graph.top_k %logits {k = 2 : i64} : (tensor<4x5x4xf32>) -> (tensor<4x5x2xf32>, tensor<4x5x2xi64>)
  %r = graph.reshape %x : (tensor<4x5x8xf32>) -> tensor<4x5x1x8xf32>
  %rows = graph.broadcast %r : (tensor<4x5x1x8xf32>) -> tensor<4x5x2x8xf32>
  %0 = graph.grouped_linear %rows, %up, %i : (tensor<4x5x2x8xf32>, tensor<4x8x6xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x6xf32>
  %1 = graph.relu %0 : (tensor<4x5x2x6xf32>) -> tensor<4x5x2x6xf32>
  %2 = graph.grouped_linear %1, %down, %i : (tensor<4x5x2x6xf32>, tensor<4x6x8xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x8xf32>
  %w = graph.reshape %v : (tensor<4x5x2xf32>) -> tensor<4x5x2x1xf32>
  %3 = graph.mul %2, %w : (tensor<4x5x2x8xf32>, tensor<4x5x2x1xf32>) -> tensor<4x5x2x8xf32>
  %4 = graph.reduce sum %3 {dims = array<i64: 2>} : (tensor<4x5x2x8xf32>) -> tensor<4x5x8xf32>
  %5 = graph.add %x, %4 : (tensor<4x5x8xf32>, tensor<4x5x8xf32>) -> tensor<4x5x8xf32>
  %6 = graph.reduce sum %5 {dims = array<i64: 0, 1, 2>} : (tensor<4x5x8xf32>) -> tensor<f32>
  return %6 : tensor<f32>
}
