//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_TRANSFORMS_PASSES_TD
#define CLEAVE_DIALECT_GRAPH_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def Differentiate : Pass<"graph-differentiate", "::mlir::ModuleOp"> {
  let summary = "Adds an entry that computes the gradients of the loss";
  let description = [{
    Reverse-mode differentiation of result 0 of `entry`, a float scalar, for
    every parameter that is not `graph.frozen`; if results are marked
    `graph.loss`, of their sum. `entry` is left unchanged. The new entry
    `target` is a copy of it, followed by `graph.seed`, the adjoints of the ops
    between an unfrozen parameter and the loss, in reverse order, and a
    `graph.gradient` for each parameter as soon as the last of its uses has
    contributed. The result of `graph.stop_gradient` is a constant; in `target`
    the op is replaced by its operand. A parameter that the loss does not depend
    on has a zero gradient. Contributions of several uses are added from the
    last use to the first.

    The gradients become further results, with `graph.of` = the parameter's name
    and `graph.name` = that name + `.grad`; `--graph-apply-optimizer` replaces
    them by updates.
    ```mlir
    func.func @loss(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                    %x: tensor<4xf32> {graph.name = "x", graph.role = "input"})
        -> (tensor<f32> {graph.name = "loss"}) {
      %0 = graph.mul %w, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
      return %1 : tensor<f32>
    }
    // becomes, beside it
    func.func @train(%w: ..., %x: ...) -> (tensor<f32> {graph.name = "loss"},
        tensor<4xf32> {graph.name = "w.grad", graph.of = "w"}) {
      %0 = graph.mul %w, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
      %2 = graph.seed %1 : (tensor<f32>) -> tensor<f32>
      %3 = graph.broadcast %2 : (tensor<f32>) -> tensor<4xf32>
      %4 = graph.mul %3, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %5 = graph.gradient %4 of "w" : (tensor<4xf32>) -> tensor<4xf32>
      return %1, %5 : tensor<f32>, tensor<4xf32>
    }
    ```
  }];
  let options = [
    Option<"entry", "entry", "std::string", "\"loss\"",
           "The function whose result 0 is the loss">,
    Option<"target", "target", "std::string", "\"train\"",
           "The name of the function to create">,
    Option<"dropEntry", "drop-entry", "bool", "false",
           "Remove `entry`, after the new entry is created">,
  ];
}

def Interlock : Pass<"graph-interlock", "::mlir::ModuleOp"> {
  let summary = "Adds auxiliary heads to modules and limits how far gradients flow";
  let description = [{
    Interlocking backpropagation (arXiv 2010.04116). `target` is a copy of
    `entry` that is cut into M consecutive modules at points where one
    activation, the hidden state, is live. Values that depend on no parameter,
    or on parameters alone, do not count. Each module except the last is
    followed by an auxiliary head: a copy of the final head (the ops from the
    last module to result 0) with a parameter of its own,
    `auxiliary.<k>.<name>`, for each trained one. A tied table is a separate
    parameter in each head.

    A head's parameters are trained by its own loss alone. The other parameters
    of module j are trained by one head alone, that of module min(j + horizon -
    1, M): with a horizon of 1 modules learn locally, with M or more training is
    as without heads. The losses become further results, `auxiliary_loss.<k>`,
    and `--graph-differentiate` takes the sum of all. `graph.stop_gradient` is
    put before what a head does not train. For that, modules are copied up to
    `horizon` times; differentiation and `--cse` merge the copies, because
    random ops keep their ids.

    `modules` is M, for modules of even cost, or prefixes of parameter names,
    `h.3.,h.6.`: a module begins with the first reader of such a parameter.
    `head` is the same kind of prefix for the head; if it is empty, the head
    begins with the first reader of the hidden state after the last reader of a
    parameter of a numbered list (`h.0.`, `h.1.`, ...).
    ```mlir
    %h = graph.linear %x, %layers.0 : ...
    %y = graph.linear %h, %layers.1 : ...
    %loss = graph.reduce sum %logits ...  // of a linear with %head
    return %loss
    // becomes, with modules=2 horizon=1
    %h = graph.linear %x, %layers.0 : ...
    %h1 = graph.linear %x, %layers.0 : ...
    %l1 = graph.linear %h1, %auxiliary.1.head : ...
    %loss1 = graph.reduce sum %l1 ...
    %s = graph.stop_gradient %h : ...
    %y = graph.linear %s, %layers.1 : ...
    %l = graph.linear %y, %head : ...
    %loss = graph.reduce sum %l ...
    return %loss, %loss1
    ```
  }];
  let options = [
    Option<"entry", "entry", "std::string", "\"loss\"",
           "The function whose result 0 is the loss">,
    Option<"target", "target", "std::string", "\"interlocked\"",
           "The name of the function to create">,
    Option<"horizon", "horizon", "int64_t", "1",
           "The number of modules that a gradient passes through, including the one it trains">,
    Option<"modules", "modules", "std::string", "\"\"",
           "The number of modules, or the prefixes at which they begin, from the second on">,
    Option<"head", "head", "std::string", "\"\"",
           "The prefix at which the head begins">,
  ];
}

