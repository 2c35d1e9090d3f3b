// RUN: cleave-compile %s --mesh=ep=2 --plan=expert --optimizer=sgd --momentum=0 --emit=local | FileCheck %s
// RUN: cleave-compile %s --mesh=ep=2 --plan=expert --optimizer=sgd --momentum=0 --expert-buffer=1.5 --emit=local | FileCheck %s --check-prefix=BOUND
// RUN: cleave-compile %s --mesh=node=2,ep=2 "--plan=expert(node),expert(ep)" --optimizer=sgd --momentum=0 --expert-dispatch=flat --emit=local | FileCheck %s --check-prefix=BOTH
// RUN: cleave-compile %s --mesh=dp=2,tp=2 "--plan=megatron,expert(tp),expert(dp)" --optimizer=sgd --momentum=0 --emit=local | FileCheck %s --check-prefix=FOLDED
// RUN: cleave-compile %s --mesh=ep=2 --plan=expert --optimizer=sgd --momentum=0 --precision=bf16 --emit=local | FileCheck %s --check-prefix=NARROW
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=ep=2 recipes=expert" --graph-differentiate --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-exchange-rows=axes=ep 2>&1 | FileCheck %s --check-prefix=WHOLE

// Rows are sorted once for forward and backward, and sent to the ranks of their
// experts; results come back. Weights and their gradients stay.

// CHECK-LABEL: func.func @train(
// CHECK-NOT: spmd.all_gather %{{.*}} -> tensor<4x8x6xf32>
// CHECK: %[[ORDER:.*]], %[[INVERSE:.*]], %[[OFFSETS:.*]] = graph.sort_rows %{{.*}} {size = 4
// CHECK: spmd.all_gather %{{.*}} : tensor<1x4xi64> -> tensor<2x4xi64>
// CHECK: %[[X:.*]] = spmd.all_to_all_rows %{{.*}} from %[[S:.*]] to %[[R:.*]] over @mesh {"ep"} {{.*}} : tensor<20x8xf32>, tensor<3xi64> -> tensor<40x8xf32>
// CHECK: %[[H:.*]] = graph.grouped_contract %[[X]], %arg1, %[[RANGES:.*]] {graph.even_rows = 20
// CHECK: graph.relu %{{.*}} tensor<1x1x40x6xf32>
// CHECK: %[[Y:.*]] = graph.grouped_contract %{{.*}}, %arg3, %[[RANGES]]
// CHECK: %[[BACK:.*]] = spmd.all_to_all_rows %[[Y]] from %[[R]] to %[[S]] over @mesh {"ep"} {{.*}} : tensor<40x8xf32>, tensor<3xi64> -> tensor<20x8xf32>
// CHECK: graph.gather %[[BACK]], %[[INVERSE]]
// CHECK: graph.seed
// CHECK-NOT: graph.sort_rows
// CHECK: %[[DY:.*]] = spmd.all_to_all_rows %{{.*}} from %[[S]] to %[[R]]
// CHECK: graph.grouped_contract %[[DY]], %{{.*}}, %[[RANGES]] {{.*}} transpose
// CHECK: %[[DW:.*]] = graph.grouped_contract_weight_grad %{{.*}}, %[[DY]], %[[RANGES]] {{.*}} -> tensor<2x6x8xf32>
// CHECK-NEXT: graph.gradient %[[DW]] of "down"
// CHECK: graph.grouped_contract_weight_grad %[[X]], %{{.*}}, %[[RANGES]]

// Matmuls of 16-bit values have sums in f32, which are rounded before they are
// sent back; weights of tokens multiply them after.

// NARROW-LABEL: func.func @train(
// NARROW: spmd.all_to_all_rows %{{.*}} : tensor<20x8xbf16>, tensor<3xi64> -> tensor<40x8xbf16>
// NARROW: %[[Y:.*]] = graph.grouped_contract %{{.*}} -> tensor<40x8xf32>
// NARROW-NEXT: %[[V:.*]] = graph.reshape %[[Y]]
// NARROW-NEXT: %[[N:.*]] = graph.cast %[[V]] {{.*}} -> tensor<1x1x40x8xbf16>
// NARROW-NEXT: %[[S:.*]] = graph.reshape %[[N]]
// NARROW-NEXT: %[[BACK:.*]] = spmd.all_to_all_rows %[[S]] {{.*}} : tensor<40x8xbf16>, tensor<3xi64> -> tensor<20x8xbf16>
// NARROW-NEXT: %[[G:.*]] = graph.gather %[[BACK]]
// NARROW-NEXT: %[[R:.*]] = graph.reshape %[[G]]
// NARROW-NEXT: %[[W:.*]] = graph.cast %[[R]] {{.*}} -> tensor<2x5x2x8xf32>
// NARROW: graph.mul %[[W]],
// NARROW: graph.seed
// NARROW: spmd.all_to_all_rows %{{.*}} : tensor<20x8xbf16>, tensor<3xi64> -> tensor<40x8xbf16>

// Of a bounded buffer all ranks check that rows fit.

