//===- SplitStages.cpp - Outlines the parts of each entry -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// 1. Flow.cpp says of each op its role and whether it varies with the
///    micro-batch; Stages.cpp, which stage of the pipeline computes it.
/// 2. Walking the parts backwards, from update to prologue, each takes the ops
///    whose results it needs, or imports a result of an earlier part: what
///    nothing needs is left behind.
/// 3. OutlineParts.cpp makes of each part a function, and of the entry a
///    program.
///
//===----------------------------------------------------------------------===//

#include "Parts.h"
#include "Stages.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "llvm/ADT/StringExtras.h"

namespace cleave::pipe {
#define GEN_PASS_DEF_SPLITSTAGES
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
/// Cuts one entry.
class Splitter {
public:
  Splitter(func::FuncOp entry, const Flow &flow, const Stages &stages,
           bool split)
      : entry(entry), body(entry.getBody().front()), flow(flow), stages(stages),
        split(split) {
    auto add = [&](PartId id, int64_t stage) {
      parts.emplace_back().slot = {id, stage};
    };
    int64_t count = stages.size();
    for (PartId id : {PartId::Prologue, PartId::Forward})
      for (int64_t i = 0; i < count; ++i)
        add(id, i);
    for (int64_t i = count; i-- > 0;) {
      add(PartId::Backward, i);
      if (split)
        add(PartId::Weights, i);
    }
    for (PartId id : {PartId::BeforeUpdate, PartId::Update})
      for (int64_t i = 0; i < count; ++i)
        add(id, i);
    if (split)
      findWeights();
  }

  LogicalResult run(bool treeSums) {
    findResults();
    for (Part &part : llvm::reverse(parts))
      if (failed(collect(part)))
        return failure();
    outlineParts(entry, flow, parts, results, copies, treeSums, split);
    return success();
  }

private:
  Part &get(const Slot &slot) {
    return *llvm::find_if(parts,
                          [&](const Part &part) { return part.slot == slot; });
  }

  /// Gives `source` of a part to a later one or to the program.
  void require(const Slot &from, const Export &source) {
    Part &part = get(from);
    if (!llvm::is_contained(part.exports, source))
      part.exports.push_back(source);
    part.needed.insert(source.value);
  }

  void findWeights();
  /// The part that computes `op`, as Flow says.
  PartId homeOf(Operation *op) const {
    return weights.contains(op) ? PartId::Weights : flow.part(op);
  }
  std::pair<Slot, Export> whole(Value value, int64_t stage) const;
  std::string kindOf(Value value, PartId from) const;
  void findResults();
  LogicalResult collect(Part &part);
  bool isWanted(Operation *op, const Part &part) const;
  std::optional<Slot> sourceOf(Operation *op, const Slot &slot) const;
  LogicalResult import(Operation *op, Part &part);

  /// True for what only says to which part a barrier belongs.
  static bool isAfter(OpOperand &operand) {
    auto barrier = dyn_cast<spmd::BarrierOp>(operand.getOwner());
    return barrier && operand == barrier.getAfterMutable();
  }

  func::FuncOp entry;
  Block &body;
  const Flow &flow;
  const Stages &stages;
  bool split;
  llvm::DenseSet<Operation *> weights;
  /// In the order in which they run.
  std::vector<Part> parts;
  SmallVector<EntryResult> results;
  /// Updates of what several stages hold, behind the first, by result.
  SmallVector<std::pair<unsigned, std::pair<Slot, Export>>> copies;
};
} // namespace

/// Of backward, what no stage waits for.
void Splitter::findWeights() {
  for (Operation &op : llvm::reverse(body.without_terminator())) {
    if (flow.part(&op) != PartId::Backward || !stages.of(&op))
      continue;
    if (llvm::all_of(op.getUsers(), [&](Operation *user) {
          return !flow.varies(user) || flow.part(user) == PartId::Update ||
                 (weights.contains(user) && stages.of(user) == stages.of(&op));
        }))
      weights.insert(&op);
  }
}

