//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_SHAPEOPS_TD
#define CLEAVE_DIALECT_GRAPH_IR_SHAPEOPS_TD

include "cleave/Dialect/Graph/IR/GraphDialect.td"
include "cleave/Dialect/Graph/IR/Kinds.td"

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

def Graph_ReduceOp : Graph_InferredOp<"reduce"> {
  let summary = "Reduction over dimensions, which are removed";
  let description = [{
    The gradient of max and min is shared equally between equal elements. A sum
    of a narrow float accumulates in f32.
    ```mlir
    %s = graph.reduce sum %x {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
    ```
  }];
  let arguments = (ins ReductionKind:$kind, Graph_Tensor:$input,
                       DenseI64ArrayAttr:$dims);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat =
      "$kind $input attr-dict `:` functional-type(operands, results)";
  let hasCanonicalizer = 1;
}

def Graph_CumulativeSumOp : Graph_InferredOp<"cumulative_sum"> {
  let summary = "Inclusive sum along one dimension";
  let arguments = (ins Graph_Tensor:$input, I64Attr:$dim, UnitAttr:$reverse);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
}

def Graph_LinearScanOp : Graph_InferredOp<"linear_scan"> {
  let summary = "Linear recurrence along one dimension";
  let description = [{
    Along `dim`, `out[t] = factor[t] * out[t - 1] + input[t]`, from an
    `out[-1]` of zero, which the first factor multiplies; with `reverse`,
    `out[t] = factor[t] * out[t + 1] + input[t]`, from the last. Operands have
    one shape. The recurrence of a narrow float is computed in f32.
    ```mlir
    %h = graph.linear_scan %a, %x {dim = 1 : i64} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    ```
    The gradient is the recurrence from the other side (Martin and Cundy,
    Parallelizing Linear Recurrent Neural Nets Over Sequence Length, ICLR 2018,
    section 2.2).
  }];
  let arguments = (ins Graph_FloatTensor:$factor, Graph_FloatTensor:$input,
                       I64Attr:$dim, UnitAttr:$reverse);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat =
      "$factor `,` $input attr-dict `:` functional-type(operands, results)";
}

def Graph_TopKOp : Graph_InferredOp<"top_k"> {
  let summary = "The largest elements of the last dimension, and their indices";
  let description = [{
    Input `[..., n]`; results `[..., k]`: values in decreasing order, and their
    indices. Of equal elements the one of lower index comes first. NaN counts as
    infinity. The gradient flows to the chosen elements.
    ```mlir
    %v, %i = graph.top_k %x {k = 2 : i64} : (tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>)
    ```
  }];
  let arguments = (ins Graph_FloatTensor:$input, I64Attr:$k);
  let results = (outs Graph_FloatTensor:$values, Graph_IntTensor:$indices);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
}

//===----------------------------------------------------------------------===//
// Movement
//===----------------------------------------------------------------------===//