// BOUND-LABEL: func.func @train(
// BOUND: %[[MOST:.*]] = graph.reduce max
// BOUND: graph.check %{{.*}}, "exchange-rows.mlir:{{[0-9]+}}: up: rank {rank} receives {0} rows, and has room for 30 (--expert-buffer=1.5); --expert-buffer={1/20} has room for the most that a rank receives" room with %{{.*}} : tensor<2xi64> {spmd.of_device} : tensor<i1>
// BOUND: %[[FITS:.*]] = graph.compare le %[[MOST]], %{{.*}}
// BOUND: graph.select %[[FITS]],
// BOUND: graph.select %[[FITS]],
// BOUND: spmd.all_to_all_rows %{{.*}} -> tensor<30x8xf32>

// Experts over two axes of other samples: one all-to-all over both.

// BOTH-LABEL: func.func @train(
// BOTH: graph.sort_rows %{{.*}} {size = 4
// BOTH: spmd.all_gather %{{.*}} : tensor<1x4xi64> -> tensor<4x4xi64>
// BOTH: %[[X:.*]] = spmd.all_to_all_rows %{{.*}} over @mesh {"node", "ep"} {{.*}} : tensor<10x8xf32>, tensor<5xi64> -> tensor<20x8xf32>
// BOTH: graph.grouped_contract %[[X]], %arg1, %{{.*}} : (tensor<20x8xf32>, tensor<1x8x6xf32>, tensor<4x2xi64>)

// Ranks of one axis have the same samples: each sends the rows of its own half of
// the experts, along the other axis.

// FOLDED-LABEL: func.func @train(
// FOLDED: graph.sort_rows %{{.*}} origin %{{.*}} {global_size = 4 : i64, size = 2
// FOLDED: %[[X:.*]] = spmd.all_to_all_rows %{{.*}} over @mesh {"dp"} {graph.even_rows = 10 {{.*}} : tensor<20x8xf32>, tensor<3xi64> -> tensor<20x8xf32>
// FOLDED: graph.grouped_contract %[[X]], %arg1, %{{.*}} {graph.even_rows = 10 {{.*}} : (tensor<20x8xf32>, tensor<1x8x6xf32>, tensor<2x2xi64>)
// FOLDED: graph.grouped_contract_weight_grad {{.*}}<@mesh, [{"tp", "dp"}, {}, {}]

// Where no rank keeps its own part of a gradient, weights are gathered.

// WHOLE: remark: weights of all groups are gathered over "ep", since the gradient of a weight is not scattered
// WHOLE-LABEL: func.func @train(
// WHOLE: graph.grouped_linear
// WHOLE-NOT: all_to_all_rows

func.func @loss(
    %x: tensor<4x5x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
    %up: tensor<4x8x6xf32> {graph.name = "up", graph.role = "parameter"},
    %bias: tensor<4x6xf32> {graph.name = "bias", graph.role = "parameter"},
    %down: tensor<4x6x8xf32> {graph.name = "down", graph.role = "parameter"},
    %router: tensor<4x8xf32> {graph.name = "router", graph.role = "parameter"}) -> (tensor<f32> {graph.name = "loss"}) {
  %logits = graph.linear %x, %router : (tensor<4x5x8xf32>, tensor<4x8xf32>) -> tensor<4x5x4xf32>
  %v, %i = graph.top_k %logits {k = 2 : i64} : (tensor<4x5x4xf32>) -> (tensor<4x5x2xf32>, tensor<4x5x2xi64>)
  %r = graph.reshape %x : (tensor<4x5x8xf32>) -> tensor<4x5x1x8xf32>
  %rows = graph.broadcast %r : (tensor<4x5x1x8xf32>) -> tensor<4x5x2x8xf32>
  %0 = graph.grouped_linear %rows, %up, %i : (tensor<4x5x2x8xf32>, tensor<4x8x6xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x6xf32>
  %b = graph.gather %bias, %i {dim = 0 : i64} : (tensor<4x6xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x6xf32>
  %1 = graph.add %0, %b : (tensor<4x5x2x6xf32>, tensor<4x5x2x6xf32>) -> tensor<4x5x2x6xf32>
  %2 = graph.relu %1 : (tensor<4x5x2x6xf32>) -> tensor<4x5x2x6xf32>
  %3 = graph.grouped_linear %2, %down, %i : (tensor<4x5x2x6xf32>, tensor<4x6x8xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x8xf32>
  %w = graph.reshape %v : (tensor<4x5x2xf32>) -> tensor<4x5x2x1xf32>
  %4 = graph.mul %3, %w : (tensor<4x5x2x8xf32>, tensor<4x5x2x1xf32>) -> tensor<4x5x2x8xf32>
  %5 = graph.reduce sum %4 {dims = array<i64: 2>} : (tensor<4x5x2x8xf32>) -> tensor<4x5x8xf32>
  %6 = graph.add %x, %5 : (tensor<4x5x8xf32>, tensor<4x5x8xf32>) -> tensor<4x5x8xf32>
  %7 = graph.reduce sum %6 {dims = array<i64: 0, 1, 2>} : (tensor<4x5x8xf32>) -> tensor<f32>
  return %7 : tensor<f32>
}
