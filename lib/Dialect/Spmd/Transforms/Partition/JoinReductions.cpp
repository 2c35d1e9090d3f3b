//===- JoinReductions.cpp - One reduction of a sum ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Where a sum adds several values that are each reduced over the same ranks,
/// their terms are added, and reduced once: reductions are linear.
///
//===----------------------------------------------------------------------===//

#include "JoinReductions.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/SeedOrder.h"
#include "mlir/IR/PatternMatch.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// The ops that reduce a term of an addition: one, or one for each part of a
/// value that is reduced part by part. The result may be multiplied by a number
/// after that, as one of 8-bit operands is by their scales.
struct Reduction {
  SmallVector<Operation *, 1> ops;
  /// The `graph.mul` that does so, or null.
  Operation *scaled = nullptr;

  bool sumsAlike(const Reduction &other) const;
  bool comesBefore(const Reduction &other) const;
  Value result() const { return (scaled ? scaled : ops.back())->getResult(0); }
  /// The addition that reads the result.
  OpOperand &use() const { return *result().use_begin(); }
};

/// Rewrites the sums of one block.
class ReductionJoiner {
public:
  ReductionJoiner(Block &body, RewriterBase &rewriter)
      : body(body), rewriter(rewriter), seedOrder(body) {}

  void run();

private:
  void collect(graph::AddOp sum, SmallVectorImpl<Reduction> &found);
  Value scale(const Reduction &reduction, Value term);
  void join(const Reduction &first, Reduction &second);

  Block &body;
  RewriterBase &rewriter;
  SeedOrder seedOrder;
};
} // namespace

/// Whether `sum` adds tensors of its own type.
static bool addsAlike(graph::AddOp sum) {
  return llvm::all_of(sum->getOperandTypes(),
                      [&](Type type) { return type == sum.getType(); });
}

