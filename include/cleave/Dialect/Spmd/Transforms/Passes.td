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
  let summary = "Makes attention whose keys travel a ring into its steps";
  let description = [{
    An attention that is marked with `spmd.ring` sees, step by step, the keys of
    one position after the other; output and log-sum-exp are those of all keys
    so far. Backward is a second ring, behind a barrier, in which the gradients
    of keys and values travel with them, one step behind, and arrive where
    they belong. Nothing is gathered. What comes out is still a program of
    whole tensors: a step on blocks of queries beside blocks of keys.
    ```mlir
    %o, %lse = graph.attention %q, %k, %v {causal, spmd.ring = "cp"}
    // becomes, for two positions
    %k1 = spmd.rotate %k over @mesh {"cp"} dim 2
    %v1 = spmd.rotate %v over @mesh {"cp"} dim 2
    %o0, %lse0 = graph.attention %q, %k, %v query_starts [0, s] key_starts [0, s] {blocks = 2}
    %o, %lse = graph.attention %q, %k1, %v1 query_starts [0, s] key_starts [s, 0]
        onto %o0, %lse0 {blocks = 2, step = 1}
    ```
    Steps are unrolled: there are as many as positions, each is one command, and
    no later phase needs to know of loops.
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect",
                           "::cleave::spmd::SpmdDialect"];
}

