//===- SlicePlan.cpp - What it takes to send slices -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SlicePlan.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "cleave/Dialect/Spmd/Transforms/Partition/OptimizeCollectives.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

static double elementsOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements();
}

/// The device axes of a stage over which `value` is replicated.
static spmd::AxisList commonAxes(const spmd::Mesh &mesh, Value value) {
  spmd::AxisList axes;
  std::optional<spmd::Sharding> known = spmd::writtenSharding(value);
  if (!known)
    return axes;
  for (const spmd::MeshAxis &axis : mesh.axes) {
    spmd::AxisRef whole{axis.name};
    if (!axis.sequential && axis.size > 1 && axis.name != spmd::kPipelineAxis &&
        !known->splits(mesh, whole) && !known->partialOn(mesh, whole))
      axes.push_back(whole);
  }
  return axes;
}

std::optional<SentValue> cleave::pipe::describeSent(const Flow &flow,
                                                    const Stages &stages,
                                                    Value value) {
  Operation *op = value.getDefiningOp();
  if (!op || !stages.of(op) || !flow.varies(value) || flow.isAccumulation(op))
    return std::nullopt;
  SentValue sent{value, *stages.of(op), {}};
  // For each reading stage, whether it reads the value in the part of the
  // micro-batch that computes it.
  std::map<int64_t, bool> early;
  for (OpOperand &use : value.getUses()) {
    Operation *user = use.getOwner();
    std::optional<int64_t> stage = stages.of(user);
    if (!stage || *stage == sent.stage || flow.isAccumulation(user) ||
        flow.readsTypeOnly(use))
      continue;
    early[*stage] |= flow.part(user) == flow.part(op);
  }
  if (early.empty() ||
      llvm::any_of(early, [](const auto &entry) { return !entry.second; }))
    return std::nullopt;
  // Stages of one position share its memory.
  if (llvm::all_of(early, [&](const auto &entry) {
        return stages.areTogether(entry.first, sent.stage);
      }))
    return std::nullopt;
  for (Operation *user : value.getUsers())
    if (std::optional<int64_t> stage = stages.of(user);
        stage && early.count(*stage) && !flow.isAccumulation(user) &&
        !llvm::is_contained(sent.readers[*stage], user))
      sent.readers[*stage].push_back(user);
  return sent;
}

SmallVector<Value> cleave::pipe::valuesToSlice(const spmd::Mesh &mesh,
                                               const Flow &flow,
                                               const Stages &stages,
                                               func::FuncOp entry) {
  SmallVector<Value> values;
  for (Operation &op : entry.getBody().front().without_terminator())
    for (Value result : op.getResults())
      if (describeSent(flow, stages, result) &&
          !commonAxes(mesh, result).empty())
        values.push_back(result);
  return values;
}

std::vector<spmd::Sharding> cleave::pipe::waysToSlice(const spmd::Mesh &mesh,
                                                      Value value) {
  std::vector<spmd::Sharding> ways;
  spmd::AxisList axes = commonAxes(mesh, value);
  spmd::Sharding known = *spmd::writtenSharding(value);
  RankedTensorType global = spmd::writtenGlobalType(value);
  // All subsets of a few axes; of more axes, all together or one.
  constexpr size_t kMost = 4;
  SmallVector<spmd::AxisList> sets;
  if (axes.size() > kMost) {
    sets.push_back(axes);
    for (const spmd::AxisRef &axis : axes)
      sets.push_back({axis});
  } else {
    for (unsigned bits = 1; bits < 1u << axes.size(); ++bits) {
      sets.emplace_back();
      for (auto [i, axis] : llvm::enumerate(axes))
        if (bits >> i & 1)
          sets.back().push_back(axis);
    }
  }
  for (const spmd::AxisList &set : sets)
    for (unsigned dim = 0; dim < known.dims.size(); ++dim) {
      spmd::Sharding further = known;
      further.dims[dim].append(set);
      unsigned failed;
      if (global && localShape(mesh, further, global.getShape(), failed))
        ways.push_back(std::move(further));
    }
  return ways;
}

