//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_CONTRACTIONOPS_TD
#define CLEAVE_DIALECT_GRAPH_IR_CONTRACTIONOPS_TD

include "cleave/Dialect/Graph/IR/ElementwiseOps.td"

def Graph_ContractOp : Graph_InferredOp<"contract"> {
  let summary = "Contraction of two tensors in einsum form";
  let description = [{
    Each dimension has one letter. A letter of the output is kept, any other is
    summed over, also one that only one operand has. No letter repeats within
    one tensor.
    ```mlir
    %c = graph.contract "bsh,oh->bso" %x, %w
        : (tensor<2x8x16xf32>, tensor<32x16xf32>) -> tensor<2x8x32xf32>
    ```
    16-bit floats accumulate in f32 and are rounded once, to `result_element` if
    it is given, else to the type of the operands: a gradient of a parameter is
    a sum in f32 of products of 16-bit values.
    ```mlir
    %dw = graph.contract "bso,bsh->oh" %g, %x {result_element = f32}
        : (tensor<2x8x32xbf16>, tensor<2x8x16xbf16>) -> tensor<32x16xf32>
    ```
    Operands of 8 bits are multiplied likewise. One may be f8E5M2 (a gradient)
    and the other f8E4M3FN (what forward read); `result_element` is then given.
    ```mlir
    %dx = graph.contract "bso,oh->bsh" %g, %w {result_element = f32}
        : (tensor<2x8x32xf8E5M2>, tensor<32x16xf8E4M3FN>) -> tensor<2x8x16xf32>
    ```
  }];
  let arguments = (ins StrAttr:$equation, Graph_FloatTensor:$lhs,
                       Graph_FloatTensor:$rhs,
                       OptionalAttr<TypeAttr>:$result_element);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $equation $lhs `,` $rhs attr-dict `:` functional-type(operands, results)
  }];
  let builders = [OpBuilder<(ins "::llvm::StringRef":$equation,
                                 "::mlir::Value":$lhs, "::mlir::Value":$rhs), [{
    build($_builder, $_state, $_builder.getStringAttr(equation), lhs, rhs,
          ::mlir::TypeAttr());
  }]>];
  let hasCanonicalizer = 1;
}

def Graph_LinearOp : Graph_InferredOp<"linear"> {
  let summary = "x W^T + b, with the weight as the framework stores it";
  let description = [{
    Input `[..., i]`, weight `[o, i]`, bias `[o]`, output `[..., o]`. The
    element type of bias and output is `result_element` if it is given, as in
    `graph.contract`, else that of the input.
  }];
  let arguments = (ins Graph_FloatTensor:$input, Graph_FloatTensor:$weight,
                       Optional<Graph_FloatTensor>:$bias,
                       OptionalAttr<TypeAttr>:$result_element);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $input `,` $weight (`bias` $bias^)? attr-dict `:`
    functional-type(operands, results)
  }];
  let builders = [OpBuilder<(ins "::mlir::Value":$input,
                                 "::mlir::Value":$weight,
                                 "::mlir::Value":$bias), [{
    build($_builder, $_state, input, weight, bias, ::mlir::TypeAttr());
  }]>];
}

//===----------------------------------------------------------------------===//
// Rows with a weight of their group
//===----------------------------------------------------------------------===//