def ApplyOptimizer : Pass<"graph-apply-optimizer", "::mlir::ModuleOp"> {
  let summary = "Turns gradients into a whole training step";
  let description = [{
    Rewrites `entry`, the result of `--graph-differentiate`: one optimizer op
    per trained parameter reads its gradient, and the updated values become
    results.

    New arguments, after those of the model: the optimizer's state, for each
    parameter in order (`graph.role = "state"`, `graph.of`, `graph.slot` and
    `graph.name` = `<parameter>.<slot>`), then the scalars `lr : tensor<f32>` and
    `step : tensor<i64>`, the number of this update, from 1. Results: the loss,
    `grad_norm` where gradients are clipped, then each parameter and its state,
    with `graph.updates` = the name of the argument that it replaces.

    The argument attributes `graph.weight_decay` and `graph.lr_scale` override
    weight decay and scale the learning rate for one parameter, and
    `graph.optimizer` other settings, or the rule: `{rule = "sgd", momentum =
    9.0e-01 : f64}`. Without clipping a parameter is updated as soon as its
    gradient is known. A rule is a file in `Optimizers/`; each of its settings is
    also an option of this pass (`beta1`, `weight-decay`, ...).

    `graph.check` ops stop the step, before anything is updated, if the loss
    divides by a number of elements that is zero for this batch (for example if
    every target is ignored), or if the norm of a clip is not finite. With
    `check-finite` they also stop it if a loss or a gradient is not finite: the
    norm of all of them times zero is then NaN, and otherwise zero, even if the
    square of a finite element overflows.

    With `scale-loss` every seed of the backward pass is multiplied by the
    argument "loss_scale" (arXiv 1710.03740, section 3.2), updates divide by it,
    and a step of which these checks fail is skipped.
    ```mlir
    %g = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
    return %loss, %g : tensor<f32>, tensor<4xf32>
    // becomes, with optimizer=sgd
    %g = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
    %w1 = graph.sgd %w, %g lr %lr, %step {...}
    return %loss, %w1 : tensor<f32>, tensor<4xf32>
    ```
  }];
  let options = [
    Option<"entry", "entry", "std::string", "\"train\"",
           "The function that holds the gradients">,
    Option<"optimizer", "optimizer", "std::string", "\"adamw\"",
           "The update rule">,
    Option<"maxGradNorm", "max-grad-norm", "double", "0.0",
           "Scale gradients down to this norm; 0: do not clip">,
    Option<"checkFinite", "check-finite", "bool", "false",
           "Stop a step whose loss or gradients are not finite">,
    Option<"scaleLoss", "scale-loss", "bool", "false",
           "Scale gradients by an argument, and skip a step that overflows">,
  ];
}