/// How the micro-batches' values of `value` become the program's.
std::string Splitter::kindOf(Value value, PartId from) const {
  if (from >= PartId::BeforeUpdate)
    return kValue.str();
  Layout layout = flow.layout(value);
  switch (layout.kind) {
  case Layout::Partial:
    return kAccumulate.str();
  case Layout::Split:
    return (kConcatPrefix + std::to_string(layout.dim)).str();
  case Layout::Whole:
    break;
  }
  return kValue.str();
}

/// Where an update in `stage`, or the program, finds `value` once all
/// micro-batches have run.
std::pair<Slot, Export> Splitter::whole(Value value, int64_t stage) const {
  Operation *op = value.getDefiningOp();
  if (flow.isAccumulation(op)) {
    Value summand = op->getOperand(0);
    Operation *from = summand.getDefiningOp();
    Slot slot{PartId::Prologue, stage};
    if (!flow.inPrologue(op))
      slot = {homeOf(from), stages.of(from).value_or(0)};
    return {slot, Export{summand, kAccumulate.str()}};
  }
  PartId home = homeOf(op);
  if (home == PartId::Update) {
    Slot slot{PartId::Update, stage};
    if (stages.isBeforeUpdate(op))
      slot = {PartId::BeforeUpdate, stages.homeOf(op)};
    return {slot, Export{value, kValue.str()}};
  }
  Slot slot{home, stages.of(op).value_or(stage)};
  // The same for each micro-batch: computed once, at the end; or, laid out by
  // micro-batch, with the first part.
  if (!flow.varies(value) && flow.layout(value).kind == Layout::Whole)
    return {flow.mergedUpdate() ? slot : Slot{PartId::Update, stage},
            Export{value, kValue.str()}};
  return {slot, Export{value, kindOf(value, home)}};
}

void Splitter::findResults() {
  for (auto [i, value] : llvm::enumerate(body.getTerminator()->getOperands())) {
    if (isa<BlockArgument>(value)) {
      results.push_back({});
      continue;
    }
    Operation *op = value.getDefiningOp();
    auto name = entry.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
    StageSet holders(stages.size());
    holders.set(stages.homeOf(op));
    if (name)
      holders = stages.holders(name.getValue());
    for (unsigned stage : holders.set_bits()) {
      std::pair<Slot, Export> source = whole(value, stage);
      require(source.first, source.second);
      if (results.size() == i)
        results.push_back({std::move(source)});
      else if (flow.part(op) == PartId::Update)
        copies.push_back({i, std::move(source)});
    }
  }
}

/// Whether `part` needs a result of `op`. What has effects stays in its own
/// part: in that of each stage that has what it looks at.
bool Splitter::isWanted(Operation *op, const Part &part) const {
  if (op->getNumResults() != 0)
    return llvm::any_of(op->getResults(), [&](Value result) {
      return part.needed.contains(result);
    });
  if (homeOf(op) != part.slot.id)
    return false;
  return llvm::all_of(op->getOperands(), [&](Value operand) {
    Operation *from = operand.getDefiningOp();
    return !from || !flow.varies(from) ||
           stages.of(from).value_or(part.slot.stage) == part.slot.stage;
  });
}

/// Fills one part: later parts are done, so that all it must give is known.
LogicalResult Splitter::collect(Part &part) {
  for (Operation &op : llvm::reverse(body.without_terminator())) {
    if (!isWanted(&op, part))
      continue;
    if (flow.isAccumulation(&op) || sourceOf(&op, part.slot)) {
      if (failed(import(&op, part)))
        return failure();
      continue;
    }
    part.ops.insert(&op);
    for (OpOperand &operand : op.getOpOperands())
      if (!flow.isUnread(operand) && !isAfter(operand))
        part.needed.insert(operand.get());
  }
  return success();
}

