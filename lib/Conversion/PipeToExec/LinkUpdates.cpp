//===- LinkUpdates.cpp - Results in the memory of updated arguments -------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PartForms.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// The first run of the sum that result `index` of `run` completes (each run
/// adds to the previous one's result), and its result index; `run` itself if
/// there is no such sum.
static std::pair<RunOp, unsigned> firstOfSum(RunOp run, unsigned index,
                                             SymbolTable &symbols) {
  for (;;) {
    auto part = symbols.lookup<func::FuncOp>(run.getCallee());
    auto alias = part.getResultAttrOfType<IntegerAttr>(index, kAliasAttr);
    auto sum = alias ? dyn_cast<OpResult>(run.getInputs()[alias.getInt()])
                     : OpResult();
    auto before = sum ? dyn_cast<RunOp>(sum.getOwner()) : RunOp();
    if (!before)
      return {run, index};
    run = before;
    index = sum.getResultNumber();
  }
}

LogicalResult cleave::exec::linkUpdates(ProgramOp program,
                                        SymbolTable &symbols) {
  Builder builder(program.getContext());
  Block &body = program.getBody().front();
  llvm::StringMap<BlockArgument> arguments;
  for (BlockArgument argument : body.getArguments())
    if (auto name = program.getArgAttrOfType<StringAttr>(
            argument.getArgNumber(), graph::kNameAttr))
      arguments[name] = argument;
  llvm::StringSet<> updated;
  /// The memory that results of a part take.
  struct Link {
    unsigned result, position;
    bool gradient;
  };
  llvm::MapVector<func::FuncOp, SmallVector<Link>> links;
  /// The first action that reads each input.
  DenseMap<RunOp, DenseMap<Value, unsigned>> positions;
  Operation *terminator = body.getTerminator();
  for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
    auto name = program.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
    if (!name)
      continue;
    BlockArgument argument = arguments.lookup(name);
    if (!argument)
      return program.emitOpError("a result updates '")
             << name.getValue() << "', which is not the name of an argument";
    if (!updated.insert(name).second)
      return program.emitOpError("several results update ")
             << graph::nameArgument(argument);
    if (value == argument)
      continue;
    auto run = value.getDefiningOp<RunOp>();
    if (!run || value.getType() != argument.getType())
      return graph::emitResultError(program, i)
             << " cannot take the memory of the old: it is not the whole "
                "result of one action";
    unsigned index = cast<OpResult>(value).getResultNumber();
    std::tie(run, index) = firstOfSum(run, index, symbols);
    auto part = symbols.lookup<func::FuncOp>(run.getCallee());
    // The last of several versions takes it.
    if (part.getResultAttr(index, kAliasAttr))
      continue;
    auto [known, fresh] = positions.try_emplace(run);
    if (fresh)
      for (auto [position, input] : llvm::enumerate(run.getInputs()))
        known->second.try_emplace(input, position);
    auto [at, unused] =
        known->second.try_emplace(argument, run.getInputs().size());
    unsigned position = at->second;
    if (unused) {
      // The part does not read the argument: it is an operand that says where
      // to write.
      if (llvm::count_if(body.getOps<RunOp>(), [&](RunOp other) {
            return other.getCallee() == run.getCallee();
          }) != 1)
        return graph::emitResultError(program, i)
               << " cannot take the memory of the old: its part runs several "
                  "times";
      if (failed(part.insertArgument(position, argument.getType(),
                                     DictionaryAttr::get(part.getContext()),
                                     run.getLoc())))
        return failure();
      run.getInputsMutable().append(argument);
    }
    for (const Link &other : links[part])
      if (other.result == index && other.position != position)
        return graph::emitResultError(program, i)
               << " cannot take the memory of the old: another result that is "
                  "the same value takes that of another argument";
    auto role = program.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                     graph::kRoleAttr);
    links[part].push_back({index, position, role && role == "gradient"});
  }
  for (const auto &[part, ofPart] : links) {
    graph::EntryAttributes attributes(part);
    for (auto [result, position, gradient] : ofPart) {
      attributes.setArg(position, kDiesAttr, builder.getUnitAttr());
      attributes.setResult(result, kAliasAttr,
                           builder.getI64IntegerAttr(position));
      attributes.setResult(result, gradient ? kGradientAttr : kUpdateAttr,
                           builder.getUnitAttr());
    }
    attributes.write();
  }
  return success();
}
