// RUN: cleave-opt %s -split-input-file --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages=stages=v --pipe-schedule --pipe-verify | FileCheck %s --check-prefixes=BOTH,AUTO
// RUN: cleave-opt %s -split-input-file --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=v slices=on" --pipe-schedule --pipe-verify | FileCheck %s --check-prefixes=BOTH,ON
// RUN: cleave-opt %s -split-input-file --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=v slices=off" --pipe-schedule --pipe-verify | FileCheck %s --check-prefixes=OFF
// RUN: cleave-opt %s -split-input-file --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --pipe-split-stages=stages=v --remarks-filter=pipe-split-stages --remark-format=emitRemark 2>&1 >/dev/null | FileCheck %s --check-prefix=REMARK

// A sum over devices, of which only what the next stage reads is made: each makes
// its slice of it, of all that stands between too, and knows where that lies.

// BOTH-LABEL: func.func private @sum.F(
// BOTH-NOT: spmd.all_reduce
// BOTH: %[[S:.*]] = spmd.reduce_scatter sum %{{.*}} by <@mesh, [{"tp"}, {}]> : tensor<4x4xf32> -> tensor<2x4xf32>
// BOTH: %[[T:.*]] = graph.tanh %[[S]]
// BOTH: %[[O:.*]] = spmd.shard_offset <@mesh, [{"mb", "tp"}, {}]> of tensor<8x4xf32>
// BOTH: %[[D:.*]] = graph.dropout %[[T]], %{{.*}} origin %[[O]] {{.*}} -> tensor<2x4xf32>
// BOTH: %[[Y:.*]] = graph.add %[[D]], %{{.*}} -> tensor<2x4xf32>
// BOTH: return %[[Y]] : tensor<2x4xf32>
// BOTH-LABEL: func.func private @sum.1F(
// BOTH: %[[G:.*]] = spmd.all_gather %{{.*}} by <@mesh, [{"tp"}, {}]> {pipe.sliced} : tensor<2x4xf32> -> tensor<4x4xf32>
// BOTH: graph.contract "bi,oi->bo" %[[G]]
// BOTH: graph.add %{{.*}}, %[[G]]