/// The part from which that in `slot` takes the results of `op`; nothing where
/// it computes them.
std::optional<Slot> Splitter::sourceOf(Operation *op, const Slot &slot) const {
  PartId home = homeOf(op);
  if (home == PartId::Update) {
    Slot early{PartId::BeforeUpdate, stages.homeOf(op)};
    return stages.isBeforeUpdate(op) && slot != early ? std::optional(early)
                                                      : std::nullopt;
  }
  Slot from{home, stages.of(op).value_or(slot.stage)};
  if (from == slot || slot.id == PartId::Prologue)
    return std::nullopt;
  // Where a slice lies is known in every part of its micro-batch, and so is
  // the slice of what is the same for each.
  bool late = slot.id >= PartId::BeforeUpdate;
  if (!late && llvm::none_of(op->getOperands(), [&](Value operand) {
        return flow.varies(operand);
      }))
    return std::nullopt;
  // What is the same for each micro-batch is computed where it is used,
  // unless it is heavy.
  bool backward = slot.id == PartId::Backward || slot.id == PartId::Weights;
  if (flow.varies(op) ||
      (home == PartId::Forward && backward && flow.isHeavy(op)))
    return from;
  return std::nullopt;
}

LogicalResult Splitter::import(Operation *op, Part &part) {
  for (Value result : op->getResults()) {
    if (!part.needed.contains(result))
      continue;
    Import import;
    import.value = result;
    if (flow.isAccumulation(op) || part.slot.id >= PartId::BeforeUpdate) {
      std::tie(import.from, import.source) = whole(result, part.slot.stage);
      if (import.from.id == PartId::Update || import.from == part.slot)
        return op->emitOpError("is needed whole within one micro-batch");
    } else {
      import.from = *sourceOf(op, part.slot);
      import.source = {result, kSaved.str()};
    }
    require(import.from, import.source);
    part.imports.push_back(std::move(import));
  }
  return success();
}

namespace {
/// A sum over micro-batches and devices at once is two: that over the
/// micro-batches, which is none that anything computes, comes first.
static void separateReductions(func::FuncOp function, const spmd::Mesh &mesh) {
  for (auto op : llvm::make_early_inc_range(
           function.getBody().front().getOps<spmd::AllReduceOp>())) {
    ArrayRef<spmd::AxisRef> axes = op.getAxes().getAxes();
    spmd::AxisList devices = mesh.deviceAxes(axes), batches;
    for (const spmd::AxisRef &axis : axes)
      if (mesh.isSequential(axis))
        batches.push_back(axis);
    if (devices.empty() || batches.empty())
      continue;
    OpBuilder builder(op);
    auto first = cast<spmd::AllReduceOp>(builder.clone(*op));
    first.setAxesAttr(spmd::AxesAttr::get(op.getContext(), batches));
    op.setAxesAttr(spmd::AxesAttr::get(op.getContext(), devices));
    op.getInputMutable().assign(first);
  }
}

/// Whether `op` of sums is the sum of what it makes of their terms: an
/// addition.
static bool addsUp(Operation *op) {
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  if (!ruled || op->getNumResults() != 1 || op->getNumOperands() < 2 ||
      llvm::any_of(op->getOperandTypes(), [&](Type type) {
        return type != op->getResult(0).getType();
      }))
    return false;
  return llvm::any_of(ruled.getShardingRule().linear, [&](const auto &joint) {
    return joint.size() == op->getNumOperands();
  });
}

/// A sum over micro-batches of what two stages add up is the sum of theirs:
/// what uses of a parameter in several stages give is added up once, behind the
/// last micro-batch, and sent then. Returns whether there is any.
static bool separateUses(func::FuncOp function, const Flow &flow,
                         const Stages &stages) {
  SmallVector<spmd::AllReduceOp> work;
  for (auto op : function.getBody().front().getOps<spmd::AllReduceOp>())
    if (flow.isAccumulation(op) && !flow.inPrologue(op))
      work.push_back(op);
  bool found = false;
  while (!work.empty()) {
    spmd::AllReduceOp op = work.pop_back_val();
    Operation *sum = op.getInput().getDefiningOp();
    if (op.getKind() != spmd::ReductionKind::sum || !sum || !addsUp(sum) ||
        !sum->hasOneUse() ||
        llvm::any_of(sum->getOperands(),
                     [](Value term) { return !term.getDefiningOp(); }) ||
        llvm::all_equal(llvm::map_range(sum->getOperands(), [&](Value term) {
          return stages.of(term.getDefiningOp());
        })))
      continue;
    found = true;
    OpBuilder builder(op);
    SmallVector<Value> terms;
    for (Value term : sum->getOperands()) {
      auto own = cast<spmd::AllReduceOp>(builder.clone(*op));
      own.getInputMutable().assign(term);
      terms.push_back(own);
      work.push_back(own);
    }
    Operation *total = builder.clone(*sum);
    total->setOperands(terms);
    total->setAttr(spmd::kShardingsAttr, op->getAttr(spmd::kShardingsAttr));
    op.replaceAllUsesWith(total->getResult(0));
    op.erase();
    sum->erase();
  }
  return found;
}

struct SplitStagesPass : cleave::pipe::impl::SplitStagesBase<SplitStagesPass> {
  using SplitStagesBase::SplitStagesBase;