def DelayUpdates : Pass<"graph-delay-updates", "::mlir::ModuleOp"> {
  let summary = "Updates parameters by gradients of earlier steps";
  let description = [{
    The update of a parameter with delay d is made of the gradient of d steps
    before: `w[t+1] = w[t] - u(g[t-d])`. This changes the mathematics of a step.
    The gradients in between are state, `<parameter>.pending_1` (of the step
    before) to `pending_<d>`, which the first d steps fill: they update neither
    the parameter nor its state. The number of an update, as corrections of a
    bias read it, counts from the first. The learning rate is that of the step.

    `delay` is a number of steps for all parameters, and patterns with numbers:
    `1,embed*=0,*.bias=2`. The norm of a clip is that of the gradients that are
    used. Checks stay with the gradients of the step. Runs after
    `--graph-apply-optimizer`, before anything is placed.
    ```mlir
    %g = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
    %w1 = graph.sgd %w, %g lr %lr, %step {...}
    return %w1 : tensor<4xf32>
    // becomes, with delay=1
    %due = graph.compare gt %step, %one
    %old = graph.gradient %pending of "w.pending_1" : (tensor<4xf32>) -> tensor<4xf32>
    %g = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
    %u = graph.sgd %w, %old lr %lr, %earlier_step {...}
    %w1 = graph.select %due, %u, %w
    %kept = graph.written %g of "w.pending_1"
    return %w1, %kept : tensor<4xf32>, tensor<4xf32>
    ```
  }];
  let options = [
    Option<"entry", "entry", "std::string", "\"train\"",
           "The function that updates parameters">,
    Option<"delay", "delay", "std::string", "\"1\"",
           "Steps from a gradient to its update: 1,embed*=0">,
  ];
}

