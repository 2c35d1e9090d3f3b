//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_TRANSFORMS_PASSES_TD
#define CLEAVE_DIALECT_PIPE_TRANSFORMS_PASSES_TD

// The passes in pipeline order, and the files in
// lib/Dialect/Pipe/Transforms that implement them:
//
//   pipe-compress-stages CompressStages (on the model, before its gradients)
//   pipe-defer-update    DeferUpdate (the rewrite), DeferredOps (which ops move)
//   pipe-split-stages    SplitStages (the pass and its steps)
//                          Flow           roles and micro-batches by dataflow
//                          Stages         the stage of each op: forward
//                          BackwardStages the same for backward
//                          Balance        cuts of even cost, between layers
//                          Layers         the layers of a model, by structure
//                          NarrowTransfers
//                                         gradients in the type of activations
//                          SliceTransfers, SlicePlan
//                                         transfers in slices
//                          StepCollectives      collectives that run once in a step
//                          CollectParts   the ops and values of each part
//                          Parts          the parts of an entry, as a header
//                          OutlineParts   functions and the pipe.program
//   pipe-recompute       Recompute, RecomputePolicyText (policies in words),
//                        Blocks (of a model, by structure), SavedCut (what is saved),
//                        PassOn (of a backward in two parts), RecordSaved
//                        (of it, for the report), MinimumCut
//   pipe-remake-copies   RemakeCopies
//   pipe-narrow-saves    NarrowSaves
//   pipe-update-each     UpdateEach (EachProgram.h), UpdateConflicts (refusals)
//   pipe-post-validate   PostValidate
//   pipe-schedule        FillSchedule, HandWritten (schedules from text)
//   pipe-verify          VerifySchedule
//
// Costs estimates the time of parts, Order gives the actions of a program in
// order, and ValueViews says what is a view, for several of them. The order itself is the business of lib/Scheduling.

include "mlir/Pass/PassBase.td"

def CompressStages : Pass<"pipe-compress-stages", "::mlir::ModuleOp"> {
  let summary = "Sends the largest elements of activations to other stages";
  let description = [{
    Cuts the loss, before it is differentiated, into `count` stages as
    --pipe-split-stages does, and replaces each float activation that another
    stage reads by its `k` elements of largest magnitude in each row, the last
    dimension; all others are 0 (DCT-MP, arXiv 2010.08899). `k` is `density`
    times the size of a row, rounded, and at least 1. The stage that computes
    the value takes the elements and their indices, of 32 bits, and each stage
    that reads it puts them in their place:
    ```mlir
    %m = graph.abs %x : ...                              // tensor<8x16x64xf32>
    %v, %i = graph.top_k %m {k = 2 : i64} : ...
    %j = graph.cast %i : (tensor<8x16x2xi64>) -> tensor<8x16x2xi32>
    %e = graph.gather %x, %j {batch = 2, dim = 2} : ...  // tensor<8x16x2xf32>
    // in the next stage
    %y = graph.scatter_add %e, %j {batch = 2, dim = 2, size = 64, pipe.begins_stage = 1} : ...
    ```
    Derivatives of these ops take the elements of the gradient at the same
    indices and put them in their place: %e and %j are sent forward, and the
    gradient of %e is sent back. `pipe.begins_stage` is where --pipe-split-stages
    then cuts. Values that depend on no parameter, integers, and values of less
    than two dimensions are sent as they are.
  }];
  let options = [Option<"entry", "entry", "std::string", "\"loss\"",
                        "The function whose first result is the loss">,
                 Option<"density", "density", "double", "0",
                        "The share of the elements of a row that is sent">,
                 Option<"count", "count", "int64_t", "2",
                        "The number of stages">,
                 Option<"stages", "stages", "std::string", "\"\"",
                        "Where stages begin; see pipe-split-stages">,
                 Option<"precision", "precision", "std::string", "\"\"",
                        "With --graph-mixed-precision: the type that elements "
                        "are sent in, 16bit or f32">,
                 Option<"machine", "machine", "std::string", "\"\"",
                        "Rates for cost estimates; see pipe-split-stages">,
                 Option<"keepWhole", "keep-whole", "bool", "false",
                        "Prefer cuts of even cost that leave each parameter in "
                        "one stage">];
  let dependentDialects = ["::cleave::pipe::PipeDialect",
                           "::cleave::graph::GraphDialect"];
}