//===----------------------------------------------------------------------===//
// Computation on slices
//===----------------------------------------------------------------------===//

namespace {
/// Propagates slices from the value that is sent to the ops that compute it.
class Planner {
public:
  Planner(const spmd::Mesh &mesh, const Flow &flow, const Stages &stages,
          const SentValue &sent, const spmd::Sharding &sharding)
      : mesh(mesh), flow(flow), stages(stages), sent(sent) {
    plan.sharding = sharding;
    auto added =
        *spmd::addedAxes(mesh, *spmd::writtenSharding(sent.value), sharding);
    for (const spmd::AxisList &list : added)
      plan.parts *= mesh.size(list);
  }

  SlicePlan run();

private:
  std::optional<spmd::Sharding> wantedBy(OpOperand &use) const;
  std::optional<spmd::Sharding> wanted(Value value) const;
  void visit(Operation *op);
  void count(Operation *op, const spmd::Sharding &lies);
  void prune();
  void countTransfers();

  const spmd::Mesh &mesh;
  const Flow &flow;
  const Stages &stages;
  const SentValue &sent;
  SlicePlan plan;
  /// The ops of the plan, with the slices of their operands.
  llvm::DenseMap<Operation *, spmd::FurtherSplit> made;
  llvm::DenseSet<Value> asked;
  /// Collectives that send less, or nothing.
  llvm::DenseSet<Operation *> smaller;
};
} // namespace

/// The sharding in which a reader in the stage can read a value; nothing if it
/// reads the value as it is.
std::optional<spmd::Sharding> Planner::wantedBy(OpOperand &use) const {
  Operation *user = use.getOwner();
  if (auto it = made.find(user); it != made.end())
    return it->second.operands[use.getOperandNumber()];
  if (auto slice = dyn_cast<spmd::SliceOp>(user);
      slice && stages.of(slice) == sent.stage)
    return spmd::writtenSharding(slice);
  return std::nullopt;
}

/// The slices that all readers of a value in the stage can read; nothing if one
/// needs the full value, or they differ.
std::optional<spmd::Sharding> Planner::wanted(Value value) const {
  std::optional<spmd::Sharding> all;
  if (value == sent.value)
    all = plan.sharding;
  for (OpOperand &use : value.getUses()) {
    if (value == sent.value)
      if (std::optional<int64_t> stage = stages.of(use.getOwner());
          stage && sent.readers.count(*stage))
        continue;
    std::optional<spmd::Sharding> own = wantedBy(use);
    if (!own || (all && !spmd::sameDims(mesh, all->dims, own->dims)))
      return std::nullopt;
    all = std::move(own);
  }
  return all;
}

/// Counts the elements that a collective sends if its result has the sharding
/// `lies`.
void Planner::count(Operation *op, const spmd::Sharding &lies) {
  auto sender = cast<spmd::CommunicationOpInterface>(op);
  std::optional<spmd::Sharding> own = spmd::writtenSharding(op->getResult(0));
  SmallVector<spmd::AxisList, 4> cut = *spmd::addedAxes(mesh, *own, lies);
  if (auto reduction = dyn_cast<spmd::AllReduceOp>(op)) {
    spmd::AxisList axes = reduction.getCommunicationAxes();
    if (!spmd::canScatter(mesh, axes, cut))
      return;
    // A reduce-scatter over the slices; then an all-reduce over the other axes.
    double elements = elementsOf(op->getResult(0)), parts = 1;
    for (const spmd::AxisList &list : cut)
      parts *= mesh.size(list);
    double rest = mesh.size(mesh.deviceAxes(axes)) / parts;
    plan.before += sender.getElementsSent(mesh);
    plan.after += (parts - 1) / parts * elements +
                  2 * (rest - 1) / rest * elements / parts;
    smaller.insert(op);
  } else if (isa<spmd::AllGatherOp>(op)) {
    std::optional<spmd::Sharding> from =
        spmd::writtenSharding(op->getOperand(0));
    if (!from || !spmd::sameDims(mesh, from->dims, lies.dims))
      return;
    plan.before += sender.getElementsSent(mesh);
    smaller.insert(op);
  }
}

