//===- Faults.cpp - Faults in a partitioned program -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/Faults.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Testing/Rederive.h"
#include "cleave/Testing/RunPhases.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

StringRef cleave::faultName(FaultClass fault) {
  static constexpr StringLiteral names[] = {
      "drop",           "wrong axis", "wrong group", "wrong reduction",
      "duplicated sum", "scale",      "shard order"};
  return names[static_cast<size_t>(fault)];
}

static SmallVector<Operation *> movementsOf(ModuleOp module, StringRef entry) {
  SmallVector<Operation *> result;
  auto function = module.lookupSymbol<func::FuncOp>(entry);
  if (!function)
    return result;
  for (Operation &op : function.getBody().front())
    if (auto move = readCollective(&op);
        move && move->kind != CollectiveKind::Slice)
      result.push_back(&op);
  return result;
}

unsigned cleave::countCollectives(ModuleOp module, StringRef entry) {
  return movementsOf(module, entry).size();
}

namespace {
using Claim = Rederivation::Claim;

/// Makes one collective wrong.
class Fault {
public:
  Fault(Rederivation &rewriter, Operation *op, Value operand, Random &random,
        std::string &what)
      : rewriter(rewriter), mesh(rewriter.getMesh()), op(op), operand(operand),
        move(*readCollective(op)), random(random), what(what),
        given(rewriter.claimOf(operand)),
        expected(rewriter.claimOf(op->getResult(0))) {}

  Value build(FaultClass fault) {
    switch (fault) {
    case FaultClass::Drop:
      what = "left out";
      return keepsSharding() ? Value() : operand;
    case FaultClass::WrongAxis:
      return wrongAxis();
    case FaultClass::WrongGroup:
      return wrongGroup();
    case FaultClass::WrongReduction:
      return wrongReduction();
    case FaultClass::DuplicatedSum:
      return duplicatedSum();
    case FaultClass::Scale:
      return scale();
    case FaultClass::ShardOrder:
      return shardOrder();
    }
    return {};
  }

private:
  bool reduces() const {
    return move.kind == CollectiveKind::AllReduce ||
           move.kind == CollectiveKind::ReduceScatter;
  }

  /// A ring step: its only effect is which shard is where.
  bool keepsSharding() const {
    return sameDims(mesh, given.sharding.dims, expected.sharding.dims) &&
           samePartial(mesh, given.sharding.partial, expected.sharding.partial);
  }

  /// Every list of axes that the collective names.
  SmallVector<AxisList *> axesOf(Collective &own) {
    SmallVector<AxisList *> lists;
    if (!own.axes.empty())
      lists.push_back(&own.axes);
    for (AxisList &list : own.dims)
      if (!list.empty())
        lists.push_back(&list);
    return lists;
  }

  SmallVector<AxisRef> otherAxes() {
    SmallVector<AxisRef> result;
    for (const MeshAxis &axis : mesh.axes) {
      AxisRef ref{axis.name};
      if (axis.size == 1 || axis.sequential)
        continue;
      if (llvm::none_of(axesOf(move), [&](AxisList *list) {
            return mesh.overlap(ref, *list);
          }))
        result.push_back(ref);
    }
    return result;
  }

  /// The changed collective. If it cannot be built on the operand, the operand
  /// gets the annotations of its expected result.
  Value apply(const Collective &own, Value value) {
    Claim claim = rewriter.claimOf(value);
    Sharding made = claim.sharding;
    if (applyCollective(mesh, own, made))
      made = expected.sharding;
    claim.sharding = made;
    RankedTensorType global = claim.global;
    claim.global = collectiveType(mesh, own, global);
    if (!rewriter.localType(claim))
      return {};
    Collective built = own;
    built.sharding = made;
    if (built.into)
      built.into = rewriter.now(built.into);
    Value result = buildCollective(rewriter.getBuilder(), op->getLoc(), value,
                                   built, rewriter.getMeshName(), mesh, global);
    return rewriter.define(result.getDefiningOp(), claim);
  }

