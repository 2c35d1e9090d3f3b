//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_TRANSFORMS_PASSES_TD
#define CLEAVE_DIALECT_PIPE_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def DeferUpdate : Pass<"pipe-defer-update", "::mlir::ModuleOp"> {
  let summary = "Leaves each update to the next step";
  let description = [{
    Of a partitioned entry that trains: what depends on a finished gradient and
    reads what it replaces moves to the next step, before the first reader of the
    parameter (forward-fusion, arXiv 2104.00237). What it reads of this step, the
    gradients and what is made of all of them, is kept in arguments of role
    `gradient`; scalars are those of the step before, `previous.lr`. Where
    `update_pending` is false there is nothing to make up for, and parameters and
    state stay as they are. The updates alone become an entry, to be run where no
    step follows: before parameters are read.
    ```mlir
    func.func @train(%w, %x, %lr) { %y = f(%w, %x); ...; %w1 = sgd %w, %g lr %lr; return %w1 }
    // becomes
    func.func @train(%w, %x, %kept, %previous, %pending) {
      %sgd = sgd %w, %kept lr %previous
      %w1 = graph.select %pending, %sgd, %w
      %y = f(%w1, %x); ...
      return %w1, %g  // updates w, and what is kept
    }
    func.func @update(%w, %kept, %previous, %pending) { ... return %w1 }
    ```
  }];
  let options = [Option<"target", "target", "std::string", "\"update\"",
                        "The entry of the updates alone">];
  let dependentDialects = ["::cleave::graph::GraphDialect"];
}

