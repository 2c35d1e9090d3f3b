//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_NORMANDLOSSOPS_TD
#define CLEAVE_DIALECT_GRAPH_IR_NORMANDLOSSOPS_TD

include "cleave/Dialect/Graph/IR/ElementwiseOps.td"

//===----------------------------------------------------------------------===//
// Normalisation, over the last dimension
//===----------------------------------------------------------------------===//

def Graph_LayerNormOp : Graph_InferredOp<"layer_norm", [AttrSizedOperandSegments]> {
  let summary = "Layer normalisation (arXiv 1607.06450)";
  let description = [{
    `(x - mean) * rstd * weight + bias` over the last dimension, with the biased
    variance and `rstd = 1 / sqrt(variance + epsilon)`. Mean and rstd, of the
    leading dimensions, are results, for the gradient. Statistics of a 16-bit
    input are in f32; its weight and bias are 16-bit or f32.
  }];
  let arguments = (ins Graph_FloatTensor:$input,
                       Optional<Graph_FloatTensor>:$weight,
                       Optional<Graph_FloatTensor>:$bias, F64Attr:$epsilon);
  let results = (outs Graph_FloatTensor:$output, Graph_FloatTensor:$mean,
                      Graph_FloatTensor:$rstd);
  let assemblyFormat = [{
    $input (`weight` $weight^)? (`bias` $bias^)? attr-dict `:`
    functional-type(operands, results)
  }];
}

def Graph_LayerNormGradOp : Graph_InferredOp<"layer_norm_grad",
    [Graph_BackwardOnly]> {
  let summary = "Gradient of layer_norm for its input";
  let arguments = (ins Graph_FloatTensor:$gradient, Graph_FloatTensor:$input,
                       Graph_FloatTensor:$mean, Graph_FloatTensor:$rstd,
                       Optional<Graph_FloatTensor>:$weight);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $gradient `,` $input `,` $mean `,` $rstd (`weight` $weight^)? attr-dict `:`
    functional-type(operands, results)
  }];
}

def Graph_LayerNormWeightGradOp : Graph_InferredOp<"layer_norm_weight_grad",
    [Graph_BackwardOnly]> {
  let summary = "Gradient of layer_norm for its weight";
  let description = [{
    The sum over rows of `gradient * (input - mean) * rstd`, at least in f32.
  }];
  let arguments = (ins Graph_FloatTensor:$gradient, Graph_FloatTensor:$input,
                       Graph_FloatTensor:$mean, Graph_FloatTensor:$rstd);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $gradient `,` $input `,` $mean `,` $rstd attr-dict `:`
    functional-type(operands, results)
  }];
}

def Graph_RmsNormOp : Graph_InferredOp<"rms_norm"> {
  let summary = "Root-mean-square normalisation (arXiv 1910.07467)";
  let description = [{
    `x * rstd * weight` over the last dimension, with
    `rstd = 1 / sqrt(mean(x^2) + epsilon)`, which is a result, for the gradient.
    Types are those of `graph.layer_norm`.
  }];
  let arguments = (ins Graph_FloatTensor:$input,
                       Optional<Graph_FloatTensor>:$weight, F64Attr:$epsilon);
  let results = (outs Graph_FloatTensor:$output, Graph_FloatTensor:$rstd);
  let assemblyFormat = [{
    $input (`weight` $weight^)? attr-dict `:`
    functional-type(operands, results)
  }];
}

def Graph_RmsNormGradOp : Graph_InferredOp<"rms_norm_grad",
    [Graph_BackwardOnly]> {
  let summary = "Gradient of rms_norm for its input";
  let arguments = (ins Graph_FloatTensor:$gradient, Graph_FloatTensor:$input,
                       Graph_FloatTensor:$rstd,
                       Optional<Graph_FloatTensor>:$weight);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $gradient `,` $input `,` $rstd (`weight` $weight^)? attr-dict `:`
    functional-type(operands, results)
  }];
}

def Graph_RmsNormWeightGradOp : Graph_InferredOp<"rms_norm_weight_grad",
    [Graph_BackwardOnly]> {
  let summary = "Gradient of rms_norm for its weight";
  let arguments = (ins Graph_FloatTensor:$gradient, Graph_FloatTensor:$input,
                       Graph_FloatTensor:$rstd);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $gradient `,` $input `,` $rstd attr-dict `:`
    functional-type(operands, results)
  }];
}

//===----------------------------------------------------------------------===//
// Softmax and losses, over the last dimension
//===----------------------------------------------------------------------===//

def Graph_SoftmaxOp : Graph_InferredOp<"softmax"> {
  let summary = "Softmax over the last dimension";
  let description = "With `log`, its logarithm.";
  let arguments = (ins Graph_FloatTensor:$input, UnitAttr:$log);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
}