def DeferUpdate : Pass<"pipe-defer-update", "::mlir::ModuleOp"> {
  let summary = "Defers each update to the next step";
  let description = [{
    Moves the updates of a partitioned training entry to the next step, before the
    first reader of the parameter (forward-fusion, arXiv 2104.00237). An update is
    an op that depends on a finished gradient and reads the value that it
    replaces. The values of this step that updates read, gradients and values
    computed from them, are kept in arguments of role `gradient`; scalars of the
    step before are arguments such as `previous.lr`. If `update_pending` is false,
    no update is due, and parameters and state stay as they are. The updates alone
    become another entry, which runs before parameters are read when no step
    follows.
    ```mlir
    func.func @train(%w, %x, %lr) { %y = f(%w, %x); ...; %w1 = sgd %w, %g lr %lr; return %w1 }
    // becomes
    func.func @train(%w, %x, %kept, %previous, %pending) {
      %sgd = sgd %w, %kept lr %previous
      %w1 = graph.select %pending, %sgd, %w
      %y = f(%w1, %x); ...
      return %w1, %g  // updates w, and the kept gradient
    }
    func.func @update(%w, %kept, %previous, %pending) { ... return %w1 }
    ```
  }];
  let options = [Option<"target", "target", "std::string", "\"update\"",
                        "The name of the entry of the updates alone">];
  let dependentDialects = ["::cleave::graph::GraphDialect"];
}

