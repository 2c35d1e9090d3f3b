// RUN: cleave-opt %s --spmd-propagate --spmd-partition --spmd-verify --split-input-file | FileCheck %s

spmd.mesh @mesh <["mb" = 4]> sequential ["mb"]

// One reduction before the non-linear uses, shared by both; the sum itself
// stays partial where it is linear.
// CHECK-LABEL: func.func @mean(
// CHECK-SAME: %[[X:.*]]: tensor<2x3xf32> {spmd.global_type = tensor<8x3xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>}
// CHECK-SAME: -> (tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>}
func.func @mean(
    %x: tensor<8x3xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>}) -> (tensor<f32>, tensor<f32>) {
  %zero = graph.constant dense<0.0> : tensor<f32>
  %c0 = graph.constant dense<0.0> : tensor<8x3xf32>
  // CHECK: graph.constant {{.*}} dense<0.000000e+00> : tensor<2x3xf32>
  // CHECK: graph.compare ne
  %m = graph.compare ne %x, %c0 : (tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<8x3xi1>
  %n = graph.cast %m : (tensor<8x3xi1>) -> tensor<8x3xf32>
  // CHECK: %[[N:.*]] = graph.reduce sum %{{.*}} partial = {"mb"}>]} : (tensor<2x3xf32>) -> tensor<f32>
  // CHECK-NEXT: %[[COUNT:.*]] = spmd.all_reduce sum %[[N]] over @mesh {"mb"} {spmd.global_types = [tensor<f32>], spmd.shardings = [#spmd.sharding<@mesh, []>]}
  %count = graph.reduce sum %n {dims = array<i64: 0, 1>} : (tensor<8x3xf32>) -> tensor<f32>
  // CHECK: %[[S:.*]] = graph.reduce sum
  %sum = graph.reduce sum %x {dims = array<i64: 0, 1>} : (tensor<8x3xf32>) -> tensor<f32>
  // CHECK: graph.compare ne %[[COUNT]]
  %ok = graph.compare ne %count, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
  graph.check %ok, "nothing to average" : tensor<i1>
  // CHECK: %[[MEAN:.*]] = graph.div %[[S]], %[[COUNT]] {{.*}} partial = {"mb"}
  %mean = graph.div %sum, %count : (tensor<f32>, tensor<f32>) -> tensor<f32>
  // CHECK: %[[RESULT:.*]] = spmd.all_reduce sum %[[MEAN]]
  // CHECK-NOT: all_reduce
  // CHECK: return %[[RESULT]], %[[COUNT]]
  return %mean, %count : tensor<f32>, tensor<f32>
}

// What attributes say of shapes and places becomes local.
// CHECK-LABEL: func.func @attributes(
func.func @attributes(
    %x: tensor<8x6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>},
    %rng: tensor<2xi64>) -> tensor<8x2xf32> {
  // CHECK: %[[O:.*]] = spmd.shard_offset <@mesh, [{"mb"}, {}]> of tensor<8x6xf32>
  // CHECK: graph.dropout %{{.*}}, %{{.*}} origin %[[O]] {global_shape = array<i64: 8, 6>
  %0 = graph.dropout %x, %rng {probability = 0.5 : f64, id = 3 : i64} : (tensor<8x6xf32>, tensor<2xi64>) -> tensor<8x6xf32>
  // CHECK: graph.slice {{.*}} sizes = array<i64: 2, 2>
  %1 = graph.slice %0 {offsets = array<i64: 0, 2>, sizes = array<i64: 8, 2>, strides = array<i64: 1, 1>} : (tensor<8x6xf32>) -> tensor<8x2xf32>
  // CHECK: graph.pad {{.*}} -> tensor<2x4xf32>
  %2 = graph.pad %1 {low = array<i64: 0, 1>, high = array<i64: 0, 1>, interior = array<i64: 0, 0>, value = 0.0 : f64} : (tensor<8x2xf32>) -> tensor<8x4xf32>
  // CHECK: graph.reshape {{.*}} -> tensor<8xf32>
  %3 = graph.reshape %2 : (tensor<8x4xf32>) -> tensor<32xf32>
  // CHECK: graph.reshape {{.*}} -> tensor<2x4xf32>
  %4 = graph.reshape %3 : (tensor<32xf32>) -> tensor<8x4xf32>
  // CHECK: graph.iota {{.*}} : tensor<2x4xf32>
  %5 = graph.iota {dim = 1 : i64} : tensor<8x4xf32>
  %6 = graph.add %4, %5 : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %7 = graph.slice %6 {offsets = array<i64: 0, 0>, sizes = array<i64: 8, 2>, strides = array<i64: 1, 1>} : (tensor<8x4xf32>) -> tensor<8x2xf32>
  return %7 : tensor<8x2xf32>
}

