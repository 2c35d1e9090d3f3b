//===- Blocks.cpp - The repeated blocks of a model ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A part is cut where one value alone passes from what is before to what is
/// after: a residual stream. Between two cuts is a *segment*, and segments with
/// the same ops and types are alike. A model is then a sequence of segments,
/// as e a m a m a m h: the shortest sequence of them that repeats itself and
/// covers most is a *block*, here a m.
///
//===----------------------------------------------------------------------===//

#include "Blocks.h"
#include "../Split/Layers.h"
#include "ValueViews.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

static graph::WorkClass workClassOf(Operation *op) {
  auto costed = dyn_cast<graph::CostOpInterface>(op);
  return costed ? costed.getCost().work : graph::WorkClass::ElementWise;
}

/// Whether `op` computes each element by itself, or nothing.
static bool isElementWise(Operation *op) {
  graph::WorkClass work = workClassOf(op);
  return isPure(op) && !isa<spmd::CommunicationOpInterface>(op) &&
         (work == graph::WorkClass::View ||
          work == graph::WorkClass::ElementWise);
}

/// The value that `value` is a view of.
static Value viewedBy(Value value) {
  for (;;) {
    Operation *op = value.getDefiningOp();
    if (!op || !isView(op) || op->getNumOperands() != 1)
      return value;
    value = op->getOperand(0);
  }
}

/// A run of ops between two cuts.
struct Blocks::Segment {
  size_t part;
  size_t begin, end;
  size_t label;
};

/// A forward part.
struct Blocks::Part {
  /// The ops that depend on samples, in order; what is computed from inputs
  /// alone by cheap ops is not among them.
  SmallVector<Operation *> ops;
  llvm::DenseMap<Operation *, size_t> position;
  /// Arguments that other parts compute for each micro-batch.
  llvm::DenseSet<Value> received;
  std::vector<size_t> cuts;
  /// Ops that depend on samples and that backward alone reads.
  SmallVector<Operation *> aside;

  explicit Part(InvokeOp invoke);
  /// Whether `value` depends on samples by more than cheap ops.
  bool isActivation(Value value) const {
    if (isa<BlockArgument>(value))
      return received.contains(value);
    return position.contains(value.getDefiningOp());
  }

private:
  void findCuts();
};

/// The last contraction of `block` and what depends on it; all ops if there is
/// none.
static llvm::DenseSet<Operation *> afterLastContraction(Block &block) {
  llvm::DenseSet<Operation *> found;
  for (Operation &op : llvm::reverse(block))
    if (workClassOf(&op) == graph::WorkClass::Contraction) {
      found.insert(&op);
      break;
    }
  bool none = found.empty();
  for (Operation &op : block)
    if (none || llvm::any_of(op.getOperands(), [&](Value operand) {
          return found.contains(operand.getDefiningOp());
        }))
      found.insert(&op);
  return found;
}

/// Adds what the ops of `needed`, and those of `block` that `alsoNeeded` names,
/// depend on.
static void addMakers(Block &block, llvm::DenseSet<Operation *> &needed,
                      llvm::function_ref<bool(Operation *)> alsoNeeded) {
  for (Operation &op : llvm::reverse(block.without_terminator()))
    if (needed.contains(&op) || alsoNeeded(&op))
      for (Value operand : op.getOperands())
        if (Operation *maker = operand.getDefiningOp())
          needed.insert(maker);
}

Blocks::Part::Part(InvokeOp invoke) {
  func::FuncOp function = invoke.getPartFunction();
  // What depends on samples, by cheap ops too.
  llvm::DenseSet<Value> samples;
  for (auto [input, split, argument] : llvm::zip_equal(
           invoke.getInputs(), invoke.getSplit(), function.getArguments())) {
    auto maker = input.getDefiningOp<InvokeOp>();
    if (maker && !maker.getOnce())
      received.insert(argument);
    if (split >= 0 || received.contains(argument))
      samples.insert(argument);
  }
  // What leads to a result that is not only saved for the stage's backward. If
  // the last contraction does not, as in a last stage whose loss is computed
  // with its gradient, and whose other results are maxima and the like: what
  // leads to an op that is more than element-wise too. Casts and the like that
  // end the part are made for backward.
  Block &body = function.front();
  llvm::DenseSet<Operation *> needed;
  for (OpResult result : invoke->getResults())
    if (!invoke.isSaved(result.getResultNumber()) ||
        llvm::any_of(result.getUsers(), [&](Operation *user) {
          auto reader = dyn_cast<InvokeOp>(user);
          return !reader || reader.getOnce() ||
                 reader.getStage() != invoke.getStage();
        }))
      if (Operation *op = body.getTerminator()
                              ->getOperand(result.getResultNumber())
                              .getDefiningOp())
        needed.insert(op);
  addMakers(body, needed, [](Operation *) { return false; });
  llvm::DenseSet<Operation *> last = afterLastContraction(body);
  bool onlySaved =
      llvm::none_of(last, [&](Operation *op) { return needed.contains(op); });
  if (onlySaved) {
    needed.insert(last.begin(), last.end());
    addMakers(body, needed, [](Operation *op) { return !isElementWise(op); });
  }
  for (Operation &op : function.front().without_terminator()) {
    // Checks, and what is of parameters and constants.
    if (op.getNumResults() == 0 ||
        llvm::none_of(op.getOperands(),
                      [&](Value v) { return samples.contains(v); }))
      continue;
    samples.insert(op.result_begin(), op.result_end());
    // Backward alone reads it, as a flag or a view.
    bool cheap = isElementWise(&op);
    if (!needed.contains(&op) && (onlySaved ? cheap : isPure(&op))) {
      aside.push_back(&op);
      continue;
    }
    if (cheap && llvm::none_of(op.getOperands(),
                               [&](Value v) { return isActivation(v); }))
      continue;
    position[&op] = ops.size();
    ops.push_back(&op);
  }
  findCuts();
}

