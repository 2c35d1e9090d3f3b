//===- SliceTransfers.cpp - Transfers between stages in slices ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A value that only other stages read is computed on slices, from the sum over
/// devices on that it depends on: the ops in between are computed on the slice,
/// and the sum becomes a reduce_scatter. SlicePlan.cpp finds these ops and the
/// elements sent.
///
//===----------------------------------------------------------------------===//

#include "SliceTransfers.h"
#include "SlicePlan.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Spmd/IR/Cause.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "cleave/Dialect/Spmd/Transforms/Partition/OptimizeCollectives.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/IR/Remarks.h"
#include "llvm/Support/SaveAndRestore.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
/// Slices the transfers of one entry.
class TransferSlicer : private RewriterBase::Listener {
public:
  TransferSlicer(func::FuncOp entry, spmd::MeshOp meshOp, Flow &flow,
                 Stages &stages, Slices wanted)
      : entry(entry), meshName(FlatSymbolRefAttr::get(meshOp)),
        mesh(meshOp.getMesh()), flow(flow), stages(stages), wanted(wanted),
        rewriter(entry.getContext(), this) {}

  FailureOr<int64_t> run();

private:
  //===--- Ops that are created get the stage `place`
  //----------------------===//
  void notifyOperationInserted(Operation *op, OpBuilder::InsertPoint) override {
    stages.forget(op);
    if (place && op->getNumOperands() != 0)
      stages.place(op, *place);
    added.insert(op);
  }
  void notifyOperationErased(Operation *op) override {
    stages.forget(op);
    flow.forget(op);
    added.remove(op);
  }

  bool areNeighbours(const SentValue &sent,
                     const spmd::Sharding &sharding) const;
  std::optional<SlicePlan> choose(const SentValue &sent) const;
  void apply(const SentValue &sent, const SlicePlan &plan);
  bool liesAs(Value value, const spmd::Sharding &to) const {
    return spmd::sameDims(mesh, spmd::writtenSharding(value)->dims, to.dims);
  }
  Value sliced(Value value, const spmd::Sharding &to);
  void replaceSlices(int64_t stage);
  void build(const SlicePlan &plan, int64_t stage);
  void gather(const SentValue &sent, Value slice, const SlicePlan &plan);
  void explain(const SentValue &sent, const SlicePlan &plan);

  func::FuncOp entry;
  FlatSymbolRefAttr meshName;
  spmd::Mesh mesh;
  Flow &flow;
  Stages &stages;
  Slices wanted;
  IRRewriter rewriter;
  std::optional<int64_t> place;
  /// The slices of other values, computed or cut, while one value is sliced;
  /// and those that were cut.
  llvm::MapVector<Value, SmallVector<Value, 1>> slices;
  SmallVector<spmd::SliceOp> cut;
  /// The ops that were inserted for one value.
  llvm::SetVector<Operation *> added;
};
} // namespace

/// Whether the ranks that hold slices are closer to each other in the mesh than
/// the stages are: the pipeline axis is major to theirs.
bool TransferSlicer::areNeighbours(const SentValue &sent,
                                   const spmd::Sharding &sharding) const {
  auto place = [&](StringRef name) {
    return llvm::find_if(
               mesh.axes,
               [&](const spmd::MeshAxis &axis) { return axis.name == name; }) -
           mesh.axes.begin();
  };
  auto added =
      spmd::addedAxes(mesh, *spmd::writtenSharding(sent.value), sharding);
  return added && llvm::all_of(*added, [&](const spmd::AxisList &list) {
           return llvm::all_of(list, [&](const spmd::AxisRef &axis) {
             return place(spmd::kPipelineAxis) < place(axis.name);
           });
         });
}