def MixedPrecision : Pass<"graph-mixed-precision", "::mlir::ModuleOp"> {
  let summary = "Computes with 16-bit operands and f32 sums";
  let description = [{
    Mixed precision as in arXiv 1710.03740, on whole tensors, after the
    optimizer has been applied. Parameters, optimizer state, gradients and all
    arguments and results keep their types: a parameter is its own f32 master,
    and what contractions and attention read is a copy of it, made by one cast.
    Factors of contractions are 16-bit, and sums are f32. The gradient of a
    parameter stays an f32 sum up to `graph.gradient`; other results of
    contractions are cast to 16 bits where they are read, and, where they are
    saved for backward, saved in 16 bits. Losses, softmax, reductions and
    decisions (a router's choice of experts) are f32; norms keep statistics in
    f32; other ops follow their operands. What follows operands of both types is
    computed in f32 and rounded, unless `wide-residual` is given: then it stays
    f32, as the sum of embeddings and blocks does, and embeddings are read in
    f32. With `round-sums` a contraction rounds its own result, so that a sum
    over shards is exchanged in 16 bits. With `round-gradients` so does the one
    that yields the gradient of a weight, which is then added up over
    micro-batches and ranks in 16 bits; gradients that are sums of other ops
    (those of embeddings, biases and norms) stay f32.

    An op with `graph.precision = "f32"` is computed in f32, and one with "16bit"
    reads 16-bit operands, whatever its policy is; so are their gradients. What
    replaces such an op before has its attribute.
    ```mlir
    %y = graph.linear %x, %w : (tensor<8x4xf32>, tensor<16x4xf32>) -> tensor<8x16xf32>
    %z = graph.relu %y : (tensor<8x16xf32>) -> tensor<8x16xf32>
    // becomes
    %w16 = graph.cast %w : (tensor<16x4xf32>) -> tensor<16x4xbf16>
    %y = graph.linear %x, %w16 {result_element = f32}
        : (tensor<8x4xbf16>, tensor<16x4xbf16>) -> tensor<8x16xf32>
    %y16 = graph.cast %y : (tensor<8x16xf32>) -> tensor<8x16xbf16>
    %z = graph.relu %y16 : (tensor<8x16xbf16>) -> tensor<8x16xbf16>
    ```
  }];
  let options = [
    Option<"precision", "precision", "std::string", "\"bf16\"",
           "The type of 16 bits: bf16 or fp16">,
    Option<"wideResidual", "wide-residual", "bool", "false",
           "Keep f32 what is computed from f32 and 16-bit values">,
    Option<"roundSums", "round-sums", "bool", "false",
           "Round the results of contractions before shards are summed">,
    Option<"roundGradients", "round-gradients", "bool", "false",
           "Let contractions round gradients of weights">,
    Option<"keepChosen", "keep-chosen", "bool", "false",
           "Leave `graph.precision = \"16bit\"` on contractions, for --graph-fp8">,
  ];
}

def ScaleToFp8 : Pass<"graph-fp8", "::mlir::ModuleOp"> {
  let summary = "Computes linear layers with 8-bit operands and scales";
  let description = [{
    Delayed scaling, as in Transformer Engine, on whole tensors, after
    `--graph-mixed-precision`. A contraction of 16-bit operands that multiplies
    an activation by a weight, and those that compute its gradients, read copies
    in 8 bits: f8E4M3FN of activations and weights, f8E5M2 of what depends on a
    seed. A copy is the tensor times its scale, in which what is larger than the
    largest number becomes that number; it is made from f32 where the 16-bit
    operand was rounded from it, once. Sums are multiplied by the reciprocals of
    both scales. Attention, and heads, of which no other contraction reads the
    result, stay as they are, and so does what has `graph.precision`.

    Each tensor has one scale, a number, and a history of the largest absolute
    values of the last `history` steps: new arguments of role "state" of the
    entry with gradients, named after the parameter of the first layer that
    reads the tensor. A step computes with the scale that the step before has
    left, and writes, by `graph.written`, the history with its own maximum, and
    the scale (largest number / maximum of the history) / 2^`margin`, or the old
    scale if that maximum is zero or not finite. State begins as zero: a scale
    of zero means 1. Other entries read the scales alone.
    ```mlir
    %w16 = graph.cast %w : (tensor<16x4xf32>) -> tensor<16x4xbf16>
    %y = graph.linear %x, %w16 {result_element = f32} : (tensor<8x4xbf16>, tensor<16x4xbf16>) -> tensor<8x16xf32>
    // becomes, with the clamped and scaled operands %sx and %sw
    %x8 = graph.cast %sx : (tensor<8x4xf32>) -> tensor<8x4xf8E4M3FN>
    %w8 = graph.cast %sw : (tensor<16x4xf32>) -> tensor<16x4xf8E4M3FN>
    %s = graph.linear %x8, %w8 {result_element = f32} : ...
    %y = graph.mul %s, %inverse : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
    ```
  }];
  let options = [
    Option<"history", "history", "int64_t", "1024",
           "The steps whose maxima decide a scale">,
    Option<"margin", "margin", "int64_t", "0",
           "The powers of two by which scales are smaller">,
  ];
}

def Prune : Pass<"graph-prune", "::mlir::ModuleOp"> {
  let summary = "Multiplies updated weights by masks";
  let description = [{
    Rewrites `entry`, a training step: each weight of a contraction that it
    trains is zero where its mask is. `2:4` keeps, of each four elements along
    the dimensions that contractions sum over, the two of largest magnitude; a
    number `s` keeps all but `round(s n)` of the `n` elements of a tensor. Of
    equal magnitudes the lower index is kept.

    `steps=T`: up to the T-th update the mask is chosen anew, from the updated
    weight; from then on it is what was not zero before the update. With `cubic`
    (T is 1000 by default) the sparsity of step t is `s (1 - (1 - t/T)^3)` (arXiv
    1710.01878); without, T is 1.

    A parameter that forward reads in another way, as an embedding, stays dense,
    with a remark, as does one whose inputs are not divisible by 4, for `2:4`, or
    of which no element or all of them would be zero.
    ```mlir
    %w1 = graph.sgd %w, %g lr %lr, %step {...}
    return %loss, %w1 : tensor<f32>, tensor<4xf32>
    // becomes
    %w1 = graph.sgd %w, %g lr %lr, %step {...}
    %size = graph.abs %w1 : ...
    %chosen = ... // by magnitude
    %mask = graph.select %is_fixed, %was_not_zero, %chosen : ...
    %w2 = graph.select %mask, %w1, %zero : ...
    return %loss, %w2 : tensor<f32>, tensor<4xf32>
    ```
  }];
  let options = [
    Option<"entry", "entry", "std::string", "\"train\"",
           "The training step">,
    Option<"prune", "prune", "std::string", "\"2:4\"",
           "What is zero: 2:4, or the share of elements; constant or cubic; steps=T">,
  ];
}

def Quantize : Pass<"graph-quantize", "::mlir::ModuleOp"> {
  let summary = "Rounds the weights that contractions read to 8 bits";
  let description = [{
    Quantization-aware training (arXiv 1712.05877), after differentiation. What
    ops read of a weight of contractions, except those of the update, is `s
    round(w / s)` with `s = max |w| / 127` over the dimensions that contractions
    sum over: symmetric, a scale for each output channel. Ties are rounded to
    even. A channel of zeros has the scale zero. The gradient of the rounded
    weight is taken as that of the weight (straight-through), and nothing flows
    through scales. Which parameters are weights is decided in `entry`; other
    entries read them likewise.
    ```mlir
    %y = graph.linear %x, %w : (tensor<8x4xf32>, tensor<16x4xf32>) -> tensor<8x16xf32>
    // becomes
    %a = graph.abs %w : (tensor<16x4xf32>) -> tensor<16x4xf32>
    %m = graph.reduce max %a {dims = array<i64: 1>} : (tensor<16x4xf32>) -> tensor<16xf32>
    %s = graph.div %m, %c127 : (tensor<16xf32>, tensor<f32>) -> tensor<16xf32>
    %q = ... // round %w / %s
    %r = graph.mul %q, %s_of_rows : ...
    %y = graph.linear %x, %r : (tensor<8x4xf32>, tensor<16x4xf32>) -> tensor<8x16xf32>
    ```
  }];
  let options = [
    Option<"entry", "entry", "std::string", "\"train\"",
           "The training step">,
    Option<"type", "type", "std::string", "\"int8\"",
           "The type of the codes: int8">,
  ];
}

def DeriveEvaluate : Pass<"graph-derive-evaluate", "::mlir::ModuleOp"> {
  let summary = "Adds an entry that computes the loss without randomness";
  let description = [{
    `target` is a copy of `entry` in which no op draws random numbers, and which
    has no `rng` argument: it computes the loss of evaluation. If the loss
    divides by a sum over inputs, such as the number of valid targets, that sum
    is a further result, `loss_weight`: the mean of the losses of several
    batches, weighted by it, is the loss of all of them. Results that
    update buffers are left out. A function `target` that exists is kept, also
    without randomness: a model that writes buffers or asks for its mode computes
    another function in evaluation. An attribute `graph.unevaluated` of the module
    says why the model has no loss in evaluation: then there is no `target`.
    ```mlir
    %0 = graph.dropout %x, %rng {probability = 1.0e-01 : f64, id = 0 : i64} : ...
    %1 = graph.exp %0 : (tensor<4xf32>) -> tensor<4xf32>
    // becomes, in the copy
    %1 = graph.exp %x : (tensor<4xf32>) -> tensor<4xf32>
    ```
  }];
  let options = [
    Option<"entry", "entry", "std::string", "\"loss\"",
           "The function to copy">,
    Option<"target", "target", "std::string", "\"evaluate\"",
           "The name of the function to create">,
    Option<"dropEntry", "drop-entry", "bool", "false",
           "Remove `entry`, after the new entry is created">,
  ];
}

def ChunkLoss : Pass<"graph-chunk-loss", "::mlir::ModuleOp"> {
  let summary = "Fuses a head and its cross entropy, without materialised logits";
  let description = [{
    A `graph.linear`, or an equal contraction, whose result is read only by
    `graph.cross_entropy` and its gradient, becomes one `graph.head_loss`. In an
    entry with backward, the head's gradients for input, weight and bias are
    results of the same op. The op must then come after the gradient of the
    rows' losses, which must not depend on the logits (with a mean over counted
    targets it does not). The ops that compute the loss move after it, into
    backward. `graph.seed` reads only the type of its operand: if that was the
    loss, it becomes a constant. Reshapes of rows may stand in between.
    ```mlir
    %logits = graph.linear %x, %w : (tensor<8x4xf32>, tensor<50x4xf32>) -> tensor<8x50xf32>
    %rows, %lse = graph.cross_entropy %logits, %t : ...
    %dl = graph.cross_entropy_grad %g, %logits, %t, %lse : ...
    %dx = graph.contract "ao,oi->ai" %dl, %w : ...
    %dw = graph.contract "ao,ai->oi" %dl, %x : ...
    // becomes
    %rows, %dx, %dw = graph.head_loss %x, %w targets %t gradient %g {chunk_rows = 8 : i64} : ...
    ```
    `chunk_rows` is the largest multiple of 64 rows, at most `max-chunk-rows`,
    whose logits fit `max-chunk-bytes`, reduced so that chunks are evenly
    filled; all rows if they fit `max-chunk-bytes` together. A chunk of c rows
    does 6c operations for each element of the weight, reads the weight twice
    and its gradient once, and writes the gradient once: 6c/16 operations per
    byte in f32. 512 rows (192 operations per byte) are far above what memory
    bandwidth needs; more rows would take memory and save little time.
  }];
  let options = [
    Option<"maxChunkBytes", "max-chunk-bytes", "int64_t", "104857600",
           "The bytes that the logits of one chunk may take">,
    Option<"maxChunkRows", "max-chunk-rows", "int64_t", "512",
           "The largest number of rows of a chunk if there is more than one">,
  ];
}