void Planner::visit(Operation *op) {
  if (stages.of(op) != sent.stage ||
      flow.part(op) != flow.part(sent.value.getDefiningOp()))
    return;
  // The slices of one result determine those of all operands.
  std::optional<unsigned> first;
  SmallVector<std::optional<spmd::Sharding>, 2> lies;
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    bool used = !result.use_empty();
    lies.push_back(used ? wanted(result) : std::nullopt);
    if (used && !lies.back())
      return;
    if (used && !first)
      first = i;
  }
  if (!first)
    return;
  if (isa<spmd::CommunicationOpInterface>(op))
    return count(op, *lies[*first]);
  if (flow.isHeavy(op) || isa<spmd::SliceOp>(op))
    return;
  std::optional<spmd::FurtherSplit> split =
      spmd::splitFurther(op, *first, *lies[*first], mesh);
  if (!split)
    return;
  for (auto [own, result] : llvm::zip_equal(lies, split->results))
    if (own && !spmd::sameDims(mesh, own->dims, result.dims))
      return;
  for (auto [operand, own] :
       llvm::zip_equal(op->getOperands(), split->operands))
    if (std::optional<spmd::Sharding> known = spmd::writtenSharding(operand);
        !spmd::sameDims(mesh, known->dims, own.dims))
      asked.insert(operand);
  made[op] = std::move(*split);
}

/// Removes ops from which no collective that sends less is reached: they are
/// computed in full.
void Planner::prune() {
  SmallVector<Operation *> order;
  for (auto &[op, split] : made)
    order.push_back(op);
  llvm::sort(order,
             [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  llvm::DenseSet<Operation *> useful(smaller.begin(), smaller.end());
  for (Operation *op : order) {
    if (llvm::none_of(op->getOperands(), [&](Value operand) {
          return useful.contains(operand.getDefiningOp());
        }))
      continue;
    useful.insert(op);
    plan.ops.emplace_back(op, std::move(made[op]));
  }
}

void Planner::countTransfers() {
  double whole = elementsOf(sent.value), slice = whole / plan.parts;
  // A value that was gathered may be sent as it was before the gather.
  Value source;
  if (auto gather = sent.value.getDefiningOp<spmd::AllGatherOp>())
    if (std::optional<spmd::Sharding> from =
            spmd::writtenSharding(gather.getInput());
        from && spmd::sameDims(mesh, from->dims, plan.sharding.dims))
      source = gather.getInput();
  for (const auto &[stage, readers] : sent.readers) {
    plan.linkBefore += whole;
    int64_t reads = stage;
    bool there = source && llvm::any_of(source.getUsers(), [&](Operation *op) {
                   return stages.of(op) == reads;
                 });
    plan.link += there ? 0 : slice;
    bool gathers = llvm::any_of(readers, [&](Operation *reader) {
      auto cut = dyn_cast<spmd::SliceOp>(reader);
      std::optional<spmd::Sharding> own =
          cut ? spmd::writtenSharding(cut) : std::nullopt;
      return !own || !spmd::sameDims(mesh, own->dims, plan.sharding.dims);
    });
    plan.after += gathers ? whole - slice : 0;
  }
  plan.before += plan.linkBefore;
  plan.after += plan.link;
}

SlicePlan Planner::run() {
  asked.insert(sent.value);
  size_t found = 0;
  for (Operation *op = sent.value.getDefiningOp(); op && found < asked.size();
       op = op->getPrevNode()) {
    size_t own = llvm::count_if(
        op->getResults(), [&](Value result) { return asked.contains(result); });
    found += own;
    if (own)
      visit(op);
  }
  prune();
  countTransfers();
  return std::move(plan);
}

SlicePlan cleave::pipe::planSlice(const spmd::Mesh &mesh, const Flow &flow,
                                  const Stages &stages, const SentValue &sent,
                                  const spmd::Sharding &sharding) {
  return Planner(mesh, flow, stages, sent, sharding).run();
}