def Graph_ReshapeOp : Graph_PureOp<"reshape"> {
  let summary = "The same elements in row-major order, in another shape";
  let arguments = (ins Graph_Tensor:$input);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Graph_TransposeOp : Graph_InferredOp<"transpose"> {
  let summary = "Permutation of dimensions";
  let description = "Dimension i of the output is dimension `permutation[i]` of the input.";
  let arguments = (ins Graph_Tensor:$input, DenseI64ArrayAttr:$permutation);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Graph_BroadcastOp : Graph_PureOp<"broadcast"> {
  let summary = "Repetition by the broadcasting rules of NumPy";
  let arguments = (ins Graph_Tensor:$input);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Graph_SliceOp : Graph_InferredOp<"slice", [
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>]> {
  let summary = "The elements offset, offset + stride, ... of each dimension";
  let arguments = (ins Graph_Tensor:$input, DenseI64ArrayAttr:$offsets,
                       DenseI64ArrayAttr:$sizes, DenseI64ArrayAttr:$strides);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Graph_PadOp : Graph_InferredOp<"pad"> {
  let summary = "A constant around, and between, the elements";
  let description = [{
    Dimension i grows to `low + (n - 1) * (interior + 1) + 1 + high`: with
    `interior` it is the adjoint of a strided slice. `value` is converted to
    the element type.
  }];
  let arguments = (ins Graph_Tensor:$input, F64Attr:$value,
                       DenseI64ArrayAttr:$low, DenseI64ArrayAttr:$high,
                       DenseI64ArrayAttr:$interior);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
  let hasCanonicalizer = 1;
}

def Graph_ConcatOp : Graph_InferredOp<"concat"> {
  let summary = "Concatenation along one dimension";
  let arguments = (ins Variadic<Graph_Tensor>:$inputs, I64Attr:$dim);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat =
      "$inputs attr-dict `:` functional-type(operands, results)";
  let hasCanonicalizer = 1;
}

def Graph_GatherOp : Graph_InferredOp<"gather", [
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>]> {
  let summary = "Slices along one dimension chosen by index";
  let description = [{
    `output[b, p, i..., s] = input[b, p, indices[b, i...], s]` where `b` are the
    first `batch` dimensions, `p` the others before `dim` and `s` those after
    it. An embedding is a gather along dimension 0 of its weight. Rows equal to
    `padding_index` receive no gradient. An index out of range is an error.

    `origin`, when present, is the index of the first element that `input`
    holds, in the global dimension of `global_size` elements. Indices are
    global. A slice that the input does not hold is 0, so that the results of
    all shards add up to the global result. Without `origin`, `global_size` is
    the size of the dimension without its padding.
  }];
  let arguments = (ins Graph_Tensor:$input, Graph_IntTensor:$indices,
                       Optional<TensorRankOf<[I64], [1]>>:$origin,
                       I64Attr:$dim, OptionalAttr<I64Attr>:$padding_index,
                       OptionalAttr<I64Attr>:$global_size,
                       DefaultValuedAttr<I64Attr, "0">:$batch);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat = [{
    $input `,` $indices (`origin` $origin^)? attr-dict `:`
    functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Graph_ScatterAddOp : Graph_InferredOp<"scatter_add", [
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>]> {
  let summary = "Adjoint of gather: sums slices into the place of their index";
  let description = [{
    `output[b, p, j, s]` is the sum, in increasing order of `i`, of `updates[b,
    p, i..., s]` over all `i` with `indices[b, i...] == j`; dimension `dim` of
    the output has `size` elements. With `origin` these are the `size` of the
    `global_size` elements of the global dimension that begin at `origin`;
    updates of other elements are dropped.
  }];
  let arguments = (ins Graph_FloatTensor:$updates, Graph_IntTensor:$indices,
                       Optional<TensorRankOf<[I64], [1]>>:$origin,
                       I64Attr:$dim, I64Attr:$size,
                       OptionalAttr<I64Attr>:$padding_index,
                       OptionalAttr<I64Attr>:$global_size,
                       DefaultValuedAttr<I64Attr, "0">:$batch,
                       OptionalAttr<TypeAttr>:$result_element);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $updates `,` $indices (`origin` $origin^)? attr-dict `:`
    functional-type(operands, results)
  }];
  let builders = [OpBuilder<(ins "::mlir::Value":$updates,
      "::mlir::Value":$indices, "::mlir::Value":$origin,
      "::mlir::IntegerAttr":$dim, "::mlir::IntegerAttr":$size,
      "::mlir::IntegerAttr":$padding_index, "::mlir::IntegerAttr":$global_size,
      "::mlir::IntegerAttr":$batch), [{
    build($_builder, $_state, updates, indices, origin, dim, size,
          padding_index, global_size, batch, ::mlir::TypeAttr());
  }]>];
  let hasVerifier = 1;
}

def Graph_OneHotOp : Graph_InferredOp<"one_hot", [
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>]> {
  let summary = "One-hot encoding of each index, along a new last dimension";
  let description = [{
    `output[i..., j]` says whether `indices[i...] == j`, for `size` values of j;
    with `origin`, for the `size` of the `global_size` values that begin at
    `origin`. An index out of range is an error, except `ignore_index`, which
    equals no j.
    ```mlir
    %h = graph.one_hot %t {size = 50 : i64, ignore_index = -100 : i64} : (tensor<8xi64>) -> tensor<8x50xi1>
    ```
  }];
  let arguments = (ins Graph_IntTensor:$indices,
                       Optional<TensorRankOf<[I64], [1]>>:$origin,
                       I64Attr:$size, OptionalAttr<I64Attr>:$ignore_index,
                       OptionalAttr<I64Attr>:$global_size);
  let results = (outs Graph_BoolTensor:$output);
  let assemblyFormat = [{
    $indices (`origin` $origin^)? attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Graph_PackBitsOp : Graph_InferredOp<"pack_bits"> {
  let summary = "Flags of the last dimension as the bits of bytes";
  let description = [{
    Input `[..., n]`, output `[..., ceil(n / 8)]`: bit i of byte j, i = 0 the
    lowest, is element `8 j + i`; bits behind the last element are 0. A flag
    alone takes a byte: packed ones are an eighth of it, in memory and where
    they are sent.
    ```mlir
    %b = graph.pack_bits %m : (tensor<4x20xi1>) -> tensor<4x3xi8>
    ```
  }];
  let arguments = (ins Graph_BoolTensor:$input);
  let results = (outs Graph_IntTensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
}

def Graph_UnpackBitsOp : Graph_PureOp<"unpack_bits"> {
  let summary = "The flags that bytes of `graph.pack_bits` hold";
  let description = [{
    ```mlir
    %m = graph.unpack_bits %b : (tensor<4x3xi8>) -> tensor<4x20xi1>
    ```
  }];
  let arguments = (ins Graph_IntTensor:$input);
  let results = (outs Graph_BoolTensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Graph_PatchesOp : Graph_InferredOp<"patches"> {
  let summary = "The windows of a 2-d convolution, as rows";
  let description = [{
    Input `[n, c, h, w]`, output `[n, oh, ow, c, kh, kw]`: a convolution is a
    contraction of it with the weight. Outside the image the value is 0.
  }];
  let arguments = (ins Graph_FloatTensor:$input, DenseI64ArrayAttr:$kernel,
                       DenseI64ArrayAttr:$stride, DenseI64ArrayAttr:$padding,
                       DenseI64ArrayAttr:$dilation);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
}

def Graph_PatchesGradOp : Graph_InferredOp<"patches_grad"> {
  let summary = "Adjoint of patches: sums windows back into an image";
  let arguments = (ins Graph_FloatTensor:$gradient, DenseI64ArrayAttr:$image,
                       DenseI64ArrayAttr:$kernel, DenseI64ArrayAttr:$stride,
                       DenseI64ArrayAttr:$padding, DenseI64ArrayAttr:$dilation);
  let results = (outs Graph_FloatTensor:$output);
  let description = "`image` is the `[h, w]` of the result.";
  let assemblyFormat =
      "$gradient attr-dict `:` functional-type(operands, results)";
}

#endif // CLEAVE_DIALECT_GRAPH_IR_SHAPEOPS_TD
