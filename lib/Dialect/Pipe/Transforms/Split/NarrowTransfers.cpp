//===- NarrowTransfers.cpp - Gradients between stages in 16 bits ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "NarrowTransfers.h"
#include "SlicePlan.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
/// Rounds the gradients that the stages of one entry send.
class TransferNarrower {
public:
  TransferNarrower(func::FuncOp entry, Flow &flow, Stages &stages)
      : entry(entry), flow(flow), stages(stages) {}

  FailureOr<int64_t> run();

private:
  /// The sending and the receiving stage.
  using Route = std::pair<int64_t, int64_t>;

  FloatType typeOfActivations(const SentValue &sent) const;
  void apply(const SentValue &sent, FloatType narrow);
  Operation *cast(OpBuilder &builder, Value value, Value like, Type element,
                  int64_t stage);

  func::FuncOp entry;
  Flow &flow;
  Stages &stages;
  /// The types of floats that forward sends, by route and global shape.
  std::map<Route, SmallVector<RankedTensorType>> activations;
};
} // namespace

/// The one type of 16 bits in which each reader of a gradient has sent all
/// activations of this shape; null otherwise.
FloatType TransferNarrower::typeOfActivations(const SentValue &sent) const {
  RankedTensorType own = spmd::writtenGlobalType(sent.value);
  FloatType common;
  for (const auto &[reader, ops] : sent.readers) {
    auto came = activations.find({reader, sent.stage});
    if (came == activations.end())
      return {};
    bool found = false;
    for (RankedTensorType type : came->second) {
      if (type.getShape() != own.getShape())
        continue;
      auto element = dyn_cast<FloatType>(type.getElementType());
      if (!element || element.getWidth() != 16 || (common && element != common))
        return {};
      common = element;
      found = true;
    }
    if (!found)
      return {};
  }
  return common;
}

/// Creates `value` with elements of type `element`, sharded as `like`.
Operation *TransferNarrower::cast(OpBuilder &builder, Value value, Value like,
                                  Type element, int64_t stage) {
  auto copy = graph::CastOp::create(
      builder, like.getLoc(),
      mlir::cast<RankedTensorType>(like.getType()).clone(element), value);
  spmd::annotate(copy, spmd::writtenShardingAttr(like),
                 spmd::writtenGlobalType(like).clone(element));
  stages.place(copy, stage);
  return copy;
}

void TransferNarrower::apply(const SentValue &sent, FloatType narrow) {
  Value value = sent.value;
  OpBuilder builder(entry.getContext());
  builder.setInsertionPointAfterValue(value);
  Operation *rounded = cast(builder, value, value, narrow, sent.stage);
  flow.add(rounded);
  for (const auto &[stage, readers] : sent.readers) {
    Operation *first =
        *llvm::min_element(readers, [](Operation *a, Operation *b) {
          return a->isBeforeInBlock(b);
        });
    builder.setInsertionPoint(first);
    Operation *wide = cast(builder, rounded->getResult(0), value,
                           graph::tensorTypeOf(value).getElementType(), stage);
    flow.add(wide);
    for (Operation *reader : readers) {
      // A reader that rounds reads what was sent.
      auto own = dyn_cast<graph::CastOp>(reader);
      if (!own || own.getType() != rounded->getResult(0).getType()) {
        reader->replaceUsesOfWith(value, wide->getResult(0));
        continue;
      }
      own.replaceAllUsesWith(rounded->getResult(0));
      stages.forget(own);
      flow.forget(own);
      own.erase();
    }
    if (wide->use_empty()) {
      stages.forget(wide);
      flow.forget(wide);
      wide->erase();
    }
  }
}

FailureOr<int64_t> TransferNarrower::run() {
  SmallVector<Value> gradients;
  for (Operation &op : entry.getBody().front().without_terminator())
    for (Value result : op.getResults()) {
      std::optional<spmd::Sharding> place = spmd::writtenSharding(result);
      RankedTensorType global = spmd::writtenGlobalType(result);
      std::optional<SentValue> sent = describeSent(flow, stages, result);
      if (!sent || !place || !global ||
          !isa<FloatType>(global.getElementType()))
        continue;
      if (flow.part(&op) == PartId::Forward)
        for (const auto &[reader, ops] : sent->readers)
          activations[{sent->stage, reader}].push_back(global);
      else if (flow.part(&op) == PartId::Backward &&
               global.getElementType().isF32() && place->partial.empty())
        gradients.push_back(result);
    }
  int64_t count = 0;
  for (Value value : gradients)
    if (std::optional<SentValue> sent = describeSent(flow, stages, value))
      if (FloatType narrow = typeOfActivations(*sent)) {
        apply(*sent, narrow);
        ++count;
      }
  if (count && failed(flow.analyze()))
    return failure();
  return count;
}

FailureOr<int64_t> cleave::pipe::narrowTransfers(func::FuncOp entry, Flow &flow,
                                                 Stages &stages) {
  if (stages.size() == 1)
    return 0;
  return TransferNarrower(entry, flow, stages).run();
}
