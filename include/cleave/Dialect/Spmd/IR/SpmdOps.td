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
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class Spmd_Op<string mnemonic, list<Trait> traits = []>
    : Op<Spmd_Dialect, mnemonic, traits>;

def Spmd_MeshOp : Spmd_Op<"mesh", [Symbol]> {
  let summary = "The devices, as named axes";
  let description = [{
    Axes in the order of device numbers, major to minor; those of `sequential`
    take no device.
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

/// An op that moves what positions hold. Axes are those that move alone, so
/// that one op serves whatever else splits the tensor. Only a reduction may name
/// a sequential axis.
class Spmd_MovementOp<string mnemonic, list<Trait> traits = [],
                      list<string> counting = []>
    : Spmd_Op<mnemonic, !listconcat([
        Pure,
        DeclareOpInterfaceMethods<Spmd_CommunicationOpInterface, counting>,
        DeclareOpInterfaceMethods<SymbolUserOpInterface>], traits)> {
  let results = (outs AnyRankedTensor:$output);
}

def Spmd_AllReduceOp
    : Spmd_MovementOp<"all_reduce", [SameOperandsAndResultType]> {
  let summary = "Combines the values of all positions along axes";
  let description = [{
    Every position along `axes` receives the sum (max, min) of the values of
    all of them, taken in a binary tree over positions. Along a sequential axis
    this is accumulation.
    ```mlir
    %g = spmd.all_reduce sum %p over @mesh {"mb"} : tensor<8x8xf32>
    ```
  }];
  let arguments = (ins Spmd_ReductionKind:$kind, AnyRankedTensor:$input,
                       FlatSymbolRefAttr:$mesh, Spmd_AxesAttr:$axes);
  let assemblyFormat = [{
    $kind $input `over` $mesh custom<AxisList>($axes) attr-dict `:` type($output)
  }];
}

def Spmd_AllGatherOp : Spmd_MovementOp<"all_gather"> {
  let summary = "Every position receives all parts";
  let description = [{
    The inverse of `spmd.slice` by the same sharding: in each dimension the
    parts of a group are joined, and the axes of `sharding`, the minor ones of
    those that split the operand, split the result no more.
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

def Spmd_ReduceScatterOp : Spmd_MovementOp<"reduce_scatter"> {
  let summary = "Combines the values of all positions; each keeps its part";
  let description = [{
    `spmd.all_reduce` over the axes of `sharding`, then `spmd.slice` by it.
    ```mlir
    %y = spmd.reduce_scatter sum %x by #spmd.sharding<@mesh, [{"tp"}, {} ]>
        : tensor<8x4xf32> -> tensor<2x4xf32>
    ```
  }];
  let arguments = (ins Spmd_ReductionKind:$kind, AnyRankedTensor:$input,
                       Spmd_ShardingAttr:$sharding);
  let assemblyFormat = [{
    $kind $input `by` $sharding attr-dict `:` type($input) `->` type($output)
  }];
}

def Spmd_AllToAllOp : Spmd_MovementOp<"all_to_all"> {
  let summary = "Moves axes from one dimension to another";
  let description = [{
    Dimension `from` loses `axes`, its minor ones; dimension `to` is split by
    them behind those that split it already.
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

def Spmd_PermuteOp
    : Spmd_MovementOp<"permute", [SameOperandsAndResultType],
                      ["getElementsSentBy"]> {
  let summary = "Exchanges shards between positions";
  let description = [{
    The minor axes `from` of each dimension are replaced by `to`, which make as
    many parts: each position receives the shard that it holds under `to`, from
    a position that holds it under `from` (`Permutation::source`).
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
    : Spmd_MovementOp<"rotate", [
        SameOperandsAndResultType,
        DeclareOpInterfaceMethods<Graph_ShardingRuleOpInterface>]> {
  let summary = "Passes parts on around a ring";
  let description = [{
    Dimension `dim` comes in as many parts as `axes` have positions; part `i` of
    the result is part `i - 1` of the operand, and part 0 the last one. `axes`
    are the major ones of those that split the dimension: each position
    receives what the one before it holds. On a whole tensor it is the same.
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
    : Spmd_MovementOp<"broadcast", [
        DeclareOpInterfaceMethods<Graph_ShardingRuleOpInterface>]> {
  let summary = "One part of a value, for all positions";
  let description = [{
    Dimension `dim` comes in as many parts as `axes` have positions; the result
    is part number `part`. `axes` are the major ones of those that split the
    dimension: each position receives what the one of that number holds. On a
    whole tensor it is a slice. What is sent several times, and is not to be kept
    in between, has another number `apart` each time: so it is never made one.
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
    : Spmd_MovementOp<"reduce", [
        DeclareOpInterfaceMethods<Graph_ShardingRuleOpInterface>,
        OptionalTypesMatchWith<"the accumulator lies as the result", "output",
                               "into", "$_self">]> {
  let summary = "Sums become one part of a value";
  let description = [{
    The inverse of `spmd.broadcast`: dimension `dim` of the result comes in as
    many parts as `axes` have positions, and the operand becomes part number
    `part` of `into`; without one the other parts are zero. The operand is a sum
    over `axes`, which are the major ones that split the dimension of the result:
    the position of that number receives the sum of what all hold, the others
    keep theirs. On a whole tensor nothing is summed up.
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
  let summary = "Where this position's shard begins in the global tensor";
  let description = [{
    The index, in a tensor of type `global` split by `sharding`, of the first
    element that this position holds.
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
  let summary = "This position's part of what it holds";
  let description = [{
    Splits dimensions further: `sharding` names the axes by which each dimension
    of the operand, as this position holds it, is split in addition. Nothing is
    sent.
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
  let summary = "A value that is not there before another one";
  let description = [{
    The identity. Its result depends on `after`, of which nothing else is read:
    behind a seed, what is made of it belongs to backward, and is not one with
    what forward makes of `input`.
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
  let summary = "An annotation on an intermediate value";
  let description = [{
    The identity; its result has the given sharding. It is an op, since rewrites
    drop attributes. Of a sum it may stay a summand, unless it is `reduced`.
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