def DecomposeContraction : Pass<"spmd-decompose-contraction", "::mlir::ModuleOp"> {
  let summary = "Makes products of blocks into the steps of SUMMA";
  let description = [{
    A contraction that is marked with `spmd.steps` has the shardings of its two
    operands and of its result there. Where a dimension that is summed over is
    split over one axis in one operand and over another one in the other, each
    step multiplies one part of both, which is sent to all who need it, and adds
    the product to those before. Where a dimension of the result is split over
    another axis than in the operand that has it, each step multiplies one part
    of that operand, and the sum of what all positions make is reduced into that
    part of the result. So no operand is gathered. A lookup in a table whose rows
    lie in parts looks up in one part after the other, and what is added to such a
    table is reduced into one part after the other. What comes out is still a
    program of whole tensors.

    Products that read the same in the same parts alternate: step by step, each
    part is sent once for all of them. They are brought to where the first is, with
    what they need of arguments, or to where the last is, with what needs them,
    unless one needs another, or other products or movements lie between that need
    one of them or read nothing of what they read. What stays apart is sent to each,
    with another number `apart`; but for operands that `spmd.held` names.
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
  let summary = "Opens a head and its loss where a recipe will split its classes";
  let description = [{
    A `graph.head_loss` becomes ops whose classes can be split: a maximum, a sum
    of exponentials and the target's logit of each row are then reduced, and no
    logits are moved. Rows are cut along the sequence into chunks, so that the
    samples stay split, and one chunk's logits, as a device has them, keep to the
    limits of `--graph-chunk-loss`. Gradients of the weight are added in the order
    of the chunks. All of them read the weight: where steps receive it, it is held
    (`spmd.held`).

    Needs `mesh` and `recipes` as `--spmd-apply-recipes` does, before that runs.
    Classes that the devices do not divide stay whole.
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
           "What will be done with them: megatron-sp,zero1">,
    Option<"microBatches", "micro-batches", "int64_t", "1",
           "Number of micro-batches of a step">,
    Option<"grains", "grains", "int64_t", "0",
           "Where positive: parts of the whole batch, in their place">,
    Option<"maxChunkBytes", "max-chunk-bytes", "int64_t", "104857600",
           "The bytes that the logits of one chunk may take on a device">,
    Option<"maxChunkRows", "max-chunk-rows", "int64_t", "384",
           "The rows of a chunk where the logits are cut at all, and where that "
           "makes 16 chunks at most">,
  ];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
}

def OrderSequence : Pass<"spmd-order-sequence", "::mlir::ModuleOp"> {
  let summary = "Puts sequences of causal attention in zig-zag order for a ring";
  let description = [{
    Under a causal mask a device that has the last of N chunks of a sequence
    sees N times as many keys as the first. In zig-zag order it has the chunks r
    and 2N-1-r of 2N, and all do the same. The program stays one of whole tensors,
    whose sequence comes in this order from where it is first split into places
    (the rows that ids look up, targets, positions) to results, which come in
    their own: what does not go by places does the same, what does (attention,
    dropout) is told where each chunk begins, and before all else the order is
    the old one.

    Needs `mesh` and `recipes` as `--spmd-apply-recipes` does, before that runs
    and before `--spmd-decompose-head`; does nothing without the recipe `ring`. A
    sequence that does not come in 2N chunks keeps its order, with a remark.
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
                        "As for --spmd-apply-recipes">];
}

def ApplyRecipes : Pass<"spmd-apply-recipes", "::mlir::ModuleOp"> {
  let summary = "Creates the mesh and annotates arguments as recipes say";
  let description = [{
    `mesh` names the axes, major to minor; each of `recipes` writes shardings of
    arguments, alike in all entries, and annotations between. They are applied
    in one order, however they are listed.
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
                        "What to do with them: megatron-sp,zero1">];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
}

def Place : Pass<"spmd-place", "::mlir::ModuleOp"> {
  let summary = "Creates the mesh and splits samples over micro-batches";
  let description = [{
    Adds the sequential axis `mb` to the mesh (or creates `@mesh`), and splits
    the dimension `graph.batch_dim` of each argument along it.
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
                        "Where positive: as many micro-batches as give each "
                        "device its share of so many parts of the batch">];
  let dependentDialects = ["::cleave::spmd::SpmdDialect"];
}

def Pad : Pass<"spmd-pad", "::mlir::ModuleOp"> {
  let summary = "Makes sizes divisible that annotations split unevenly";
  let description = [{
    Before propagation: where the axes that an argument's sharding or a
    `spmd.constrain` gives to a dimension do not divide it, that dimension, and
    all that the sharding rules join with it, are padded to a multiple of the
    product of the axes that split any of them. Later passes see sizes that
    divide.

    The valid elements come first. Arguments and results whose dimensions are
    padded say so in `graph.valid_shape`: who calls gives and gets that part;
    the padding of arguments is zero, and of what replaces them. A padded
    program is one of one device still, with the same numbers.

    What the padding of other values holds does not matter, but where an op's
    rule says so (`PaddingNeed`) and it is not known to be zero: there it is
    masked. An op that needs a dimension whole gets the valid part of it.
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
  let summary = "Gives every value a sharding, from those of the arguments";
  let description = [{
    Each op's rule says which dimensions run along one factor. What an operand
    says of a factor reaches the other operands and the results, in both
    directions, until nothing changes; closed dimensions keep what was given.
    Sequential axes go first, then what arguments say, then `spmd.constrain`.
    Where two disagree, that wins which more operands and results say, then what
    larger ones say, then the first in order, with a remark. What is a sum over an
    axis is not split by it on the way back, and is reduced where it is made if what
    its readers would reduce is no less.

    Then each result is marked partial where a split factor is summed over, or
    where the op is jointly linear in operands that are partial.
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
  let summary = "Rewrites each function for one shard";
  let description = [{
    Types become local. Where an op, an annotation or the function wants a value
    with another sharding than it has, or whole where it is partial, it is moved
    there by the cheapest sequence of movements: that which sends the fewest
    bytes from each position. A moved value serves all that want it, up to the
    next `graph.seed`: what crosses to backward does so in its smallest form and
    is gathered again there. Along a sequential axis nothing moves but sums.

    Each result keeps its global type and its sharding as attributes. Each
    movement is a remark of the category `spmd-partition` that names its op,
    axes, bytes and cause.
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
  let summary = "Fewer and smaller movements of a partitioned program";
  let description = [{
    An all_reduce that only a slice along its axes reads becomes a
    reduce_scatter; a slice of what was gathered by the same axes is what was
    gathered; equal movements are made once, though never across a
    `graph.seed`.
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

def VerifyLocal : Pass<"spmd-verify", "::mlir::ModuleOp"> {
  let summary = "Checks a partitioned program from its text alone";
  let description = [{
    Every local type is its global type split by its sharding; operands and
    results of each op agree on its factors; a value is partial exactly where
    its op makes it so; no partial value reaches an op that is not linear in it,
    or leaves the function; nothing is reduced that is not partial, and nothing
    gathered or exchanged over axes that do not split it there; what draws by
    the place of its shard reads that place.
  }];
}

#endif // CLEAVE_DIALECT_SPMD_TRANSFORMS_PASSES_TD