// Attention draws by the place of a score in the whole.
// CHECK-LABEL: func.func @attention_dropout(
func.func @attention_dropout(
    %q: tensor<8x2x3x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}, {}, {}]>},
    %rng: tensor<2xi64>) -> tensor<8x2x3x4xf32> {
  // CHECK: %[[O:.*]] = spmd.shard_offset <@mesh, [{"mb"}, {}, {}, {}]> of tensor<8x2x3x3xf32>
  // CHECK: graph.attention {{.*}} origin %[[O]] {{.*}}global_shape = array<i64: 8, 2, 3, 3>
  %o, %lse = graph.attention %q, %q, %q rng %rng {scale = 1.0 : f64, dropout = 0.1 : f64, dropout_id = 2 : i64}
      : (tensor<8x2x3x4xf32>, tensor<8x2x3x4xf32>, tensor<8x2x3x4xf32>, tensor<2xi64>) -> (tensor<8x2x3x4xf32>, tensor<8x2x3xf32>)
  return %o : tensor<8x2x3x4xf32>
}

// Queries are split where keys are whole; what is hidden goes by their places.
// CHECK-LABEL: func.func @attention_causal(
func.func @attention_causal(
    %q: tensor<2x2x8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {}, {"mb"}, {}]>},
    %k: tensor<2x2x8x4xf32>) -> (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>) {
  // CHECK: %[[O:.*]] = spmd.shard_offset <@mesh, [{}, {}, {"mb"}, {}]> of tensor<2x2x8x8xf32>
  // CHECK: graph.attention {{.*}} origin %[[O]] {causal, global_shape = array<i64: 2, 2, 8, 8>
  // CHECK-SAME: (tensor<2x2x2x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<4xi64>)
  %o, %lse = graph.attention %q, %k, %k {scale = 1.0 : f64, causal}
      : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>) -> (tensor<2x2x8x4xf32>, tensor<2x2x8xf32>)
  // Each shard of the queries gives a summand of the gradients of all keys.
  // CHECK: graph.attention_grad {{.*}} origin {{.*}}#spmd.sharding<@mesh, [{}, {}, {"mb"}, {}]>, #spmd.sharding<@mesh, [{}, {}, {}, {}], partial = {"mb"}>
  %dq, %dk, %dv = graph.attention_grad %q, %q, %k, %k, %o, %lse {scale = 1.0 : f64, causal}
      : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8xf32>)
      -> (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>)
  return %dq, %dk : tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>
}

// A gradient is finished: the sum over micro-batches comes before it. A seed
// reads only the type of the loss: no sum comes before that.
// CHECK-LABEL: func.func @gradient(
func.func @gradient(
    %w: tensor<4xf32>,
    %x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>}) -> (tensor<f32>, tensor<4xf32>) {
  %y = graph.mul %x, %w : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  // CHECK: %[[LOSS:.*]] = graph.reduce
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<8x4xf32>) -> tensor<f32>
  // CHECK: graph.seed %[[LOSS]]
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dy = graph.mul %x, %seed : (tensor<8x4xf32>, tensor<f32>) -> tensor<8x4xf32>
  %dw = graph.reduce sum %dy {dims = array<i64: 0>} : (tensor<8x4xf32>) -> tensor<4xf32>
  // CHECK: %[[SUM:.*]] = spmd.all_reduce sum %{{.*}} over @mesh {"mb"}
  // CHECK: graph.gradient %[[SUM]] of "w"
  %g = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
  return %loss, %g : tensor<f32>, tensor<4xf32>
}

