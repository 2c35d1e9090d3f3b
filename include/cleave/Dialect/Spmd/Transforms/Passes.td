//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_TRANSFORMS_PASSES_TD
#define CLEAVE_DIALECT_SPMD_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def DecomposeAttention : Pass<"spmd-decompose-attention", "::mlir::ModuleOp"> {
  let summary = "Decomposes ring attention into its steps";
  let description = [{
    Decomposes each attention with the attribute `spmd.ring` into one attention
    per position of the axis. Between the steps, keys and values are rotated along
    the axis; output and log-sum-exp accumulate over the keys so far. Backward is a
    second ring, after a barrier. In it the gradients of keys and values rotate
    with them, one step later, back to their own positions. Nothing is gathered.
    The result is a program on global tensors, in which each step is an attention
    between blocks of queries and blocks of keys.
    ```mlir
    %o, %lse = graph.attention %q, %k, %v {causal, spmd.ring = "cp"}
    // becomes, for two positions
    %k1 = spmd.rotate %k over @mesh {"cp"} dim 2
    %v1 = spmd.rotate %v over @mesh {"cp"} dim 2
    %o0, %lse0 = graph.attention %q, %k, %v query_starts [0, s] key_starts [0, s] {blocks = 2}
    %o, %lse = graph.attention %q, %k1, %v1 query_starts [0, s] key_starts [s, 0]
        onto %o0, %lse0 {blocks = 2, step = 1}
    ```
    The steps are unrolled, one for each position, so that no later phase needs
    loops.
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect",
                           "::cleave::spmd::SpmdDialect"];
}

