//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_SPMDOPS_TD
#define CLEAVE_DIALECT_SPMD_IR_SPMDOPS_TD

include "cleave/Dialect/Spmd/IR/SpmdAttributes.td"
include "cleave/Dialect/Spmd/IR/SpmdInterfaces.td"
include "cleave/Dialect/Graph/IR/GraphInterfaces.td"
include "cleave/Dialect/Graph/IR/Kinds.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class Spmd_Op<string mnemonic, list<Trait> traits = []>
    : Op<Spmd_Dialect, mnemonic, traits>;

def Spmd_MeshOp : Spmd_Op<"mesh", [Symbol]> {
  let summary = "The device mesh, as named axes";
  let description = [{
    `axes` and `sizes` give the axes in the order of device numbers, major to
    minor. The positions of an axis in `sequential` run one after the other on the
    same device.
    ```mlir
    spmd.mesh @mesh <["mb" = 4, "dp" = 2, "tp" = 8]> sequential ["mb"]
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, StrArrayAttr:$axes,
                       DenseI64ArrayAttr:$sizes,
                       OptionalAttr<StrArrayAttr>:$sequential);
  let assemblyFormat = [{
    $sym_name custom<MeshAxes>($axes, $sizes) (`sequential` $sequential^)?
    attr-dict
  }];
  let extraClassDeclaration = [{
    /// The mesh as data for the algebra.
    ::cleave::spmd::Mesh getMesh();
  }];
  let hasVerifier = 1;
}

/// A collective: an op that exchanges the shards of positions. It names only the
/// axes it communicates over, independent of other axes that shard the tensor.
/// Only a reduction may name a sequential axis.
class Spmd_CollectiveOp<string mnemonic, list<Trait> traits = [],
                      list<string> counting = []>
    : Spmd_Op<mnemonic, !listconcat([
        Pure,
        DeclareOpInterfaceMethods<Spmd_CommunicationOpInterface, counting>,
        DeclareOpInterfaceMethods<SymbolUserOpInterface>], traits)> {
  let results = (outs AnyRankedTensor:$output);
}

def Spmd_AllReduceOp
    : Spmd_CollectiveOp<"all_reduce", [SameOperandsAndResultType]> {
  let summary = "Reduces the values of all positions along axes";
  let description = [{
    Every position along `axes` receives the sum (max, min) of the values of
    all positions along them, reduced in a binary tree over positions. Along a
    sequential axis the reduction is accumulation.
    ```mlir
    %g = spmd.all_reduce sum %p over @mesh {"mb"} : tensor<8x8xf32>
    ```
  }];
  let arguments = (ins ReductionKind:$kind, AnyRankedTensor:$input,
                       FlatSymbolRefAttr:$mesh, Spmd_AxesAttr:$axes);
  let assemblyFormat = [{
    $kind $input `over` $mesh custom<AxisList>($axes) attr-dict `:` type($output)
  }];
}

def Spmd_AllGatherOp : Spmd_CollectiveOp<"all_gather"> {
  let summary = "Gathers the shards of all positions";
  let description = [{
    The inverse of `spmd.slice` by the same sharding. In each dimension, the
    shards of a group are concatenated. The axes of `sharding` are the minor axes
    of the operand in each dimension, and do not shard the result.
    ```mlir
    %y = spmd.all_gather %x by #spmd.sharding<@mesh, [{"tp"}, {} ]>
        : tensor<2x4xf32> -> tensor<8x4xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Spmd_ShardingAttr:$sharding);
  let assemblyFormat = [{
    $input `by` $sharding attr-dict `:` type($input) `->` type($output)
  }];
}

def Spmd_ReduceScatterOp : Spmd_CollectiveOp<"reduce_scatter"> {
  let summary = "Reduces the values of all positions; each keeps its shard";
  let description = [{
    `spmd.all_reduce` over the axes of `sharding`, then `spmd.slice` by it.
    ```mlir
    %y = spmd.reduce_scatter sum %x by #spmd.sharding<@mesh, [{"tp"}, {} ]>
        : tensor<8x4xf32> -> tensor<2x4xf32>
    ```
  }];
  let arguments = (ins ReductionKind:$kind, AnyRankedTensor:$input,
                       Spmd_ShardingAttr:$sharding);
  let assemblyFormat = [{
    $kind $input `by` $sharding attr-dict `:` type($input) `->` type($output)
  }];
}

def Spmd_AllToAllOp : Spmd_CollectiveOp<"all_to_all"> {
  let summary = "Moves axes from one dimension to another one";
  let description = [{
    The minor axes `axes` of dimension `from` become the minor axes of dimension
    `to`: dimension `from` is gathered along them, and dimension `to` is sharded.
    ```mlir
    %y = spmd.all_to_all %x over @mesh {"tp"} from 0 to 1
        : tensor<2x4xf32> -> tensor<8x1xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, FlatSymbolRefAttr:$mesh,
                       Spmd_AxesAttr:$axes, I64Attr:$from, I64Attr:$to);
  let assemblyFormat = [{
    $input `over` $mesh custom<AxisList>($axes) `from` $from `to` $to attr-dict
    `:` type($input) `->` type($output)
  }];
}

def Spmd_AllToAllRowsOp
    : Spmd_CollectiveOp<"all_to_all_rows",
                      [AllTypesMatch<["send_offsets", "receive_offsets"]>,
                       DeclareOpInterfaceMethods<Graph_ShardingRuleOpInterface>]> {
  let summary = "Sends rows to all positions, as many as values say";
  let description = [{
    With P positions along `axes`, rows `send_offsets[p]` to `send_offsets[p+1] -
    1` of the operand go to position p, and those of position p become rows
    `receive_offsets[p]` to `receive_offsets[p+1] - 1` of the result; its other
    rows are 0. Both lists have P+1 numbers, the first of which is 0. The inverse
    is the op itself with the offsets swapped. Where positions do not agree on
    the sizes, or exceed the rows of operand or result, it is an error at all of
    them, and no row is sent. On unsharded tensors dimension 0 of each is divided
    into one part for each position, so that there are P (P+1) offsets.
    ```mlir
    %y = spmd.all_to_all_rows %x from %s to %r over @mesh {"ep"}
        : tensor<8x4xf32>, tensor<3xi64> -> tensor<12x4xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input,
                       TensorRankOf<[I64], [1]>:$send_offsets,
                       TensorRankOf<[I64], [1]>:$receive_offsets,
                       FlatSymbolRefAttr:$mesh, Spmd_AxesAttr:$axes);
  let assemblyFormat = [{
    $input `from` $send_offsets `to` $receive_offsets `over` $mesh
    custom<AxisList>($axes) attr-dict
    `:` type($input) `,` type($send_offsets) `->` type($output)
  }];
}

def Spmd_PermuteOp
    : Spmd_CollectiveOp<"permute", [SameOperandsAndResultType],
                      ["getElementsSentBy"]> {
  let summary = "Exchanges shards between positions";
  let description = [{
    Replaces the minor axes `from` of each dimension by `to`, which make the same
    number of shards. Each position receives the shard that it holds under `to`
    from a position that holds it under `from` (`Permutation::source`).
    ```mlir
    %y = spmd.permute %x from #spmd.sharding<@mesh, [{"x"} ]>
        to #spmd.sharding<@mesh, [{"y"} ]> : tensor<4xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Spmd_ShardingAttr:$from,
                       Spmd_ShardingAttr:$to);
  let assemblyFormat = [{
    $input `from` $from `to` $to attr-dict `:` type($output)
  }];
  let extraClassDeclaration = [{
    ::cleave::spmd::Permutation getPermutation();
  }];
}

def Spmd_RotateOp
    : Spmd_CollectiveOp<"rotate", [
        SameOperandsAndResultType,
        DeclareOpInterfaceMethods<Graph_ShardingRuleOpInterface>]> {
  let summary = "Rotates shards around a ring of positions";
  let description = [{
    Dimension `dim` is divided into one part for each position of `axes`. Part
    `i` of the result is part `i - 1` of the operand, and part 0 is the last one.
    On shards, `axes` are the major axes of the dimension, and each position
    receives the shard of the previous position. On an unsharded tensor the op
    permutes the parts.
    ```mlir
    %y = spmd.rotate %x over @mesh {"cp"} dim 0 : tensor<8x4xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, FlatSymbolRefAttr:$mesh,
                       Spmd_AxesAttr:$axes, I64Attr:$dim);
  let assemblyFormat = [{
    $input `over` $mesh custom<AxisList>($axes) `dim` $dim attr-dict `:`
    type($output)
  }];
}

def Spmd_BroadcastOp
    : Spmd_CollectiveOp<"broadcast", [
        DeclareOpInterfaceMethods<Graph_ShardingRuleOpInterface>]> {
  let summary = "Broadcasts one part of a value to all positions";
  let description = [{
    Dimension `dim` is divided into one part for each position of `axes`; the
    result is part number `part`. On shards, `axes` are the major axes of the
    dimension, and each position receives the shard of position `part`. On an
    unsharded tensor the op is a slice. Broadcasts of the same part with different
    numbers `apart` are never merged, so that the part is sent again instead of
    kept in memory.
    ```mlir
    %y = spmd.broadcast %x over @mesh {"col"} dim 1 part 0
        : tensor<8x4xf32> -> tensor<8x2xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, FlatSymbolRefAttr:$mesh,
                       Spmd_AxesAttr:$axes, I64Attr:$dim, I64Attr:$part,
                       OptionalAttr<I64Attr>:$apart);
  let assemblyFormat = [{
    $input `over` $mesh custom<AxisList>($axes) `dim` $dim `part` $part
    attr-dict `:` type($input) `->` type($output)
  }];
}

def Spmd_ReduceOp
    : Spmd_CollectiveOp<"reduce", [
        DeclareOpInterfaceMethods<Graph_ShardingRuleOpInterface>,
        OptionalTypesMatchWith<"the accumulator has the type of the result", "output",
                               "into", "$_self">]> {
  let summary = "Reduces partial sums into one part of a value";
  let description = [{
    The inverse of `spmd.broadcast`. Dimension `dim` of the result is divided into
    one part for each position of `axes`. The operand replaces part number `part`
    of `into`; without `into` the other parts are zero. On shards, the operand is
    partial over `axes`, which are the major axes of the dimension in the result:
    position `part` receives the sum over all positions, and the others keep their
    shards of `into`. On an unsharded tensor nothing is reduced.
    ```mlir
    %y = spmd.reduce %p into %x over @mesh {"col"} dim 1 part 0
        : tensor<8x2xf32> -> tensor<8x4xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Optional<AnyRankedTensor>:$into,
                       FlatSymbolRefAttr:$mesh, Spmd_AxesAttr:$axes,
                       I64Attr:$dim, I64Attr:$part);
  let assemblyFormat = [{
    $input (`into` $into^)? `over` $mesh custom<AxisList>($axes) `dim` $dim
    `part` $part attr-dict `:` type($input) `->` type($output)
  }];
}

def Spmd_ShardOffsetOp : Spmd_Op<"shard_offset", [
    Pure, DeclareOpInterfaceMethods<Graph_CostOpInterface>,
    DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "The offset of this position's shard in the global tensor";
  let description = [{
    The index of the first element of this position's shard in a tensor of type
    `global` with sharding `sharding`: one value for each dimension.
    ```mlir
    %o = spmd.shard_offset #spmd.sharding<@mesh, [{"mb"}, {} ]> of tensor<8x4xf32> : tensor<2xi64>
    ```
  }];
  let arguments = (ins Spmd_ShardingAttr:$sharding, TypeAttr:$global);
  let results = (outs TensorRankOf<[I64], [1]>:$output);
  let assemblyFormat = "$sharding `of` $global attr-dict `:` type($output)";
}

def Spmd_SliceOp : Spmd_Op<"slice", [
    Pure, DeclareOpInterfaceMethods<Graph_CostOpInterface>,
    DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "Shards a local value further, without communication";
  let description = [{
    Shards dimensions over more axes: `sharding` names the axes that are added to
    each dimension of the operand, as minor axes. Each position keeps its part of
    its operand; nothing is sent.
    ```mlir
    %y = spmd.slice %x by #spmd.sharding<@mesh, [{"mb"}, {} ]>
        : tensor<8x4xf32> -> tensor<2x4xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Spmd_ShardingAttr:$sharding);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat = [{
    $input `by` $sharding attr-dict `:` type($input) `->` type($output)
  }];
}

def Spmd_BarrierOp : Spmd_Op<"barrier", [
    Pure, AllTypesMatch<["input", "output"]>,
    DeclareOpInterfaceMethods<Graph_ShardingRuleOpInterface>,
    DeclareOpInterfaceMethods<Graph_CostOpInterface>]> {
  let summary = "A value that depends on another value";
  let description = [{
    The identity of `input`. The result also depends on `after`, whose elements
    are not read. With a seed as `after`, the ops that use the result belong to
    backward, and are not merged with equal ops that use `input` in forward.
    ```mlir
    %y = spmd.barrier %x after %seed : tensor<2x4xf32>, tensor<f32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, AnyRankedTensor:$after);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat = [{
    $input `after` $after attr-dict `:` type($input) `,` type($after)
  }];
}

def Spmd_ConstrainOp : Spmd_Op<"constrain", [
    Pure, SameOperandsAndResultType,
    DeclareOpInterfaceMethods<Graph_ShardingRuleOpInterface>,
    DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "Annotates an intermediate value with a sharding";
  let description = [{
    The identity; its result has the given sharding. The annotation is an op,
    since rewrites drop attributes. A partial operand may stay partial in the
    result, unless the op is `reduced`.
    ```mlir
    %y = spmd.constrain %x to #spmd.sharding<@mesh, [{"dp"}, {} ]> : tensor<8x4xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Spmd_ShardingAttr:$sharding,
                       UnitAttr:$reduced);
  let results = (outs AnyRankedTensor:$output);
  let assemblyFormat = [{
    (`reduced` $reduced^)? $input `to` $sharding attr-dict `:` type($output)
  }];
}

#endif // CLEAVE_DIALECT_SPMD_IR_SPMDOPS_TD
