//===- Sequence.cpp - Sharding of the sequence dimension ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Shards the sequence dimension of inputs and of intermediate values. The
/// recipes 'context', 'ulysses', 'ring' and 'two-ring' share this.
///
//===----------------------------------------------------------------------===//

#include "Sequence.h"
#include "Experts/ExpertDimensions.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

bool cleave::spmd::isAttention(Operation *op) {
  auto costed = dyn_cast<graph::CostOpInterface>(op);
  return costed && costed.getCost().work == graph::WorkClass::Attention;
}

SequenceClasses
cleave::spmd::sequenceClasses(const DimensionClasses &classes,
                              func::FuncOp function,
                              const ComposedAttention &composed) {
  SequenceClasses sequences = composed.sequences();
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
      // Classes describe values before annotations were inserted.
      while (auto constrain = value.getDefiningOp<ConstrainOp>())
        value = constrain.getInput();
      // Dimensions that queries and keys share are samples, heads and features;
      // one without factors is repeated, as that of a mask for all heads.
      for (auto [dim, factors] : llvm::enumerate(rule.operands[i]))
        if (!factors.empty() && llvm::none_of(factors, [&](int64_t factor) {
              return has(0, factor) && has(1, factor);
            }))
          sequences.insert(classes.number(value, dim));
    }
  }
  return sequences;
}

bool cleave::spmd::isGiven(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (op->getNumOperands() != 1)
      return false;
    value = op->getOperand(0);
  }
  return true;
}

/// Whether `value` is computed of a product of two computed values, as scores
/// of queries and keys are; a router's logits are products with a weight.
static bool isOfScores(Value value) {
  SetVector<Value> seen;
  seen.insert(value);
  for (unsigned i = 0; i < seen.size(); ++i) {
    Operation *op = seen[i].getDefiningOp();
    if (!op || isa<graph::LinearOp>(op))
      continue;
    if (isa<graph::ContractOp>(op)) {
      if (llvm::none_of(op->getOperands(), isGiven))
        return true;
      continue;
    }
    seen.insert(op->operand_begin(), op->operand_end());
  }
  return false;
}

Operation *cleave::spmd::findSoftmaxOfScores(func::FuncOp function) {
  for (Operation &softmax : function.getBody().front())
    if (isa<graph::SoftmaxOp, graph::ExpOp>(softmax) &&
        isOfScores(softmax.getOperand(0)))
      return &softmax;
  return nullptr;
}

LogicalResult cleave::spmd::refuseWithoutAttention(Annotator &annotator,
                                                   StringRef recipe,
                                                   StringRef otherwise) {
  for (func::FuncOp function : annotator.entries())
    if (Operation *softmax = findSoftmaxOfScores(function))
      return mlir::emitError(softmax->getLoc())
             << "recipe '" << recipe
             << "': the scores of this softmax are not those of an attention "
                "over positions of an input, which can be sharded: use "
                "scaled_dot_product_attention, or shard over another recipe, "
                "such as megatron";
  return annotator.getModule().emitError()
         << "recipe '" << recipe << "': " << otherwise;
}

/// Shards the token slots (capacity) of experts over `axis`, so that each
/// device computes some of the slots. The contributions of all devices to a
/// slot are summed on the device that holds it.
static void splitExpertSlots(Annotator &annotator, func::FuncOp function,
                             StringRef axis) {
  const DimensionClasses &classes = annotator.classesOf(function);
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  for (unsigned number : ExpertDimensions::find(classes)) {
    ExpertDimensions experts(classes, number);
    for (OpResult result : experts.entering(function))
      // An indivisible size would be padded for this alone.
      if (auto dim = experts.slotDim(result);
          dim && annotator.shardSize(result, *dim) % parts == 0)
        annotator.splitValue(result, *dim, axis);
  }
}