def DecomposeContraction : Pass<"spmd-decompose-contraction", "::mlir::ModuleOp"> {
  let summary = "Decomposes products of sharded blocks into the steps of SUMMA";
  let description = [{
    Decomposes each contraction with the attribute `spmd.steps`, which gives the
    shardings of its two operands and of its result. No operand is gathered. There
    are three forms:
    - A dimension that is summed over is sharded over different axes in the two
      operands. Each step broadcasts one part of both operands, multiplies them,
      and adds the product to the sum of the previous steps.
    - A dimension of the result is sharded over another axis than in its operand.
      Each step multiplies one part of that operand, and reduces the partial
      products of all positions into that part of the result.
    - The indexed dimension of a table is sharded. A lookup reads one part of the
      table in each step, and an addition to the table is reduced into one part
      in each step.

    The result is a program on global tensors.

    Products that read the same parts of a value run in lockstep: their steps
    alternate, and each part is broadcast once for all of them. For that, products
    are moved to the first of them, with the ops on arguments that they need, or to
    the last of them, with the ops that use them. Products are not moved where one
    depends on another, or past other products or collectives that depend on one of
    them or read none of the same values. Products that are not in lockstep receive
    their parts separately, by broadcasts with different numbers `apart`, except for
    operands that `spmd.held` names.
    ```mlir
    %y = graph.contract "bi,io->bo" %x, %w {spmd.steps = [
        #spmd.sharding<@mesh, [{"row"}, {"col"} ]>,
        #spmd.sharding<@mesh, [{"row"}, {"col"} ]>,
        #spmd.sharding<@mesh, [{"row"}, {"col"} ]>]}
    // becomes, for two positions along each axis
    %x0 = spmd.broadcast %x over @mesh {"col"} dim 1 part 0
    %w0 = spmd.broadcast %w over @mesh {"row"} dim 0 part 0
    %x1 = spmd.broadcast %x over @mesh {"col"} dim 1 part 1
    %w1 = spmd.broadcast %w over @mesh {"row"} dim 0 part 1
    %y0 = graph.contract "bi,io->bo" %x0, %w0
    %y1 = graph.contract "bi,io->bo" %x1, %w1
    %y = graph.add %y0, %y1
    ```
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect",
                           "::cleave::spmd::SpmdDialect"];
}

def DecomposeHead : Pass<"spmd-decompose-head", "::mlir::ModuleOp"> {
  let summary = "Decomposes a head and its loss where a recipe shards its classes";
  let description = [{
    Decomposes `graph.head_loss` into ops whose classes (the vocabulary) can be
    sharded. For each row, the maximum, the sum of exponentials and the logit of the
    target are then reduced over devices; logits are not communicated. Rows are cut
    into chunks along the sequence, so that samples stay sharded. The logits of one
    chunk on one device are within the limits of `--graph-chunk-loss`. Gradients of
    the weight are added in the order of the chunks. All chunks read the weight; its
    parts are kept (`spmd.held`) where the products run in steps.

    The pass takes `mesh` and `recipes` as `--spmd-apply-recipes` does, and runs
    before it. Classes whose number is not divisible by the devices stay
    replicated.
    ```mlir
    %rows, %dx, %dw = graph.head_loss %x, %w targets %t gradient %g ...
    // becomes
    %x1 = spmd.barrier %x after %g
    %l = graph.linear %x1, %w
    %h = graph.one_hot %t1
    %m = graph.reduce max %l
    %p = graph.reduce sum (graph.select %h, %l, 0)
    %s = graph.reduce sum (graph.exp (%l - %m))
    %lse = %m + log %s
    %rows = %lse - %p
    %dl = %g * graph.exp (%l - %lse) - (graph.select %h, %g, 0)
    %dx = graph.contract "abv,vh->abh" %dl, %w
    %dw = graph.contract "abv,abh->vh" %dl, %x1
    ```
  }];
  let options = [
    Option<"mesh", "mesh", "std::string", "",
           "The axes of the mesh and their sizes: dp=2,tp=4">,
    Option<"recipes", "recipes", "std::string", "",
           "The recipes and placements that will be applied: megatron-sp,zero1">,
    Option<"microBatches", "micro-batches", "int64_t", "1",
           "Number of micro-batches of a step">,
    Option<"grains", "grains", "int64_t", "0",
           "If positive: the number of grains of the global batch, which "
           "replaces micro-batches">,
    Option<"maxChunkBytes", "max-chunk-bytes", "int64_t", "104857600",
           "The bytes that the logits of one chunk may take on a device">,
    Option<"maxChunkRows", "max-chunk-rows", "int64_t", "384",
           "The rows of a chunk at most, if logits are cut into chunks, and if that "
           "makes no more than 16 chunks">,
  ];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
}

def OrderSamples : Pass<"spmd-order-samples", "::mlir::ModuleOp"> {
  let summary = "Makes samples the major factor of joined and regrouped batches";
  let description = [{
    A dimension is sharded along its major factor. The concatenation of two batches
    of B samples is a dimension of (2, B), and so is a batch that is repeated; a
    batch of which a model reads halves is one of (2, B / 2). The pass follows the
    samples from the arguments (`graph.batch_dim`) and exchanges these factors, up
    to where a reduction, a slice or a reshape ends them. Ops that compute each
    sample alone are unchanged, since they give the same in any order; ops that
    depend on the index along the dimension (dropout) are given the index of each
    piece, or their operands in the order of the model.

    The result is a program on global tensors. It runs on a model, before it is
    differentiated, and takes `mesh` and `recipes` as `--spmd-apply-recipes` does.
    Where nothing shards the samples, and where the order of the model can be
    sharded as well, it does nothing.
    ```mlir
    %j = graph.concat %a, %b {dim = 0} : tensor<8x4xf32>, tensor<8x4xf32>
    %h = graph.tanh %j : tensor<16x4xf32>
    %u = graph.slice %h {offsets = 0, 0, sizes = 8, 4}
    // becomes, where reshapes are left out
    %j = graph.concat %a, %b {dim = 1} : tensor<8x1x4xf32>, tensor<8x1x4xf32>
    %h = graph.tanh %j : tensor<16x4xf32>
    %u = graph.slice %h {offsets = 0, 0, 0, sizes = 8, 1, 4}
    ```
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect"];
  let options = [Option<"mesh", "mesh", "std::string", "",
                        "The axes of the mesh and their sizes: dp=2,cp=4">,
                 Option<"recipes", "recipes", "std::string", "",
                        "The recipes and placements that will be applied">,
                 Option<"microBatches", "micro-batches", "int64_t", "1",
                        "The number of micro-batches">];
}

def OrderSequence : Pass<"spmd-order-sequence", "::mlir::ModuleOp"> {
  let summary = "Permutes sequences of causal ring attention into zig-zag order";
  let description = [{
    Balances the work of causal ring attention. Under a causal mask, the device of
    the last of N chunks of a sequence attends to N times as many keys as the device
    of the first one. In zig-zag order, device r holds the chunks r and 2N-1-r of
    2N, and all devices do the same work.

    The result is a program on global tensors. The sequence is permuted from its
    first use (the ids of a lookup, targets, positions) up to the results, which
    keep their order. Ops that do not depend on positions in the sequence are
    unchanged. Ops that do (attention, dropout) are given the offset of each chunk,
    or their operands in the original order.

    The pass takes `mesh` and `recipes` as `--spmd-apply-recipes` does, and runs
    before it and before `--spmd-decompose-head`. It does nothing without the recipe
    `ring`. A sequence that is not divisible into 2N chunks keeps its order, with a
    remark.
    ```mlir
    %e = graph.gather %table, %ids
    %o, %lse = graph.attention %q, %k, %v {causal}
    // becomes, for two positions and chunks of two places
    %places = graph.constant dense<[0, 1, 6, 7, 2, 3, 4, 5]>
    %starts = graph.constant dense<[0, 6, 2, 4]>
    %turned = graph.gather %ids, %places {dim = 1}
    %e = graph.gather %table, %turned
    %o, %lse = graph.attention %q, %k, %v query_starts %starts key_starts %starts {causal}
    ```
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect"];
  let options = [Option<"mesh", "mesh", "std::string", "",
                        "The axes of the mesh and their sizes: dp=2,cp=4">,
                 Option<"recipes", "recipes", "std::string", "",
                        "The recipes and placements that will be applied">];
}

def ApplyRecipes : Pass<"spmd-apply-recipes", "::mlir::ModuleOp"> {
  let summary = "Creates the mesh and applies recipes and placements";
  let description = [{
    Creates the mesh of the axes `mesh`, major to minor, and applies `recipes`. A
    recipe annotates arguments with shardings, the same ones in all entry functions,
    and intermediate values with `spmd.constrain`. Placements are applied first,
    then recipes in a fixed order, independent of the order of the option.
    ```mlir
    func.func @train(%x: tensor<8x4xf32> {graph.batch_dim = 0 : i64}) ...
    // becomes, with mesh=dp=2
    spmd.mesh @mesh <["dp" = 2]>
    func.func @train(%x: tensor<8x4xf32> {graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {} ]>}) ...
    ```
  }];
  let options = [Option<"mesh", "mesh", "std::string", "",
                        "The axes of the mesh and their sizes: dp=2,tp=4">,
                 Option<"recipes", "recipes", "std::string", "",
                        "The recipes and placements: megatron-sp,zero1">,
                 Option<"grains", "grains", "int64_t", "0",
                        "If positive: the number of slices of a gradient that "
                        "are summed by themselves, in an order that is the same "
                        "for any number of devices">];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
}

def Place : Pass<"spmd-seed-shardings", "::mlir::ModuleOp"> {
  let summary = "Shards samples over a sequential axis of micro-batches";
  let description = [{
    Adds the sequential axis `mb` to the mesh (or creates `@mesh`), and shards the
    dimension `graph.batch_dim` of each argument over it, as the major axis. Where
    the micro-batches do not divide the samples of a shard, these are padded, and
    the last micro-batches have fewer. Grains are all alike.
    ```mlir
    func.func @train(%x: tensor<8x4xf32> {graph.batch_dim = 0 : i64}) ...
    // becomes, with micro-batches=4
    spmd.mesh @mesh <["mb" = 4]> sequential ["mb"]
    func.func @train(%x: tensor<8x4xf32> {graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {} ]>}) ...
    ```
  }];
  let options = [Option<"microBatches", "micro-batches", "int64_t", "1",
                        "Number of micro-batches of a step">,
                 Option<"grains", "grains", "int64_t", "0",
                        "If positive: the number of grains of the global batch, "
                        "a power of 2. Each micro-batch of a device is one grain">];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
}

def CompressGradients : Pass<"spmd-compress-gradients", "::mlir::ModuleOp"> {
  let summary = "Sums gradients over workers with less communication";
  let description = [{
    The positions of an axis that shards samples are workers. Each gradient that
    is a sum over samples becomes the tensor of each worker's sum, which joins
    what the worker did not send before (the residual, state of the step), and a
    compressor adds up less than all of it. This changes the mathematics of a
    step. The result is a program on whole tensors, that one device can run; it
    is placed and partitioned as any other.

    `compress` is a compressor with its settings: `powersgd,rank=4`,
    `topk,density=0.01`. Gradients of small parameters, and of those that the axis
    shards, are summed as they are. With `pack`, what several parameters exchange
    is one message, computed in one place: not for the stages of a pipeline. Runs
    after `--spmd-seed-shardings`, which orders samples, and before `--spmd-propagate`.
    ```mlir
    %g = graph.gradient %dw of "w" : (tensor<8x4xf32>) -> tensor<8x4xf32>
    // becomes, for topk and 2 workers
    %parts = graph.per_worker ... -> tensor<2x8x4xf32>
    %terms = graph.add (graph.gradient %parts of "w"), %residual
    %size = graph.abs %terms
    %_, %i = graph.top_k %size {k = 1 : i64}
    %v = graph.gather %terms, %i
    %sum = graph.scatter_add (spmd.constrain %v), (spmd.constrain %i)
    %next_residual = graph.sub %terms, (graph.scatter_add %v, %i)
    ```
  }];
  let options = [
    Option<"compress", "compress", "std::string", "",
           "A compressor and its settings: powersgd,rank=4">,
    Option<"over", "over", "std::string", "\"dp\"",
           "The axis whose positions are the workers">,
    Option<"pack", "pack", "bool", "true",
           "One message for what several parameters exchange">,
  ];
  let dependentDialects = ["::cleave::graph::GraphDialect",
                           "::cleave::spmd::SpmdDialect"];
}

def DelayReductions : Pass<"spmd-delay-reductions", "::mlir::ModuleOp"> {
  let summary = "Sums delayed gradients over workers in the next step";
  let description = [{
    The positions of the axes that shard samples are workers. A gradient that
    waits for a later step (`--graph-delay-updates`), and is a sum over samples,
    waits as the terms of each worker: its state has a dimension more, the first,
    which is sharded over the workers. What reads the state reads its sum, which
    depends on nothing that the step computes. Checks of the gradient read the
    terms. Runs after `--spmd-seed-shardings`, which orders samples, and before
    `--spmd-propagate`.
    ```mlir
    %old = graph.gradient %pending of "w.pending_1" : (tensor<4xf32>) -> tensor<4xf32>
    %g = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
    %kept = graph.written %g of "w.pending_1" : (tensor<4xf32>) -> tensor<4xf32>
    // becomes, with 2 workers
    %sum = graph.reduce sum %pending {dims = array<i64: 0>} : (tensor<2x4xf32>) -> tensor<4xf32>
    %old = graph.gradient %sum of "w.pending_1" : (tensor<4xf32>) -> tensor<4xf32>
    %parts = graph.per_worker ... -> tensor<2x4xf32>
    %g = graph.gradient %parts of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %kept = graph.written %g of "w.pending_1" : (tensor<2x4xf32>) -> tensor<2x4xf32>
    ```
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect",
                           "::cleave::spmd::SpmdDialect"];
}

def Pad : Pass<"spmd-pad", "::mlir::ModuleOp"> {
  let summary = "Pads dimensions that annotations shard unevenly";
  let description = [{
    Runs before propagation. A dimension whose size is not divisible by the axes
    that the sharding of an argument or an `spmd.constrain` gives it is padded. All
    dimensions that the sharding rules join with it are padded too, to a size that
    is divisible by the product of the axes of any of them. Later passes see
    divisible sizes only.

    Valid elements come first. `graph.valid_shape` on an argument or result gives
    the shape without padding, which is the shape for the caller. The padding of
    arguments, and of the results that replace them, is zero. A padded program is
    still a program on global tensors, and computes the same values.

    The padding of other values is arbitrary. It is masked where an op's rule
    requires a value in it (`PaddingNeed`), unless it is known to be zero. An op
    that cannot be sharded along a dimension gets the valid part of it.
    ```mlir
    func.func @f(%x: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"} ]>}) -> tensor<f32> {
      %y = graph.exp %x : (tensor<6xf32>) -> tensor<6xf32>
      %l = graph.reduce sum %y {dims = array<i64: 0>} : (tensor<6xf32>) -> tensor<f32>
    // becomes, with 4 positions on "dp"
    func.func @f(%x: tensor<8xf32> {graph.valid_shape = array<i64: 6>, ...}) -> tensor<f32> {
      %y = graph.exp %x : (tensor<8xf32>) -> tensor<8xf32>
      %i = graph.iota {dim = 0 : i64} : tensor<8xi64>
      %c = graph.compare lt %i, %six : ...
      %m = graph.select %c, %y, %zero {graph.padding} : ...
      %l = graph.reduce sum %m {dims = array<i64: 0>} : (tensor<8xf32>) -> tensor<f32>
    ```
  }];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
}

def Propagate : Pass<"spmd-propagate", "::mlir::ModuleOp"> {
  let summary = "Propagates the shardings of arguments to all values";
  let description = [{
    The sharding rule of an op maps the dimensions of its operands and results to
    factors. The axes of a factor are propagated between operands and results, in
    both directions, until nothing changes; closed dimensions keep their axes.
    Sequential axes are propagated first, then the shardings of arguments, then
    `spmd.constrain`. Where tensors of an op disagree, the axes of most tensors win,
    then those of larger tensors, then the first in order, with a remark. A partial
    sum over an axis is not sharded over that axis by its readers. It is reduced at
    its producer if its readers would reduce at least as many elements.

    Then each result is marked partial where the op reduces a sharded factor, or
    where the op is jointly linear in partial operands.
    ```mlir
    %l = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<8xf32>) -> tensor<f32>
    // with %x split over "mb" becomes
    %l = graph.reduce sum %x {dims = array<i64: 0>,
        spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"mb"}>]} : ...
    ```
  }];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
}

def Partition : Pass<"spmd-partition", "::mlir::ModuleOp"> {
  let summary = "Rewrites each function to compute on shards";
  let description = [{
    Makes types local. Where an op, an annotation or the result of the function
    needs a value in another sharding, or reduced where it is partial, the value is
    resharded by the cheapest sequence of collectives: the one that sends the fewest
    bytes from each position. All readers up to the next `graph.seed` share a
    resharded value. A value that backward reads is kept in its smallest form, and
    is gathered again in backward. Along a sequential axis there are only
    reductions.

    Each result keeps its global type and its sharding as attributes. Each
    collective emits a remark `Collective` of the category `spmd-partition` with its
    op, axes, bytes and cause.
    ```mlir
    func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"} ]>}) -> tensor<f32> {
      %l = graph.reduce sum %x ... : (tensor<8xf32>) -> tensor<f32>
      return %l : tensor<f32>
    }
    // becomes
    func.func @f(%x: tensor<2xf32> {...}) -> tensor<f32> {
      %l = graph.reduce sum %x ... : (tensor<2xf32>) -> tensor<f32>
      %r = spmd.all_reduce sum %l over @mesh {"mb"} : tensor<f32>
      return %r : tensor<f32>
    }
    ```
  }];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
}

def OptimizeCollectives : Pass<"spmd-optimize-collectives", "::mlir::ModuleOp"> {
  let summary = "Merges and simplifies the collectives of a partitioned program";
  let description = [{
    An all_reduce whose only reader is a slice along its axes becomes a
    reduce_scatter. A slice of an all_gather by the same axes is the operand of the
    all_gather. Equal collectives are merged, though never across a `graph.seed`. A sum
    that adds several sums over the same ranks adds their terms, and sums these over
    ranks once: all_reduces, reduce_scatters and reductions of parts. A slice of several
    sums that are rounded and concatenated is one reduce_scatter, which is rounded.
    A rank's part of a cumulative sum of integers along a sharded dimension is that of
    its own elements, and the sums of the shards before it, which are gathered.
    ```mlir
    %r = spmd.all_reduce sum %x over @mesh {"dp"} : tensor<8xf32>
    %y = spmd.slice %r by <@mesh, [{"dp"} ]> : tensor<8xf32> -> tensor<4xf32>
    // becomes
    %y = spmd.reduce_scatter sum %x by <@mesh, [{"dp"} ]>
        : tensor<8xf32> -> tensor<4xf32>
    ```
  }];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
}

def ChunkCollectives : Pass<"spmd-chunk-collectives", "::mlir::ModuleOp"> {
  let summary = "Cuts collectives and their contractions into chunks that overlap";
  let description = [{
    Cuts an all_gather together with the contractions that read it, and a
    reduce_scatter or all_reduce together with the contractions that compute its
    operand, so that a chunk is communicated while another one is computed (Wang
    et al., ASPLOS 2023). Chunks are parts of the first dimension of more than
    one element, of every value that is cut. This dimension is neither gathered,
    scattered nor summed over, so each element is computed from the same operands
    as before. Element-wise ops between such a contraction and another one are cut
    with it.

    Chunk `i + 1` of a gather begins before chunk `i` is computed, and chunk `i`
    of a reduction before chunk `i + 1` is computed. `spmd.chunk` on the
    collectives preserves this order in later passes.

    Left whole: collectives where other contractions of at least as much work
    run between the collective and its first reader, since these overlap
    already; contractions that sum over the dimension, such as gradients of
    weights (they read the concatenation); and ops whose results depend on the
    positions of elements.
    ```mlir
    %g = spmd.all_gather %x by <@mesh, [{}, {"tp"}, {} ]> : tensor<2x4x8xf32> -> tensor<2x8x8xf32>
    %y = graph.linear %g, %w : (tensor<2x8x8xf32>, tensor<6x8xf32>) -> tensor<2x8x6xf32>
    // becomes, with chunks=2
    %x0 = graph.slice %x {offsets = [0, 0, 0], sizes = [1, 4, 8], ...}
    %g0 = spmd.all_gather %x0 by <@mesh, [{}, {"tp"}, {} ]> {spmd.chunk = [0, 0]} : tensor<1x4x8xf32> -> tensor<1x8x8xf32>
    %x1 = graph.slice %x {offsets = [1, 0, 0], sizes = [1, 4, 8], ...}
    %g1 = spmd.all_gather %x1 by <@mesh, [{}, {"tp"}, {} ]> {spmd.chunk = [0, 1]} : tensor<1x4x8xf32> -> tensor<1x8x8xf32>
    %y0 = graph.linear %g0, %w : (tensor<1x8x8xf32>, tensor<6x8xf32>) -> tensor<1x8x6xf32>
    %y1 = graph.linear %g1, %w : (tensor<1x8x8xf32>, tensor<6x8xf32>) -> tensor<1x8x6xf32>
    %y = graph.concat %y0, %y1 {dim = 0}
    ```
  }];
  let options = [
    Option<"chunks", "chunks", "int64_t", "2",
           "The number of chunks at most; the largest number that divides the "
           "dimension is taken. 1: nothing is cut">,
    Option<"minBytes", "min-bytes", "int64_t", "1048577",
           "The least bytes of the operand of a chunk's collective on one rank">,
  ];
  let dependentDialects = ["::cleave::graph::GraphDialect"];
}

def VerifyPlaced : Pass<"spmd-verify-placed", "::mlir::ModuleOp"> {
  let summary = "Verifies that every value has a sharding";
  let description = [{
    The end of the phase `placed`: each argument and each result of an entry, and
    each result of its ops, has a sharding on the mesh of the module, with an
    entry for each of its dimensions. No dimension is open any more, and no
    argument and no result of an entry is partial.
  }];
}

def VerifyLocal : Pass<"spmd-verify", "::mlir::ModuleOp"> {
  let summary = "Verifies the shardings of a partitioned program";
  let description = [{
    Checks a partitioned program, from its ops and attributes alone:
    - Every local type is that of a shard of its global type and sharding.
    - Operands and results of each op agree on the axes of its factors.
    - A value is partial exactly where its op makes it partial. No partial value is
      an operand of an op that is not linear in it, or a result of the function.
    - Only partial values are reduced. Values are gathered and exchanged only over
      axes that shard them.
    - Ops that depend on the offset of a shard (random draws) read that offset.
    - Values that are rotated around a ring meet values rotated by the same number
      of steps.
  }];
}

def JoinBias : Pass<"spmd-join-bias", "::mlir::ModuleOp"> {
  let summary = "Lets products that no device sums add their biases";
  let description = [{
    Biases were separated from products (--graph-separate-bias) since a product may
    be summed over devices. One that is not adds its bias itself, as on one device:
    its sums are rounded once.
    ```mlir
    %0 = graph.linear %x, %w : (tensor<8x4xbf16>, tensor<6x4xbf16>) -> tensor<8x6xbf16>
    %y = graph.add %0, %b : (tensor<8x6xbf16>, tensor<6xbf16>) -> tensor<8x6xbf16>
    // becomes
    %y = graph.linear %x, %w bias %b : ...
    ```
    With `heads`, so does a product whose columns are several dimensions, as heads
    and their channels; its bias is rounded to the type of the product.
  }];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
  let options = [Option<"heads", "heads", "bool", "false",
                        "Also products whose columns are several dimensions">];
}

def KeepRows : Pass<"spmd-keep-rows", "::mlir::ModuleOp"> {
  let summary = "Does not sum rows of groups that only their own rank reads";
  let description = [{
    Where groups are sharded, a rank computes the rows of its own groups, and a
    sum over ranks completes the others. It is removed where ops on single rows
    lead to ops that read the rows of the same groups alone: between the layers of
    an expert, and in backward. The values between are marked as partial.
    ```mlir
    %0 = graph.grouped_linear %x, %w, %groups origin %o {global_size = 4 : i64} : ...
    %1 = spmd.all_reduce sum %0 over @mesh {"tp"} : tensor<8x6xf32>
    %2 = graph.relu %1 : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %3 = graph.grouped_linear %2, %v, %groups origin %o {global_size = 4 : i64} : ...
    // becomes
    %2 = graph.relu %0 : (tensor<8x6xf32>) -> tensor<8x6xf32>
    ```
    Runs on a partitioned program that has been verified.
  }];
}

def ExchangeRows : Pass<"spmd-exchange-rows", "::mlir::ModuleOp"> {
  let summary = "Sends rows to the ranks of their groups, not weights to rows";
  let description = [{
    Where groups (experts) and rows are sharded over the same axis of `axes`,
    partitioning gathers the weights of all groups, and scatters their gradients.
    Instead, each rank sorts its rows by group, sends them to the ranks of their
    groups (`spmd.all_to_all_rows`), and receives results in return: forward sends
    rows and results, backward the gradients of both. Ops between the
    layers of an expert are computed where its weights are.
    ```mlir
    %w = spmd.all_gather %v by <@mesh, [{"ep"}, {}, {} ]> : tensor<2x8x6xf32> -> tensor<4x8x6xf32>
    %y = graph.grouped_linear %x, %w, %groups : ...
    // becomes
    %order, %inverse, %offsets = graph.sort_rows %groups {size = 4} : ...
    %0 = graph.gather %x, %order : ...
    %1 = spmd.all_to_all_rows %0 from %send to %receive over @mesh {"ep"} : ...
    %2 = graph.grouped_contract %1, %v, %ranges : ...
    %3 = spmd.all_to_all_rows %2 from %receive to %send over @mesh {"ep"} : ...
    %y = graph.gather %3, %inverse : ...
    ```
    Each rank has room for all rows of all ranks; with `buffer`, for as many times
    an even share, and a step that needs more ends with an error before anything
    is updated. With `rounds`, what is returned of matmuls of 16-bit values is
    rounded to 16 bits before it is sent, as eager autocast rounds it, unless it is
    a partial sum. A remark says where weights are gathered nevertheless. Runs on
    a partitioned program that has been verified.

    With `dispatch=hierarchical`, tokens that choose several groups over several
    axes are sent over the first one, `node`, once to each node that holds a group
    that they choose; there they are tokens of the node's groups, which are
    sharded over the other axes. A node adds up the outputs of its groups, and
    sends them back once. `auto` does so wherever it can, a remark says where it
    cannot, and with `hierarchical` it is an error if no such axes are there.
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect",
                           "::cleave::spmd::SpmdDialect"];
  let options = [
    ListOption<"axes", "axes", "std::string",
               "The axes of the mesh that groups are sharded over">,
    Option<"dispatch", "dispatch", "std::string", "\"flat\"",
           "How rows go over several axes: auto, flat or hierarchical">,
    Option<"buffer", "buffer", "double", "0",
           "The rows a rank has room for, in even shares; 0: all rows">,
    Option<"rounds", "rounds", "bool", "false",
           "Sends sums in f32 of matmuls of 16-bit values in 16 bits">];
}

def WidenSums : Pass<"spmd-widen-sums", "::mlir::ModuleOp"> {
  let summary = "Sums products over devices in f32";
  let description = [{
    Where products that have 16 bits are summed over devices, the terms of a
    device and their sum are f32, and the sum is rounded once, as a product of one
    device is. Sums of other values keep their type, and so do gradients.
    ```mlir
    %y = graph.linear %x, %w : (tensor<8x4xbf16>, tensor<4x4xbf16>) -> tensor<8x4xbf16>
    %z = spmd.all_reduce sum %y over @mesh {"tp"} : tensor<8x4xbf16>
    // becomes
    %y = graph.linear %x, %w {result_element = f32} : ... -> tensor<8x4xf32>
    %s = spmd.all_reduce sum %y over @mesh {"tp"} : tensor<8x4xf32>
    %z = graph.cast %s : (tensor<8x4xf32>) -> tensor<8x4xbf16>
    ```
    Runs on a partitioned program.
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect"];
}

def NarrowSums : Pass<"spmd-narrow-sums", "::mlir::ModuleOp"> {
  let summary = "Sums activations over devices in 16 bits";
  let description = [{
    Where devices add f32 values, each of which has been computed of partial sums
    of 16 bits by moving, scaling and adding them, the terms of each device are
    rounded to that type before they are sent, as Megatron-LM sends outputs of
    experts; so are tokens of 16 bits that devices add to places of experts or
    take from them, and matmuls of 16 bits whose sum all readers round. Other sums
    keep their type: those of gradients of weights, whose
    terms are f32, of products along features, which are gradients of the weights
    of choices, and of norms and losses, which are partial where they are
    computed.
    ```mlir
    %w = graph.cast %y : (tensor<4x2x8xbf16>) -> tensor<4x2x8xf32>
    %s = graph.reduce sum %w {dims = array<i64: 1>} : ... -> tensor<4x8xf32>
    %z = spmd.all_reduce sum %s over @mesh {"tp"} : tensor<4x8xf32>
    // becomes
    %n = graph.cast %s : (tensor<4x8xf32>) -> tensor<4x8xbf16>
    %r = spmd.all_reduce sum %n over @mesh {"tp"} : tensor<4x8xbf16>
    %z = graph.cast %r : (tensor<4x8xbf16>) -> tensor<4x8xf32>
    ```
    Runs on a partitioned program.
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect"];
}

def MergeMatmuls : Pass<"spmd-merge-matmuls", "::mlir::ModuleOp"> {
  let summary = "Makes products of one value by several weights one product";
  let description = [{
    Weights are merged, along their first dimension, that are copies of parameters
    in another type: the copies are made in one buffer, and no element is copied
    once more. Query, key and
    value of attention become one product, as do a gate and what it gates. So do,
    in backward, the products of their gradients by the weights, if their sum is
    what is read, and the gradients of the weights and of the biases. The sum is
    rounded once: results differ by roundings.
    ```mlir
    %q = graph.linear %x, %wq : (tensor<8x4xbf16>, tensor<4x4xbf16>) -> tensor<8x4xbf16>
    %k = graph.linear %x, %wk : (tensor<8x4xbf16>, tensor<2x4xbf16>) -> tensor<8x2xbf16>
    // becomes
    %w = graph.concat %wq, %wk {dim = 0 : i64} : ... -> tensor<6x4xbf16>
    %y = graph.linear %x, %w : (tensor<8x4xbf16>, tensor<6x4xbf16>) -> tensor<8x6xbf16>
    %q = graph.slice %y {offsets = array<i64: 0, 0>, sizes = array<i64: 8, 4>, ...}
    %k = graph.slice %y {offsets = array<i64: 0, 4>, sizes = array<i64: 8, 2>, ...}
    ```
    Runs on a partitioned program: what is concatenated along a sharded dimension
    are shards of a device (`spmd.of_device`). Products of which one reads what
    another gives, or with a third one in between, stay apart. Without `gradients`,
    so do gradients of weights and biases, each of which an update in backward
    reads as soon as it is there.
  }];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
  let options = [Option<"gradients", "gradients", "bool", "true",
                        "Also merge gradients of weights and biases">];
}

#endif // CLEAVE_DIALECT_SPMD_TRANSFORMS_PASSES_TD
