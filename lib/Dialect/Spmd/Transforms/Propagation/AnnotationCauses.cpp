//===- AnnotationCauses.cpp - The annotation that caused a collective -----===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "AnnotationCauses.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Dialect/Spmd/IR/AxesText.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// The number of ops visited for one collective at most, which bounds the time
/// of a search.
static constexpr size_t kReach = 400;

std::string AnnotationCauses::find(Operation *op, ArrayRef<AxisRef> axes) {
  auto [it, isNew] = known.try_emplace({op, listAxes(axes)});
  if (isNew)
    it->second = findFrom(op, axes);
  return it->second;
}

std::string AnnotationCauses::placeOf(Operation *op) {
  if (names.empty())
    for (BlockArgument argument : function.getArguments()) {
      StringRef name = graph::getArgString(function, argument.getArgNumber(),
                                           graph::kNameAttr);
      // A line of several arguments names none of them.
      auto [it, fresh] = names.try_emplace(sourceLine(argument.getLoc()), name);
      if (!fresh)
        it->second = "";
    }
  std::string line = sourceLine(op->getLoc());
  auto it = names.find(line);
  bool named = !line.empty() && it != names.end() && !it->second.empty();
  return named ? it->second.str() : line;
}

std::string AnnotationCauses::findFrom(Operation *start,
                                       ArrayRef<AxisRef> axes) {
  auto splits = [&](ShardingAttr attribute) {
    if (!attribute)
      return false;
    Sharding sharding = attribute.getSharding();
    return llvm::any_of(sharding.dims, [&](const AxisList &list) {
      return llvm::any_of(
          axes, [&](const AxisRef &axis) { return mesh.overlap(axis, list); });
    });
  };
  llvm::SetVector<Operation *> reached;
  reached.insert(start);
  for (size_t next = 0; next < reached.size() && next < kReach; ++next) {
    Operation *op = reached[next];
    if (auto constrain = dyn_cast<ConstrainOp>(op);
        constrain && splits(constrain.getSharding())) {
      std::string line = placeOf(op);
      return "a value" + (line.empty() ? "" : " of " + line) +
             " is annotated as sharded over " + listAxes(axes);
    }
    for (Value operand : op->getOperands()) {
      if (Operation *producer = operand.getDefiningOp()) {
        reached.insert(producer);
        continue;
      }
      unsigned index = cast<BlockArgument>(operand).getArgNumber();
      if (!splits(
              function.getArgAttrOfType<ShardingAttr>(index, kShardingAttr)))
        continue;
      StringRef name = graph::getArgString(function, index, graph::kNameAttr);
      return "\"" +
             (name.empty() ? graph::nameArgument(function, index)
                           : name.str()) +
             "\" is sharded over " + listAxes(axes);
    }
  }
  return {};
}
