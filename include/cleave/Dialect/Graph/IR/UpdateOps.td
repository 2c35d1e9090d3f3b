//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_UPDATEOPS_TD
#define CLEAVE_DIALECT_GRAPH_IR_UPDATEOPS_TD

include "cleave/Dialect/Graph/IR/ElementwiseOps.td"

//===----------------------------------------------------------------------===//
// Ops that mark forward, backward and update
//===----------------------------------------------------------------------===//

def Graph_SeedOp : Graph_InferredOp<"seed", [Graph_BackwardOnly]> {
  let summary = "The gradient of the loss with respect to itself";
  let description = [{
    1, or `scale` where the loss is scaled, of the loss's type. What depends on
    a seed, and on no `graph.gradient`, is backward.
  }];
  let arguments = (ins Graph_FloatTensor:$loss,
                       Optional<Graph_FloatTensor>:$scale);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $loss (`scale` $scale^)? attr-dict `:` functional-type(operands, results)
  }];
}

def Graph_GradientOp : Graph_InferredOp<"gradient", [Graph_BackwardOnly]> {
  let summary = "The finished gradient of one parameter";
  let description = [{
    The identity. It marks the end of backward and the beginning of the update;
    gradients are accumulated over micro-batches here.
    ```mlir
    %g = graph.gradient %dw of "h.0.attn.weight" : (tensor<8x8xf32>) -> tensor<8x8xf32>
    ```
  }];
  let arguments = (ins Graph_FloatTensor:$input, StrAttr:$parameter);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $input `of` $parameter attr-dict `:` functional-type(operands, results)
  }];
}

def Graph_WrittenOp : Graph_InferredOp<"written", [Graph_BackwardOnly]> {
  let summary = "The new value of a buffer that a step writes";
  let description = [{
    The identity: as `graph.gradient` does for a parameter, it marks that the
    buffer gets its value in the update, once forward and backward of all
    micro-batches have read the old one, and only if no check has failed.
    ```mlir
    %m = graph.written %new of "bn.running_mean" : (tensor<8xf32>) -> tensor<8xf32>
    ```
  }];
  let arguments = (ins Graph_Tensor:$input, StrAttr:$buffer);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat = [{
    $input `of` $buffer attr-dict `:` functional-type(operands, results)
  }];
}