/// Returns the ops that reduce `value`, which has one reader, if any do.
static SmallVector<Operation *, 1> readReduction(Value value) {
  Operation *op = value.getDefiningOp();
  if (!op || !op->hasOneUse())
    return {};
  if (auto all = dyn_cast<AllReduceOp>(op))
    return all.getKind() == ReductionKind::Sum ? SmallVector<Operation *, 1>{op}
                                               : SmallVector<Operation *, 1>();
  if (auto scatter = dyn_cast<ReduceScatterOp>(op))
    return scatter.getKind() == ReductionKind::Sum
               ? SmallVector<Operation *, 1>{op}
               : SmallVector<Operation *, 1>();
  SmallVector<Operation *, 1> parts;
  for (auto part = dyn_cast<ReduceOp>(op); part;) {
    parts.push_back(part);
    Value into = part.getInto();
    if (!into)
      break;
    part = into.getDefiningOp<ReduceOp>();
    if (!part || !part->hasOneUse())
      return {};
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

/// The operand of `scaled` that is a number; none if both or neither are.
static OpOperand *numberOf(Operation *scaled) {
  OpOperand *found = nullptr;
  for (OpOperand &operand : scaled->getOpOperands())
    if (graph::tensorTypeOf(operand.get()).getRank() == 0) {
      if (found)
        return nullptr;
      found = &operand;
    }
  return found;
}

/// Whether `number` can be computed before `op`, from other numbers.
static bool canPrecede(Value number, Operation *op) {
  Operation *def = number.getDefiningOp();
  return !def || def->isBeforeInBlock(op) ||
         (isPure(def) && !isa<CommunicationOpInterface>(def) &&
          llvm::all_of(def->getOperands(), [&](Value operand) {
            return graph::tensorTypeOf(operand).getRank() == 0 &&
                   canPrecede(operand, op);
          }));
}

static void computeBefore(Value number, Operation *op) {
  Operation *def = number.getDefiningOp();
  if (!def || def->isBeforeInBlock(op))
    return;
  for (Value operand : def->getOperands())
    computeBefore(operand, op);
  def->moveBefore(op);
}

/// Whether both reduce terms of one sharding and type over the same ranks.
bool Reduction::sumsAlike(const Reduction &other) const {
  return ops.size() == other.ops.size() &&
         llvm::all_of(llvm::zip(ops, other.ops), [](auto pair) {
           auto [a, b] = pair;
           Value term = a->getOperand(0), otherTerm = b->getOperand(0);
           ShardingAttr place = writtenShardingAttr(term);
           return a->getName() == b->getName() &&
                  a->getAttrDictionary() == b->getAttrDictionary() &&
                  a->getResultTypes() == b->getResultTypes() &&
                  term.getType() == otherTerm.getType() && place &&
                  place == writtenShardingAttr(otherTerm);
         });
}

bool Reduction::comesBefore(const Reduction &other) const {
  return llvm::all_of(llvm::zip(ops, other.ops), [](auto pair) {
    return std::get<0>(pair)->isBeforeInBlock(std::get<1>(pair));
  });
}

/// Finds the reductions among the terms of `sum`, through additions that
/// nothing else reads.
void ReductionJoiner::collect(graph::AddOp sum,
                              SmallVectorImpl<Reduction> &found) {
  if (!addsAlike(sum))
    return;
  for (Value term : sum->getOperands()) {
    auto inner = term.getDefiningOp<graph::AddOp>();
    auto scaled = term.getDefiningOp<graph::MulOp>();
    OpOperand *number =
        scaled && scaled->hasOneUse() ? numberOf(scaled) : nullptr;
    if (inner && inner->hasOneUse())
      collect(inner, found);
    else if (auto ops = readReduction(
                 number ? scaled->getOperand(1 - number->getOperandNumber())
                        : term);
             !ops.empty() &&
             (!number || canPrecede(number->get(), ops.front())))
      found.push_back(
          {std::move(ops), number ? scaled.getOperation() : nullptr});
  }
}

/// Returns `term` of `reduction`, multiplied by the number by which the sum is.
Value ReductionJoiner::scale(const Reduction &reduction, Value term) {
  if (!reduction.scaled)
    return term;
  Value number = numberOf(reduction.scaled)->get();
  auto product =
      graph::MulOp::create(rewriter, reduction.scaled->getLoc(), term, number);
  annotate(product, writtenShardingAttr(term), writtenGlobalType(term));
  return product;
}

/// Adds the terms of `first` to those of `second` where these are reduced, so
/// that of all terms no more than a sum is kept.
void ReductionJoiner::join(const Reduction &first, Reduction &second) {
  for (const Reduction *reduction : {&first, &std::as_const(second)})
    if (reduction->scaled)
      computeBefore(numberOf(reduction->scaled)->get(), second.ops.front());
  Operation *addition = first.use().getOwner();
  for (auto [own, other] : llvm::zip_equal(first.ops, second.ops)) {
    Value term = other->getOperand(0);
    rewriter.setInsertionPoint(other);
    auto terms = graph::AddOp::create(rewriter, addition->getLoc(),
                                      scale(first, own->getOperand(0)),
                                      scale(second, term));
    annotate(terms, writtenShardingAttr(term), writtenGlobalType(term));
    other->setOperand(0, terms);
  }
  rewriter.replaceOp(addition,
                     addition->getOperand(1 - first.use().getOperandNumber()));
  if (first.scaled)
    rewriter.eraseOp(first.scaled);
  for (Operation *op : llvm::reverse(first.ops))
    rewriter.eraseOp(op);
  if (second.scaled)
    rewriter.replaceOp(second.scaled, second.ops.back()->getResult(0));
  second.scaled = nullptr;
}

void ReductionJoiner::run() {
  SmallVector<graph::AddOp> sums;
  for (auto sum : body.getOps<graph::AddOp>())
    if (!sum->hasOneUse() || !isa<graph::AddOp>(*sum->user_begin()) ||
        !addsAlike(cast<graph::AddOp>(*sum->user_begin())))
      sums.push_back(sum);
  for (graph::AddOp sum : sums) {
    SmallVector<Reduction> found;
    collect(sum, found);
    llvm::sort(found, [](const Reduction &a, const Reduction &b) {
      return a.ops.back()->isBeforeInBlock(b.ops.back());
    });
    for (auto [i, first] : llvm::enumerate(found)) {
      unsigned seed = seedOrder.of(first.ops.back());
      auto second =
          std::find_if(found.begin() + i + 1, found.end(),
                       [&, &first = first](const Reduction &other) {
                         return seedOrder.of(other.ops.back()) == seed &&
                                first.sumsAlike(other) &&
                                first.comesBefore(other);
                       });
      if (second != found.end())
        join(first, *second);
    }
  }
}

void cleave::spmd::joinReductions(Block &body, RewriterBase &rewriter) {
  ReductionJoiner(body, rewriter).run();
}
