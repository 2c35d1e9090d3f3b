//===- Faults.cpp - Mistakes in a partitioned program ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/Faults.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/Moves.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Testing/Phases.h"
#include "cleave/Testing/Rederive.h"
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
    if (auto move = readMove(&op); move && move->kind != MoveKind::Slice)
      result.push_back(&op);
  return result;
}

unsigned cleave::countMovements(ModuleOp module, StringRef entry) {
  return movementsOf(module, entry).size();
}

namespace {
using Claim = Rederivation::Claim;

/// Makes one movement wrong.
class Fault {
public:
  Fault(Rederivation &rewriter, Operation *op, Value operand, Random &random,
        std::string &what)
      : rewriter(rewriter), mesh(rewriter.getMesh()), op(op), operand(operand),
        move(*readMove(op)), random(random), what(what),
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
    return move.kind == MoveKind::AllReduce ||
           move.kind == MoveKind::ReduceScatter;
  }

  /// A turn of a ring: which shard is where is all that it says.
  bool keepsSharding() const {
    return sameDims(mesh, given.sharding.dims, expected.sharding.dims) &&
           samePartial(mesh, given.sharding.partial, expected.sharding.partial);
  }

  /// Every list of axes that the movement names.
  SmallVector<AxisList *> axesOf(Move &own) {
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

  /// The movement as it is now. Where it cannot be made of the operand, what it
  /// should have made is said of it.
  Value apply(const Move &own, Value value) {
    Claim claim = rewriter.claimOf(value);
    Sharding made = claim.sharding;
    if (applyMove(mesh, own, made))
      made = expected.sharding;
    claim.sharding = made;
    RankedTensorType global = claim.global;
    claim.global = movedType(mesh, own, global);
    if (!rewriter.localType(claim))
      return {};
    Move built = own;
    built.sharding = made;
    if (built.into)
      built.into = rewriter.now(built.into);
    Value result = buildMove(rewriter.getBuilder(), op->getLoc(), value, built,
                             rewriter.getMeshName(), mesh, global);
    return rewriter.define(result.getDefiningOp(), claim);
  }

  Value wrongAxis() {
    SmallVector<AxisRef> others = otherAxes();
    if (others.empty())
      return {};
    AxisRef other = random.pick(others);
    Move wrong = move;
    axesOf(wrong).front()->assign({other});
    what = "over " + other.str();
    return apply(wrong, operand);
  }

  /// Over some digits only, or over another axis too.
  Value wrongGroup() {
    Move wrong = move;
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
    Move wrong = move;
    SmallVector<PartialKind> kinds = {PartialKind::Sum, PartialKind::Max,
                                      PartialKind::Min};
    llvm::erase(kinds, move.reduction);
    wrong.reduction = random.pick(kinds);
    what =
        "with reduction " + std::to_string(static_cast<int>(wrong.reduction));
    return apply(wrong, operand);
  }

  /// Of a reduction: once more behind it, or before its scatter. Of another
  /// movement: a sum of copies.
  Value duplicatedSum() {
    Move sum;
    sum.kind = MoveKind::AllReduce;
    for (AxisList *list : axesOf(move))
      sum.axes.append(list->begin(), list->end());
    bool before = move.kind == MoveKind::ReduceScatter || !reduces();
    what = before ? "of a sum" : "twice";
    Value value = operand;
    if (before && move.kind != MoveKind::AllGather) {
      value = apply(sum, operand);
      if (!value)
        return {};
      // What is said of it must fit what it is made of.
      if (rewriter.localType(rewriter.claimOf(value)) != operand.getType())
        return {};
    }
    value = apply(move, value);
    if (!value || (before && move.kind != MoveKind::AllGather))
      return value;
    return apply(sum, value);
  }

  /// A mean that is taken twice, or not at all: of a sum, or of what lies in
  /// parts. A maximum is no mean; where rows are shifted by it, any number
  /// does.
  Value scale() {
    if (reduces() && move.reduction != PartialKind::Sum)
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

  /// Along the dimension that is joined or cut, the parts of two positions
  /// change places with their neighbours.
  Value shardOrder() {
    if (keepsSharding()) {
      what = "left out";
      return operand;
    }
    if (move.kind == MoveKind::Broadcast || move.kind == MoveKind::Reduce) {
      Move wrong = move;
      wrong.part = (move.part + 1) % mesh.size(move.axes);
      what = "with another part";
      return apply(wrong, operand);
    }
    std::optional<unsigned> dim;
    if (move.kind == MoveKind::AllToAll)
      dim = move.from;
    else if (move.kind != MoveKind::AllReduce && move.kind != MoveKind::Permute)
      for (auto [i, list] : llvm::enumerate(move.dims))
        if (mesh.size(list) > 1)
          dim = i;
    if (!dim)
      return {};
    int64_t parts = mesh.size(
        move.kind == MoveKind::AllToAll ? move.axes : move.dims[*dim]);
    what = "with parts in another order";
    if (move.kind == MoveKind::ReduceScatter) {
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
  Move move;
  Random &random;
  std::string &what;
  /// Copies: new claims move old ones.
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
  // What it says is not of interest.
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
