//===- GraphDialect.h - The graph dialect -----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_GRAPHDIALECT_H
#define CLEAVE_DIALECT_GRAPH_IR_GRAPHDIALECT_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "cleave/Dialect/Graph/IR/Attributes/KindAttributes.h"
#include "cleave/Dialect/Graph/IR/IndexUse.h"
#include "cleave/Dialect/Graph/IR/OpCost.h"
#include "cleave/Dialect/Graph/IR/PrecisionPolicy.h"
#include "cleave/Dialect/Graph/IR/ShardingRule.h"
#include "llvm/ADT/BitVector.h"

#include "cleave/Dialect/Graph/IR/GraphDialect.h.inc"
#include "cleave/Dialect/Graph/IR/GraphEnums.h.inc"

#include "cleave/Dialect/Graph/IR/GraphInterfaces.h.inc"

namespace cleave::graph {

/// The names of the attributes on arguments and results of an entry.
inline constexpr llvm::StringLiteral kNameAttr = "graph.name";
inline constexpr llvm::StringLiteral kRoleAttr = "graph.role";
inline constexpr llvm::StringLiteral kAliasesAttr = "graph.aliases";
inline constexpr llvm::StringLiteral kFrozenAttr = "graph.frozen";
inline constexpr llvm::StringLiteral kTransientAttr = "graph.transient";
inline constexpr llvm::StringLiteral kValueAttr = "graph.value";
/// On the module.
inline constexpr llvm::StringLiteral kUnreadAttr = "graph.unread";
/// Of a module: why the model has no loss in evaluation mode, as text. There is
/// no '@evaluate' then, and none is derived.
inline constexpr llvm::StringLiteral kUnevaluatedAttr = "graph.unevaluated";
inline constexpr llvm::StringLiteral kInitialAttr = "graph.initial";
inline constexpr llvm::StringLiteral kLossAttr = "graph.loss";
inline constexpr llvm::StringLiteral kBatchDimAttr = "graph.batch_dim";
inline constexpr llvm::StringLiteral kOfAttr = "graph.of";
inline constexpr llvm::StringLiteral kSlotAttr = "graph.slot";
inline constexpr llvm::StringLiteral kOptionalAttr = "graph.optional";
inline constexpr llvm::StringLiteral kSummedAttr = "graph.summed";
inline constexpr llvm::StringLiteral kElementsAttr = "graph.elements";
inline constexpr llvm::StringLiteral kFrameworkShapeAttr =
    "graph.framework_shape";
inline constexpr llvm::StringLiteral kUpdatesAttr = "graph.updates";
inline constexpr llvm::StringLiteral kValidShapeAttr = "graph.valid_shape";
inline constexpr llvm::StringLiteral kWeightDecayAttr = "graph.weight_decay";
inline constexpr llvm::StringLiteral kLrScaleAttr = "graph.lr_scale";
inline constexpr llvm::StringLiteral kOptimizerAttr = "graph.optimizer";
/// In the dictionary of kOptimizerAttr: the update rule's name.
inline constexpr llvm::StringLiteral kRuleEntry = "rule";
inline constexpr llvm::StringLiteral kParameterDimsAttr =
    "graph.parameter_dims";
inline constexpr llvm::StringLiteral kStackedAttr = "graph.stacked";

/// On a `graph.select` that replaces the values of padding.
inline constexpr llvm::StringLiteral kPaddingAttr = "graph.padding";

/// The shape of broadcasting `shapes` together by the rules of NumPy, or
/// nothing when they are incompatible.
std::optional<llvm::SmallVector<int64_t>>
broadcastShapes(llvm::ArrayRef<llvm::ArrayRef<int64_t>> shapes);

} // namespace cleave::graph

namespace mlir::OpTrait {

/// Marks an op that only differentiation and the optimizer create: it is never
/// differentiated itself.
template <typename ConcreteType>
class BackwardOnly : public TraitBase<ConcreteType, BackwardOnly> {};

/// Marks an op whose result element depends on the elements of the operands at
/// the same index alone, after broadcasting.
template <typename ConcreteType>
class PointwiseOp : public TraitBase<ConcreteType, PointwiseOp> {};

} // namespace mlir::OpTrait

#endif // CLEAVE_DIALECT_GRAPH_IR_GRAPHDIALECT_H