  Value wrongAxis() {
    SmallVector<AxisRef> others = otherAxes();
    if (others.empty())
      return {};
    AxisRef other = random.pick(others);
    Collective wrong = move;
    axesOf(wrong).front()->assign({other});
    what = "over " + other.str();
    return apply(wrong, operand);
  }

  /// Over some sub-axes only, or over another axis too.
  Value wrongGroup() {
    Collective wrong = move;
    AxisList &list = *axesOf(wrong).front();
    SmallVector<AxisRef> others = otherAxes();
    int64_t size = mesh.size(list);
    auto part =
        size % 2 == 0 && size > 2 ? mesh.split(list, size / 2) : std::nullopt;
    if (part && (others.empty() || random.chance(0.5)))
      list = random.chance(0.5) ? part->first : part->second;
    else if (list.size() > 1)
      list.pop_back();
    else if (!others.empty())
      list.push_back(random.pick(others));
    else
      return {};
    what = "over the group";
    for (const AxisRef &axis : list)
      what += " " + axis.str();
    return apply(wrong, operand);
  }

  Value wrongReduction() {
    if (!reduces())
      return {};
    Collective wrong = move;
    SmallVector<ReductionKind> kinds = {ReductionKind::Sum, ReductionKind::Max,
                                        ReductionKind::Min};
    llvm::erase(kinds, move.reduction);
    wrong.reduction = random.pick(kinds);
    what =
        "with reduction " + std::to_string(static_cast<int>(wrong.reduction));
    return apply(wrong, operand);
  }

  /// A reduction: repeated after it, or before its scatter. Another collective:
  /// a sum of replicas.
  Value duplicatedSum() {
    Collective sum;
    sum.kind = CollectiveKind::AllReduce;
    for (AxisList *list : axesOf(move))
      sum.axes.append(list->begin(), list->end());
    bool before = move.kind == CollectiveKind::ReduceScatter || !reduces();
    what = before ? "of a sum" : "twice";
    Value value = operand;
    if (before && move.kind != CollectiveKind::AllGather) {
      value = apply(sum, operand);
      if (!value)
        return {};
      // The annotations must fit the value.
      if (rewriter.localType(rewriter.claimOf(value)) != operand.getType())
        return {};
    }
    value = apply(move, value);
    if (!value || (before && move.kind != CollectiveKind::AllGather))
      return value;
    return apply(sum, value);
  }

  /// A mean that is taken twice, or not at all: of a sum, or of a sharded
  /// value. A maximum is not a mean; if rows are shifted by it, any number is
  /// correct.
  Value scale() {
    if (reduces() && move.reduction != ReductionKind::Sum)
      return {};
    Value value = apply(move, operand);
    if (!value)
      return {};
    Claim claim = rewriter.claimOf(value);
    auto type = cast<RankedTensorType>(value.getType());
    auto element = dyn_cast<FloatType>(type.getElementType());
    if (!element)
      return {};
    int64_t parts = 1;
    for (AxisList *list : axesOf(move))
      parts *= mesh.size(*list);
    double factor = random.chance(0.5) ? parts : 1.0 / parts;
    what = "times " + std::to_string(factor);
    OpBuilder &builder = rewriter.getBuilder();
    Claim plain = claim;
    plain.sharding.partial.clear();
    Value constant =
        rewriter.define(graph::ConstantOp::create(
                            builder, op->getLoc(), type,
                            DenseElementsAttr::get(
                                type, builder.getFloatAttr(element, factor))),
                        plain);
    return rewriter.define(
        graph::MulOp::create(builder, op->getLoc(), type, value, constant),
        claim);
  }