void Blocks::Part::findCuts() {
  llvm::DenseMap<Value, size_t> lastUse;
  int64_t largest = 0;
  for (auto [t, op] : llvm::enumerate(ops))
    for (Value operand : op->getOperands())
      if (Value root = viewedBy(operand); isActivation(root)) {
        lastUse[root] = t;
        largest = std::max(largest, bytesOf(root));
      }
  // The values made before op t that t or a later op reads; not scalars and
  // the like, which a loss may collect from all layers.
  std::vector<int64_t> change(ops.size() + 2, 0);
  for (auto [root, last] : lastUse) {
    if (bytesOf(root) * 64 < largest)
      continue;
    Operation *op = root.getDefiningOp();
    size_t made = op ? position.lookup(op) + 1 : 0;
    ++change[made];
    --change[last + 1];
  }
  int64_t crossing = 0;
  for (size_t t = 0; t < ops.size(); ++t) {
    crossing += change[t];
    // A view belongs to what it is a view for.
    if (t == 0 || (crossing == 1 && !isView(ops[t - 1])))
      cuts.push_back(t);
  }
  cuts.push_back(ops.size());
}

/// As `findRepetition`, where other segments may lie between, as the pieces of
/// a block that stages cut: e a m a' a" m a m h.
static RepeatedRun findScattered(ArrayRef<size_t> labels) {
  RepeatedRun best;
  for (size_t period = 1; 2 * period <= labels.size(); ++period)
    for (size_t begin = 0; begin + 2 * period <= labels.size(); ++begin) {
      RepeatedRun found{begin, period, 0};
      for (size_t i = begin; i + period <= labels.size();) {
        bool equal = labels.slice(i, period) == labels.slice(begin, period);
        found.count += equal;
        i += equal ? period : 1;
      }
      if (found.count >= 2 && found.covered() > best.covered())
        best = found;
    }
  return best;
}

bool Blocks::hasRegions(ArrayRef<InvokeOp> forward) {
  return llvm::any_of(forward, [](InvokeOp invoke) {
    return llvm::any_of(invoke.getPartFunction().front(), [](Operation &op) {
      return checkpointRegion(op.getLoc()).has_value();
    });
  });
}

/// What is in two stages is two blocks.
void Blocks::findRegions(ArrayRef<Part> parts) {
  for (const Part &part : parts) {
    llvm::DenseMap<int64_t, int64_t> numbers;
    for (Operation *op : part.ops)
      if (std::optional<int64_t> region = checkpointRegion(op->getLoc())) {
        auto [it, added] = numbers.try_emplace(*region, number);
        number += added;
        blocks[op] = it->second;
      }
  }
}