  /// The stages of the pipeline: `chunks` for each position of its axis.
  int64_t countStages(const spmd::Mesh &mesh) {
    const spmd::MeshAxis *axis = mesh.find(spmd::kPipelineAxis);
    return (axis ? axis->size : 1) * chunks;
  }

  LogicalResult split() {
    spmd::MeshOp mesh = spmd::findMesh(getOperation());
    if (!mesh)
      return getOperation().emitError("there is no spmd.mesh");
    if (chunks < 1)
      return getOperation().emitError("chunks must be positive, not ")
             << chunks.getValue();
    int64_t count = countStages(mesh.getMesh());
    if (!at.empty() && static_cast<int64_t>(at.size()) + 1 != count)
      return getOperation().emitError("there are ")
             << count << " stages: `at` needs a number for each but the first";
    SmallVector<std::string> begins;
    for (StringRef name : llvm::split(StringRef(stages), ','))
      if (!name.trim().empty())
        begins.push_back(name.trim().str());
    SmallVector<func::FuncOp> entries;
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (function.isPublic() && !function.isExternal())
        entries.push_back(function);
    // What trains says where parameters are; all other entries follow.
    llvm::stable_sort(entries, [](func::FuncOp a, func::FuncOp b) {
      return hasSeed(a) && !hasSeed(b);
    });
    std::vector<std::unique_ptr<Flow>> flows;
    std::vector<std::unique_ptr<Stages>> cuts;
    for (func::FuncOp function : entries) {
      if (!function.getBody().hasOneBlock())
        return function.emitOpError("must have one block to be split");
      separateReductions(function, mesh.getMesh());
      flows.emplace_back();
      cuts.emplace_back();
      // Once more where what is the same for each micro-batch is another then.
      for (bool again = true; again;) {
        flows.back() =
            std::make_unique<Flow>(function, mesh, /*merge=*/count == 1);
        if (failed(flows.back()->analyze()))
          return failure();
        cuts.back() = std::make_unique<Stages>(function, *flows.back(), count);
        if (cuts.size() > 1)
          cuts.back()->cutLike(*cuts.front());
        else if (!at.empty())
          cuts.back()->cutAt(ArrayRef<int64_t>(&*at.begin(), at.size()));
        else if (failed(cuts.back()->cut(begins)))
          return failure();
        again = separateUses(function, *flows.back(), *cuts.back());
      }
    }
    for (auto [function, flow, cut] : llvm::zip_equal(entries, flows, cuts))
      if (failed(Splitter(function, *flow, *cut, splitBackward).run(treeSums)))
        return failure();
    return success();
  }

  static bool hasSeed(func::FuncOp function) {
    return !function.getBody().front().getOps<graph::SeedOp>().empty();
  }

  void runOnOperation() override {
    if (failed(split()))
      signalPassFailure();
  }
};
} // namespace