def Graph_CheckOp : Graph_Op<"check"> {
  let summary = "Stops the step unless the flag is true";
  let description = [{
    The step ends with `message` as its error and no argument is updated. A
    check that `skips` ends the step without an error, as gradients that
    overflow do where the loss is scaled: training goes on with the next one. A
    check of `room` fails where a buffer has too few rows: a program whose
    buffers have more can repeat the step. In the message, `{rank}` is the number
    of the rank whose flag is false, and `{i}` element `i` of its `values`, one to
    four numbers; `{i/n}` is that element divided by n, rounded up to two places.
    ```mlir
    graph.check %fits, "rank {rank} receives {0} rows" room with %rows : tensor<1xi64> : tensor<i1>
    ```
  }];
  let arguments = (ins Graph_BoolTensor:$flag, StrAttr:$message,
                       UnitAttr:$skips, UnitAttr:$room,
                       Optional<Graph_Tensor>:$values);
  let results = (outs);
  let assemblyFormat = [{
    $flag `,` $message (`skips` $skips^)? (`room` $room^)?
    (`with` $values^ `:` type($values))? attr-dict `:` type($flag)
  }];
  let builders = [OpBuilder<(ins "mlir::Value":$flag,
                                 "llvm::StringRef":$message,
                                 CArg<"bool", "false">:$skips)>];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Optimizer
//===----------------------------------------------------------------------===//

def Graph_GlobalNormOp : Graph_InferredOp<"global_norm", [Graph_BackwardOnly]> {
  let summary = "2-norm of all gradients together";
  let description = [{
    Each element counts once; squares are summed in f32 per tensor, tensors in
    the order of operands. The result is a scalar of the operands' type.
  }];
  let arguments = (ins Variadic<Graph_FloatTensor>:$gradients);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat =
      "$gradients attr-dict `:` functional-type(operands, results)";
}

def Graph_AdamWOp : Graph_InferredOp<"adamw", [Graph_BackwardOnly]> {
  let summary = "AdamW (arXiv 1711.05101), as PyTorch defines it";
  let description = [{
    With `g = gradient * gradient_scale`, decay decoupled:
    ```
    p  = parameter * (1 - lr * weight_decay)
    m' = m + (g - m) * (1 - beta1)
    v' = v * beta2 + g * g * (1 - beta2)
    p' = p - lr / correction1 * m' / (sqrt(v') / sqrt_correction2 + epsilon)
    ```
    where `correction1 = 1 - beta1^t` and
    `sqrt_correction2 = sqrt(1 - beta2^t)` at update `t` are scalars of the
    step, computed in f64 and rounded.
  }];
  let arguments = (ins Graph_FloatTensor:$parameter, Graph_FloatTensor:$gradient,
                       Graph_FloatTensor:$expAvg, Graph_FloatTensor:$expAvgSq,
                       Graph_FloatTensor:$lr, Graph_FloatTensor:$correction1,
                       Graph_FloatTensor:$sqrtCorrection2,
                       Optional<Graph_FloatTensor>:$gradientScale,
                       F64Attr:$beta1, F64Attr:$beta2, F64Attr:$epsilon,
                       F64Attr:$weight_decay);
  let results = (outs Graph_FloatTensor:$newParameter,
                      Graph_FloatTensor:$newExpAvg,
                      Graph_FloatTensor:$newExpAvgSq);
  let assemblyFormat = [{
    $parameter `,` $gradient `,` $expAvg `,` $expAvgSq `lr` $lr `,`
    $correction1 `,` $sqrtCorrection2 (`scale` $gradientScale^)? attr-dict `:`
    functional-type(operands, results)
  }];
}

def Graph_SgdOp : Graph_InferredOp<"sgd", [AttrSizedOperandSegments, Graph_BackwardOnly]> {
  let summary = "Stochastic gradient descent, as PyTorch defines it";
  let description = [{
    With `g = gradient * gradient_scale + weight_decay * parameter`; with a
    momentum buffer, `b' = g` at the first update and
    `momentum * b + (1 - dampening) * g` after it, and `g` becomes `b'`, or
    `g + momentum * b'` with `nesterov`; `p' = parameter - lr * g`. `step`
    counts updates from 1.
  }];
  let arguments = (ins Graph_FloatTensor:$parameter, Graph_FloatTensor:$gradient,
                       Optional<Graph_FloatTensor>:$momentumBuffer,
                       Graph_FloatTensor:$lr, Graph_IntTensor:$step,
                       Optional<Graph_FloatTensor>:$gradientScale,
                       F64Attr:$momentum, F64Attr:$dampening,
                       F64Attr:$weight_decay, UnitAttr:$nesterov);
  let results = (outs Graph_FloatTensor:$newParameter,
                      Optional<Graph_FloatTensor>:$newMomentumBuffer);
  let assemblyFormat = [{
    $parameter `,` $gradient (`buffer` $momentumBuffer^)? `lr` $lr `,` $step
    (`scale` $gradientScale^)? attr-dict `:`
    functional-type(operands, results)
  }];
}

def Graph_EncodeOp : Graph_InferredOp<"encode",
    [Graph_Pointwise, Graph_BackwardOnly]> {
  let summary = "Numbers of -1 to 1 as 8-bit codes";
  let description = [{
    The code of dynamic tree quantisation (arXiv 2110.02861, section 1.3, as
    bitsandbytes' `create_dynamic_map`) whose value is nearest; of two, the one
    nearer to zero. With `nonnegative`, codes are of 0 to 1. Otherwise a negative
    number keeps its sign: it becomes no code of zero. The code of zero is 0, and
    codes have the order of their values, as 8 bits: the largest is -128 with
    signs, and -1 without.

    A code `k` (without signs `k + 1`) of `2^e + f`, `f < 2^e`, has the value
    `10^(e - 6)` (without signs `10^(e - 7)`) times `0.1 + 0.9 (f + 1/2) / 2^e`;
    the largest one has the value 1.
  }];
  let arguments = (ins Graph_FloatTensor:$input, UnitAttr:$nonnegative);
  let results = (outs Graph_IntTensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
}

def Graph_DecodeOp : Graph_InferredOp<"decode",
    [Graph_Pointwise, Graph_BackwardOnly]> {
  let summary = "The numbers that 8-bit codes stand for, in f32";
  let description = [{ The value of each code of `graph.encode`. }];
  let arguments = (ins Graph_IntTensor:$input, UnitAttr:$nonnegative);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
}

//===----------------------------------------------------------------------===//
// Workers
//===----------------------------------------------------------------------===//

def Graph_PerWorkerOp : Graph_PureOp<"per_worker", [Graph_BackwardOnly,
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>,
    DeclareOpInterfaceMethods<Graph_IndexUseOpInterface>]> {
  let summary = "An op, computed for the samples of each worker alone";
  let description = [{
    Workers are a dimension. `worker_dims` has an entry for each operand, and
    `result_dims` one for each result: the dimension of the workers, or -1 for an
    operand that all workers read. Worker `n` computes the op `callee`, which has the
    attributes `with`, on slice `n` of each operand, and gives slice `n` of each
    result. The op does not see the dimension. If it is the first one, the slice
    has the others; otherwise it stands between two dimensions of which the op
    sees the product: samples `[before, workers, after, ...]` are
    `[before * after, ...]` to a worker.

    A sum over samples becomes a sum for each worker:
    ```mlir
    %s = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<8x5xf32>) -> tensor<5xf32>
    // for 4 workers, each of which has one sample of each half of the batch
    %xw = graph.reshape %x : (tensor<8x5xf32>) -> tensor<2x4x1x5xf32>
    %sw = graph.per_worker "graph.reduce" of %xw at [1] to [0]
        with {dims = array<i64: 0>, kind = ...} : (tensor<2x4x1x5xf32>) -> tensor<4x5xf32>
    ```
    Where the workers are sharded, each rank computes the op itself on its
    samples: `--graph-inline-workers` leaves nothing else.
  }];
  let arguments = (ins Variadic<Graph_Tensor>:$inputs, StrAttr:$callee,
                       DenseI64ArrayAttr:$worker_dims,
                       DenseI64ArrayAttr:$result_dims, DictionaryAttr:$with);
  let results = (outs Variadic<Graph_Tensor>:$outputs);
  let assemblyFormat = [{
    $callee `of` $inputs `at` $worker_dims `to` $result_dims `with` $with attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The number of workers: on a shard, of this rank.
    int64_t getWorkers();
    /// Creates the op of one worker at the builder's insertion point, with its
    /// operands; null if there is no such op, or it cannot have them.
    ::mlir::Operation *createInner(::mlir::OpBuilder &builder,
                                   ::mlir::ValueRange operands);
    /// The type of a worker's slice of a tensor of `type` that has the workers
    /// in dimension `dim`, or of `type` itself for -1.
    static ::mlir::RankedTensorType sliceType(::mlir::Type type, int64_t dim);
  }];
}

//===----------------------------------------------------------------------===//
// Compressed gradients
//===----------------------------------------------------------------------===//

def Graph_OrthonormalizeOp
    : Graph_InferredOp<"orthonormalize", [Graph_BackwardOnly]> {
  let summary = "The Q factor of the QR factorization of matrices";
  let description = [{
    Input `[..., n, r]` with `r <= n`; the result has orthonormal columns that
    span those of the input, as PowerSGD (arXiv 1905.13727) needs them. Q is
    that of Householder reflections, as LAPACK's `geqrf` and `orgqr` take them,
    with the signs for which the diagonal of R is not negative: if the columns
    are linearly independent, it is unique.

    It is defined where they are not. Column j is *dependent* on those before it
    if what the first j reflections leave of it below row j - 1 has at most 2^-39
    of its norm (2^-17 of f32 and narrower floats), or if the column is zero.
    Then reflection j is the identity, and column j of the result is what the
    others make of the unit vector j: the result of a matrix of zeros is the
    first r columns of the identity. Columns are scaled by powers of 2, so that
    elements of any size are used; all of a matrix is NaN if one of its elements
    is not finite.
    ```mlir
    %q = graph.orthonormalize %p : (tensor<64x4xf32>) -> tensor<64x4xf32>
    ```
  }];
  let arguments = (ins Graph_FloatTensor:$input);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
}

#endif // CLEAVE_DIALECT_GRAPH_IR_UPDATEOPS_TD
