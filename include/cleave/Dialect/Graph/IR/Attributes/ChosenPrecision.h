//===- ChosenPrecision.h - The precision of single ops ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What a person has chosen of the precision of an op goes to the ops that
/// replace it and that compute its gradients, until --graph-mixed-precision
/// reads it.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_CHOSENPRECISION_H
#define CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_CHOSENPRECISION_H

#include "mlir/IR/Builders.h"
#include "mlir/IR/PatternMatch.h"

namespace cleave::graph {

/// On an op: "f32" or "16bit", in which mixed precision computes it, whatever
/// the op's own precision is.
inline constexpr llvm::StringLiteral kPrecisionAttr = "graph.precision";

/// As long as it lives, gives the precision chosen for an op to the ops that a
/// builder creates.
class InheritPrecision final : public mlir::OpBuilder::Listener {
public:
  InheritPrecision(mlir::OpBuilder &builder, mlir::Operation *from)
      : builder(builder), previous(builder.getListener()),
        precision(from->getAttr(kPrecisionAttr)) {
    builder.setListener(this);
  }
  ~InheritPrecision() { builder.setListener(previous); }
  InheritPrecision(const InheritPrecision &) = delete;

  void notifyOperationInserted(mlir::Operation *op,
                               mlir::OpBuilder::InsertPoint at) override {
    if (precision && !op->hasAttr(kPrecisionAttr))
      op->setAttr(kPrecisionAttr, precision);
    if (previous)
      previous->notifyOperationInserted(op, at);
  }

private:
  mlir::OpBuilder &builder;
  mlir::OpBuilder::Listener *previous;
  mlir::Attribute precision;
};

/// Gives the precision chosen for an op that a pattern replaces to the new ops
/// in its place: those that nothing but them reads.
class KeepPrecision final : public mlir::RewriterBase::Listener {
public:
  void notifyOperationReplaced(mlir::Operation *op,
                               mlir::ValueRange replacement) override;
  void notifyOperationReplaced(mlir::Operation *op,
                               mlir::Operation *replacement) override {
    notifyOperationReplaced(op, replacement->getResults());
  }
};

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_CHOSENPRECISION_H