// OFF-LABEL: func.func private @sum.F(
// OFF: spmd.all_reduce
// OFF-NOT: spmd.reduce_scatter
// OFF: return %{{.*}} : tensor<4x4xf32>
// OFF-LABEL: func.func private @sum.1F(
// OFF-NOT: spmd.all_gather
// OFF: return
spmd.mesh @mesh <["pp" = 2, "tp" = 2]>
func.func @sum(%w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
               %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
               %a: tensor<8x8xf32> {graph.name = "a", graph.role = "input", graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
               %x: tensor<8x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
               %rng: tensor<2xi64> {graph.name = "rng", graph.role = "rng"})
    -> (tensor<8x4xf32> {graph.name = "z"}) {
  %p = graph.contract "bi,oi->bo" %a, %w : (tensor<8x8xf32>, tensor<4x8xf32>) -> tensor<8x4xf32>
  %t = graph.tanh %p : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %d = graph.dropout %t, %rng {probability = 0.5 : f64, id = 3 : i64} : (tensor<8x4xf32>, tensor<2xi64>) -> tensor<8x4xf32>
  // Half of 16 goes on. An all-reduce sends those 16, as a reduce-scatter and a
  // gather do together.
  // REMARK: slice-transfers.mlir:[[@LINE+1]]:8: remark: [Passed] SlicedTransfer | Category:pipe-split-stages | Function=sum | Elements=8.00, ElementsInAll=24.00, ElementsInAllWhole=32.00, ElementsWhole=16.00, From=0, Slices=2, To=1
  %y = graph.add %d, %x : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %k = graph.contract "bi,oi->bo" %y, %v : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %z = graph.add %k, %y : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  return %z : tensor<8x4xf32>
}

// -----

// What the stage reads itself it has whole: slices and their gather send as much
// as the whole does, of which less between stages. These are further apart, since
// "pp" is the major axis.

// BOTH-LABEL: func.func private @read.F(
// BOTH: %[[S:.*]] = spmd.all_reduce
// BOTH: %[[C:.*]] = graph.gather %[[S]]
// BOTH: graph.tanh %[[S]]
// BOTH: return %[[C]], %{{.*}} : tensor<2x4xf32>, tensor<4x4xf32>
// BOTH-LABEL: func.func private @read.1F(
// BOTH: spmd.all_gather %{{.*}} by <@mesh, [{"tp"}, {}]> {pipe.sliced} : tensor<2x4xf32> -> tensor<4x4xf32>
// BOTH: return
spmd.mesh @mesh <["pp" = 2, "tp" = 2]>
func.func @read(%w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
                %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                %a: tensor<8x8xf32> {graph.name = "a", graph.role = "input", graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<8x4xf32> {graph.name = "z"}, tensor<8x4xf32> {graph.name = "t"}) {
  %y = graph.contract "bi,oi->bo" %a, %w : (tensor<8x8xf32>, tensor<4x8xf32>) -> tensor<8x4xf32>
  %t = graph.tanh %y : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %z = graph.contract "bi,oi->bo" %y, %v : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %z, %t : tensor<8x4xf32>, tensor<8x4xf32>
}

// -----

// Where "tp" is the major axis, the full value is sent.

// BOTH-LABEL: func.func private @near.F(
// BOTH: %[[S:.*]] = spmd.all_reduce
// AUTO-NOT: spmd.shard_offset
// BOTH: graph.tanh %[[S]]
// AUTO: return %[[S]], %{{.*}} : tensor<4x4xf32>, tensor<4x4xf32>
// ON: return %{{.*}} : tensor<2x4xf32>, tensor<4x4xf32>
// BOTH-LABEL: func.func private @near.1F(
// AUTO-NOT: spmd.all_gather
// ON: spmd.all_gather
// BOTH: return
spmd.mesh @mesh <["tp" = 2, "pp" = 2]>
func.func @near(%w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
                %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                %a: tensor<8x8xf32> {graph.name = "a", graph.role = "input", graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<8x4xf32> {graph.name = "z"}, tensor<8x4xf32> {graph.name = "t"}) {
  %y = graph.contract "bi,oi->bo" %a, %w : (tensor<8x8xf32>, tensor<4x8xf32>) -> tensor<8x4xf32>
  %t = graph.tanh %y : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %z = graph.contract "bi,oi->bo" %y, %v : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %z, %t : tensor<8x4xf32>, tensor<8x4xf32>
}

// -----

// Samples that do not divide: features do.

// BOTH-LABEL: func.func private @rows.F(
// BOTH: %[[S:.*]] = spmd.reduce_scatter sum %{{.*}} by <@mesh, [{}, {"tp"}]> : tensor<3x4xf32> -> tensor<3x2xf32>
// BOTH: graph.tanh %[[S]] : (tensor<3x2xf32>) -> tensor<3x2xf32>
// BOTH-LABEL: func.func private @rows.1F(
// BOTH: spmd.all_gather %{{.*}} by <@mesh, [{}, {"tp"}]> {pipe.sliced} : tensor<3x2xf32> -> tensor<3x4xf32>
spmd.mesh @mesh <["pp" = 2, "tp" = 2]>
func.func @rows(%w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
                %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                %a: tensor<6x8xf32> {graph.name = "a", graph.role = "input", graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<6x4xf32> {graph.name = "z"}) {
  %y = graph.contract "bi,oi->bo" %a, %w : (tensor<6x8xf32>, tensor<4x8xf32>) -> tensor<6x4xf32>
  %t = graph.tanh %y : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %z = graph.contract "bi,oi->bo" %t, %v : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  return %z : tensor<6x4xf32>
}

// -----

// Nothing divides: it is sent whole.

// BOTH-LABEL: func.func private @odd.F(
// BOTH: spmd.all_reduce sum %{{.*}} over @mesh {"tp"} : tensor<3x5xf32>
// BOTH: return %{{.*}} : tensor<3x5xf32>
// BOTH-LABEL: func.func private @odd.1F(
// BOTH-NOT: spmd.all_gather
// BOTH: return
spmd.mesh @mesh <["pp" = 2, "tp" = 2]>
func.func @odd(%w: tensor<5x8xf32> {graph.name = "w", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
               %v: tensor<4x5xf32> {graph.name = "v", graph.role = "parameter"},
               %a: tensor<6x8xf32> {graph.name = "a", graph.role = "input", graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<6x4xf32> {graph.name = "z"}) {
  %y = graph.contract "bi,oi->bo" %a, %w : (tensor<6x8xf32>, tensor<5x8xf32>) -> tensor<6x5xf32>
  %t = graph.tanh %y : (tensor<6x5xf32>) -> tensor<6x5xf32>
  %z = graph.contract "bi,oi->bo" %t, %v : (tensor<6x5xf32>, tensor<4x5xf32>) -> tensor<6x4xf32>
  return %z : tensor<6x4xf32>
}

// -----

// What was gathered is sent as it was, and the stage gathers nothing.

// BOTH-LABEL: func.func private @gathered.F(
// BOTH-NOT: spmd.all_gather
// BOTH: %[[T:.*]] = graph.tanh %{{.*}} : (tensor<4x2xf32>) -> tensor<4x2xf32>
// BOTH: return %[[T]], %{{.*}} : tensor<4x2xf32>
// BOTH-LABEL: func.func private @gathered.1F(
// BOTH: spmd.all_gather %{{.*}} by <@mesh, [{}, {"tp"}]>{{.*}} : tensor<4x2xf32> -> tensor<4x4xf32>
// OFF-LABEL: func.func private @gathered.F(
// OFF: spmd.all_gather
spmd.mesh @mesh <["pp" = 2, "tp" = 2]>
func.func @gathered(%w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
                    %u: tensor<1x8xf32> {graph.name = "u", graph.role = "parameter"},
                    %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                    %a: tensor<8x8xf32> {graph.name = "a", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<8x4xf32> {graph.name = "z"}) {
  %y = graph.contract "bi,oi->bo" %a, %w : (tensor<8x8xf32>, tensor<4x8xf32>) -> tensor<8x4xf32>
  %t = graph.tanh %y : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %c = spmd.constrain %t to <@mesh, [{}, {}]> : tensor<8x4xf32>
  %q = graph.contract "bi,oi->bo" %a, %u : (tensor<8x8xf32>, tensor<1x8xf32>) -> tensor<8x1xf32>
  %k = graph.contract "bi,oi->bo" %c, %v : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %z = graph.mul %k, %q : (tensor<8x4xf32>, tensor<8x1xf32>) -> tensor<8x4xf32>
  return %z : tensor<8x4xf32>
}

// -----

// An op that looks up what is not split needs no place.

// BOTH-LABEL: func.func private @picked.F(
// BOTH: %[[S:.*]] = spmd.reduce_scatter sum %{{.*}} by <@mesh, [{"tp"}, {}]> : tensor<4x4xf32> -> tensor<2x4xf32>
// BOTH: %[[T:.*]] = graph.tanh %[[S]]
// BOTH: graph.gather %[[T]], %{{[a-z0-9]+}} {dim = 1 : i64} : (tensor<2x4xf32>, tensor<4xi64>) -> tensor<2x4xf32>
spmd.mesh @mesh <["pp" = 2, "tp" = 2]>
func.func @picked(%w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
                  %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                  %a: tensor<8x8xf32> {graph.name = "a", graph.role = "input", graph.batch_dim = 0 : i64, spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
                  %i: tensor<4xi64> {graph.name = "i", graph.role = "input"})
    -> (tensor<8x4xf32> {graph.name = "z"}) {
  %y = graph.contract "bi,oi->bo" %a, %w : (tensor<8x8xf32>, tensor<4x8xf32>) -> tensor<8x4xf32>
  %t = graph.tanh %y : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %g = graph.gather %t, %i {dim = 1 : i64} : (tensor<8x4xf32>, tensor<4xi64>) -> tensor<8x4xf32>
  %z = graph.contract "bi,oi->bo" %g, %v : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %z : tensor<8x4xf32>
}