def SplitStages : Pass<"pipe-split-stages", "::mlir::ModuleOp"> {
  let summary = "Outlines the parts of each entry";
  let description = [{
    Cuts each partitioned function by dataflow: what depends on no seed is
    forward (F), what depends on one backward (B), what depends on a finished
    gradient update (U). A sum over micro-batches that forward or backward needs
    whole moves, with what it is made of, to a prologue (P), if it depends on no
    parameter; every other sum becomes an accumulated result. What is the same
    for each micro-batch is computed where it is used. A `graph.check` stands in
    the first part that has its operand.

    The positions of a mesh axis "pp" are stages of a pipeline. Forward is cut
    along its order into as many, of even cost (flops and bytes of forward and of
    the backward that stands with it, and what a stage receives), or where
    `stages` says; what cheaply comes from inputs alone, or is
    the same for each micro-batch, is computed in each stage that reads it.
    Backward follows what it reads of forward, and an update stands where its
    parameter is. A parameter that several stages read is held and updated by all
    of them, with the sum of their gradients. Scalars of all gradients, such as
    their norm, are made of what each stage gives (N). All entries have parameters
    in the same stages.

    What the devices of a stage have in common, and others read, each may send in
    a slice, which is gathered where it is read. Ops behind a sum over these
    devices that are there for what is sent alone are done on the slice, and the
    sum becomes a reduce_scatter:
    ```mlir
    %s = spmd.all_reduce sum %p over @mesh {"tp"} : tensor<8x4xf32>
    %y = graph.add %s, %x                  // read by the next stage alone
    // becomes
    %s = spmd.reduce_scatter sum %p by #spmd.sharding<@mesh, [{"tp"}, {} ]> ...
    %y = graph.add %s, %slice : tensor<4x4xf32>
    // and in the next stage
    %z = spmd.all_gather %y by #spmd.sharding<@mesh, [{"tp"}, {} ]> ...
    ```

    What devices exchange of finished sums over micro-batches to make gradients of
    them is a part of its own (R). With `gather=once`, so is what they exchange of
    values that are made of parameters, optimizer's state and constants alone (G):
    it runs before forward, and all parts of all micro-batches read its results,
    also those that a barrier leaves to backward. `auto` does so where these
    results have no more bytes than the parameters and state of a device.

    With one micro-batch and stage, updates join backward, so that gradients die early,
    unless a check or an op that reads several gradients stands between; with
    `fusion=backward` what stands between is an error. Updates that the step before has
    left (--pipe-defer-update) run in forward, or, where that runs more than once, before it
    (D).
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
                 Option<"stages", "stages", "std::string", "",
                        "Where stages begin, from the second on: with what first "
                        "reads a parameter whose name begins so, with commas "
                        "between">,
                 Option<"chunks", "chunks", "int64_t", "1",
                        "Stages for each position of the pipeline">,
                 Option<"splitBackward", "split-backward", "bool", "false",
                        "Backward in two parts: what earlier stages wait for (I), "
                        "and gradients of parameters (W)">,
                 Option<"machine", "machine", "std::string", "",
                        "Rates that costs are estimated by: "
                        "flops=1e11,memory=2e10,link=5e9">,
                 Option<"fusion", "fusion", "std::string", "\"auto\"",
                        "Whether updates join backward: auto, none or backward">,
                 Option<"keepWhole", "keep-whole", "bool", "false",
                        "Of even cuts, take those that leave each parameter and "
                        "what its gradient is made of in one stage, where there "
                        "are any">,
                 Option<"slices", "slices", "std::string", "\"auto\"",
                        "Whether devices that have a value in common send it to "
                        "other stages in slices: auto (where fewer elements are "
                        "sent in all), on (wherever it divides) or off">,
                 Option<"gather", "gather", "std::string", "\"each\"",
                        "When what is made of parameters alone is exchanged: for "
                        "each micro-batch, once for a step, or auto">,
                 ListOption<"at", "at", "int64_t",
                            "Where stages begin instead, from the second on: "
                            "thousandths of the ops of forward that stand "
                            "before">];
  let dependentDialects = ["::cleave::pipe::PipeDialect",
                           "::cleave::graph::GraphDialect"];
}

def Recompute : Pass<"pipe-recompute", "::mlir::ModuleOp"> {
  let summary = "Recomputes cheap values in backward instead of saving them";
  let description = [{
    Chooses what forward saves so that the bytes saved are least and backward
    can compute everything else it reads by ops that only stream elements or
    rows: a minimum cut of the forward part. A value much smaller than what it
    is made from (the statistics of a norm) stays saved.
    ```mlir
    // forward:  %h = linear(...); %a = gelu %h; %y = linear %a     saves %h, %a
    // becomes:  saves %h; backward starts from %h and computes gelu again
    ```
    What was decided stands on the program, for the report: `pipe.recomputed`
    has, for each kind of op and line of the model, how many are computed again
    and the bytes of their results that would have been saved, and
    `pipe.unsaved_bytes` is by how much less is saved for one micro-batch.
  }];
}

def UpdateEach : Pass<"pipe-update-each", "::mlir::ModuleOp"> {
  let summary = "Updates behind each micro-batch";
  let description = [{
    Takes programs of one micro-batch, and makes of them programs of several that
    lie side by side in their inputs, each of which is a step of its own: its
    gradients are not added to others', and its update is made behind its
    backward. What the program returns of a number is its mean; a loss that says
    of how many elements it is the mean, that of all elements.

    Parameters and the optimizer's state have versions (see `version` of
    `pipe.invoke`). The number of the step that the program is given counts its
    calls: that of micro-batch i is (step - 1) * count + i + 1, also for random
    numbers. Checks of inputs become a prologue (P).

    Updates that wait for other stages, a parameter that several stages hold and
    checks of gradients are reported: they contradict it.
    ```mlir
    %g = pipe.invoke @train.B(%w, %s) {part = "B", ..., results = ["accumulate"]} : ...
    %w2 = pipe.invoke @train.U(%w, %g) {part = "U", once, ..., results = ["value"]} : ...
    // becomes
    %g = pipe.invoke @train.B(%w, %s) {part = "B", ..., results = ["saved"]} : ...
    %w2 = pipe.invoke @train.U(%w, %g) {part = "U", ..., results = ["version"]} : ...
    ```
  }];
  let options = [Option<"microBatches", "micro-batches", "int64_t", "1",
                        "How many there are">];
  let dependentDialects = ["::cleave::pipe::PipeDialect",
                           "::cleave::spmd::SpmdDialect",
                           "::cleave::graph::GraphDialect"];
}

