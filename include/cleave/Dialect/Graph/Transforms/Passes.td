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
    every parameter that is not `graph.frozen`; where results are marked
    `graph.loss`, of the sum of those. `entry` stays as it is; the new
    entry `target` is a copy of it, followed by `graph.seed`, the adjoint of each
    op that lies between an unfrozen parameter and the loss, in reverse order,
    and a `graph.gradient` for each parameter as soon as the last of its uses
    has contributed. What `graph.stop_gradient` gives is a constant; in `target`
    its operand stands in its place. A parameter that the loss does not depend on has a zero
    gradient. Contributions of several uses are added from the last use to the
    first.

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
           "Remove `entry`, once what follows from it stands beside it">,
  ];
}

def Interlock : Pass<"graph-interlock", "::mlir::ModuleOp"> {
  let summary = "Gives modules heads of their own, and gradients a horizon";
  let description = [{
    Interlocking backpropagation (arXiv 2010.04116). `target` is a copy of
    `entry` that is cut into M modules, one after another, where one value, the
    hidden state, goes on; the values that depend on no parameter, and what is
    made of parameters alone, do not count. Behind each module but the last
    stands an auxiliary head: a copy of the final head, which is what leads from
    the last module to result 0, with a parameter of its own,
    `auxiliary.<k>.<name>`, for each one that is trained there. A tied table is
    another one in each head.

    A head is trained by its own loss alone. The other parameters of module j are
    trained by one head alone, that of module min(j + horizon - 1, M): with a
    horizon of 1 modules learn locally, with M or more all is as without heads.
    The losses become further results, `auxiliary_loss.<k>`, and
    `--graph-differentiate` takes the sum of all. What a head does not train is
    behind `graph.stop_gradient`; for that, modules are copied, up to `horizon`
    times, and are one again behind differentiation and `--cse`: numbers of
    random ops stay the same.

    `modules` is M, for modules of even cost, or the beginnings of parameters'
    names, `h.3.,h.6.`: a module begins with what first reads such a parameter.
    The head begins at `head` in the same sense or, where that is empty, with
    what reads the hidden state behind the last reader of a parameter of a
    numbered list (`h.0.`, `h.1.`, ...).
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
           "The modules that a gradient passes, with that it trains">,
    Option<"modules", "modules", "std::string", "\"\"",
           "How many, or where they begin, from the second on">,
    Option<"head", "head", "std::string", "\"\"",
           "Where the head begins">,
  ];
}

def ApplyOptimizer : Pass<"graph-apply-optimizer", "::mlir::ModuleOp"> {
  let summary = "Turns gradients into a whole training step";
  let description = [{
    Rewrites `entry`, as `--graph-differentiate` left it: its gradients feed one
    optimizer op per trained parameter, and become updated values in its results.

    New arguments, after those of the model: the optimizer's state, for each
    parameter in order (`graph.role = "state"`, `graph.of`, `graph.slot` and
    `graph.name` = `<parameter>.<slot>`), then the scalars `lr : tensor<f32>` and
    `step : tensor<i64>`, the number of this update, from 1. Results: the loss,
    `grad_norm` where gradients are clipped, then each parameter and its state,
    with `graph.updates` = the name of the argument that it replaces.

    The argument attributes `graph.weight_decay` and `graph.lr_scale` override
    weight decay and scale the learning rate for one parameter. Without clipping
    a parameter is updated as soon as its gradient is known.

    `graph.check` ops stop the step, before anything is updated, where the loss
    divides by a number of elements that is zero for this batch (each target
    ignored, say), and where the gradients' norm is not finite.
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
           "adamw or sgd">,
    Option<"beta1", "beta1", "double", "0.9",
           "AdamW: decay of the mean of gradients">,
    Option<"beta2", "beta2", "double", "0.999",
           "AdamW: decay of the mean of squared gradients">,
    Option<"eps", "eps", "double", "1e-8", "AdamW: added to the denominator">,
    Option<"weightDecay", "weight-decay", "double", "-1.0",
           "Weight decay; negative: PyTorch's default, 0.01 for adamw, 0 for sgd">,
    Option<"momentum", "momentum", "double", "0.0", "SGD: momentum">,
    Option<"dampening", "dampening", "double", "0.0",
           "SGD: dampening of momentum">,
    Option<"nesterov", "nesterov", "bool", "false",
           "SGD: Nesterov's momentum">,
    Option<"maxGradNorm", "max-grad-norm", "double", "0.0",
           "Scale gradients down to this norm; 0: do not clip">,
  ];
}

def DeriveEvaluate : Pass<"graph-derive-evaluate", "::mlir::ModuleOp"> {
  let summary = "Adds an entry that computes the loss without randomness";
  let description = [{
    `target` is a copy of `entry` in which no op draws random numbers, and which
    has no `rng` argument: the loss of evaluation. Where the loss divides by a
    sum over inputs, such as the number of valid targets, that sum is a further
    result, `loss_weight`: the losses of several batches, weighted by it, give
    the loss of all of them.
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
           "Remove `entry`, once what follows from it stands beside it">,
  ];
}

def ChunkLoss : Pass<"graph-chunk-loss", "::mlir::ModuleOp"> {
  let summary = "Joins a head and its cross entropy, so that logits are never whole";
  let description = [{
    A `graph.linear`, or the contraction it stands for, whose result is read only
    by `graph.cross_entropy` and its gradient, becomes one `graph.head_loss`. Where
    there is a gradient, the head's gradients for input, weight and bias are
    results of the same op: it must then come after the gradient of the rows'
    losses is known, which must not depend on the logits (with a mean over counted
    targets it does not). What computes the loss moves behind it, into backward.
    `graph.seed` reads its operand for the type alone: where that was the loss, it
    becomes a constant. Reshapes of rows may stand in between.
    ```mlir
    %logits = graph.linear %x, %w : (tensor<8x4xf32>, tensor<50x4xf32>) -> tensor<8x50xf32>
    %rows, %lse = graph.cross_entropy %logits, %t : ...
    %dl = graph.cross_entropy_grad %g, %logits, %t, %lse : ...
    %dx = graph.contract "ao,oi->ai" %dl, %w : ...
    %dw = graph.contract "ao,ai->oi" %dl, %x : ...
    // becomes
    %rows, %dx, %dw = graph.head_loss %x, %w targets %t gradient %g {chunk_rows = 8 : i64} : ...
    ```
    `chunk_rows` is the largest multiple of 64 rows, evenly filled, whose logits fit
    `max-chunk-bytes` and which are `max-chunk-rows` at most; all rows where they fit
    `max-chunk-bytes` as a whole. A chunk of c rows does 6c operations for each element
    of the weight, and reads the weight twice and its gradient once, and writes that
    once: 6c/16 operations per byte in f32. 512 rows (192 operations per byte) are far
    above what memory asks for; more rows would hold memory and save little time.
  }];
  let options = [
    Option<"maxChunkBytes", "max-chunk-bytes", "int64_t", "104857600",
           "The bytes that the logits of one chunk may take">,
    Option<"maxChunkRows", "max-chunk-rows", "int64_t", "512",
           "The rows of a chunk where the logits are cut at all">,
  ];
}

def FactorParameters : Pass<"graph-factor-parameters", "::mlir::ModuleOp"> {
  let summary = "Stores weights in the shape that the model takes their results apart in";
  let description = [{
    Where all that is read of a projection's features is a reshape into factors,
    such as heads and their size, or equal slices that are then so reshaped (the
    query, key and value of one fused projection) or are all there is (the two
    halves of a gated layer), the weight and the bias are
    stored with the feature dimension factored, and the projection becomes a
    contraction over the factored dimensions. Heads can then be placed on devices
    without a stride. The elements and their order stay; `graph.framework_shape`
    records the shape that the framework knows. A parameter is factored alike in
    every entry, or not at all; a reader of another kind gets a reshape. Runs
    before differentiation.
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
  let summary = "Adds a linear's bias behind its product";
  let description = [{
    Where the product is a sum of summands on several devices, the bias must be
    added once. Behind the product it is.
    ```mlir
    %y = graph.linear %x, %w bias %b : (tensor<8x4xf32>, tensor<6x4xf32>, tensor<6xf32>) -> tensor<8x6xf32>
    // becomes
    %p = graph.linear %x, %w : (tensor<8x4xf32>, tensor<6x4xf32>) -> tensor<8x6xf32>
    %y = graph.add %p, %b : (tensor<8x6xf32>, tensor<6xf32>) -> tensor<8x6xf32>
    ```
  }];
}

#endif // CLEAVE_DIALECT_GRAPH_TRANSFORMS_PASSES_TD
