//===- Entry.h - What the arguments of an entry are -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_ENTRY_H
#define CLEAVE_DIALECT_GRAPH_IR_ENTRY_H

#include "cleave/Dialect/Graph/IR/GraphDialect.h"

namespace cleave::graph {

/// The name of evaluation's result that says how much the loss of a batch
/// counts beside those of others: the number that it is a mean over.
inline constexpr llvm::StringLiteral kLossWeightName = "loss_weight";

/// Where updates are left to the next step: what the names of scalars of the
/// step before begin with, and the scalar that says whether there was one.
inline constexpr llvm::StringLiteral kPreviousPrefix = "previous.";
inline constexpr llvm::StringLiteral kPendingName = "update_pending";

/// What a parameter of the auxiliary head behind module `head` (from 1) is
/// called; `name` is that of the final head's, whose value it begins with.
std::string auxiliaryName(unsigned head, llvm::StringRef name);

/// The string attribute `attribute` of argument `index`, or "".
llvm::StringRef getArgString(mlir::func::FuncOp entry, unsigned index,
                             llvm::StringRef attribute);

/// Whether argument `index` has the role `role`.
bool hasRole(mlir::func::FuncOp entry, unsigned index, llvm::StringRef role);

/// Whether argument `index` is a parameter that is trained.
bool isTrained(mlir::func::FuncOp entry, unsigned index);

/// Finds the function `name` of `module`, with one block, or reports that it is
/// not there, naming the entries that are.
mlir::FailureOr<mlir::func::FuncOp> findEntry(mlir::ModuleOp module,
                                              llvm::StringRef name);

/// Copies `entry` to the function `name` behind it, or reports that the name
/// is taken.
mlir::FailureOr<mlir::func::FuncOp> cloneEntry(mlir::func::FuncOp entry,
                                               llvm::StringRef name);

/// Attributes of a function's arguments and results, written all at once by
/// `write`: one by one, each would rebuild the lists of all of them.
class EntryAttributes {
public:
  explicit EntryAttributes(mlir::FunctionOpInterface function);

  void setArg(unsigned index, llvm::StringRef name, mlir::Attribute value) {
    args[index].set(name, value);
  }
  void setResult(unsigned index, llvm::StringRef name, mlir::Attribute value) {
    results[index].set(name, value);
  }
  void write();

private:
  mlir::FunctionOpInterface function;
  llvm::SmallVector<mlir::NamedAttrList> args, results;
};

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_ENTRY_H
