//===- Entry.h - Arguments and attributes of an entry -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_ENTRY_H
#define CLEAVE_DIALECT_GRAPH_IR_ENTRY_H

#include "cleave/Dialect/Graph/IR/GraphDialect.h"

namespace cleave::graph {

/// The name of evaluation's result that holds the weight of the loss: the
/// number of elements that it is a mean over.
inline constexpr llvm::StringLiteral kLossWeightName = "loss_weight";

/// For updates that are deferred to the next step: the prefix of the names of
/// the previous step's scalars, and the name of the scalar that says whether
/// there was one.
inline constexpr llvm::StringLiteral kPreviousPrefix = "previous.";
inline constexpr llvm::StringLiteral kPendingName = "update_pending";

/// The name of the parameter of the auxiliary head after module `head` (from 1)
/// that corresponds to parameter `name` of the final head and has its initial
/// value.
std::string auxiliaryName(unsigned head, llvm::StringRef name);

/// The string attribute `attribute` of argument `index`, or "".
llvm::StringRef getArgString(mlir::func::FuncOp entry, unsigned index,
                             llvm::StringRef attribute);

/// Whether argument `index` has the role `role`.
bool hasRole(mlir::func::FuncOp entry, unsigned index, llvm::StringRef role);

/// Whether argument `index` is state of the optimizer: state that belongs to a
/// parameter. Other state is read by the model.
bool isOptimizerState(mlir::func::FuncOp entry, unsigned index);

/// Whether argument `index` is a parameter that is trained.
bool isTrained(mlir::func::FuncOp entry, unsigned index);

/// For each result of `entry`, the argument that it updates, or null.
llvm::SmallVector<mlir::BlockArgument>
updatedArguments(mlir::func::FuncOp entry);

/// The dimension of `argument` that is dimension `dim` of its parameter, if it
/// has it. `argument` is the parameter itself, or what belongs to it: its
/// state, or its gradient.
std::optional<int64_t> dimOfParameter(mlir::func::FuncOp entry,
                                      mlir::BlockArgument argument,
                                      int64_t dim);

/// Finds the function `name` of `module`, which must have one block; otherwise
/// reports an error that names the entries of the module.
mlir::FailureOr<mlir::func::FuncOp> findEntry(mlir::ModuleOp module,
                                              llvm::StringRef name);

/// The functions of `module` that have a body, in order, each of which must
/// have one block; otherwise reports the first that has more.
mlir::FailureOr<llvm::SmallVector<mlir::func::FuncOp>>
findBodies(mlir::ModuleOp module);

/// Copies `entry` to the function `name`, inserted after it, or reports that
/// the name is taken.
mlir::FailureOr<mlir::func::FuncOp> cloneEntry(mlir::func::FuncOp entry,
                                               llvm::StringRef name);

/// Attributes of a function's arguments and results. `write` sets them all at
/// once, because setting each one alone would rebuild the lists.
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