def Graph_SoftmaxGradOp : Graph_InferredOp<"softmax_grad",
    [Graph_BackwardOnly]> {
  let summary = "Gradient of softmax, from its output";
  let arguments = (ins Graph_FloatTensor:$gradient, Graph_FloatTensor:$output,
                       UnitAttr:$log);
  let results = (outs Graph_FloatTensor:$inputGradient);
  let assemblyFormat = [{
    $gradient `,` $output attr-dict `:` functional-type(operands, results)
  }];
}

def Graph_CrossEntropyOp : Graph_InferredOp<"cross_entropy"> {
  let summary = "Cross entropy of each row of logits";
  let description = [{
    Logits `[..., v]`, targets `[...]`; results, of the targets' shape: the loss
    `lse - logit[target]`, 0 where the target is `ignore_index`, and the
    log-sum-exp. With label smoothing `e` the loss is `(1 - e) (lse -
    logit[target]) + e (lse - mean(logit))`. The mean over valid rows is
    computed by other ops, so that it can be taken over micro-batches and ranks.
  }];
  let arguments = (ins Graph_FloatTensor:$logits, Graph_IntTensor:$targets,
                       DefaultValuedAttr<I64Attr, "-100">:$ignore_index,
                       DefaultValuedAttr<F64Attr, "0.0">:$label_smoothing);
  let results = (outs Graph_FloatTensor:$loss, Graph_FloatTensor:$lse);
  let assemblyFormat = [{
    $logits `,` $targets attr-dict `:` functional-type(operands, results)
  }];
}

def Graph_CrossEntropyGradOp : Graph_InferredOp<"cross_entropy_grad",
    [Graph_BackwardOnly]> {
  let summary = "Gradient of cross_entropy for the logits";
  let description = "`gradient` is that of the loss of each row.";
  let arguments = (ins Graph_FloatTensor:$gradient, Graph_FloatTensor:$logits,
                       Graph_IntTensor:$targets, Graph_FloatTensor:$lse,
                       DefaultValuedAttr<I64Attr, "-100">:$ignore_index,
                       DefaultValuedAttr<F64Attr, "0.0">:$label_smoothing);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $gradient `,` $logits `,` $targets `,` $lse attr-dict `:`
    functional-type(operands, results)
  }];
}

def Graph_HeadLossOp : Graph_InferredOp<"head_loss", [AttrSizedOperandSegments]> {
  let summary = "Language-model head and cross entropy, without materialised logits";
  let description = [{
    Input `[..., h]`, weight `[v, h]`, bias `[v]`, targets `[...]`. With `logits
    = linear(input, weight, bias)`, result 0 is the loss of each row, as in
    `cross_entropy`. When the gradient of the rows' losses is known beforehand
    (`gradient`, `[...]`), the further results are the gradients for input,
    weight and, if present, bias: a target then computes the logits in chunks of
    `chunk_rows` rows, overwrites them by their gradient and accumulates. With a
    16-bit input, logits and loss are in f32, the gradient of the logits is
    rounded to the input's type, and the gradients of weight and bias are f32.
    With `narrow_logits` the logits are rounded to the input's type too.
  }];
  let arguments = (ins Graph_FloatTensor:$input, Graph_FloatTensor:$weight,
                       Optional<Graph_FloatTensor>:$bias,
                       Graph_IntTensor:$targets,
                       Optional<Graph_FloatTensor>:$gradient,
                       DefaultValuedAttr<I64Attr, "-100">:$ignore_index,
                       DefaultValuedAttr<F64Attr, "0.0">:$label_smoothing,
                       OptionalAttr<I64Attr>:$chunk_rows,
                       UnitAttr:$narrow_logits);
  let results = (outs Graph_FloatTensor:$loss,
                      Variadic<Graph_FloatTensor>:$gradients);
  let assemblyFormat = [{
    $input `,` $weight (`bias` $bias^)? `targets` $targets
    (`gradient` $gradient^)? attr-dict `:` functional-type(operands, results)
  }];
}

//===----------------------------------------------------------------------===//
// Positions
//===----------------------------------------------------------------------===//

def Graph_RopeOp : Graph_InferredOp<"rope"> {
  let summary = "Rotary position embedding (arXiv 2104.09864)";
  let description = [{
    Input `[b, a, s, d]`; `cos` and `sin` broadcastable to it: `output = input *
    cos + rotate(input) * sin`, where `rotate` maps the halves `(x1, x2)` of the
    last dimension to `(-x2, x1)`, or, with `interleaved`, each pair `(x[2i],
    x[2i+1])` to `(-x[2i+1], x[2i])`. With `adjoint` it is the transposed map,
    which is its gradient. `cos` and `sin` are computed from positions and have
    no gradient. With an input of 16 bits they may be f32: the result is computed
    in f32 and rounded once.
  }];
  let arguments = (ins Graph_FloatTensor:$input, Graph_FloatTensor:$cos,
                       Graph_FloatTensor:$sin, UnitAttr:$interleaved,
                       UnitAttr:$adjoint);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $input `,` $cos `,` $sin attr-dict `:` functional-type(operands, results)
  }];
}

#endif // CLEAVE_DIALECT_GRAPH_IR_NORMANDLOSSOPS_TD