/// Returns the best plan; nothing if the value is not to be sliced.
std::optional<SlicePlan> TransferSlicer::choose(const SentValue &sent) const {
  std::optional<SlicePlan> best;
  for (const spmd::Sharding &sharding : waysToSlice(mesh, sent.value)) {
    SlicePlan plan = planSlice(mesh, flow, stages, sent, sharding);
    // With `on`, transfers between stages count first. Of equal plans, the
    // first dimension is best, because its slices are contiguous.
    auto rank = [&](const SlicePlan &own) {
      double more = own.after - own.before;
      return wanted == Slices::On ? std::pair(own.link, more)
                                  : std::pair(more, own.link);
    };
    // A gather sends what slices save. It is the better one to send where the
    // ranks of a stage are next to each other, and stages further apart (arXiv
    // 2104.04473, section 4.1).
    double more = plan.after - plan.before, least = 1e-9 * plan.before;
    if (wanted == Slices::Auto &&
        (more > least || plan.link >= plan.linkBefore ||
         (more > -least && !areNeighbours(sent, sharding))))
      continue;
    if (!best || rank(plan) < rank(*best))
      best = std::move(plan);
  }
  return best;
}

/// Returns `value` in the sharding `to`: the value itself if it has this
/// sharding, otherwise its slice.
Value TransferSlicer::sliced(Value value, const spmd::Sharding &to) {
  if (liesAs(value, to))
    return value;
  for (Value known : slices[value])
    if (liesAs(known, to))
      return known;
  spmd::Collective move;
  move.kind = spmd::CollectiveKind::Slice;
  move.dims = *spmd::addedAxes(mesh, *spmd::writtenSharding(value), to);
  move.sharding = to;
  // The slice is in the stage of the value, if it has one.
  Operation *op = value.getDefiningOp();
  llvm::SaveAndRestore here(place, op ? stages.of(op) : std::nullopt);
  rewriter.setInsertionPointAfterValue(value);
  Value result =
      spmd::buildCollective(rewriter, value.getLoc(), value, move, meshName,
                            mesh, spmd::writtenGlobalType(value));
  cut.push_back(cast<spmd::SliceOp>(result.getDefiningOp()));
  slices[value].push_back(result);
  return result;
}

/// Creates the ops of `plan` on slices.
void TransferSlicer::build(const SlicePlan &plan, int64_t stage) {
  llvm::SaveAndRestore here(place, std::optional(stage));
  for (const auto &[op, split] : plan.ops) {
    SmallVector<Value> operands;
    for (auto [operand, lies] :
         llvm::zip_equal(op->getOperands(), split.operands))
      operands.push_back(sliced(operand, lies));
    rewriter.setInsertionPoint(op);
    Operation *built =
        spmd::buildFurther(rewriter, op, split, operands, meshName, mesh);
    for (auto [own, other] :
         llvm::zip_equal(op->getResults(), built->getResults()))
      slices[own].push_back(other);
  }
}

/// Gathers the value in front of its first reader, in each stage that reads it.
void TransferSlicer::gather(const SentValue &sent, Value slice,
                            const SlicePlan &plan) {
  std::optional<spmd::Sharding> whole = spmd::writtenSharding(sent.value);
  spmd::Collective move;
  move.kind = spmd::CollectiveKind::AllGather;
  move.dims = *spmd::addedAxes(mesh, *whole, plan.sharding);
  move.sharding = *whole;
  for (const auto &[stage, readers] : sent.readers) {
    llvm::SaveAndRestore here(place, std::optional(stage));
    Operation *first =
        *llvm::min_element(readers, [](Operation *a, Operation *b) {
          return a->isBeforeInBlock(b);
        });
    rewriter.setInsertionPoint(first);
    std::string cause = "stage " + std::to_string(sent.stage) +
                        " sends it in " + std::to_string(plan.parts) +
                        " slices";
    Value gathered = spmd::buildCollective(
        rewriter, spmd::withCause(sent.value.getLoc(), cause), slice, move,
        meshName, mesh, spmd::writtenGlobalType(sent.value));
    gathered.getDefiningOp()->setAttr(kSlicedAttr, rewriter.getUnitAttr());
    for (Operation *reader : readers)
      rewriter.modifyOpInPlace(
          reader, [&] { reader->replaceUsesOfWith(sent.value, gathered); });
    // A slice that the reader computed of the value is the slice sent.
    for (Operation *reader : readers)
      if (isa<spmd::SliceOp>(reader))
        spmd::undoCollective(reader, mesh, rewriter);
  }
}

