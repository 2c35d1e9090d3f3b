//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_GRAPHINTERFACES_TD
#define CLEAVE_DIALECT_GRAPH_IR_GRAPHINTERFACES_TD

include "mlir/IR/OpBase.td"

def Graph_DifferentiableOpInterface : OpInterface<"DifferentiableOpInterface"> {
  let cppNamespace = "::cleave::graph";
  let description = [{
    The adjoint of an op: given the gradient of the loss with respect to each
    result, builds the gradient with respect to each operand.
  }];
  let methods = [
    InterfaceMethod<[{
        Builds the gradients of the operands marked in `needed`, at the
        builder's insertion point. `resultGradients[i]` is null if no gradient
        flows into result i, else a value of its type. Sets
        `operandGradients[i]` (sized by the caller, all null) to a value of
        operand i's type; null means zero. Gradients of inputs and of parameters
        are separate ops, so that a schedule can separate them. Reports a
        located error if the op has no gradient.
      }],
      "::llvm::LogicalResult", "buildGradients",
      (ins "::mlir::OpBuilder &":$builder,
           "::llvm::ArrayRef<::mlir::Value>":$resultGradients,
           "const ::llvm::BitVector &":$needed,
           "::llvm::MutableArrayRef<::mlir::Value>":$operandGradients)>,
  ];
}

def Graph_ShardingRuleOpInterface : OpInterface<"ShardingRuleOpInterface"> {
  let cppNamespace = "::cleave::graph";
  let description = [{
    How the op can be sharded: the factors of its iteration space, and the
    dimensions of operands and results that each factor indexes.
  }];
  let methods = [
    InterfaceMethod<"The factors of this op's iteration space.",
      "::cleave::graph::ShardingRule", "getShardingRule", (ins)>,
  ];
}

def Graph_CostOpInterface : OpInterface<"CostOpInterface"> {
  let cppNamespace = "::cleave::graph";
  let description = [{
    The cost of the op, in exact integers computed from shapes; it does not
    depend on a device.
  }];
  let methods = [
    InterfaceMethod<"Floating-point operations, bytes, and saved values.",
      "::cleave::graph::OpCost", "getCost", (ins)>,
  ];
}

def Graph_RandomOpInterface : OpInterface<"RandomOpInterface"> {
  let cppNamespace = "::cleave::graph";
  let description = [{
    An op that draws random numbers in training but not in evaluation.
  }];
  let methods = [
    InterfaceMethod<[{
        Changes the op to its form in evaluation, in place or by replacement, in
        which it does not read the generator's state.
      }],
      "void", "removeRandomness", (ins "::mlir::RewriterBase &":$rewriter)>,
  ];
}

def Graph_PartitionableOpInterface : OpInterface<"PartitionableOpInterface"> {
  let cppNamespace = "::cleave::graph";
  let description = [{
    An op whose attributes refer to shapes or positions in the global tensor, so
    that its form on one shard differs in more than its operands.
  }];
  let methods = [
    InterfaceMethod<[{
        Builds the op on one shard. `operands` are local values, `resultTypes`
        the local types. `shardOffset(type, mapping)` builds a value that holds,
        for each dimension of a tensor of global type `type` whose dimensions
        run along the factors `mapping` of the op's rule, the offset of this
        shard; it is null if no dimension is sharded.
      }],
      "::mlir::Operation *", "buildLocal",
      (ins "::mlir::OpBuilder &":$builder,
           "::mlir::ValueRange":$operands,
           "::mlir::TypeRange":$resultTypes,
           "::llvm::function_ref<::mlir::Value(::mlir::RankedTensorType, "
           "const ::cleave::graph::FactorMapping &)>":$shardOffset)>,
  ];
}

def Graph_PlacedOpInterface : OpInterface<"PlacedOpInterface"> {
  let cppNamespace = "::cleave::graph";
  let description = [{
    An op whose result depends on the global positions of elements; these can be
    given to it where elements are in another order.
  }];
  let methods = [
    InterfaceMethod<[{
        Sets the order of the operands' elements. `starts(value, dim)` is null
        if dimension `dim` of the operand `value` is in order; otherwise it is a
        tensor of the positions at which equal pieces of the dimension begin.
        Results have the order of the operands. Changes nothing and returns
        false if the op does not support such an order.
      }],
      "bool", "setStarts",
      (ins "::llvm::function_ref<::mlir::Value(::mlir::Value, unsigned)>"
           :$starts)>,
  ];
}

def Graph_PrecisionOpInterface : OpInterface<"PrecisionOpInterface"> {
  let cppNamespace = "::cleave::graph";
  let description = [{
    An op with a precision of its own in a step of mixed precision. An op
    without this interface computes in the precision of its operands.
  }];
  let methods = [
    InterfaceMethod<"The precision in which operand `index`, a float, is read.",
      "::cleave::graph::OperandPrecision", "getOperandPrecision",
      (ins "unsigned":$index)>,
    InterfaceMethod<[{
        Lets the result be of the type `element`, rather than be rounded to the
        type of the operands. Returns false, and changes nothing, if the result
        is no such sum.
      }],
      "bool", "setSumElement", (ins "::mlir::Type":$element)>,
    InterfaceMethod<[{
        Lets sums that are no results, but are read by the op itself, be rounded
        to the type of the operands. Does nothing if the op has none.
      }],
      "void", "roundInnerSums">,
  ];
}

def Graph_IndexUseOpInterface : OpInterface<"IndexUseOpInterface"> {
  let cppNamespace = "::cleave::graph";
  let description = [{
    An op that reads an operand as indices, or passes its values on.
  }];
  let methods = [
    InterfaceMethod<"How operand `index` is used as indices.",
      "::cleave::graph::IndexUse", "getIndexUse", (ins "unsigned":$index)>,
  ];
}

#endif // CLEAVE_DIALECT_GRAPH_IR_GRAPHINTERFACES_TD