/// Inputs of `function` that are permuted into another order (zig-zag), each
/// with its dimension in one of `sequences`. The input before the permutation
/// has no dimension in these classes.
static SmallVector<std::pair<Value, unsigned>>
permutedInputs(const DimensionClasses &classes, func::FuncOp function,
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

/// Shards the values between blocks over `axis` along the sequence. The axis
/// that shards features inside of blocks shards the same dimension as a minor
/// axis.
static void splitStreams(Annotator &annotator, func::FuncOp function,
                         const SequenceClasses &sequences, StringRef axis) {
  const DimensionClasses &classes = annotator.classesOf(function);
  AxisRef added{annotator.getMesh().find(axis)->name};
  for (auto [constrain, dim, except] : annotator.getStreams()) {
    Value value = constrain.getInput();
    if (constrain->getParentOp() != function || except == axis ||
        !sequences.contains(classes.number(value, dim)))
      continue;
    Sharding sharding = constrain.getSharding().getSharding();
    AxisList &axes = sharding.dims[dim];
    axes.insert(axes.empty() ? axes.end() : axes.end() - 1, added);
    // An indivisible size would be padded for this alone.
    int64_t parts = annotator.getMesh().size(axes);
    if (cast<RankedTensorType>(value.getType()).getDimSize(dim) % parts == 0)
      constrain.setShardingAttr(
          ShardingAttr::get(constrain.getSharding().getMesh(), sharding));
  }
}

/// Returns `value` of an attention, [samples, heads, queries, ..], annotated as
/// sharded over `axis` along its queries.
static ConstrainOp ofQueries(Annotator &annotator, OpBuilder &builder,
                             Value value, StringRef axis) {
  Sharding sharding = Sharding::replicated(
      cast<RankedTensorType>(value.getType()).getRank(), /*open=*/true);
  sharding.dims[2].push_back({axis});
  sharding.open[2] = false;
  return annotator.constrain(builder, value, sharding);
}

LogicalResult cleave::spmd::splitQueries(Annotator &annotator, Operation *op,
                                         StringRef axis) {
  axis = annotator.getMesh().find(axis)->name;
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  // Backward reads the gradient first, and the queries after it.
  auto forward = dyn_cast<graph::AttentionOp>(op);
  for (unsigned index = 0; index < (forward ? 1 : 2); ++index) {
    OpOperand &operand = op->getOpOperand(index);
    int64_t places =
        cast<RankedTensorType>(operand.get().getType()).getDimSize(2);
    if (places < parts)
      return op->emitOpError("has ")
             << places << " queries, fewer than the " << parts
             << " positions of axis \"" << axis << "\": use at most " << places;
    OpBuilder builder(op);
    operand.set(ofQueries(annotator, builder, operand.get(), axis));
  }
  if (forward) {
    OpBuilder builder(op->getContext());
    builder.setInsertionPointAfter(op);
    Value output = ofQueries(annotator, builder, forward.getOutput(), axis);
    forward.getOutput().replaceAllUsesExcept(output, output.getDefiningOp());
  }
  return success();
}

FailureOr<bool>
cleave::spmd::splitMadeSequences(Annotator &annotator, func::FuncOp function,
                                 const SequenceClasses &sequences,
                                 StringRef axis) {
  const DimensionClasses &classes = annotator.classesOf(function);
  SmallVector<Operation *> found;
  for (Operation &op : function.getBody().front().without_terminator()) {
    if (!isa<graph::AttentionOp, graph::AttentionGradOp>(op))
      continue;
    // Classes describe values before annotations were inserted.
    Value query = op.getOperand(isa<graph::AttentionOp>(op) ? 0 : 1);
    while (auto constrain = query.getDefiningOp<ConstrainOp>())
      query = constrain.getInput();
    if (sequences.contains(classes.number(query, 2)) &&
        !classes.of(query, 2).samples)
      found.push_back(&op);
  }
  for (Operation *op : found)
    if (failed(splitQueries(annotator, op, axis)))
      return failure();
  if (!found.empty())
    annotator.addSequenceAxis({annotator.getMesh().find(axis)->name});
  return !found.empty();
}

FailureOr<bool> cleave::spmd::splitInputs(Annotator &annotator,
                                          func::FuncOp function,
                                          const SequenceClasses &sequences,
                                          StringRef axis) {
  const DimensionClasses &classes = annotator.classesOf(function);
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  bool found = false;
  auto permuted = permutedInputs(classes, function, sequences);
  splitStreams(annotator, function, sequences, axis);
  splitExpertSlots(annotator, function, axis);
  for (BlockArgument argument : function.getArguments()) {
    auto type = cast<RankedTensorType>(argument.getType());
    if (!graph::hasRole(function, argument.getArgNumber(), "input") ||
        llvm::any_of(permuted, [&](const auto &entry) {
          return llvm::is_contained(entry.first.getDefiningOp()->getOperands(),
                                    argument);
        }))
      continue;
    for (int64_t dim = 0; dim < type.getRank(); ++dim) {
      if (classes.of(argument, dim).samples ||
          !sequences.contains(classes.number(argument, dim)))
        continue;
      found = true;
      // Sharded already for another entry function.
      if (annotator.isSplit(argument, axis))
        continue;
      Sharding given = annotator.given(argument);
      int64_t size =
          type.getDimSize(dim) / annotator.getMesh().size(given.dims[dim]);
      // An indivisible size is padded later.
      if (size < parts)
        return function.emitError("dimension ")
               << dim << " of " << graph::nameArgument(argument) << " has "
               << "size " << size << ", less than the " << parts
               << " positions of axis \"" << axis << "\": use at most " << size;
      annotator.split(argument, dim, axis);
    }
  }
  // In zig-zag order, the permuted input is sharded, not the input.
  for (auto [value, dim] : permuted) {
    found = true;
    annotator.splitValue(value, dim, axis);
  }
  if (found)
    annotator.addSequenceAxis({annotator.getMesh().find(axis)->name});
  return found;
}