/// Replaces slices that `stage` computed before by the new ones.
void TransferSlicer::replaceSlices(int64_t stage) {
  for (const auto &[value, made] : slices)
    for (Operation *user : llvm::make_early_inc_range(value.getUsers()))
      if (auto before = dyn_cast<spmd::SliceOp>(user);
          before && stages.of(before) == stage &&
          !llvm::is_contained(made, before.getOutput()))
        for (Value slice : made)
          if (liesAs(slice, *spmd::writtenSharding(before))) {
            rewriter.replaceOp(before, slice);
            break;
          }
}

void TransferSlicer::apply(const SentValue &sent, const SlicePlan &plan) {
  slices.clear();
  cut.clear();
  explain(sent, plan);
  build(plan, sent.stage);
  Value slice = sliced(sent.value, plan.sharding);
  gather(sent, slice, plan);
  replaceSlices(sent.stage);
  for (const auto &[op, split] : llvm::reverse(plan.ops)) {
    SmallVector<Value> operands(op->getOperands());
    rewriter.eraseOp(op);
    for (Value operand : operands)
      if (auto offset = operand.getDefiningOp<spmd::ShardOffsetOp>())
        if (offset->use_empty())
          rewriter.eraseOp(offset);
  }
  llvm::SaveAndRestore here(place, std::optional(sent.stage));
  for (spmd::SliceOp op : cut)
    if (!spmd::scatterSlice(op, mesh, rewriter))
      spmd::undoCollective(op, mesh, rewriter);
}

/// Emits a remark at the value: the elements sent with and without slices.
void TransferSlicer::explain(const SentValue &sent, const SlicePlan &plan) {
  auto remark = remark::passed(sent.value.getLoc(),
                               remark::RemarkOpts::name("SlicedTransfer")
                                   .category("pipe-split-stages")
                                   .function(entry.getSymName()));
  if (!remark)
    return;
  std::string to;
  for (const auto &[stage, readers] : sent.readers)
    to += (to.empty() ? "" : ", ") + std::to_string(stage);
  auto number = [](double value) { return llvm::formatv("{0}", value).str(); };
  remark << remark::metric("From", std::to_string(sent.stage))
         << remark::metric("To", to)
         << remark::metric("Slices", std::to_string(plan.parts))
         << remark::metric("Elements", number(plan.link))
         << remark::metric("ElementsWhole", number(plan.linkBefore))
         << remark::metric("ElementsInAll", number(plan.after))
         << remark::metric("ElementsInAllWhole", number(plan.before));
}

FailureOr<int64_t> TransferSlicer::run() {
  int64_t count = 0;
  SmallVector<Value> values = valuesToSlice(mesh, flow, stages, entry);
  // In reverse order: a value that depends on another one sent comes first.
  for (Value value : llvm::reverse(values)) {
    // Its readers may have changed.
    std::optional<SentValue> sent = describeSent(flow, stages, value);
    if (!sent)
      continue;
    std::optional<SlicePlan> plan = choose(*sent);
    if (!plan)
      continue;
    apply(*sent, *plan);
    ++count;
    // As few as were added: all of them for each value sent take quadratic
    // time.
    SmallVector<Operation *> ops(added.takeVector());
    llvm::sort(
        ops, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
    for (Operation *op : ops)
      flow.add(op);
  }
  if (count && failed(flow.analyze()))
    return failure();
  return count;
}

FailureOr<int64_t> cleave::pipe::sliceTransfers(func::FuncOp entry,
                                                spmd::MeshOp mesh, Flow &flow,
                                                Stages &stages, Slices wanted) {
  if (wanted == Slices::Off || stages.size() == 1)
    return 0;
  return TransferSlicer(entry, mesh, flow, stages, wanted).run();
}