def Graph_GroupedLinearOp : Graph_InferredOp<"grouped_linear", [
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>]> {
  let summary = "Each row times the matrix of its group, as of its expert";
  let description = [{
    Rows `[i..., k]`, groups `[i...]`, weight `[e, k, m]`, or with `transpose`
    `[e, m, k]`; `output[i..., :] = rows[i..., :] weight[groups[i...]]`, `[i...,
    m]`. It computes one product for each row, not one for each row and group.
    A group out of range is an error.

    `origin`, when present, is the first group that `weight` holds, of
    `global_size` groups. Rows of a group that it does not hold give 0, so that
    the results of all shards add up. Without `origin`, `global_size` is the
    number of groups without padding. Sums are as in `graph.contract`.
    ```mlir
    %y = graph.grouped_linear %x, %w, %experts
        : (tensor<2x8x16xf32>, tensor<4x16x32xf32>, tensor<2x8xi64>) -> tensor<2x8x32xf32>
    ```
  }];
  let arguments = (ins Graph_FloatTensor:$rows, Graph_FloatTensor:$weight,
                       Graph_IntTensor:$groups,
                       Optional<TensorRankOf<[I64], [1]>>:$origin,
                       UnitAttr:$transpose, OptionalAttr<I64Attr>:$global_size,
                       OptionalAttr<TypeAttr>:$result_element);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $rows `,` $weight `,` $groups (`origin` $origin^)? attr-dict `:`
    functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Graph_GroupedLinearWeightGradOp : Graph_InferredOp<
    "grouped_linear_weight_grad", [
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>]> {
  let summary = "Gradient of a grouped linear map for its weight";
  let description = [{
    Rows `[i..., k]`, gradients `[i..., m]`, groups `[i...]`; the output `[size,
    k, m]`, or with `transpose` `[size, m, k]`, has for each group the sum of
    the outer products of its rows and their gradients, 0 for a group without
    rows. `origin` and `global_size` are as in `graph.grouped_linear`; rows of
    groups that are not held are dropped.
  }];
  let arguments = (ins Graph_FloatTensor:$rows, Graph_FloatTensor:$gradient,
                       Graph_IntTensor:$groups,
                       Optional<TensorRankOf<[I64], [1]>>:$origin,
                       I64Attr:$size, UnitAttr:$transpose,
                       OptionalAttr<I64Attr>:$global_size,
                       OptionalAttr<TypeAttr>:$result_element);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $rows `,` $gradient `,` $groups (`origin` $origin^)? attr-dict `:`
    functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

def Graph_AttentionOp : Graph_InferredOp<"attention", [
    AttrSizedOperandSegments,
    DeclareOpInterfaceMethods<Graph_RandomOpInterface>,
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>,
    DeclareOpInterfaceMethods<Graph_PlacedOpInterface>]> {
  let summary = "Scaled dot-product attention";
  let description = [{
    Query `[b, a, q, d]`, key `[b, g, k, d]`, value `[b, g, k, e]`, where `g`
    divides `a`: query head `i` reads key-value head `i / (a / g)`. With
    `S = scale * query key^T + bias`, the result is
    `dropout(softmax(S where visible)) value`, `[b, a, q, e]`, and the
    log-sum-exp of the visible scores, `[b, a, q]` in f32 (f64 for f64). With a
    bias, which may be huge, it is `[b, a, q, 2]`, two numbers whose sum it is:
    the largest score, and the log-sum-exp of the scores less that.

    A key is visible unless excluded: by `causal`, `j > i + k - q`; by
    `window`, `j <= i + k - q - window`; by `mask` (broadcastable to
    `[b, a, q, k]`), where it is false; by `segments` (`[b, q]`) and
    `key_segments` (`[b, k]`; the same as `segments` where it is absent and
    q = k), where the documents differ. A row that sees no key gives 0, and a
    log-sum-exp of -inf. `bias` is broadcastable to `[b, a, q, k]`.

    Dropout of the probabilities follows `graph.dropout`, with indices in `[b,
    a, q, k']` where `k'` is k rounded up to a multiple of 64. `origin` and
    `global_shape` say where this slice begins in the global `[b, a, q, k]`;
    dropout, `causal` and `window` use global positions. Queries (keys) in
    another order have `query_starts` (`key_starts`): they consist of as many
    equal pieces as it has values, and each value is the position, relative to
    the origin, at which a piece begins. Positions within a block ascend.

    With `blocks` = n, queries and keys consist of n equal blocks, and each
    block of queries sees only the block of keys of the same index; a bias or
    mask of more than one query then broadcasts to `[b, a, q, k / n]`, the keys
    of the query's block. In a ring, `step` is the number of ranks by which the
    keys were passed on. `onto` and `onto_lse` are the results of the same
    queries on other keys: the softmax is then taken over both sets of keys.
    16-bit heads are computed with in f32, and the output is rounded once, to
    `result_element` if it is given, else to their type: what is still to be
    joined with other keys is not rounded.
  }];
  let arguments = (ins Graph_FloatTensor:$query, Graph_FloatTensor:$key,
                       Graph_FloatTensor:$value,
                       Optional<Graph_FloatTensor>:$bias,
                       Optional<Graph_BoolTensor>:$mask,
                       Optional<Graph_IntTensor>:$segments,
                       Optional<TensorRankOf<[I64], [1]>>:$rng,
                       Optional<TensorRankOf<[I64], [1]>>:$origin,
                       Optional<Graph_IntTensor>:$key_segments,
                       Optional<TensorRankOf<[I64], [1]>>:$query_starts,
                       Optional<TensorRankOf<[I64], [1]>>:$key_starts,
                       Optional<Graph_FloatTensor>:$onto,
                       Optional<Graph_FloatTensor>:$onto_lse,
                       F64Attr:$scale, UnitAttr:$causal,
                       OptionalAttr<I64Attr>:$window,
                       DefaultValuedAttr<F64Attr, "0.0">:$dropout,
                       DefaultValuedAttr<I64Attr, "0">:$dropout_id,
                       OptionalAttr<DenseI64ArrayAttr>:$global_shape,
                       DefaultValuedAttr<I64Attr, "1">:$blocks,
                       DefaultValuedAttr<I64Attr, "0">:$step,
                       OptionalAttr<TypeAttr>:$result_element);
  let results = (outs Graph_FloatTensor:$output, Graph_FloatTensor:$lse);
  let assemblyFormat = [{
    $query `,` $key `,` $value (`bias` $bias^)? (`mask` $mask^)?
    (`segments` $segments^)? (`rng` $rng^)? (`origin` $origin^)?
    (`key_segments` $key_segments^)? (`query_starts` $query_starts^)?
    (`key_starts` $key_starts^)? (`onto` $onto^ `,` $onto_lse)? attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
}

def Graph_AttentionGradOp : Graph_InferredOp<"attention_grad", [
    AttrSizedOperandSegments, Graph_BackwardOnly,
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>,
    DeclareOpInterfaceMethods<Graph_PlacedOpInterface>]> {
  let summary = "Gradients of attention for query, key and value";
  let description = [{
    Probabilities are recomputed from the scores and `lse`; `output` and
    `gradient` are those of the attention's result. Results have the type
    `result_element` if it is given, as in `graph.contract`, else that of their
    operands.
  }];
  let arguments = (ins Graph_FloatTensor:$gradient, Graph_FloatTensor:$query,
                       Graph_FloatTensor:$key, Graph_FloatTensor:$value,
                       Graph_FloatTensor:$output, Graph_FloatTensor:$lse,
                       Optional<Graph_FloatTensor>:$bias,
                       Optional<Graph_BoolTensor>:$mask,
                       Optional<Graph_IntTensor>:$segments,
                       Optional<TensorRankOf<[I64], [1]>>:$rng,
                       Optional<TensorRankOf<[I64], [1]>>:$origin,
                       Optional<Graph_IntTensor>:$key_segments,
                       Optional<TensorRankOf<[I64], [1]>>:$query_starts,
                       Optional<TensorRankOf<[I64], [1]>>:$key_starts,
                       F64Attr:$scale, UnitAttr:$causal,
                       OptionalAttr<I64Attr>:$window,
                       DefaultValuedAttr<F64Attr, "0.0">:$dropout,
                       DefaultValuedAttr<I64Attr, "0">:$dropout_id,
                       OptionalAttr<DenseI64ArrayAttr>:$global_shape,
                       DefaultValuedAttr<I64Attr, "1">:$blocks,
                       DefaultValuedAttr<I64Attr, "0">:$step,
                       OptionalAttr<TypeAttr>:$result_element);
  let results = (outs Graph_FloatTensor:$queryGradient,
                      Graph_FloatTensor:$keyGradient,
                      Graph_FloatTensor:$valueGradient);
  let assemblyFormat = [{
    $gradient `,` $query `,` $key `,` $value `,` $output `,` $lse
    (`bias` $bias^)? (`mask` $mask^)? (`segments` $segments^)? (`rng` $rng^)?
    (`origin` $origin^)? (`key_segments` $key_segments^)?
    (`query_starts` $query_starts^)? (`key_starts` $key_starts^)? attr-dict `:`
    functional-type(operands, results)
  }];
}

def Graph_AttentionBiasGradOp : Graph_InferredOp<"attention_bias_grad", [
    AttrSizedOperandSegments, Graph_BackwardOnly,
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>,
    DeclareOpInterfaceMethods<Graph_PlacedOpInterface>]> {
  let summary = "Gradient of attention for its additive bias";
  let description = [{
    Has the bias's own shape: summed over the dimensions along which the bias is
    broadcast.
  }];
  let arguments = (ins Graph_FloatTensor:$gradient, Graph_FloatTensor:$query,
                       Graph_FloatTensor:$key, Graph_FloatTensor:$value,
                       Graph_FloatTensor:$output, Graph_FloatTensor:$lse,
                       Graph_FloatTensor:$bias,
                       Optional<Graph_BoolTensor>:$mask,
                       Optional<Graph_IntTensor>:$segments,
                       Optional<TensorRankOf<[I64], [1]>>:$rng,
                       Optional<TensorRankOf<[I64], [1]>>:$origin,
                       Optional<Graph_IntTensor>:$key_segments,
                       Optional<TensorRankOf<[I64], [1]>>:$query_starts,
                       Optional<TensorRankOf<[I64], [1]>>:$key_starts,
                       F64Attr:$scale, UnitAttr:$causal,
                       OptionalAttr<I64Attr>:$window,
                       DefaultValuedAttr<F64Attr, "0.0">:$dropout,
                       DefaultValuedAttr<I64Attr, "0">:$dropout_id,
                       OptionalAttr<DenseI64ArrayAttr>:$global_shape,
                       DefaultValuedAttr<I64Attr, "1">:$blocks,
                       DefaultValuedAttr<I64Attr, "0">:$step);
  let results = (outs Graph_FloatTensor:$biasGradient);
  let assemblyFormat = [{
    $gradient `,` $query `,` $key `,` $value `,` $output `,` $lse
    `bias` $bias (`mask` $mask^)? (`segments` $segments^)? (`rng` $rng^)?
    (`origin` $origin^)? (`key_segments` $key_segments^)?
    (`query_starts` $query_starts^)? (`key_starts` $key_starts^)? attr-dict `:`
    functional-type(operands, results)
  }];
}

//===----------------------------------------------------------------------===//
// Rows sorted by group
//===----------------------------------------------------------------------===//

def Graph_SortRowsOp : Graph_InferredOp<"sort_rows", [Graph_BackwardOnly]> {
  let summary = "The order of rows by their groups";
  let description = [{
    Of groups `[n]`, those of n rows: `order [n]`, where place `p` holds row
    `order[p]`; `inverse [n]`, the place of each row; and `offsets [1, size +
    1]`: the rows of group `e` are at the places `offsets[0, e]` to `offsets[0,
    e + 1]`, without the last. Rows are sorted by group, and those of a group
    keep their order. With `origin`, the `size` groups are those of the
    `global_size` global ones that begin at `origin`. Rows of other groups come
    last. `--graph-sort-rows` makes it.
    ```mlir
    %order, %inverse, %offsets = graph.sort_rows %g {size = 4 : i64}
        : (tensor<6xi64>) -> (tensor<6xi64>, tensor<6xi64>, tensor<1x5xi64>)
    ```
  }];
  let arguments = (ins Graph_IntTensor:$groups,
                       Optional<TensorRankOf<[I64], [1]>>:$origin,
                       I64Attr:$size, OptionalAttr<I64Attr>:$global_size);
  let results = (outs Graph_IntTensor:$order, Graph_IntTensor:$inverse,
                      Graph_IntTensor:$offsets);
  let assemblyFormat = [{
    $groups (`origin` $origin^)? attr-dict `:`
    functional-type(operands, results)
  }];
}

def Graph_GroupedContractOp
    : Graph_InferredOp<"grouped_contract", [Graph_BackwardOnly]> {
  let summary = "Sorted rows, each multiplied by the weight of its group";
  let description = [{
    Rows `[r, k]`, weight `[e, k, m]`, or, with `transpose`, `[e, m, k]`,
    offsets `[p, e + 1]`; result `[r, m]`. For each `i` and `j`, the rows
    `offsets[i, j]` to `offsets[i, j + 1]`, without the last, are multiplied by
    `weight[j]`; the ranges do not overlap, and other rows of the result are 0.
    There are several `p` where rows come from as many ranks, each in order of
    groups. Types and sums are as in `graph.contract`.
    ```mlir
    %y = graph.grouped_contract %x, %w, %offsets
        : (tensor<6x8xf32>, tensor<4x8x16xf32>, tensor<1x5xi64>) -> tensor<6x16xf32>
    ```
  }];
  let arguments = (ins Graph_FloatTensor:$rows, Graph_FloatTensor:$weight,
                       Graph_IntTensor:$offsets, UnitAttr:$transpose,
                       OptionalAttr<TypeAttr>:$result_element);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $rows `,` $weight `,` $offsets attr-dict `:`
    functional-type(operands, results)
  }];
}

def Graph_GroupedContractWeightGradOp
    : Graph_InferredOp<"grouped_contract_weight_grad", [Graph_BackwardOnly]> {
  let summary = "The gradient of grouped_contract for its weight";
  let description = [{
    Rows `[r, k]`, gradients `[r, m]`, offsets `[p, e + 1]` as in
    `graph.grouped_contract`; result `[e, k, m]`, or, with `transpose`,
    `[e, m, k]`: for each group the sum of the products of its rows' elements
    and those of their gradients, 0 for a group without rows.
  }];
  let arguments = (ins Graph_FloatTensor:$rows, Graph_FloatTensor:$grads,
                       Graph_IntTensor:$offsets, UnitAttr:$transpose,
                       OptionalAttr<TypeAttr>:$result_element);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $rows `,` $grads `,` $offsets attr-dict `:`
    functional-type(operands, results)
  }];
}

#endif // CLEAVE_DIALECT_GRAPH_IR_CONTRACTIONOPS_TD
