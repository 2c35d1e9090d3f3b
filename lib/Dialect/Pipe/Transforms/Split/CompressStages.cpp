//===- CompressStages.cpp - The largest elements cross to other stages ----===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The stages are chosen on the model, before its gradients exist: then the
/// ordinary derivatives of what is sent are the gradients that are sent back.
///
//===----------------------------------------------------------------------===//

#include "Stages.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/Analysis/Work.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include <map>

namespace cleave::pipe {
#define GEN_PASS_DEF_COMPRESSSTAGES
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {

/// The elements of a row that are sent.
static int64_t keptOf(RankedTensorType type, double density) {
  int64_t size = type.getShape().back();
  int64_t kept =
      static_cast<int64_t>(std::llround(density * static_cast<double>(size)));
  return std::clamp<int64_t>(kept, 1, size);
}

/// Whether a value has rows of floats: its last dimension, of each sample.
static bool hasRows(RankedTensorType type) {
  return isa<FloatType>(type.getElementType()) && type.getRank() >= 2 &&
         type.getNumElements() > 0;
}

/// Compresses what the stages of one loss send each other.
class StageCompressor {
public:
  StageCompressor(func::FuncOp entry, double density, StringRef precision)
      : entry(entry), body(entry.getBody().front()), density(density),
        precision(precision) {
    findOps();
  }

  LogicalResult cut(ArrayRef<std::string> first, int64_t count,
                    const MachineModel &machine, bool whole);
  LogicalResult compress();

private:
  /// What a stage reads of another one, and the first op that reads it.
  struct Received {
    Value value;
    size_t reader;
  };

  void findOps();
  int64_t stageOf(size_t at) const {
    return llvm::upper_bound(cuts, at) - cuts.begin();
  }
  std::map<int64_t, size_t> readersOf(size_t at, Value value) const;
  llvm::BitVector begins(bool whole) const;
  void keepParametersWhole(llvm::BitVector &begins) const;
  std::pair<Value, Value> encode(Value value);
  template <typename OpTy> OpTy in(StringRef element, OpTy op) const {
    if (!precision.empty())
      op->setAttr(graph::kPrecisionAttr,
                  StringAttr::get(op->getContext(), element));
    return op;
  }
  /// Has mixed precision send values in `precision`.
  template <typename OpTy> OpTy sent(OpTy op) const {
    return in(precision, op);
  }
  /// Has it choose among rounded values: all that they are computed from would
  /// be in f32 otherwise.
  template <typename OpTy> OpTy choosing(OpTy op) const {
    return in("16bit", op);
  }
  void warnOfNoGain(Value value) const;

  func::FuncOp entry;
  Block &body;
  double density;
  StringRef precision;
  llvm::DenseSet<Value> varying;
  /// The ops that one stage computes, in order, and their places.
  SmallVector<Operation *> ops;
  llvm::DenseMap<Operation *, size_t> places;
  /// The first op of each stage from the second on.
  SmallVector<size_t> cuts;
};

} // namespace

/// Finds the ops that depend on samples, and on parameters or are heavy: those
/// that `Stages` cuts.
void StageCompressor::findOps() {
  llvm::DenseSet<Value> fromParameters;
  for (BlockArgument argument : body.getArguments()) {
    unsigned index = argument.getArgNumber();
    if (graph::hasRole(entry, index, "parameter") ||
        graph::hasRole(entry, index, "state"))
      fromParameters.insert(argument);
  }
  varying = graph::dependentValues(body, [&](Value value) {
    auto argument = dyn_cast<BlockArgument>(value);
    return argument && !fromParameters.contains(argument) &&
           !graph::hasRole(entry, argument.getArgNumber(), "buffer");
  });
  for (Operation &op : body.without_terminator()) {
    bool depends = false, varies = false;
    for (Value operand : op.getOperands()) {
      depends |= fromParameters.contains(operand);
      varies |= varying.contains(operand);
    }
    bool staged = varies && (depends || graph::isHeavyWork(&op));
    if (depends || staged)
      fromParameters.insert(op.result_begin(), op.result_end());
    if (staged) {
      places[&op] = ops.size();
      ops.push_back(&op);
    }
  }
}

/// The ops at which a stage may begin: those before which a value that can be
/// compressed is live.
llvm::BitVector StageCompressor::begins(bool whole) const {
  llvm::BitVector found(ops.size(), false);
  for (auto [i, op] : llvm::enumerate(ops))
    for (Value result : op->getResults()) {
      if (!hasRows(cast<RankedTensorType>(result.getType())))
        continue;
      size_t last = i;
      for (Operation *user : result.getUsers())
        if (auto it = places.find(user); it != places.end())
          last = std::max(last, it->second);
      if (last > i)
        found.set(i + 1, last + 1);
    }
  if (whole)
    keepParametersWhole(found);
  return found;
}

/// Removes the ops at which a stage would share a parameter with the one
/// before.
void StageCompressor::keepParametersWhole(llvm::BitVector &begins) const {
  llvm::DenseMap<Value, llvm::DenseSet<Value>> sources;
  for (BlockArgument argument : body.getArguments())
    if (graph::hasRole(entry, argument.getArgNumber(), "parameter"))
      sources[argument].insert(argument);
  llvm::DenseMap<Value, std::pair<size_t, size_t>> read;
  for (Operation &op : body.without_terminator()) {
    llvm::DenseSet<Value> own;
    for (Value operand : op.getOperands())
      if (auto it = sources.find(operand); it != sources.end())
        own.insert(it->second.begin(), it->second.end());
    auto place = places.find(&op);
    if (place == places.end()) {
      for (Value result : op.getResults())
        if (!own.empty())
          sources[result] = own;
      continue;
    }
    for (Value parameter : own) {
      auto &range = read.try_emplace(parameter, place->second, place->second)
                        .first->second;
      range.second = place->second;
    }
  }
  for (const auto &[parameter, range] : read)
    if (range.first < range.second)
      begins.reset(range.first + 1, range.second + 1);
}

LogicalResult StageCompressor::cut(ArrayRef<std::string> first, int64_t count,
                                   const MachineModel &machine, bool whole) {
  if (static_cast<int64_t>(ops.size()) < count)
    return entry.emitOpError("cannot be cut into ")
           << count << " stages: it has only " << ops.size()
           << " ops that depend on samples and parameters";
  if (!first.empty()) {
    FailureOr<SmallVector<size_t>> named = namedCuts(
        entry, ops, first, count,
        [&](Value value) { return varying.contains(value); },
        [](Operation *) { return true; });
    if (failed(named))
      return failure();
    cuts = *named;
    return success();
  }
  // Backward takes twice the time of forward.
  std::vector<double> seconds;
  for (Operation *op : ops)
    seconds.push_back(3 * machine.secondsOf(workOf(op, spmd::Mesh())));
  // Links send that much less: 12 bytes for an element and its gradient, of 8.
  MachineModel faster = machine;
  faster.link /= std::min(1.5 * density, 1.0);
  if (whole)
    cuts = balancedCuts(ops, seconds, count, faster, begins(true));
  if (cuts.empty())
    cuts = balancedCuts(ops, seconds, count, faster, begins(false));
  if (cuts.empty())
    return entry.emitOpError("cannot be cut into ")
           << count << " stages that send each other rows of floats";
  return success();
}

/// The first reader of `value`, a result of op `at`, in each other stage.
std::map<int64_t, size_t> StageCompressor::readersOf(size_t at,
                                                     Value value) const {
  std::map<int64_t, size_t> readers;
  for (Operation *user : value.getUsers())
    if (auto it = places.find(user); it != places.end())
      if (int64_t stage = stageOf(it->second); stage != stageOf(at)) {
        auto [known, isNew] = readers.try_emplace(stage, it->second);
        known->second = std::min(known->second, it->second);
      }
  return readers;
}

/// The elements of largest magnitude of each row, and their indices.
std::pair<Value, Value> StageCompressor::encode(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  OpBuilder builder(value.getContext());
  builder.setInsertionPointAfterValue(value);
  Location loc = value.getLoc();
  IntegerAttr last = builder.getI64IntegerAttr(type.getRank() - 1);
  Value magnitudes = choosing(graph::AbsOp::create(builder, loc, value));
  auto largest = choosing(
      graph::TopKOp::create(builder, loc, magnitudes, keptOf(type, density)));
  // An index takes 4 bytes.
  auto indexType = RankedTensorType::get(
      cast<RankedTensorType>(largest.getIndices().getType()).getShape(),
      builder.getI32Type());
  Value indices =
      graph::CastOp::create(builder, loc, indexType, largest.getIndices());
  // Magnitudes have no sign.
  Value elements = sent(graph::GatherOp::create(
      builder, loc, value, indices, /*origin=*/Value(), /*dim=*/last,
      /*padding_index=*/IntegerAttr(), /*global_size=*/IntegerAttr(),
      /*batch=*/last));
  return {elements, indices};
}

void StageCompressor::warnOfNoGain(Value value) const {
  auto type = cast<RankedTensorType>(value.getType());
  int64_t element = elementBytes(type.getElementType());
  int64_t sent = keptOf(type, density) * (2 * element + 4),
          dense = type.getShape().back() * 2 * element;
  if (sent >= dense)
    emitWarning(value.getLoc())
        << "stages send and receive " << sent << " bytes for each row of this "
        << "value, which would be " << dense
        << " without compression: choose a smaller share of its elements";
}

LogicalResult StageCompressor::compress() {
  // What each stage receives, in the order in which it reads it.
  SmallVector<SmallVector<Received>> received(cuts.size() + 1);
  SmallVector<Value> values;
  for (auto [i, op] : llvm::enumerate(ops))
    for (Value result : op->getResults()) {
      if (!hasRows(cast<RankedTensorType>(result.getType())))
        continue;
      std::map<int64_t, size_t> readers = readersOf(i, result);
      for (auto [stage, reader] : readers)
        received[stage].push_back({result, reader});
      if (!readers.empty())
        values.push_back(result);
    }
  for (auto [i, cut] : llvm::enumerate(cuts))
    if (received[i + 1].empty())
      return emitError(ops[cut]->getLoc())
             << "stage " << i + 1
             << " begins here and reads no rows of floats of another stage: "
                "nothing can be compressed";
  llvm::DenseMap<Value, std::pair<Value, Value>> encoded;
  for (Value value : values) {
    warnOfNoGain(value);
    // Readers are found by their places, which new ops do not have.
    encoded[value] = encode(value);
  }
  for (int64_t stage = 1; stage <= static_cast<int64_t>(cuts.size()); ++stage) {
    auto &own = received[stage];
    llvm::stable_sort(own, [](const Received &a, const Received &b) {
      return a.reader < b.reader;
    });
    for (auto [i, each] : llvm::enumerate(own)) {
      Value value = each.value;
      auto [elements, indices] = encoded.lookup(value);
      auto type = cast<RankedTensorType>(value.getType());
      // The stage begins with the first one.
      OpBuilder builder(ops[i == 0 ? cuts[stage - 1] : each.reader]);
      IntegerAttr last = builder.getI64IntegerAttr(type.getRank() - 1);
      auto decoded = sent(graph::ScatterAddOp::create(
          builder, value.getLoc(), elements, indices, /*origin=*/Value(),
          /*dim=*/last, builder.getI64IntegerAttr(type.getShape().back()),
          /*padding_index=*/IntegerAttr(), /*global_size=*/IntegerAttr(),
          /*batch=*/last));
      decoded->setAttr(kBeginsStageAttr, builder.getI64IntegerAttr(stage));
      value.replaceUsesWithIf(decoded.getOutput(), [&](OpOperand &use) {
        auto it = places.find(use.getOwner());
        return it != places.end() && stageOf(it->second) == stage;
      });
    }
  }
  return success();
}

namespace {
struct CompressStages final
    : cleave::pipe::impl::CompressStagesBase<CompressStages> {
  using CompressStagesBase::CompressStagesBase;

  LogicalResult run() {
    if (!(density > 0 && density <= 1))
      return getOperation().emitError("density must be above 0 and at most 1, "
                                      "got ")
             << density.getValue();
    if (count < 2)
      return getOperation().emitError("there is ")
             << count.getValue()
             << " stage: stages that send each other something are two or more";
    if (!llvm::is_contained({"", "16bit", "f32"}, precision.getValue()))
      return getOperation().emitError("precision must be 16bit or f32, got '")
             << precision.getValue() << "'";
    std::string error;
    std::optional<MachineModel> known = MachineModel::parse(machine, error);
    if (!known)
      return getOperation().emitError("machine: ") << error;
    FailureOr<func::FuncOp> loss = graph::findEntry(getOperation(), entry);
    if (failed(loss))
      return failure();
    StageCompressor compressor(*loss, density, precision);
    if (failed(compressor.cut(splitNames(stages), count, *known, keepWhole)))
      return failure();
    for (auto other : getOperation().getOps<func::FuncOp>())
      if (other != *loss && other.isPublic() && !other.isExternal())
        emitWarning(other.getLoc())
            << "'@" << other.getSymName()
            << "' sends whole values to other stages: only the loss and its "
               "evaluation have the masks of --compress-stages";
    return compressor.compress();
  }

  void runOnOperation() override {
    if (failed(run()))
      signalPassFailure();
  }
};
} // namespace
