//===- PaddedForm.h - Ops on padded tensors ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What a rule says of padding, in one place: the pass that pads and the test
/// of the rules ask the same questions. The valid elements of a padded
/// dimension come first.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_PADDEDFORM_H
#define CLEAVE_DIALECT_GRAPH_IR_PADDEDFORM_H

#include "cleave/Dialect/Graph/IR/GraphDialect.h"

namespace cleave::graph {

/// `op` on `operands`, whose dimensions may be larger than those of its own,
/// with results of `types`; null where it has no such form. The op draws random
/// numbers by the places in its own tensors.
mlir::Operation *buildPadded(mlir::Operation *op, mlir::OpBuilder &builder,
                             mlir::ValueRange operands, mlir::TypeRange types);

/// What the padding along `factor` must hold, as a value of type `element`;
/// null where anything will do.
mlir::TypedAttr paddingFill(const Factor &factor, mlir::Type element);

/// Whether the padding of results along `factor` is zero, when that of the
/// operands which run along it is zero where `isZero` says so. What does not
/// run along it is taken to be finite.
bool staysZero(const ShardingRule &rule, int64_t factor,
               llvm::function_ref<bool(unsigned operand)> isZero);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_PADDEDFORM_H