def FactorParameters : Pass<"graph-factor-parameters", "::mlir::ModuleOp"> {
  let summary = "Stores weights in the factored shape of their results";
  let description = [{
    A projection is rewritten if all reads of its features are a reshape into
    factors, such as heads and head size, or equal slices that are so reshaped
    (the query, key and value of one fused projection) or cover all features
    (the two halves of a gated layer). The weight and the bias are then stored
    with a factored feature dimension, and the projection becomes a contraction
    over the factored dimensions, so that heads can be sharded without a stride.
    The elements and their order stay; `graph.framework_shape` records the shape
    in the framework. A parameter is factored alike in every entry, or not at
    all; a reader of another kind gets a reshape. Runs before differentiation.
    ```mlir
    func.func @loss(%w: tensor<24x8xf32> {graph.name = "qkv", ...}, %x: tensor<5x8xf32>) {
      %0 = graph.linear %x, %w : ... -> tensor<5x24xf32>
      %1 = graph.slice %0 {offsets = array<i64: 0, 8>, sizes = array<i64: 5, 8>, ...}
      %q = graph.reshape %1 : (tensor<5x8xf32>) -> tensor<5x2x4xf32>
    // becomes
    func.func @loss(%w: tensor<3x2x4x8xf32>
        {graph.framework_shape = array<i64: 24, 8>, graph.name = "qkv", ...}, %x: tensor<5x8xf32>) {
      %0 = graph.contract "bi,acdi->bacd" %x, %w : ... -> tensor<5x3x2x4xf32>
      %1 = graph.slice %0 {offsets = array<i64: 0, 1, 0, 0>, sizes = array<i64: 5, 1, 2, 4>, ...}
      %q = graph.reshape %1 : (tensor<5x1x2x4xf32>) -> tensor<5x2x4xf32>
    ```
  }];
}