def SplitStages : Pass<"pipe-split-stages", "::mlir::ModuleOp"> {
  let summary = "Outlines the parts of each entry";
  let description = [{
    Cuts each partitioned function into parts by dataflow. Ops that depend on no
    seed are forward (F), ops that depend on a seed are backward (B), and ops that
    depend on a finished gradient are the update (U). A sum over micro-batches
    that forward or backward reads moves, with the ops that it depends on, to a
    prologue (P), if it depends on no parameter; every other sum becomes an
    accumulated result. Values that are the same for each micro-batch are
    computed in each part that reads them. A `graph.check` is in the first part
    that has its operand.

    The mesh axis "pp" is the pipeline; each of its positions runs `chunks`
    stages. Forward is cut along its order into stages of even cost (flops and
    bytes of forward and of its backward, and the transfers that a stage
    receives), or at the parameters that `stages` names. Of the cuts whose slowest
    stage takes at most 5 % longer than it must, the one that sends least is
    taken: stages begin between layers, unless much is gained within one. Where
    ops have `pipe.begins_stage` (--pipe-compress-stages), stages begin with these
    ops instead. Ops that are cheap and
    depend on inputs alone, or that are the same for each micro-batch, are
    computed in each stage that reads them. Backward follows the forward values
    that it reads, and an update is in the stage of its parameter. A parameter
    that several stages read is held and updated by all of them, with the sum of
    their gradients. Scalars of all gradients, such as their norm, are combined
    from the scalars of each stage (N). All entries hold a parameter in the same
    stages.

    If the devices of a stage have replicas of a value that other stages read,
    each of them may send a slice, which the reader gathers. If the value depends
    on a sum over these devices, ops between the sum and the transfer are computed
    on the slice, and the sum becomes a reduce_scatter:
    ```mlir
    %s = spmd.all_reduce sum %p over @mesh {"tp"} : tensor<8x4xf32>
    %y = graph.add %s, %x                  // read only by the next stage
    // becomes
    %s = spmd.reduce_scatter sum %p by #spmd.sharding<@mesh, [{"tp"}, {} ]> ...
    %y = graph.add %s, %slice : tensor<4x4xf32>
    // and in the next stage
    %z = spmd.all_gather %y by #spmd.sharding<@mesh, [{"tp"}, {} ]> ...
    ```
    Stages of one position (`stage-map`, as schedules name it) send each other
    nothing, and such values stay whole.

    Collectives that reduce gradients accumulated over micro-batches are a part of
    their own (R). With `gather=once`, so are collectives of values that depend on
    parameters, optimizer state and constants alone (G): the part runs before
    forward, and all parts of all micro-batches read its results, also those
    behind a barrier that assigns them to backward. `auto` does so if these
    results have no more bytes than the parameters and state of a device.
    `gather-over` limits G to collectives over some axes, and to those that they
    depend on: a 16-bit copy of which ZeRO has a rank keep a shard over "dp" is
    gathered over "dp" once, and the blocks of it that SUMMA broadcasts over
    "row" are sent where they are read, as without ZeRO.

    With one micro-batch and one stage, updates join backward, so that gradients
    are freed early, unless a check or an op that reads several gradients comes
    between; with `fusion=backward` that is an error. Deferred updates
    (--pipe-defer-update) run in forward, or, if forward runs more than once,
    before it (D).
    ```mlir
    func.func @train(...) -> (tensor<f32>, tensor<4xf32>) { ... }
    // becomes
    pipe.program @train(...) -> (tensor<f32>, tensor<4xf32>)
        attributes {micro_batches = 4 : i64} {
      %s, %loss = pipe.invoke @train.F(%w, %x) {part = "F", ...} : ...
      %g = pipe.invoke @train.B(%w, %s) {part = "B", ...} : ...
      %w2 = pipe.invoke @train.U(%w, %g) {part = "U", once, ...} : ...
      pipe.return %loss, %w2 : tensor<f32>, tensor<4xf32>
    }
    func.func private @train.F(...) ...
    ```
  }];
  let options = [Option<"treeSums", "tree-sums", "bool", "false",
                        "Sum over micro-batches in a binary tree">,
                 Option<"stageMap", "stage-map", "std::string",
                        "\"modular\"",
                        "The pipeline position of each stage: modular, v or "
                        "bidirectional">,
                 Option<"stages", "stages", "std::string", "",
                        "For each stage from the second on, the prefix of a "
                        "parameter's name: the stage begins at the first reader "
                        "of that parameter. Separated by commas">,
                 Option<"chunks", "chunks", "int64_t", "1",
                        "The number of stages at each pipeline position">,
                 Option<"splitBackward", "split-backward", "bool", "false",
                        "Split backward into the ops that earlier stages wait for "
                        "(I) and the gradients of parameters (W)">,
                 Option<"machine", "machine", "std::string", "",
                        "Rates for cost estimates: "
                        "flops=1e11,memory=2e10,link=5e9">,
                 Option<"fusion", "fusion", "std::string", "\"auto\"",
                        "Whether updates join backward: auto, none or backward">,
                 Option<"keepWhole", "keep-whole", "bool", "false",
                        "Prefer cuts of even cost that leave each parameter, and "
                        "the ops that its gradient depends on, in one stage">,
                 Option<"slices", "slices", "std::string", "\"auto\"",
                        "Whether devices with replicas of a value send slices of "
                        "it to other stages: auto (if fewer elements are sent in "
                        "total, or as many where pp is the major axis), on "
                        "(wherever a dimension is divisible) or off">,
                 Option<"gather", "gather", "std::string", "\"each\"",
                        "When values that depend on parameters alone are "
                        "gathered: each (micro-batch), once (in a step) or auto">,
                 ListOption<"gatherOver", "gather-over", "std::string",
                            "With gather=once, the axes of collectives that run "
                            "once, with those that they depend on; all axes by "
                            "default">,
                 ListOption<"at", "at", "int64_t",
                            "For each stage from the second on, its beginning, in "
                            "thousandths of the ops of forward; instead of "
                            "`stages`">];
  let dependentDialects = ["::cleave::pipe::PipeDialect",
                           "::cleave::graph::GraphDialect"];
}

def Recompute : Pass<"pipe-recompute", "::mlir::ModuleOp"> {
  let summary = "Recomputes cheap values in backward instead of saving them";
  let description = [{
    Chooses the values that forward saves: the set of least bytes from which
    backward can compute everything else that it reads by element-wise and
    row-wise ops. It is a minimum cut of the forward part. A value that is much
    smaller than its operands (the statistics of a norm) stays saved.
    ```mlir
    // forward:  %h = linear(...); %a = gelu %h; %y = linear %a     saves %h, %a
    // becomes:  saves %h; backward starts from %h and recomputes gelu
    ```
    `policy` says what may be recomputed, of all blocks or of each (see
    RecomputePolicy.h): `none`, `free` (the above), `selective` (the core of an
    attention that is not one op: from the product of queries and keys to the
    softmax and its dropout; arXiv 2205.05198), `full` (all of a block, its
    collectives too, from what other blocks compute) or `regions` (the same of
    what the model runs in `torch.utils.checkpoint`, which the locations of ops
    say). Blocks are what the forward
    parts repeat, found by structure (Blocks.h). Views are always made again. A
    clone draws the same random numbers as its original. Of a backward in two
    parts the first one recomputes for both, and saves for the second what its
    matmuls read.

    The program records the decision for the report: `pipe.recomputed` has, for
    each kind of op and line of the model, the number of ops recomputed and the
    bytes of their results that are not saved; `pipe.unsaved_bytes` is the
    reduction of the bytes saved for one micro-batch; `pipe.recompute_work` the
    work that this adds, by stage; `pipe.saved` what is saved, by block.
  }];
  let options = [Option<"policy", "policy", "std::string",
                        "\"free,regions\"", "What may be recomputed">,
                 Option<"machine", "machine", "std::string", "\"\"",
                        "Rates by which a price counts; see pipe-split-stages">];
}