def PostValidate : Pass<"pipe-post-validate", "::mlir::ModuleOp"> {
  let summary = "Updates stages before others have said what they must know";
  let description = [{
    An update that reads scalars of other stages, such as the parts of the global
    norm that a clip needs, is made as if these were 0: with what its own stage
    has. Behind it, a part V makes the scalars that tensors are updated with once
    more, of what all stages have sent, and all that the update reports and
    checks. Where a scalar differs from what was assumed, a part A updates again,
    from the values before; else its results are those that there are.
    ```mlir
    %w2 = pipe.invoke @train.U(%w, %g, %n, %n1) {part = "U", once, ...}
    // becomes
    %w1, %c = pipe.invoke @train.U(%w, %g, %n) {part = "U", once, ...}
    %right = pipe.invoke @train.V(%n, %n1, %c) {part = "V", once, ...}
    %w2 = pipe.invoke @train.A(%w, %g, %n, %n1, %right, %w1)
        {part = "A", once, ..., unless = array<i64: 4, 5>}
    ```
    Checks take effect behind the updates, which are taken back then.
  }];
  let dependentDialects = ["::cleave::pipe::PipeDialect",
                           "::cleave::graph::GraphDialect"];
}

def FillSchedule : Pass<"pipe-schedule", "::mlir::ModuleOp"> {
  let summary = "Chooses the order of the actions";
  let description = [{
    ```mlir
    pipe.program @train(...) attributes {micro_batches = 2 : i64}
    // becomes
    pipe.program @train(...) attributes {micro_batches = 2 : i64,
                                         schedule = "P0 P1 F0 B0 F1 B1 U"}
    ```
    A pipeline has a list for each of its positions, with what they send each
    other. Entries that only run forward take the same order, without the rest.

    An order written by hand is that of the entry with most parts. Where it has no
    transfers they are added, and so are the parts that it does not name, but for
    forward and backward; where it has some, all are taken as they are written.
    What is wrong with it is reported at its own lines.
  }];
  let options = [Option<"schedule", "schedule", "std::string", "",
                        "An order written by hand, instead of a generated one">,
                 Option<"file", "file", "std::string", "\"<schedule>\"",
                        "Of that: where it was read from, for messages">,
                 Option<"map", "map", "std::string", "",
                        "Of that: which stages a position of the pipeline has, "
                        "modular or v; the one that it fits by default">,
                 Option<"kind", "kind", "std::string", "\"1f1b\"",
                        "What generates the order of a pipeline, or auto, which "
                        "searches for the fastest">,
                 Option<"savedBytes", "saved-bytes", "int64_t", "-1",
                        "The most that a position of the pipeline may have saved "
                        "for backward at a time; any number if negative">,
                 Option<"maxStaleness", "max-staleness", "int64_t", "-1",
                        "Of an asynchronous schedule: the most updates that come "
                        "between what a micro-batch reads and its own; any number "
                        "if negative">,
                 Option<"machine", "machine", "std::string", "",
                        "Rates that costs are estimated by: "
                        "flops=1e11,memory=2e10,link=5e9">,
                 Option<"measuredCosts", "measured-costs", "std::string", "",
                        "In their place, the seconds that parts took in a run: "
                        "F=0.012,1F=0.013,F>=0.0004">,
                 Option<"measuredFrom", "measured-from", "std::string",
                        "\"<costs>\"",
                        "Of these: where they come from, for messages">];
}

def VerifySchedule : Pass<"pipe-verify", "::mlir::ModuleOp"> {
  let summary = "Checks the schedule of each program";
  let description = [{
    Each part of each micro-batch runs exactly once, on its device and not before
    what it reads, and no order of transfers waits for ever.
  }];
}

#endif // CLEAVE_DIALECT_PIPE_TRANSFORMS_PASSES_TD
