//===- UnrollUpdates.cpp - Stopping a step and undoing its updates --------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Before the first update, the positions of a pipeline agree whether the step
/// continues. If updates are validated after they have run, the values that
/// they overwrite are saved, for a step that is stopped and for parts that
/// update again.
///
//===----------------------------------------------------------------------===//

#include "Unroller.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

//===----------------------------------------------------------------------===//
// Which value updates which argument
//===----------------------------------------------------------------------===//

/// The argument whose new value `result` is, also if another part passes it on.
static StringRef updatedAtFirst(OpResult result) {
  if (StringRef name = pipe::updatedArgument(result); !name.empty())
    return name;
  for (OpOperand &use : result.getUses())
    if (auto invoke = dyn_cast<pipe::InvokeOp>(use.getOwner());
        invoke && invoke.isConditional())
      for (OpResult own : invoke->getOpResults())
        if (invoke.getPassedOperand(own.getResultNumber()) ==
            use.getOperandNumber())
          return pipe::updatedArgument(own);
  return {};
}

bool cleave::exec::updates(pipe::InvokeOp invoke) {
  return llvm::any_of(invoke->getOpResults(), [](OpResult result) {
    return !pipe::updatedArgument(result).empty();
  });
}

bool cleave::exec::updatesFirst(pipe::InvokeOp invoke) {
  return !invoke.isConditional() &&
         llvm::any_of(invoke->getOpResults(), [](OpResult result) {
           return !updatedAtFirst(result).empty();
         });
}

//===----------------------------------------------------------------------===//
// Additional parts
//===----------------------------------------------------------------------===//

/// A new part; its block still lacks a terminator.
func::FuncOp Unroller::createPart(const Twine &name, TypeRange arguments) {
  OpBuilder inside(source);
  auto part =
      func::FuncOp::create(inside, source.getLoc(), name.str(),
                           inside.getFunctionType(arguments, TypeRange()));
  part.setPrivate();
  part.addEntryBlock();
  symbols.insert(part);
  return part;
}

/// Runs it once, outside of repetitions.
Operation *Unroller::runPlain(func::FuncOp part, ValueRange operands) {
  noteRuns(here);
  auto run = RunOp::create(builder, part.getLoc(), part.getResultTypes(),
                           FlatSymbolRefAttr::get(part.getSymNameAttr()),
                           operands, builder.getI64IntegerAttr(0),
                           IntegerAttr(), DenseI64ArrayAttr());
  // It belongs to no micro-batch.
  noteRuns({});
  return run;
}

/// Ends a part that returns `values`.
static void finish(func::FuncOp part, ValueRange values) {
  OpBuilder inside = OpBuilder::atBlockEnd(&part.front());
  func::ReturnOp::create(inside, part.getLoc(), values);
  part.setFunctionType(inside.getFunctionType(part.front().getArgumentTypes(),
                                              values.getTypes()));
}

/// The results of deferred checks take effect.
void Unroller::stop() {
  std::string name = (source.getName() + ".stop." + Twine(position)).str();
  auto part = symbols.lookup<func::FuncOp>(name);
  if (!part) {
    part = createPart(name, {});
    OpBuilder inside = OpBuilder::atBlockEnd(&part.front());
    auto type = RankedTensorType::get({}, inside.getI1Type());
    Value passed = graph::ConstantOp::create(
        inside, part.getLoc(), DenseElementsAttr::get(type, true));
    graph::CheckOp::create(inside, part.getLoc(), passed,
                           "a check in another stage stopped the step");
    finish(part, {});
  }
  runPlain(part, {});
}

void Unroller::stopAll(int64_t stops) {
  bool any = stops > 0;
  for (; stops > 0; --stops)
    stop();
  if (any)
    restore();
}

//===----------------------------------------------------------------------===//
// Undoing updates
//===----------------------------------------------------------------------===//

/// Copies the values that `invoke` will overwrite: arguments, and their copies.
SmallVector<std::pair<Value, Value>> Unroller::keepOld(pipe::InvokeOp invoke) {
  SmallVector<Value> sources;
  SmallVector<BlockArgument> arguments;
  for (OpResult result : invoke->getOpResults()) {
    StringRef name = updatedAtFirst(result);
    for (BlockArgument argument : source.getBody().getArguments()) {
      auto own = source.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                     graph::kNameAttr);
      auto role = source.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                      graph::kRoleAttr);
      // A gradient is the result of the last step, also of a stopped one.
      if (name.empty() || !own || own != name || (role && role == "gradient"))
        continue;
      sources.push_back(result);
      arguments.push_back(argument);
    }
  }
  SmallVector<std::pair<Value, Value>> copied;
  if (arguments.empty())
    return copied;
  SmallVector<Value> operands;
  for (BlockArgument argument : arguments)
    operands.push_back(values[argument].front());
  func::FuncOp part = createPart(source.getName() + ".keep." + Twine(position) +
                                     "." + Twine(invoke.getStage()),
                                 ValueRange(operands).getTypes());
  OpBuilder inside = OpBuilder::atBlockEnd(&part.front());
  SmallVector<Value> copies;
  for (BlockArgument own : part.getArguments())
    copies.push_back(
        CopyOp::create(inside, part.getLoc(), own.getType(), own, Value()));
  finish(part, copies);
  int64_t bytes = 0;
  for (auto [i, copy] : llvm::enumerate(copies)) {
    part.setResultAttr(i, kKeptAttr, builder.getUnitAttr());
    bytes += extentBytes(cast<RankedTensorType>(copy.getType()));
  }
  if (auto known = program->getAttrOfType<IntegerAttr>(kKeptBytesAttr))
    bytes += known.getInt();
  program->setAttr(kKeptBytesAttr, builder.getI64IntegerAttr(bytes));
  Operation *run = runPlain(part, operands);
  for (auto [argument, result, old] :
       llvm::zip_equal(arguments, sources, run->getResults())) {
    kept.push_back({result, old});
    copied.push_back({argument, old});
  }
  return copied;
}

/// In a stopped step, saved values are restored.
void Unroller::restore() {
  SmallVector<Value> operands;
  for (const Kept &own : kept)
    operands.push_back(own.old);
  for (const Kept &own : kept)
    operands.push_back(values[own.source].front());
  if (kept.empty())
    return;
  func::FuncOp part =
      createPart(source.getName() + ".restore." + Twine(position),
                 ValueRange(operands).getTypes());
  part->setAttr(kWhenStoppedAttr, builder.getUnitAttr());
  OpBuilder inside = OpBuilder::atBlockEnd(&part.front());
  SmallVector<Value> results;
  for (unsigned i = 0, count = kept.size(); i < count; ++i)
    results.push_back(
        CopyOp::create(inside, part.getLoc(), part.getArgument(i).getType(),
                       part.getArgument(i), part.getArgument(count + i)));
  finish(part, results);
  graph::EntryAttributes attributes(part);
  for (unsigned i = 0, count = kept.size(); i < count; ++i) {
    attributes.setArg(count + i, kDiesAttr, builder.getUnitAttr());
    attributes.setResult(i, kAliasAttr, builder.getI64IntegerAttr(count + i));
  }
  attributes.write();
  Operation *run = runPlain(part, operands);
  for (auto [own, result] : llvm::zip_equal(kept, run->getResults()))
    values[own.source].assign(1, result);
}
