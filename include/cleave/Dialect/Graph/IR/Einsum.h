//===- Einsum.h - Equations of contractions ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_EINSUM_H
#define CLEAVE_DIALECT_GRAPH_IR_EINSUM_H

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Value.h"
#include "llvm/ADT/StringRef.h"
#include <optional>
#include <string>

namespace cleave::graph {

/// An equation such as "bsh,oh->bso": one letter per dimension.
struct Einsum {
  std::string lhs, rhs, output;

  /// Parses `equation`; on failure returns nothing and sets `error`.
  static std::optional<Einsum> parse(llvm::StringRef equation,
                                     std::string &error);

  /// The equation as text.
  std::string str() const { return lhs + "," + rhs + "->" + output; }
};

/// The element type of sums over operands of the type `operand`: `wanted` where
/// it is given, which must be that type, or a float of at least 32 bits that is
/// wider.
llvm::LogicalResult inferSumType(std::optional<mlir::Location> loc,
                                 mlir::Type operand,
                                 std::optional<mlir::Type> wanted,
                                 mlir::Type &result);

/// The type of `input weight^T + bias` with elements of the type `element`, as
/// those of the bias are; `bias` may be null.
llvm::LogicalResult inferLinear(std::optional<mlir::Location> loc,
                                mlir::Value input, mlir::Value weight,
                                mlir::Value bias, mlir::Type element,
                                mlir::RankedTensorType &result);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_EINSUM_H