def RemakeCopies : Pass<"pipe-remake-copies", "::mlir::ModuleOp"> {
  let summary = "Makes copies of parameters again in backward";
  let description = [{
    With one micro-batch, the 16-bit copy of a parameter that a gather part (G)
    makes once is kept from forward to backward, beside the parameter. Backward
    reads the parameter instead, and makes the copy before its first use. With
    several micro-batches nothing changes: copies are made once in a step.
    ```mlir
    %c = pipe.invoke @train.G(%w) {part = "G", once, ...}
    %s = pipe.invoke @train.F(%c, %x) {part = "F", ...}
    %g = pipe.invoke @train.B(%c, %s) {part = "B", ...}
    // becomes
    %g = pipe.invoke @train.B(%w, %s) {part = "B", ...}   // begins with graph.cast
    ```
  }];
}

def NarrowSaves : Pass<"pipe-narrow-saves", "::mlir::ModuleOp"> {
  let summary = "Saves values for backward in fewer bits";
  let description = [{
    Floats that forward saves for backward of its stage are rounded where forward
    returns them, and converted back before their first use in backward (delayed
    precision reduction; Gist, ISCA 2018). Forward is unchanged; gradients read
    rounded values. Flags are packed, 32 in an i32, where they fill such numbers.
    Statistics of rows, which are small, keep their type, and so does what another
    stage, forward or an output of the step reads, as the loss that a head
    computes with its gradient. Run it behind --pipe-recompute: what is recomputed
    is not saved.

    Values are rounded as `graph.cast` does, without a scale: what is too large
    for fp16 is saved as infinity, and for fp8 (f8E4M3FN) as 448, with its sign.
    ```mlir
    return %h : tensor<8x16xf32>
    // becomes
    %s = graph.cast %h {pipe.narrowed} : (tensor<8x16xf32>) -> tensor<8x16xbf16>
    return %s : tensor<8x16xbf16>
    ```
  }];
  let options = [Option<"type", "type", "std::string", "\"bf16\"",
                        "The type of saved values: bf16, fp16 or fp8">];
  let dependentDialects = ["::cleave::graph::GraphDialect"];
}

def UpdateEach : Pass<"pipe-update-each", "::mlir::ModuleOp"> {
  let summary = "Updates after each micro-batch (asynchronous schedules)";
  let description = [{
    Turns programs of one micro-batch into programs of several, which are
    concatenated in the inputs. Each micro-batch is a step of its own: gradients
    are not accumulated, and the update runs after the backward of its
    micro-batch. A number that the program returns is the mean over micro-batches;
    a loss that comes with the number of elements that it is the mean of is the
    mean over all elements.

    Parameters and optimizer state have versions (see `version` of `pipe.invoke`).
    The step number that the program is given counts calls; the step number of
    micro-batch i is (step - 1) * count + i + 1, also for random numbers. Checks
    of inputs become a prologue (P).

    Updates that wait for other stages, parameters that several stages hold and
    checks of gradients contradict this, and are errors.
    ```mlir
    %g = pipe.invoke @train.B(%w, %s) {part = "B", ..., results = ["accumulate"]} : ...
    %w2 = pipe.invoke @train.U(%w, %g) {part = "U", once, ..., results = ["value"]} : ...
    // becomes
    %g = pipe.invoke @train.B(%w, %s) {part = "B", ..., results = ["saved"]} : ...
    %w2 = pipe.invoke @train.U(%w, %g) {part = "U", ..., results = ["version"]} : ...
    ```
  }];
  let options = [Option<"microBatches", "micro-batches", "int64_t", "1",
                        "The number of micro-batches">];
  let dependentDialects = ["::cleave::pipe::PipeDialect",
                           "::cleave::spmd::SpmdDialect",
                           "::cleave::graph::GraphDialect"];
}