def SeparateBias : Pass<"graph-separate-bias", "::mlir::ModuleOp"> {
  let summary = "Adds a linear's bias after its product";
  let description = [{
    If the product is a sum of partial products on several devices, the bias
    must be added once, after the reduction.
    ```mlir
    %y = graph.linear %x, %w bias %b : (tensor<8x4xf32>, tensor<6x4xf32>, tensor<6xf32>) -> tensor<8x6xf32>
    // becomes
    %p = graph.linear %x, %w : (tensor<8x4xf32>, tensor<6x4xf32>) -> tensor<8x6xf32>
    %y = graph.add %p, %b : (tensor<8x6xf32>, tensor<6xf32>) -> tensor<8x6xf32>
    ```
  }];
}

def SortRows : Pass<"graph-sort-rows", "::mlir::ModuleOp"> {
  let summary = "Sorts rows by group, once, where they meet weights of groups";
  let description = [{
    Replaces each `graph.grouped_linear`, and its gradient for the weight, by a
    contraction of rows that are sorted by group. Rows are sorted once for each
    value of groups. Ops between such ones that compute each row alone work in
    the sorted order: only what enters and what leaves is permuted.
    Rows that repeat others, as those of a token for each of its choices, are
    read where they are. For tensors of one device.
    ```mlir
    %y = graph.grouped_linear %x, %w, %g
        : (tensor<6x8xf32>, tensor<4x8x16xf32>, tensor<6xi64>) -> tensor<6x16xf32>
    // becomes
    %order, %inverse, %offsets = graph.sort_rows %g {size = 4 : i64} : ...
    %0 = graph.gather %x, %order {dim = 0 : i64} : (tensor<6x8xf32>, tensor<6xi64>) -> tensor<6x8xf32>
    %1 = graph.grouped_contract %0, %w, %offsets : ...
    %y = graph.gather %1, %inverse {dim = 0 : i64} : ...
    ```
  }];
}