// Two partial values are added before one reduction.
// CHECK-LABEL: func.func @joint(
func.func @joint(
    %x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>}) -> tensor<4xf32> {
  %a = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<8x4xf32>) -> tensor<4xf32>
  %y = graph.mul %x, %x : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %b = graph.reduce sum %y {dims = array<i64: 0>} : (tensor<8x4xf32>) -> tensor<4xf32>
  // CHECK-NOT: all_reduce
  // CHECK: %[[S:.*]] = graph.add
  // CHECK: spmd.all_reduce sum %[[S]]
  // CHECK-NOT: all_reduce
  %s = graph.add %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %s : tensor<4xf32>
}

// What is whole is split where a split op reads it: an index along the samples,
// and an argument.
// CHECK-LABEL: func.func @slices(
func.func @slices(
    %x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>},
    %w: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK: %[[I:.*]] = graph.iota {{.*}} : tensor<8x1xf32>
  // CHECK: %[[IS:.*]] = spmd.slice %[[I]] by <@mesh, [{"mb"}, {}]> {{.*}} : tensor<8x1xf32> -> tensor<2x1xf32>
  %0 = graph.iota {dim = 0 : i64} : tensor<8x1xf32>
  // CHECK: graph.mul %[[IS]]
  %1 = graph.mul %0, %x : (tensor<8x1xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK: %[[WS:.*]] = spmd.slice
  // CHECK: graph.add %{{.*}}, %[[WS]]
  %2 = graph.add %1, %w : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}

// -----

// One micro-batch: the same code, and nothing to reduce.
spmd.mesh @mesh <["mb" = 1]> sequential ["mb"]

