//===- PaddedForm.h - Ops on padded tensors ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What a sharding rule says about padding. The pass that pads and the test of
/// the rules share these functions. The valid elements of a padded dimension
/// come first.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_SHARDINGRULES_PADDEDFORM_H
#define CLEAVE_DIALECT_GRAPH_IR_SHARDINGRULES_PADDEDFORM_H

#include "cleave/Dialect/Graph/IR/GraphDialect.h"

namespace cleave::graph {

/// Returns `op` on `operands`, whose dimensions may be larger than those of its
/// own operands, with results of `types`; null if the op has no such form.
/// Random numbers are drawn by the indices in the unpadded tensors.
mlir::Operation *buildPadded(mlir::Operation *op, mlir::OpBuilder &builder,
                             mlir::ValueRange operands, mlir::TypeRange types);

/// The value, of type `element`, that the padding along `factor` must hold;
/// null if any value is allowed.
mlir::TypedAttr paddingFill(const Factor &factor, mlir::Type element);

/// Whether the padding of results along `factor` is zero. `isZero` says for
/// which operands that run along it the padding is zero. Operands that do not
/// run along it are assumed to be finite.
bool staysZero(const ShardingRule &rule, int64_t factor,
               llvm::function_ref<bool(unsigned operand)> isZero);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_SHARDINGRULES_PADDEDFORM_H