def InlineWorkers : Pass<"graph-inline-workers", "::mlir::ModuleOp"> {
  let summary = "Replaces the ops of workers by ops of each worker";
  let description = [{
    Replaces each `graph.per_worker` by its op: once, on the samples of a rank,
    where the workers are sharded, else once for each worker.
    ```mlir
    %s = graph.per_worker "graph.reduce" of %x at [1] to [0] with {...} : (tensor<1x1x4x5xf32>) -> tensor<1x5xf32>
    // becomes
    %0 = graph.reshape %x : (tensor<1x1x4x5xf32>) -> tensor<4x5xf32>
    %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<4x5xf32>) -> tensor<5xf32>
    %s = graph.reshape %1 : (tensor<5xf32>) -> tensor<1x5xf32>
    ```
  }];
}

def GuardIndices : Pass<"graph-guard-indices", "::mlir::ModuleOp"> {
  let summary = "Checks that computed indices are in range";
  let description = [{
    Native code reads memory at the given index. A session checks its inputs and
    buffers before a step, also where a model only moves them. Other indices
    whose range, by integer range analysis, may leave the tensor are checked in
    the step, which ends with an error before anything is updated; the read then
    uses an index in range. Runs on models, where indices are those of global
    tensors.
    ```mlir
    %y = graph.gather %table, %i {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6xi64>) -> tensor<6x4xf32>
    // becomes
    %ok = ... 0 <= %i < 10
    %all = ... no element is wrong
    graph.check %all, "an index is outside of [0, 10)" : tensor<i1>
    %j = graph.select %ok, %i, %zero : (tensor<6xi1>, tensor<6xi64>, tensor<i64>) -> tensor<6xi64>
    %y = graph.gather %table, %j {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6xi64>) -> tensor<6x4xf32>
    ```
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect"];
}

def VerifyModel : Pass<"graph-verify-model", "::mlir::ModuleOp"> {
  let summary = "Verifies a model, before a step is made of it";
  let description = [{
    The end of the phase `model`:
    - Each function with a body is an entry: one block, of ops of the dialects
      `graph` and `spmd` that follow one another.
    - Each argument has a name, which no other argument of the entry has.
    - Result 0 of the entry `loss` is a scalar of floats.
  }];
  let options = [
    Option<"entry", "entry", "std::string", "\"loss\"",
           "The function that computes the loss">,
  ];
}

def VerifyStep : Pass<"graph-verify-step", "::mlir::ModuleOp"> {
  let summary = "Verifies a training step on whole tensors";
  let description = [{
    The end of the phase `step`:
    - Entries are as `--graph-verify-model` has them, and each of their ops has
      a sharding rule and a cost.
    - One entry has a result that updates a parameter.
    - Each `graph.gradient` is of a trained parameter of its entry, or of state
      of one, which has no other, and a result updates that argument.
    - Each result has a name, or the name of the argument that it updates; that
      argument has its type, and no other result updates it.
  }];
}

def RaiseAttention : Pass<"graph-raise-attention", "::mlir::ModuleOp"> {
  let summary = "Recognises attention that is composed of smaller ops, and its masks";
  let description = [{
    A contraction of `softmax(scale * Q K^T + biases)`, possibly after dropout,
    with values becomes `graph.attention`; its scale is that of the scores times
    that of the queries, and heads of keys and values that are only repeated are
    those of grouped queries. A condition where scores are replaced by -inf, or
    a bias of -inf, masks keys, and so does a finite number at or below -1e30 if
    the result is bitwise the same: each row is known to see a key. Masks that
    depend on no input are evaluated: one that is causal or a window becomes an
    attribute, one that compares ids of documents `segments`, and others are
    the mask. The operands of an op that is attention already are read in the
    same way. A scalar in f64 that a cast rounds becomes a constant of the type,
    so that a front end can write a number as it was meant. The new op has the
    location and the chosen precision of the op that it replaces.
    ```mlir
    %s = graph.contract "abqd,abkd->abqk" %q, %k : ...
    %m = graph.compare le %columns, %rows : (tensor<1x8xi64>, tensor<8x1xi64>) -> tensor<8x8xi1>
    %h = graph.select %m, %s, %minus_infinity : ...
    %p = graph.softmax %h : (tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    %y = graph.contract "abqk,abke->abqe" %p, %v : ...
    // becomes
    %y:2 = graph.attention %q, %k, %v {causal, scale = 1.0 : f64} : ...
    ```
  }];
}

def RaiseNorms : Pass<"graph-raise-norms", "::mlir::ModuleOp"> {
  let summary = "Recognises norms over the last dimension that are composed of smaller ops";
  let description = [{
    `x * rsqrt(mean(x^2) + epsilon)`, and the same by a division, become
    `graph.rms_norm`, or `graph.layer_norm` of y if x is `y - mean(y)`. A
    product with a vector along the last dimension becomes the weight of a norm,
    and a sum the bias of a layer norm. A norm has the location and the chosen
    precision of the op that it replaces. Its epsilon is the shortest decimal
    that rounds to the constant. A `graph.stop_gradient` of the mean in the
    variance has no effect, since a variance has no gradient through its mean;
    one of the mean that is subtracted remains.
    ```mlir
    %0 = graph.mul %x, %x : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %1 = graph.reduce sum %0 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
    %2 = graph.reshape %1 : (tensor<4xf32>) -> tensor<4x1xf32>
    %3 = graph.div %2, %eight : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
    %4 = graph.add %3, %epsilon : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
    %5 = graph.rsqrt %4 : (tensor<4x1xf32>) -> tensor<4x1xf32>
    %6 = graph.mul %x, %5 : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
    %7 = graph.mul %6, %w : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
    // becomes
    %7:2 = graph.rms_norm %x weight %w {epsilon = 1.000000e-06 : f64}
        : (tensor<4x8xf32>, tensor<8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>)
    ```
  }];
}

def RaiseRotary : Pass<"graph-raise-rotary", "::mlir::ModuleOp"> {
  let summary = "Recognises rotary embeddings that are composed of smaller ops";
  let description = [{
    `x * cos + rotate(x) * sin` becomes `graph.rope`, and so do the two halves
    `x1 * cos - x2 * sin` and `x2 * cos + x1 * sin`, concatenated or interleaved,
    whose tables are doubled. Tables depend on no trained parameter. The new op
    has the location and the chosen precision of the op that it replaces.
    ```mlir
    %a = graph.mul %x, %cos : (tensor<2x4x6x8xf32>, tensor<6x8xf32>) -> tensor<2x4x6x8xf32>
    %1 = graph.slice %x ...  // the first half
    %2 = graph.slice %x ...  // the second half
    %n = graph.neg %2 : (tensor<2x4x6x4xf32>) -> tensor<2x4x6x4xf32>
    %r = graph.concat %n, %1 {dim = 3 : i64} : ... -> tensor<2x4x6x8xf32>
    %b = graph.mul %r, %sin : (tensor<2x4x6x8xf32>, tensor<6x8xf32>) -> tensor<2x4x6x8xf32>
    %y = graph.add %a, %b : (tensor<2x4x6x8xf32>, tensor<2x4x6x8xf32>) -> tensor<2x4x6x8xf32>
    // becomes
    %y = graph.rope %x, %cos, %sin
        : (tensor<2x4x6x8xf32>, tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<2x4x6x8xf32>
    ```
  }];
}

def UnfuseAttention : Pass<"graph-unfuse-attention", "::mlir::ModuleOp"> {
  let summary = "Computes attention by products and a softmax";
  let description = [{
    The scores of a head are then a tensor, which differentiation saves unless it
    is recomputed (`--pipe-recompute=policy=selective`), as in frameworks whose
    attention is not one op. Runs on models. Dropout draws the same numbers; sums
    have another order.
    ```mlir
    %o, %lse = graph.attention %q, %k, %v {scale = 0.5 : f64}
    // becomes
    %s = graph.contract "baqd,bakd->baqk" %q, %k
    %t = graph.mul %s, %c
    %p = graph.softmax %t
    %o = graph.contract "baqk,bake->baqe" %p, %v
    ```
  }];
}

#endif // CLEAVE_DIALECT_GRAPH_TRANSFORMS_PASSES_TD
