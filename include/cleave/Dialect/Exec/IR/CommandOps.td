//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_COMMANDOPS_TD
#define CLEAVE_DIALECT_EXEC_IR_COMMANDOPS_TD

include "cleave/Dialect/Exec/IR/ExecDialect.td"
include "cleave/Dialect/Exec/IR/ExecInterfaces.td"
include "cleave/Dialect/Graph/IR/Kinds.td"

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

def Exec_ViewOp : Exec_Op<"view", [Pure]> {
  let summary = "The same memory with another shape and layout";
  let description = [{
    The result's type defines the view: element `i` of the result is the element
    of the operand's *memory* at `offset + sum(i[d] * strides[d])`, counted in
    elements from the first element of the operand's buffer.
    ```mlir
    %t = exec.view %x : tensor<4x8xf32>
        -> tensor<8x4xf32, #exec.layout<[1, 8]>>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat = "$input attr-dict `:` type($input) `->` type($output)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Exec_JoinOp : Exec_Op<"join", [Pure]> {
  let summary = "Joins values in one buffer into one value";
  let description = [{
    The layout of each operand is its place in the result's buffer; together the
    operands cover the result, each element once. Memory planning gives them one
    buffer, so that their commands write directly into it: nothing is copied.
    ```mlir
    %qkv = exec.join %q, %k : (tensor<4x8xf32, #exec.layout<[16, 1]>>,
                               tensor<4x8xf32, #exec.layout<[16, 1], offset = 8>>)
        -> tensor<4x16xf32>
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat =
      "$inputs attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

class Exec_Command<string mnemonic, list<Trait> traits,
                   list<string> methods = []>
    : Exec_Op<mnemonic, !listconcat(traits,
        [DeclareOpInterfaceMethods<Exec_CommandOpInterface, methods>])>;

/// A result with its own memory, which another command may take over; two such
/// results are never merged.
class Exec_Fresh<string name> : Arg<AnyRankedTensor, name, [MemAlloc]>;

def Exec_CopyOp : Exec_Command<"copy", [],
    ["getShares", "canWriteResult", "canReadOperand"]> {
  let summary = "Copies to new memory or to that of `into`";
  let description = [{
    With `into`, the result takes the memory of that operand, whose previous
    content is overwritten.
    ```mlir
    %d = exec.copy %t : tensor<8x4xf32, #exec.layout<[1, 8]>> -> tensor<8x4xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Optional<AnyRankedTensor>:$into);
  let results = (outs Exec_Fresh<"the copy">:$output);
  let assemblyFormat = [{
    $input (`into` $into^ `:` type($into) `,`)? attr-dict `:` type($input)
    `->` type($output)
  }];
  let hasVerifier = 1;
}

def Exec_FillOp : Exec_Command<"fill", []> {
  let summary = "One value, repeated";
  let description = [{
    ```mlir
    %z = exec.fill 0.0 : f32 -> tensor<4x8xf32>
    ```
  }];
  let arguments = (ins TypedAttrInterface:$value);
  let results = (outs Exec_Fresh<"the values">:$output);
  let assemblyFormat = "$value attr-dict `->` type($output)";
  let hasVerifier = 1;
}

def Exec_ConstantOp : Exec_Op<"constant", [Pure]> {
  let summary = "A tensor stored with the program";
  let description = [{
    It has a fixed offset in the arena and is never written. With
    `#exec.device_values` each rank has its own.
  }];
  let arguments = (ins AnyAttrOf<[ElementsAttr,
                                  Exec_DeviceValuesAttr]>:$value);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat = "attr-dict $value `->` type($output)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// The second tier
//===----------------------------------------------------------------------===//

def Exec_FetchOp : Exec_Command<"fetch", [AllTypesMatch<["input", "output"]>]> {
  let summary = "Copies a value from the second tier into memory";
  let description = [{
    The operand is an argument of the part with the attribute `exec.tier`. No
    other command but `exec.evict` refers to such a value. The copy runs beside
    other commands: the command table begins it here, and waits for it before
    the first command that needs its memory.
    ```mlir
    %m = exec.fetch %arg2 : tensor<4x8xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input);
  let results = (outs Exec_Fresh<"the copy in memory">:$output);
  let assemblyFormat = "$input attr-dict `:` type($input)";
  let hasVerifier = 1;
}

def Exec_EvictOp : Exec_Command<"evict", [AllTypesMatch<["input", "output"]>],
    ["getShares"]> {
  let summary = "Copies a value from memory to the second tier";
  let description = [{
    The result is in the second tier: in the place of `into`, an argument of the
    part, whose previous content is overwritten, or in a new place. It is a
    result of the part. The copy runs beside other commands, as that of
    `exec.fetch`.
    ```mlir
    %n = exec.evict %4 : tensor<4x8xf32> into %arg2 : tensor<4x8xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Optional<AnyRankedTensor>:$into);
  let results = (outs Exec_Fresh<"the copy in the second tier">:$output);
  let assemblyFormat = [{
    $input attr-dict `:` type($input) (`into` $into^ `:` type($into))?
  }];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Library calls
//===----------------------------------------------------------------------===//

def Exec_ContractOp : Exec_Command<"contract", [Pure, AttrSizedOperandSegments],
    ["getShares", "canWriteResult", "canReadOperand", "getFlops"]> {
  let summary = "A matrix product, or a batch of them";
  let description = [{
    `C[m, n] = sum over k of A[m, k] * B[k, n]`, with an equal leading batch
    dimension or none. The layouts of the operands define which of them are
    transposed: one of the last two strides is 1; for the result it is the last.
    With `accumulate`, the product is added to that operand, whose memory the
    result takes. Operands are f32, bf16 or f16; sums are f32, and the result is
    f32 or, of 16-bit operands, of their type: then it is rounded once, after
    what follows. Operands of 8 bits, of which one is f8E4M3FN, are contiguous
    rows of A and columns of B at multiples of 16 elements; the result is f32.

    With `bias`, a vector of the result's type, element n is added to column n.
    Of a product without a batch the result may be its gelu, in the form with
    tanh: `gelu` may have what it is taken of as a second result; `gelu_grad` is
    the product times the slope of gelu at the matrix that follows.
    ```mlir
    %c = exec.contract %a, %b accumulate %c0
        : (tensor<4x8xf32>, tensor<8x16xf32, #exec.layout<[1, 8]>>, tensor<4x16xf32>)
        -> tensor<4x16xf32>
    %y, %x = exec.contract %a, %b bias %v {gelu}
        : (tensor<4x8xbf16>, tensor<8x16xbf16>, tensor<16xbf16>)
        -> (tensor<4x16xbf16>, tensor<4x16xbf16>)
    %d = exec.contract %a, %b gelu_grad %x
        : (tensor<4x8xbf16>, tensor<8x16xbf16>, tensor<4x16xbf16>)
        -> tensor<4x16xbf16>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$lhs, AnyRankedTensor:$rhs,
                       Optional<AnyRankedTensor>:$bias,
                       Optional<AnyRankedTensor>:$slope_of,
                       Optional<AnyRankedTensor>:$accumulator,
                       UnitAttr:$gelu);
  let results = (outs AnyRankedTensor:$output,
                      Optional<AnyRankedTensor>:$before);
  let assemblyFormat = [{
    $lhs `,` $rhs (`bias` $bias^)? (`gelu_grad` $slope_of^)?
    (`accumulate` $accumulator^)? attr-dict `:`
    functional-type(operands, results)
  }];
  let builders = [
    OpBuilder<(ins "::mlir::RankedTensorType":$type, "::mlir::Value":$lhs,
                   "::mlir::Value":$rhs)>,
  ];
  let hasVerifier = 1;
}

class Exec_AttentionBase<string mnemonic, list<string> methods = []>
    : Exec_Command<mnemonic, [Pure, AttrSizedOperandSegments], !listconcat(
        ["getScratchBytes", "canWriteResult", "canReadOperand", "getFlops"],
        methods)> {
  let hasVerifier = 1;
}

def Exec_AttentionOp : Exec_AttentionBase<"attention", ["getShares"]> {
  let summary = "Scaled dot-product attention, blockwise over queries";
  let description = [{
    Defined as `graph.attention`. The last stride of query, key, value and
    output is 1; the log-sum-exp is dense. The results take the memory of `onto`
    and `onto_lse`.
  }];
  let arguments = (ins AnyRankedTensor:$query, AnyRankedTensor:$key,
                       AnyRankedTensor:$value,
                       Optional<AnyRankedTensor>:$bias,
                       Optional<AnyRankedTensor>:$mask,
                       Optional<AnyRankedTensor>:$segments,
                       Optional<AnyRankedTensor>:$rng,
                       Optional<AnyRankedTensor>:$origin,
                       Optional<AnyRankedTensor>:$key_segments,
                       Optional<AnyRankedTensor>:$query_starts,
                       Optional<AnyRankedTensor>:$key_starts,
                       Optional<AnyRankedTensor>:$onto,
                       Optional<AnyRankedTensor>:$onto_lse,
                       F64Attr:$scale, UnitAttr:$causal,
                       OptionalAttr<I64Attr>:$window,
                       DefaultValuedAttr<F64Attr, "0.0">:$dropout,
                       DefaultValuedAttr<I64Attr, "0">:$dropout_id,
                       OptionalAttr<DenseI64ArrayAttr>:$global_shape,
                       DefaultValuedAttr<I64Attr, "1">:$blocks);
  let results = (outs AnyRankedTensor:$output, AnyRankedTensor:$lse);
  let assemblyFormat = [{
    $query `,` $key `,` $value (`bias` $bias^)? (`mask` $mask^)?
    (`segments` $segments^)? (`rng` $rng^)? (`origin` $origin^)?
    (`key_segments` $key_segments^)? (`query_starts` $query_starts^)?
    (`key_starts` $key_starts^)? (`onto` $onto^ `,` $onto_lse)? attr-dict
    `:` functional-type(operands, results)
  }];
}

def Exec_AttentionGradOp : Exec_AttentionBase<"attention_grad"> {
  let summary = "Gradients of attention, blockwise over queries";
  let description = [{
    Defined as `graph.attention_grad` and `graph.attention_bias_grad`; the
    gradient for the bias, if wanted, is the fourth result, and dense.
  }];
  let arguments = (ins AnyRankedTensor:$gradient, AnyRankedTensor:$query,
                       AnyRankedTensor:$key, AnyRankedTensor:$value,
                       AnyRankedTensor:$output, AnyRankedTensor:$lse,
                       Optional<AnyRankedTensor>:$bias,
                       Optional<AnyRankedTensor>:$mask,
                       Optional<AnyRankedTensor>:$segments,
                       Optional<AnyRankedTensor>:$rng,
                       Optional<AnyRankedTensor>:$origin,
                       Optional<AnyRankedTensor>:$key_segments,
                       Optional<AnyRankedTensor>:$query_starts,
                       Optional<AnyRankedTensor>:$key_starts,
                       F64Attr:$scale, UnitAttr:$causal,
                       OptionalAttr<I64Attr>:$window,
                       DefaultValuedAttr<F64Attr, "0.0">:$dropout,
                       DefaultValuedAttr<I64Attr, "0">:$dropout_id,
                       OptionalAttr<DenseI64ArrayAttr>:$global_shape,
                       DefaultValuedAttr<I64Attr, "1">:$blocks);
  let results = (outs AnyRankedTensor:$queryGradient,
                      AnyRankedTensor:$keyGradient,
                      AnyRankedTensor:$valueGradient,
                      Optional<AnyRankedTensor>:$biasGradient);
  let assemblyFormat = [{
    $gradient `,` $query `,` $key `,` $value `,` $output `,` $lse
    (`bias` $bias^)? (`mask` $mask^)? (`segments` $segments^)? (`rng` $rng^)?
    (`origin` $origin^)? (`key_segments` $key_segments^)?
    (`query_starts` $query_starts^)? (`key_starts` $key_starts^)? attr-dict `:`
    functional-type(operands, results)
  }];
}

def Exec_ScatterAddOp : Exec_Command<"scatter_add", [Pure],
    ["getShares", "canReadOperand", "getFlops"]> {
  let summary = "Adds rows to the rows given by ids, in order";
  let description = [{
    `output[ids[i], :] += rows[i, :]` in increasing `i`, starting from zero, or
    from `accumulate`, whose memory the result then takes. Rows whose id is
    `skip`, or out of range, are ignored.
  }];
  let arguments = (ins AnyRankedTensor:$rows, AnyRankedTensor:$ids,
                       Optional<AnyRankedTensor>:$accumulator,
                       OptionalAttr<I64Attr>:$skip);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat = [{
    $rows `,` $ids (`accumulate` $accumulator^)? attr-dict `:`
    functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Exec_TopKOp : Exec_Command<"top_k", [Pure],
    ["getScratchBytes", "canReadOperand"]> {
  let summary = "The largest elements of rows, and their indices";
  let description = [{
    Defined as `graph.top_k`, for f32 rows `[b, n]`, by a selection that reads a
    row five times, whatever k is.
    ```mlir
    %v, %i = exec.top_k %x : tensor<4x80xf32> -> tensor<4x20xf32>, tensor<4x20xi64>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input);
  let results = (outs AnyRankedTensor:$values, AnyRankedTensor:$indices);
  let assemblyFormat = [{
    $input attr-dict `:` type($input) `->` type($values) `,` type($indices)
  }];
  let hasVerifier = 1;
}

def Exec_OrthonormalizeOp : Exec_Command<"orthonormalize", [Pure],
    ["getShares", "getScratchBytes", "canReadOperand", "getFlops"]> {
  let summary = "The Q factors of matrices";
  let description = [{
    Defined as `graph.orthonormalize`, for f32 matrices `[b, n, r]`. It computes
    in f64 and rounds once, in an order that depends on the shape alone.
    ```mlir
    %q = exec.orthonormalize %p : tensor<1x64x4xf32> -> tensor<1x64x4xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat = "$input attr-dict `:` type($input) `->` type($output)";
  let hasVerifier = 1;
}

def Exec_SortRowsOp : Exec_Command<"sort_rows", [Pure], ["canReadOperand"]> {
  let summary = "The order of rows by their groups";
  let description = [{
    Defined as `graph.sort_rows`: a counting sort.
    ```mlir
    %o, %i, %f = exec.sort_rows %g : (tensor<6xi64>) -> (tensor<6xi64>, tensor<6xi64>, tensor<1x5xi64>)
    ```
  }];
  let arguments = (ins AnyRankedTensor:$groups,
                       Optional<AnyRankedTensor>:$origin);
  let results = (outs AnyRankedTensor:$order, AnyRankedTensor:$inverse,
                      AnyRankedTensor:$offsets);
  let assemblyFormat = [{
    $groups (`origin` $origin^)? attr-dict `:`
    functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

class Exec_GroupedBase<string mnemonic> : Exec_Command<mnemonic, [Pure],
    ["getScratchBytes", "canReadOperand", "getFlops"]> {
  let hasVerifier = 1;
}

def Exec_GroupedContractOp : Exec_GroupedBase<"grouped_contract"> {
  let summary = "Sorted rows, each multiplied by the weight of its group";
  let description = [{
    Defined as `graph.grouped_contract`. Operands are both f32, both bf16 or
    both f64, with a last stride of 1; the result is f32, or f64, and dense.
  }];
  let arguments = (ins AnyRankedTensor:$rows, AnyRankedTensor:$weight,
                       AnyRankedTensor:$offsets, UnitAttr:$transpose);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat = [{
    $rows `,` $weight `,` $offsets attr-dict `:`
    functional-type(operands, results)
  }];
}

def Exec_GroupedContractWeightGradOp
    : Exec_GroupedBase<"grouped_contract_weight_grad"> {
  let summary = "The gradient of grouped_contract for its weight";
  let description = [{
    Defined as `graph.grouped_contract_weight_grad`, of the types of
    `exec.grouped_contract`.
  }];
  let arguments = (ins AnyRankedTensor:$rows, AnyRankedTensor:$grads,
                       AnyRankedTensor:$offsets, UnitAttr:$transpose);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat = [{
    $rows `,` $grads `,` $offsets attr-dict `:`
    functional-type(operands, results)
  }];
}

def Exec_CheckOp : Exec_Command<"check", [], ["canReadOperand"]> {
  let summary = "Stops the step unless the flag is true";
  let description = [{
    All ranks agree on the result. Stages run different checks, so a `deferred`
    check takes effect with the next check that is not deferred; until then the
    step continues. If all checks that have failed are ones that `skips`, the
    step is skipped: it ends without an error. `room` and `values` are those of
    `graph.check`.
  }];
  let arguments = (ins AnyRankedTensor:$flag, StrAttr:$message,
                       UnitAttr:$deferred, UnitAttr:$skips, UnitAttr:$room,
                       Optional<AnyRankedTensor>:$values);
  let results = (outs);
  let assemblyFormat = [{
    $flag `,` $message (`skips` $skips^)? (`room` $room^)?
    (`with` $values^ `:` type($values))? attr-dict `:` type($flag)
  }];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Communication
//===----------------------------------------------------------------------===//

def Exec_CollectiveOp : Exec_Command<"collective",
    [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>],
    ["getShares", "canWriteResult", "canReadOperand"]> {
  let summary = "Exchanges a value between ranks";
  let description = [{
    A group consists of the ranks that differ only in their coordinates on
    `axes`; these coordinates number its members. Each member sends each other
    one a `block`, or, in reductions, blocks are combined in order of the
    members, with `reduction`. `src_starts` gives where the block for member j
    begins in the operand, and `dst_starts` where that of member i begins in the
    result: one index for each dimension, member after member; without them it
    begins at 0. In a permute, member j receives the block of `sources[j]`. A
    broadcast sends the block of member `root` to all; a reduce writes the sum
    of all to `into`, whose memory the result takes, at member `root` alone;
    without `into`, the result of the other members is undefined. Exchanges with
    different `apart` numbers are never merged.
    ```mlir
    %y = exec.collective all_gather %x over @mesh #spmd.axes<{"tp"}>
        {block = array<i64: 2, 4>, dst_starts = array<i64: 0, 0, 2, 0>}
        : tensor<2x4xf32> -> tensor<4x4xf32>
    ```
  }];
  let arguments = (ins CollectiveKind:$kind, AnyRankedTensor:$input,
                       Optional<AnyRankedTensor>:$into,
                       FlatSymbolRefAttr:$mesh, Exec_MeshAxesAttr:$axes,
                       DenseI64ArrayAttr:$block,
                       DefaultValuedAttr<ReductionKind,
                           "::cleave::ReductionKind::Sum">:$reduction,
                       DefaultValuedAttr<DenseI64ArrayAttr, "{}">:$src_starts,
                       DefaultValuedAttr<DenseI64ArrayAttr, "{}">:$dst_starts,
                       DefaultValuedAttr<DenseI64ArrayAttr, "{}">:$sources,
                       DefaultValuedAttr<I64Attr, "0">:$root,
                       OptionalAttr<I64Attr>:$apart);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat = [{
    $kind $input (`into` $into^ `:` type($into))? `over` $mesh $axes attr-dict `:` type($input) `->` type($output)
  }];
  let extraClassDeclaration = [{
    /// The number of ranks of a group.
    int64_t getMembers();
  }];
}

def Exec_AllToAllRowsOp : Exec_Command<"all_to_all_rows",
    [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>,
     AllTypesMatch<["send_offsets", "receive_offsets"]>],
    ["canReadOperand"]> {
  let summary = "Sends rows to all ranks of a group, as many as values say";
  let description = [{
    Defined as `spmd.all_to_all_rows`.
    ```mlir
    %y = exec.all_to_all_rows %x from %s to %r over @mesh #spmd.axes<{"ep"}>
        : tensor<8x4xf32>, tensor<3xi64> -> tensor<12x4xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input,
                       TensorRankOf<[I64], [1]>:$send_offsets,
                       TensorRankOf<[I64], [1]>:$receive_offsets,
                       FlatSymbolRefAttr:$mesh, Exec_MeshAxesAttr:$axes);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat = [{
    $input `from` $send_offsets `to` $receive_offsets `over` $mesh $axes
    attr-dict `:` type($input) `,` type($send_offsets) `->` type($output)
  }];
  let extraClassDeclaration = [{
    /// The number of ranks of a group.
    int64_t getMembers();
    /// The elements of each rank's message to all, with even shares.
    double getEvenElements();
  }];
}

def Exec_SendOp : Exec_Command<"send", [], ["canReadOperand"]> {
  let summary = "Begins to send a value to another pipeline position";
  let description = [{
    The rank at position `to` that has the same other coordinates receives it.
    The memory may be reused only after the `exec.await` of the same token and
    micro-batch.
    ```mlir
    exec.send %x {to = 1 : i64, token = 0 : i64} : tensor<2x8xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, I64Attr:$to, I64Attr:$token);
  let results = (outs);
  let assemblyFormat = "$input attr-dict `:` type($input)";
}

def Exec_ReceiveOp : Exec_Command<"receive", [], ["canWriteResult"]> {
  let summary = "Begins to receive a value from another pipeline position";
  let description = [{
    The sender is the rank at position `from` that has the same other
    coordinates; the value is available after the `exec.await` of the same token
    and micro-batch.
    ```mlir
    %x = exec.receive {from = 0 : i64, token = 0 : i64} : tensor<2x8xf32>
    ```
  }];
  let arguments = (ins I64Attr:$from, I64Attr:$token);
  let results = (outs Exec_Fresh<"the received value">:$output);
  let assemblyFormat = "attr-dict `:` type($output)";
}

def Exec_AwaitOp : Exec_Command<"await", [], ["canReadOperand"]> {
  let summary = "Waits for sends or receives";
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs,
                       DenseI64ArrayAttr:$tokens);
  let results = (outs);
  let assemblyFormat = "$inputs $tokens attr-dict `:` type($inputs)";
}

#endif // CLEAVE_DIALECT_EXEC_IR_COMMANDOPS_TD