void Blocks::findRepeated(ArrayRef<Part> parts) {
  std::vector<Segment> segments;
  std::vector<size_t> labels;
  for (auto [p, part] : llvm::enumerate(parts))
    for (size_t i = 0; i + 1 < part.cuts.size(); ++i) {
      size_t begin = part.cuts[i], end = part.cuts[i + 1];
      if (begin == end)
        continue;
      labels.push_back(labelOf(ArrayRef(part.ops).slice(begin, end - begin)));
      segments.push_back({p, begin, end, labels.back()});
    }
  RepeatedRun found = findRepetition(labels);
  if (!found.count)
    found = findScattered(labels);
  // Blocks, and pieces of one where a stage cuts it or has other ops beside.
  ArrayRef<size_t> pattern =
      ArrayRef(labels).slice(found.begin, found.count ? found.period : 0);
  for (size_t i = 0; i < segments.size();) {
    size_t length = 0;
    if (found.count &&
        ArrayRef(labels).drop_front(i).take_front(found.period) == pattern)
      length = found.period;
    else if (llvm::is_contained(pattern, labels[i]))
      length = 1;
    for (size_t k = i; k < i + length; ++k) {
      const Segment &segment = segments[k];
      // What is in two stages is two blocks.
      if (k > i && segment.part != segments[k - 1].part)
        ++number;
      for (size_t t = segment.begin; t < segment.end; ++t)
        blocks[parts[segment.part].ops[t]] = number;
    }
    number += length > 0;
    i += std::max<size_t>(length, 1);
  }
}

Blocks::Blocks(ArrayRef<InvokeOp> forward, bool regions) {
  std::vector<Part> parts;
  for (InvokeOp invoke : forward) {
    parts.emplace_back(invoke);
    functions.insert(invoke.getPartFunction());
  }
  regions ? findRegions(parts) : findRepeated(parts);
  for (const Part &part : parts) {
    sampled.insert(part.ops.begin(), part.ops.end());
    sampled.insert(part.aside.begin(), part.aside.end());
    forBackward.insert(part.aside.begin(), part.aside.end());
    // They belong to the last block whose values they read.
    for (Operation *op : part.aside) {
      int64_t block = -1;
      for (Value operand : op->getOperands())
        if (Operation *maker = operand.getDefiningOp())
          block = std::max(block, blockOf(maker));
      if (block >= 0)
        blocks[op] = block;
    }
  }
  // What is computed of parameters alone, as a gather, belongs to its readers.
  for (InvokeOp invoke : forward)
    for (Operation &op : llvm::reverse(invoke.getPartFunction().front())) {
      llvm::SmallSetVector<int64_t, 2> readers;
      for (Operation *user : op.getUsers())
        if (!user->hasTrait<OpTrait::IsTerminator>())
          readers.insert(blockOf(user));
      if (!sampled.contains(&op) && readers.size() == 1 && readers.front() >= 0)
        blocks[&op] = readers.front();
    }
  for (const Part &part : parts) {
    findBoundary(part);
    findCore(part);
  }
}

void Blocks::findBoundary(const Part &part) {
  for (Operation *op : part.ops)
    for (Value operand : op->getOperands()) {
      Value root = viewedBy(operand);
      Operation *maker = root.getDefiningOp();
      if (!maker || !blocks.contains(maker) || blockOf(maker) == blockOf(op))
        continue;
      // The views between are made again by each reader.
      boundary.insert(root);
    }
}

void Blocks::findCore(const Part &part) {
  auto multiplies = [&](Operation *op) {
    return workClassOf(op) == graph::WorkClass::Contraction;
  };
  // Integers say which rows are multiplied: they are not factors.
  auto isInner = [&](Operation *op) {
    return multiplies(op) && llvm::count_if(op->getOperands(), [&](Value v) {
                               return isa<FloatType>(getElementTypeOrSelf(v)) &&
                                      part.isActivation(viewedBy(v));
                             }) >= 2;
  };
  // From each such contraction back to others.
  for (Operation *last : part.ops) {
    if (!isInner(last))
      continue;
    // The ops before `last`, up to contractions and collectives; those of them
    // that read an inner contraction, or are one, are core.
    llvm::SetVector<Operation *> before;
    for (Value operand : last->getOperands())
      if (Operation *op = operand.getDefiningOp();
          op && part.position.contains(op))
        before.insert(op);
    for (size_t i = 0; i < before.size(); ++i) {
      Operation *op = before[i];
      if (multiplies(op) || isa<spmd::CommunicationOpInterface>(op) ||
          !isPure(op))
        continue;
      for (Value operand : op->getOperands())
        if (Operation *maker = operand.getDefiningOp();
            maker && part.position.contains(maker))
          before.insert(maker);
    }
    SmallVector<Operation *> sorted(before.begin(), before.end());
    llvm::sort(sorted, [&](Operation *a, Operation *b) {
      return part.position.lookup(a) < part.position.lookup(b);
    });
    llvm::DenseSet<Operation *> reached;
    for (Operation *op : sorted) {
      bool stops = multiplies(op) || isa<spmd::CommunicationOpInterface>(op);
      if (stops ? isInner(op) : llvm::any_of(op->getOperands(), [&](Value v) {
            return v.getDefiningOp() && reached.contains(v.getDefiningOp());
          }))
        reached.insert(op);
    }
    core.insert(reached.begin(), reached.end());
  }
}
