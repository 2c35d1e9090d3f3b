//===- MatmulGroups.h - Products of one value ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_LOCAL_MATMULGROUPS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_LOCAL_MATMULGROUPS_H

#include "cleave/Dialect/Graph/IR/Einsum.h"
#include "mlir/IR/Builders.h"

namespace cleave::spmd {

/// A product, plus a vector along its last dimension or not.
struct Product {
  mlir::Operation *op;
  mlir::Value lhs, rhs, bias;
  graph::Einsum equation;
  mlir::TypeAttr element;

  /// The product that `op` is; nothing if it is something else.
  static std::optional<Product> read(mlir::Operation *op);

  /// Whether the other one differs in the values that it reads only.
  bool isLike(const Product &other) const {
    return op->getName() == other.op->getName() &&
           equation.str() == other.equation.str() && element == other.element &&
           !bias == !other.bias;
  }
  /// The same of other values.
  mlir::Value rebuild(mlir::OpBuilder &builder, mlir::Value lhs,
                      mlir::Value rhs, mlir::Value bias) const;
};

/// Products of one value by several weights, alike but for the size of the
/// first dimension of the weights, along which these can be concatenated.
using ProductGroup = llvm::SmallVector<Product>;

/// The groups of a block. Between the products of one is no other product: what
/// all layers of a model read, such as what an encoder gives, is not multiplied
/// for all of them at once.
llvm::SmallVector<ProductGroup> findProductGroups(mlir::Block &body);

/// The parameter that `value` is in another type, or gathered: a copy that is
/// made once, and may as well be made in a part of a larger value. Null if it
/// is something else, or the parameter itself.
mlir::BlockArgument copiedParameter(mlir::Value value);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_LOCAL_MATMULGROUPS_H
