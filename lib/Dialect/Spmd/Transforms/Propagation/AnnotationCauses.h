//===- AnnotationCauses.h - Annotations behind collectives ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PROPAGATION_ANNOTATIONCAUSES_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PROPAGATION_ANNOTATIONCAUSES_H

#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <map>

namespace cleave::spmd {

/// Finds, for values of a function with shardings, the annotation that is
/// nearest to them on the way to the arguments.
class AnnotationCauses {
public:
  AnnotationCauses(mlir::func::FuncOp function, const Mesh &mesh)
      : function(function), mesh(mesh) {}

  /// Returns the annotation that shards values of `op` over `axes`, such as
  /// `"up_proj.weight" is sharded over "tp"`; empty where none is found.
  std::string find(mlir::Operation *op, llvm::ArrayRef<AxisRef> axes);

private:
  std::string findFrom(mlir::Operation *op, llvm::ArrayRef<AxisRef> axes);
  /// The line of an op of the model; of one that an argument brings, as its
  /// cast, the name of the argument, which layers have in common.
  std::string placeOf(mlir::Operation *op);

  mlir::func::FuncOp function;
  const Mesh &mesh;
  std::map<std::pair<mlir::Operation *, std::string>, std::string> known;
  /// The names of arguments, by the line that each is in.
  std::map<std::string, llvm::StringRef> names;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PROPAGATION_ANNOTATIONCAUSES_H