// CHECK-LABEL: func.func @one(
// CHECK-NOT: all_reduce
// CHECK-NOT: shard_offset
// CHECK: return
func.func @one(
    %x: tensor<8x3xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>}, %rng: tensor<2xi64>) -> tensor<f32> {
  %0 = graph.dropout %x, %rng {probability = 0.5 : f64, id = 3 : i64} : (tensor<8x3xf32>, tensor<2xi64>) -> tensor<8x3xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0, 1>} : (tensor<8x3xf32>) -> tensor<f32>
  %2 = graph.exp %1 : (tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// Two axes: columns, then rows of a pair of weights, one sum over "tp".
spmd.mesh @mesh <["dp" = 2, "tp" = 4]>

// CHECK-LABEL: func.func @columns_then_rows(
// CHECK-SAME: tensor<3x8xf32>
// CHECK-SAME: tensor<3x8xf32>
// CHECK-SAME: tensor<8x3xf32>
func.func @columns_then_rows(
    %x: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %up: tensor<12x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %down: tensor<8x12xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<6x8xf32> {
  // CHECK: graph.linear {{.*}} -> tensor<3x3xf32>
  %0 = graph.linear %x, %up : (tensor<6x8xf32>, tensor<12x8xf32>) -> tensor<6x12xf32>
  %1 = graph.relu %0 : (tensor<6x12xf32>) -> tensor<6x12xf32>
  // CHECK: %[[P:.*]] = graph.linear {{.*}} -> tensor<3x8xf32>
  // CHECK: spmd.all_reduce sum %[[P]] over @mesh {"tp"}
  %2 = graph.linear %1, %down : (tensor<6x12xf32>, tensor<8x12xf32>) -> tensor<6x8xf32>
  return %2 : tensor<6x8xf32>
}

// -----

spmd.mesh @mesh <["tp" = 4]>

// What indices name may be split: a shard gives zeros for what it does not hold,
// and takes what goes to it. One sum makes the rows whole.
// CHECK-LABEL: func.func @indexed(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<2x6xf32>
func.func @indexed(
    %w: tensor<8x6xf32> {graph.name = "w", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %i: tensor<3x5xi64>) -> (tensor<3x5x8xi1>, tensor<8x6xf32> {graph.updates = "w"}) {
  // CHECK: %[[O:.*]] = spmd.shard_offset <@mesh, [{"tp"}]> of tensor<8xi64>
  // CHECK: %[[G:.*]] = graph.gather %[[W]], %[[I:.*]] origin %[[O]] {dim = 0 : i64, global_size = 8 : i64, {{.*}}partial = {"tp"}{{.*}}} : (tensor<2x6xf32>, tensor<3x5xi64>, tensor<1xi64>) -> tensor<3x5x6xf32>
  // CHECK: %[[S:.*]] = spmd.all_reduce sum %[[G]] over @mesh {"tp"}
  %0 = graph.gather %w, %i {dim = 0 : i64} : (tensor<8x6xf32>, tensor<3x5xi64>) -> tensor<3x5x6xf32>
  %1 = graph.exp %0 : (tensor<3x5x6xf32>) -> tensor<3x5x6xf32>
  // CHECK-NOT: all_reduce
  // CHECK: graph.scatter_add %{{.*}}, %[[I]] origin %{{.*}} {dim = 0 : i64, global_size = 8 : i64, padding_index = 1 : i64, size = 2 : i64, {{.*}}} : (tensor<3x5x6xf32>, tensor<3x5xi64>, tensor<1xi64>) -> tensor<2x6xf32>
  %2 = graph.scatter_add %1, %i {dim = 0 : i64, size = 8 : i64, padding_index = 1 : i64} : (tensor<3x5x6xf32>, tensor<3x5xi64>) -> tensor<8x6xf32>
  // CHECK: graph.one_hot %[[I]] origin %{{.*}} {global_size = 8 : i64, size = 2 : i64, {{.*}}} : (tensor<3x5xi64>, tensor<1xi64>) -> tensor<3x5x2xi1>
  %3 = graph.one_hot %i {size = 8 : i64} : (tensor<3x5xi64>) -> tensor<3x5x8xi1>
  %4 = spmd.constrain %3 to <@mesh, [{}, {}, {"tp"}]> : tensor<3x5x8xi1>
  %5 = graph.sub %w, %2 : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
  return %4, %5 : tensor<3x5x8xi1>, tensor<8x6xf32>
}

// -----

spmd.mesh @mesh <["dp" = 2, "tp" = 2]>

// A weight rests in shards over "dp" and is read in shards over "tp", or whole.
// Backward gathers the shard again as forward does, first over "dp" and then
// over "tp": where the former is kept, it is not sent twice.
// CHECK-LABEL: func.func @gathered(
// CHECK: %[[KEPT:.*]] = spmd.all_gather %[[SHARD:.*]] by <@mesh, [{"dp"}]> {{.*}} : tensor<2xf32> -> tensor<4xf32>
// CHECK: spmd.all_gather %[[KEPT]] by <@mesh, [{"tp"}]> {{.*}} -> tensor<8xf32>
// CHECK: %[[SEED:.*]] = graph.seed
// CHECK: %[[AGAIN:.*]] = spmd.barrier %[[SHARD]] after %[[SEED]]
// CHECK: %[[PART:.*]] = spmd.all_gather %[[AGAIN]] by <@mesh, [{"dp"}]> {{.*}} : tensor<2xf32> -> tensor<4xf32>
// CHECK: spmd.all_gather %[[PART]] by <@mesh, [{"tp"}]> {{.*}} -> tensor<8xf32>
func.func @gathered(
    %w: tensor<8xf32> {graph.name = "w", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp", "dp"}]>},
    %x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}]>}) -> (tensor<f32>, tensor<16xf32>) {
  %c = spmd.constrain %w to <@mesh, [{"tp"}]> : tensor<8xf32>
  %o = spmd.constrain %x to <@mesh, [{}]> : tensor<8xf32>
  %p = graph.cumulative_sum %c {dim = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  %y = graph.mul %p, %o : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0>} : (tensor<8xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %r = graph.mul %o, %seed : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  %q = graph.concat %c, %r {dim = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<16xf32>
  return %loss, %q : tensor<f32>, tensor<16xf32>
}
