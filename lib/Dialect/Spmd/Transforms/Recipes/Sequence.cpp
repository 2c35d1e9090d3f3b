//===- Sequence.cpp - Splitting along the sequence ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Context parallelism: inputs, and so all values between, are split along the
/// sequence. Attention splits its queries, and gathers keys and values.
///
//===----------------------------------------------------------------------===//

#include "Sequence.h"
#include "Experts.h"
#include "cleave/Dialect/Graph/IR/Entry.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

bool cleave::spmd::isAttention(Operation *op) {
  auto costed = dyn_cast<graph::CostOpInterface>(op);
  return costed && costed.getCost().work == graph::WorkClass::Attention;
}

SequenceClasses cleave::spmd::sequenceClasses(const DimensionClasses &classes,
                                              func::FuncOp function) {
  SequenceClasses sequences;
  for (Operation &op : function.getBody().front().without_terminator()) {
    auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
    if (!ruled || !isAttention(&op))
      continue;
    graph::ShardingRule rule = ruled.getShardingRule();
    auto has = [&](unsigned operand, int64_t factor) {
      return llvm::any_of(rule.operands[operand], [&](const auto &factors) {
        return llvm::is_contained(factors, factor);
      });
    };
    for (auto [i, operand] : llvm::enumerate(op.getOperands())) {
      Value value = operand;
      // Annotations came after the classes.
      while (auto constrain = value.getDefiningOp<ConstrainOp>())
        value = constrain.getInput();
      // What queries and keys share is no sequence: samples, heads, features.
      for (auto [dim, factors] : llvm::enumerate(rule.operands[i]))
        if (llvm::none_of(factors, [&](int64_t factor) {
              return has(0, factor) && has(1, factor);
            }))
          sequences.insert(classes.number(value, dim));
    }
  }
  return sequences;
}

/// Each device computes some of the places that experts have for a sequence:
/// what tokens of all devices go to them is added up where they are.
static void splitPlaces(Annotator &annotator, func::FuncOp function,
                        StringRef axis) {
  const DimensionClasses &classes = annotator.classesOf(function);
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  for (unsigned number : Experts::find(classes)) {
    Experts experts(classes, number);
    for (OpResult result : experts.entering(function))
      // What does not divide would be padded for this alone.
      if (auto dim = experts.placeDim(result);
          dim && annotator.shardSize(result, *dim) % parts == 0)
        annotator.splitValue(result, *dim, axis);
  }
}

/// The inputs of `function` in another order, and which dimension of them runs
/// along one of `sequences`: none of the input itself does.
static SmallVector<std::pair<Value, unsigned>>
turnedInputs(const DimensionClasses &classes, func::FuncOp function,
             const SequenceClasses &sequences) {
  auto runs = [&](Value value, unsigned dim) {
    return !classes.of(value, dim).samples &&
           sequences.contains(classes.number(value, dim));
  };
  SmallVector<std::pair<Value, unsigned>> found;
  for (BlockArgument argument : function.getArguments()) {
    if (!graph::hasRole(function, argument.getArgNumber(), "input"))
      continue;
    unsigned rank = cast<RankedTensorType>(argument.getType()).getRank();
    for (Operation *user : argument.getUsers())
      if (!isa<ConstrainOp>(user) && user->getNumResults() == 1 &&
          user->getResult(0).getType() == argument.getType())
        for (unsigned dim = 0; dim < rank; ++dim)
          if (!runs(argument, dim) && runs(user->getResult(0), dim))
            found.push_back({user->getResult(0), dim});
  }
  return found;
}

/// Between blocks the sequence is split by `axis`, and each part again by the
/// axis that splits features inside of them.
static void splitStreams(Annotator &annotator, func::FuncOp function,
                         const SequenceClasses &sequences, StringRef axis) {
  const DimensionClasses &classes = annotator.classesOf(function);
  AxisRef added{annotator.getMesh().find(axis)->name};
  for (auto [constrain, dim] : annotator.getStreams()) {
    Value value = constrain.getInput();
    if (constrain->getParentOp() != function ||
        !sequences.contains(classes.number(value, dim)))
      continue;
    Sharding sharding = constrain.getSharding().getSharding();
    AxisList &axes = sharding.dims[dim];
    axes.insert(axes.end() - 1, added);
    // What does not divide would be padded for this alone.
    int64_t parts = annotator.getMesh().size(axes);
    if (cast<RankedTensorType>(value.getType()).getDimSize(dim) % parts == 0)
      constrain.setShardingAttr(
          ShardingAttr::get(constrain.getSharding().getMesh(), sharding));
  }
}

FailureOr<bool> cleave::spmd::splitInputs(Annotator &annotator,
                                          func::FuncOp function,
                                          const SequenceClasses &sequences,
                                          StringRef axis) {
  const DimensionClasses &classes = annotator.classesOf(function);
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  bool found = false;
  auto turned = turnedInputs(classes, function, sequences);
  splitStreams(annotator, function, sequences, axis);
  splitPlaces(annotator, function, axis);
  for (BlockArgument argument : function.getArguments()) {
    auto type = cast<RankedTensorType>(argument.getType());
    if (!graph::hasRole(function, argument.getArgNumber(), "input") ||
        llvm::any_of(turned, [&](const auto &entry) {
          return llvm::is_contained(entry.first.getDefiningOp()->getOperands(),
                                    argument);
        }))
      continue;
    for (int64_t dim = 0; dim < type.getRank(); ++dim) {
      if (classes.of(argument, dim).samples ||
          !sequences.contains(classes.number(argument, dim)))
        continue;
      found = true;
      // In another entry.
      if (annotator.isSplit(argument, axis))
        continue;
      Sharding given = annotator.given(argument);
      int64_t size =
          type.getDimSize(dim) / annotator.getMesh().size(given.dims[dim]);
      // What does not divide is padded later.
      if (size < parts)
        return function.emitOpError("dimension ")
               << dim << " of argument " << argument.getArgNumber() << " has "
               << size << " places, fewer than the " << parts
               << " positions of axis \"" << axis << "\": use at most " << size;
      annotator.split(argument, dim, axis);
    }
  }
  // In zig-zag order, a sequence begins behind its input.
  for (auto [value, dim] : turned) {
    found = true;
    annotator.splitValue(value, dim, axis);
  }
  return found;
}

LogicalResult cleave::spmd::applyContext(Annotator &annotator, StringRef axis) {
  bool found = false;
  for (func::FuncOp function : annotator.entries()) {
    FailureOr<bool> split = splitInputs(
        annotator, function,
        sequenceClasses(annotator.classesOf(function), function), axis);
    if (failed(split))
      return failure();
    found |= *split;
  }
  if (!found)
    return annotator.getModule().emitError()
           << "context: no input runs along the sequence of an attention";
  return success();
}
