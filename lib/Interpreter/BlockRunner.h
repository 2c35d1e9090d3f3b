//===- BlockRunner.h - Executes the ops of a block on all ranks -*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_INTERPRETER_BLOCKRUNNER_H
#define CLEAVE_LIB_INTERPRETER_BLOCKRUNNER_H

#include "cleave/Interpreter/ReferenceInterface.h"
#include "mlir/IR/Block.h"
#include <memory>

namespace cleave {

using TensorRef = std::shared_ptr<const RefTensor>;

/// Tensors of one block's arguments or terminator, one list for each rank.
using RankTensors = std::vector<std::vector<TensorRef>>;

/// Executes the ops of `block` in order, all ranks together, op by op.
/// `arguments[i]` are those of rank `ranks[i]`. Returns the operands of the
/// terminator. Fails if an op reports an error or has no reference semantics.
llvm::FailureOr<RankTensors> runBlock(mlir::Block &block,
                                      const RankTensors &arguments,
                                      llvm::ArrayRef<int64_t> ranks,
                                      ReferenceContext &context);

} // namespace cleave

#endif // CLEAVE_LIB_INTERPRETER_BLOCKRUNNER_H