def PostValidate : Pass<"pipe-post-validate", "::mlir::ModuleOp"> {
  let summary = "Updates before the scalars of other stages arrive";
  let description = [{
    Post-validation of optimizer updates (arXiv 2401.10241, section 4). An update
    that reads scalars of other stages, such as the terms of the global norm for
    clipping, runs as if these were 0. After it, a part V recomputes the scalars
    that tensors are updated with from the scalars of all stages, and computes the
    results and checks of the update. If a scalar differs from the assumed one, a
    part A repeats the update from the old values; otherwise its results are those
    of the first update.
    ```mlir
    %w2 = pipe.invoke @train.U(%w, %g, %n, %n1) {part = "U", once, ...}
    // becomes
    %w1, %c = pipe.invoke @train.U(%w, %g, %n) {part = "U", once, ...}
    %right = pipe.invoke @train.V(%n, %n1, %c) {part = "V", once, ...}
    %w2 = pipe.invoke @train.A(%w, %g, %n, %n1, %right, %w1)
        {part = "A", once, ..., unless = array<i64: 4, 5>}
    ```
    Checks take effect after the updates, which are undone if a check fails.
  }];
  let dependentDialects = ["::cleave::pipe::PipeDialect",
                           "::cleave::graph::GraphDialect"];
}

def FillSchedule : Pass<"pipe-schedule", "::mlir::ModuleOp"> {
  let summary = "Chooses the order of actions";
  let description = [{
    ```mlir
    pipe.program @train(...) attributes {micro_batches = 2 : i64}
    // becomes
    pipe.program @train(...) attributes {micro_batches = 2 : i64,
                                         schedule = "P0 P1 F0 B0 F1 B1 U"}
    ```
    The schedule of a pipeline has a list for each position, with its transfers.
    Entries that only run forward take the order of the forward actions.

    An order written by hand is that of the entry with most parts. If it has no
    transfers, they are inserted, and so are parts that it does not name, except
    forward and backward; if it has transfers, it must be complete. Errors are
    reported at the lines of the text.
  }];
  let options = [Option<"schedule", "schedule", "std::string", "",
                        "An order written by hand, instead of a generated one">,
                 Option<"file", "file", "std::string", "\"<schedule>\"",
                        "The file of that order, for messages">,
                 Option<"map", "map", "std::string", "",
                        "The stage map of that order, modular or v; by default "
                        "the one that it fits">,
                 Option<"kind", "kind", "std::string", "\"1f1b\"",
                        "The name of a generated schedule, or auto, which "
                        "searches for the fastest order">,
                 Option<"savedBytes", "saved-bytes", "int64_t", "-1",
                        "The most bytes that a pipeline position may have saved "
                        "for backward at a time; no limit if negative">,
                 Option<"maxStaleness", "max-staleness", "int64_t", "-1",
                        "For asynchronous schedules, the most updates between the "
                        "version that a micro-batch reads and its own update; no "
                        "limit if negative">,
                 Option<"machine", "machine", "std::string", "",
                        "Rates for cost estimates: "
                        "flops=1e11,memory=2e10,link=5e9">,
                 Option<"measuredCosts", "measured-costs", "std::string", "",
                        "Costs of parts measured in a run, in seconds, instead of "
                        "estimates: F=0.012,1F=0.013,F>=0.0004">,
                 Option<"measuredFrom", "measured-from", "std::string",
                        "\"<costs>\"",
                        "The source of these costs, for messages">];
}

def VerifySchedule : Pass<"pipe-verify", "::mlir::ModuleOp"> {
  let summary = "Checks the schedule of each program";
  let description = [{
    Each part of each micro-batch runs exactly once, at its pipeline position and
    after the parts that it reads, and the transfers do not deadlock. Each
    position that reads an argument which a program updates computes the update:
    otherwise its copy of the argument would keep the initial value.
  }];
}

#endif // CLEAVE_DIALECT_PIPE_TRANSFORMS_PASSES_TD
