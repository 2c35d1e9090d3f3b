//===- AlikeParts.h - Parts with the same body ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_TRANSFORMS_ALIKEPARTS_H
#define CLEAVE_DIALECT_EXEC_TRANSFORMS_ALIKEPARTS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"

namespace cleave::exec {

/// Which parts differ in nothing but their names and source locations, as those
/// of the inner stages of a pipeline do. A pass rewrites the first of them, and
/// copies the result.
class AlikeParts {
public:
  /// Compares `parts`: bodies with all attributes, and attributes of arguments
  /// and results. Locations correspond one to one. Attributes of the functions
  /// themselves, such as the action that a part is, may differ.
  explicit AlikeParts(llvm::ArrayRef<mlir::func::FuncOp> parts);

  /// The first of the parts that are like `part`: it itself if there is none
  /// before it, or if it is external.
  mlir::func::FuncOp firstLike(mlir::func::FuncOp part) const;

  /// Replaces the body of `part` by a copy of what that of `firstLike` is by
  /// now, with the locations of `part`.
  void copyBodyTo(mlir::func::FuncOp part) const;

private:
  /// By locations of another part, those of this one.
  using Locations = llvm::DenseMap<mlir::Attribute, mlir::Attribute>;
  struct Like {
    mlir::func::FuncOp other;
    Locations locations;
  };

  static bool areAlike(mlir::func::FuncOp other, mlir::func::FuncOp part,
                       Locations &locations);

  llvm::DenseMap<mlir::Operation *, Like> first;
};

} // namespace cleave::exec

#endif // CLEAVE_DIALECT_EXEC_TRANSFORMS_ALIKEPARTS_H
