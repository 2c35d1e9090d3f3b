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
        builder's insertion point. `resultGradients[i]` is null when nothing
        flows into result i, else a value of its type. Sets
        `operandGradients[i]` (sized by the caller, all null) to a value of
        operand i's type; a null left where `needed` means zero. Gradients of
        inputs and of parameters are separate ops, so that a schedule can part
        them. Reports a located error where the op has no gradient.
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
    How the op may be split: the factors of its iteration space, and which
    dimensions of operands and results each one runs through.
  }];
  let methods = [
    InterfaceMethod<"The factors of this op's iteration space.",
      "::cleave::graph::ShardingRule", "getShardingRule", (ins)>,
  ];
}

def Graph_CostOpInterface : OpInterface<"CostOpInterface"> {
  let cppNamespace = "::cleave::graph";
  let description = [{
    What the op costs, in exact integers from shapes: no device appears.
  }];
  let methods = [
    InterfaceMethod<"Floating-point operations, bytes, and what is saved.",
      "::cleave::graph::OpCost", "getCost", (ins)>,
  ];
}

def Graph_RandomOpInterface : OpInterface<"RandomOpInterface"> {
  let cppNamespace = "::cleave::graph";
  let description = [{
    An op that draws random numbers while training and none in evaluation.
  }];
  let methods = [
    InterfaceMethod<[{
        Makes the op what it is in evaluation: changes it in place, or replaces
        it. It reads the generator's state no more.
      }],
      "void", "removeRandomness", (ins "::mlir::RewriterBase &":$rewriter)>,
  ];
}

def Graph_PartitionableOpInterface : OpInterface<"PartitionableOpInterface"> {
  let cppNamespace = "::cleave::graph";
  let description = [{
    An op whose attributes speak of shapes or of places in the whole tensor, so
    that its form on one shard is more than the same op on local operands.
  }];
  let methods = [
    InterfaceMethod<[{
        Builds the op on one shard. `operands` are local values, `resultTypes`
        the local types. `shardOffset(type, mapping)` builds a value that holds,
        for each dimension of a tensor of global type `type` whose dimensions
        run along the factors `mapping` of the op's rule, where this shard
        begins; it is null when nothing is split.
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
    An op whose result depends on the places of elements in the whole tensor,
    which it can be told where they come in another order.
  }];
  let methods = [
    InterfaceMethod<[{
        Tells the op the order of its operands. `starts(value, dim)` is null
        where dimension `dim` of the operand `value` comes in order; else the
        dimension comes in as many equal pieces as the tensor that it gives has
        values, which are the places where they begin. Results come in the order
        of the operands. Changes nothing and returns false where the op cannot
        have that.
      }],
      "bool", "setStarts",
      (ins "::llvm::function_ref<::mlir::Value(::mlir::Value, unsigned)>"
           :$starts)>,
  ];
}

#endif // CLEAVE_DIALECT_GRAPH_IR_GRAPHINTERFACES_TD