  /// Along the joined or sliced dimension, the shards of two positions are
  /// exchanged with their neighbours.
  Value shardOrder() {
    if (keepsSharding()) {
      what = "left out";
      return operand;
    }
    if (move.kind == CollectiveKind::Broadcast ||
        move.kind == CollectiveKind::Reduce) {
      Collective wrong = move;
      wrong.part = (move.part + 1) % mesh.size(move.axes);
      what = "with another part";
      return apply(wrong, operand);
    }
    std::optional<unsigned> dim;
    if (move.kind == CollectiveKind::AllToAll)
      dim = move.from;
    else if (move.kind != CollectiveKind::AllReduce &&
             move.kind != CollectiveKind::Permute)
      for (auto [i, list] : llvm::enumerate(move.dims))
        if (mesh.size(list) > 1)
          dim = i;
    if (!dim)
      return {};
    int64_t parts = mesh.size(
        move.kind == CollectiveKind::AllToAll ? move.axes : move.dims[*dim]);
    what = "with parts in another order";
    if (move.kind == CollectiveKind::ReduceScatter) {
      Value turned = rotate(operand, *dim, parts);
      return turned ? apply(move, turned) : Value();
    }
    Value value = apply(move, operand);
    return value ? rotate(value, *dim, parts) : Value();
  }

  Value rotate(Value value, unsigned dim, int64_t parts) {
    Claim claim = rewriter.claimOf(value);
    auto type = cast<RankedTensorType>(value.getType());
    int64_t size = type.getDimSize(dim);
    if (mesh.size(claim.sharding.dims[dim]) > 1 || size % parts != 0)
      return {};
    int64_t first = size / parts;
    auto cut = [&](int64_t offset, int64_t length) {
      SmallVector<int64_t> offsets(type.getRank(), 0), sizes(type.getShape()),
          strides(type.getRank(), 1);
      offsets[dim] = offset;
      sizes[dim] = length;
      Claim own = claim;
      SmallVector<int64_t> shape(claim.global.getShape());
      shape[dim] = length;
      own.global = claim.global.clone(shape);
      return rewriter.define(graph::SliceOp::create(rewriter.getBuilder(),
                                                    op->getLoc(), value,
                                                    offsets, sizes, strides),
                             own);
    };
    Value tail = cut(first, size - first), head = cut(0, first);
    return rewriter.define(graph::ConcatOp::create(rewriter.getBuilder(),
                                                   op->getLoc(), type,
                                                   ValueRange{tail, head}, dim),
                           claim);
  }

  Rederivation &rewriter;
  const Mesh &mesh;
  Operation *op;
  Value operand;
  Collective move;
  Random &random;
  std::string &what;
  /// Copies: new annotations move the old ones.
  Claim given, expected;
};
} // namespace

OwningOpRef<ModuleOp> cleave::injectFault(ModuleOp module, StringRef entry,
                                          unsigned index, FaultClass fault,
                                          Random &random, std::string &what) {
  OwningOpRef<ModuleOp> result = module.clone();
  Operation *op = movementsOf(*result, entry)[index];
  std::string name = op->getName().getStringRef().str();
  Rederivation rewriter(cast<func::FuncOp>(op->getParentOp()),
                        findMesh(*result));
  if (!rewriter.run(
          op, [&](Rederivation &own, Operation *wrong, Value operand) {
            return Fault(own, wrong, operand, random, what).build(fault);
          }))
    return {};
  what = name + " " + std::to_string(index) + " " + what;
  return result;
}

FaultVerdict cleave::judgeFault(ModuleOp faulty, StringRef entry,
                                ArrayRef<NamedTensors> inputs,
                                ArrayRef<ReferenceResult> expected,
                                double tolerance) {
  FaultVerdict verdict;
  // The diagnostics are not needed.
  ScopedDiagnosticHandler silent(faulty.getContext(),
                                 [](Diagnostic &) { return success(); });
  if (failed(verify(faulty))) {
    verdict.rejected = verdict.unequal = true;
    return verdict;
  }
  PassManager manager(faulty->getName());
  manager.addPass(createVerifyLocal());
  verdict.rejected = failed(manager.run(faulty));
  verdict.equivalent = true;
  for (auto [input, wanted] : llvm::zip_equal(inputs, expected)) {
    auto result = Interpreter(faulty, Precision::Exact).run(entry, input);
    double error =
        failed(result) ? INFINITY : compareResults(wanted, *result).error;
    verdict.equivalent &= error == 0;
    verdict.unequal |= !(error <= tolerance);
    if (verdict.unequal)
      break;
  }
  return verdict;
}
