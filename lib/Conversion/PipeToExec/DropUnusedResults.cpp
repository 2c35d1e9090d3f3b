//===- DropUnusedResults.cpp - Unused results of stages -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PartForms.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

pipe::InvokeOp cleave::exec::dropUnusedResults(pipe::InvokeOp invoke) {
  if (llvm::none_of(invoke.getResults(),
                    [](Value result) { return result.use_empty(); }))
    return invoke;
  func::FuncOp part = invoke.getPartFunction();
  Block &body = part.front();
  Operation *terminator = body.getTerminator();
  SmallVector<Value> returned, kept;
  SmallVector<int64_t> unless;
  if (invoke.isConditional())
    unless.push_back(invoke.getFlagOperand());
  SmallVector<Attribute> kinds;
  SmallVector<Type> types;
  for (auto [i, result] : llvm::enumerate(invoke.getResults())) {
    if (result.use_empty())
      continue;
    returned.push_back(terminator->getOperand(i));
    kept.push_back(result);
    kinds.push_back(invoke.getResultKinds()[i]);
    types.push_back(result.getType());
    if (invoke.isConditional())
      unless.push_back(invoke.getPassedOperand(i));
  }
  terminator->setOperands(returned);
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (isOpTriviallyDead(&op))
      op.erase();
  llvm::BitVector unused(body.getNumArguments());
  SmallVector<Value> inputs;
  SmallVector<int64_t> split, moved(body.getNumArguments());
  for (BlockArgument argument : body.getArguments()) {
    unsigned i = argument.getArgNumber();
    if (argument.use_empty() && !llvm::is_contained(unless, int64_t(i))) {
      unused.set(i);
      continue;
    }
    moved[i] = inputs.size();
    inputs.push_back(invoke.getInputs()[i]);
    split.push_back(invoke.getSplit()[i]);
  }
  part.setFunctionType(FunctionType::get(part.getContext(),
                                         body.getArgumentTypes(),
                                         ValueRange(returned).getTypes()));
  // Result attributes have no meaning on a part that was just outlined.
  part.removeResAttrsAttr();
  (void)part.eraseArguments(unused);
  OpBuilder builder(invoke);
  for (int64_t &operand : unless)
    operand = moved[operand];
  auto fresh = pipe::InvokeOp::create(
      builder, invoke.getLoc(), types, invoke.getCalleeAttr(), inputs,
      invoke.getPartAttr(), invoke.getOnceAttr(),
      builder.getDenseI64ArrayAttr(split), builder.getArrayAttr(kinds),
      invoke.getStageAttr(),
      unless.empty() ? DenseI64ArrayAttr()
                     : builder.getDenseI64ArrayAttr(unless));
  for (auto [old, value] : llvm::zip_equal(kept, fresh.getResults()))
    old.replaceAllUsesWith(value);
  invoke.erase();
  return fresh;
}
