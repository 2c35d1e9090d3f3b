//===- OptimizeCollectives.cpp - Merging and simplifying collectives ------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/Transforms/Partition/OptimizeCollectives.h"
#include "JoinReductions.h"
#include "SumShards.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/SeedOrder.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/OperationSupport.h"
#include "mlir/IR/PatternMatch.h"
#include <map>

namespace cleave::spmd {
#define GEN_PASS_DEF_OPTIMIZECOLLECTIVES
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

/// Rewrites the collectives of one function.
class Optimizer {
public:
  Optimizer(func::FuncOp function, MeshOp meshOp)
      : body(function.getBody().front()), mesh(meshOp.getMesh()),
        rewriter(function.getContext()) {}

  void run() {
    mergeEqual();
    for (Operation &op : llvm::make_early_inc_range(body)) {
      auto slice = dyn_cast<SliceOp>(op);
      if (slice && (scatterPieces(slice) || sumShards(slice, mesh, rewriter)))
        continue;
      if (!slice || !scatterSlice(slice, mesh, rewriter))
        undoCollective(&op, mesh, rewriter);
    }
    joinReductions(body, rewriter);
  }

private:
  void mergeEqual();
  bool scatterPieces(SliceOp slice);

  Block &body;
  Mesh mesh;
  IRRewriter rewriter;
};

/// Whether two ops are equal and have the same operands.
struct SameOp {
  bool operator()(Operation *a, Operation *b) const {
    return OperationEquivalence::isEquivalentTo(
        a, b, OperationEquivalence::IgnoreLocations);
  }
};

} // namespace

/// Merges equal collectives of one seed index into the first of them. A
/// collective that enlarges a value belongs to the seed index of its first
/// reader, since its result would otherwise be kept until then.
void Optimizer::mergeEqual() {
  SeedOrder seedOrder(body);
  std::map<std::pair<llvm::hash_code, unsigned>, SmallVector<Operation *, 1>>
      known;
  for (Operation &op : llvm::make_early_inc_range(body)) {
    if (!readCollective(&op) && !isa<BarrierOp>(op))
      continue;
    unsigned seedIndex = seedOrder.of(&op);
    if (isa<AllGatherOp>(op))
      seedIndex = seedOrder.firstReader(&op);
    auto hash = OperationEquivalence::computeHash(
        &op, OperationEquivalence::directHashValue,
        OperationEquivalence::ignoreHashValue,
        OperationEquivalence::IgnoreLocations);
    SmallVector<Operation *, 1> &candidates = known[{hash, seedIndex}];
    auto same = llvm::find_if(
        candidates, [&](Operation *other) { return SameOp()(other, &op); });
    if (same == candidates.end()) {
      candidates.push_back(&op);
      continue;
    }
    op.replaceAllUsesWith(*same);
    op.erase();
  }
}

/// Joins pieces, each a sum over devices that is rounded, before they are
/// reduced, where all that is read of them is `slice`: rounding and slices
/// commute, so that one reduce_scatter of the joined terms, which is rounded
/// then, has the same elements as the sums of the pieces.
bool Optimizer::scatterPieces(SliceOp slice) {
  auto joined = slice.getInput().getDefiningOp<graph::ConcatOp>();
  if (!joined || !joined->hasOneUse())
    return false;
  SmallVector<AllReduceOp> sums;
  for (Value piece : joined.getInputs()) {
    auto rounded = piece.getDefiningOp<graph::CastOp>();
    auto sum = rounded && rounded->hasOneUse()
                   ? rounded.getInput().getDefiningOp<AllReduceOp>()
                   : AllReduceOp();
    if (!sum || !sum->hasOneUse() ||
        (!sums.empty() &&
         (sum.getAxes() != sums.front().getAxes() ||
          sum.getKind() != sums.front().getKind() ||
          writtenShardingAttr(sum) != writtenShardingAttr(sums.front()) ||
          writtenShardingAttr(sum.getInput()) !=
              writtenShardingAttr(sums.front().getInput()))))
      return false;
    sums.push_back(sum);
  }
  std::optional<Sharding> own = writtenSharding(joined);
  ShardingAttr place = writtenShardingAttr(sums.front().getInput());
  RankedTensorType narrow = writtenGlobalType(joined);
  if (!own || !place || !narrow ||
      !sameDims(mesh, own->dims, place.getSharding().dims) ||
      !canScatter(mesh, readCollective(sums.front())->axes,
                  readCollective(slice)->dims))
    return false;
  // Joins the terms, and reduces and slices them in the type of the terms.
  Type wide = graph::tensorTypeOf(sums.front()).getElementType();
  RankedTensorType global = narrow.clone(wide);
  rewriter.setInsertionPoint(slice);
  SmallVector<Value> terms;
  for (AllReduceOp sum : sums)
    terms.push_back(sum.getInput());
  auto all = graph::ConcatOp::create(rewriter, joined.getLoc(), terms,
                                     joined.getDim());
  annotate(all, place, global);
  auto sum = cast<AllReduceOp>(rewriter.clone(*sums.front()));
  sum.getInputMutable().assign(all);
  sum->getResult(0).setType(all.getType());
  annotate(sum, writtenShardingAttr(sums.front()), global);
  auto part = cast<SliceOp>(rewriter.clone(*slice));
  part.getInputMutable().assign(sum);
  part->getResult(0).setType(
      graph::tensorTypeOf(slice->getResult(0)).clone(wide));
  annotate(part, writtenShardingAttr(slice), global);
  auto rounded = graph::CastOp::create(rewriter, slice.getLoc(),
                                       slice->getResult(0).getType(), part);
  annotate(rounded, writtenShardingAttr(slice), narrow);
  rewriter.replaceOp(slice, rounded);
  SmallVector<Operation *> pieces;
  for (Value piece : joined.getInputs())
    pieces.push_back(piece.getDefiningOp());
  rewriter.eraseOp(joined);
  for (auto [piece, own] : llvm::zip_equal(pieces, sums)) {
    rewriter.eraseOp(piece);
    rewriter.eraseOp(own);
  }
  scatterSlice(part, mesh, rewriter);
  return true;
}

/// Returns the axes of all dimensions.
static AxisList flatten(const Mesh &mesh, ArrayRef<AxisList> dims) {
  AxisList split;
  for (const AxisList &list : dims)
    for (const AxisRef &axis : mesh.significant(list))
      split.push_back(axis);
  return split;
}

bool cleave::spmd::canScatter(const Mesh &mesh, ArrayRef<AxisRef> axes,
                              ArrayRef<AxisList> dims) {
  AxisList split = flatten(mesh, dims), all = mesh.significant(axes);
  // A sequential axis has one device: there is nothing to scatter.
  if (split.empty() || llvm::any_of(split, [&](const AxisRef &axis) {
        return mesh.isSequential(axis);
      }))
    return false;
  auto digits = mesh.refine(split, all), rest = mesh.refine(all, split);
  return digits && rest && llvm::all_of(*digits, [&](const AxisRef &digit) {
           return mesh.overlap(digit, all);
         });
}

bool cleave::spmd::scatterSlice(SliceOp slice, const Mesh &mesh,
                                RewriterBase &rewriter) {
  auto reduction = slice.getInput().getDefiningOp<AllReduceOp>();
  if (!reduction || !reduction->hasOneUse())
    return false;
  Collective reduce = *readCollective(reduction), cut = *readCollective(slice);
  if (!canScatter(mesh, reduce.axes, cut.dims))
    return false;
  AxisList axes = mesh.significant(reduce.axes),
           split = flatten(mesh, cut.dims);
  auto digits = mesh.refine(split, axes), rest = mesh.refine(axes, split);
  llvm::erase_if(*rest, [&](const AxisRef &digit) {
    return mesh.overlap(digit, *digits);
  });

  std::optional<Sharding> sharding = writtenSharding(slice->getResult(0));
  RankedTensorType global = writtenGlobalType(slice->getResult(0));
  if (!sharding || !global)
    return false;
  cut.kind = CollectiveKind::ReduceScatter;
  cut.reduction = reduce.reduction;
  cut.sharding = *sharding;
  Collective after;
  after.kind = CollectiveKind::AllReduce;
  after.reduction = reduce.reduction;
  after.axes = mesh.normalize(*rest);
  after.sharding = cut.sharding;
  for (const AxisRef &axis : after.axes)
    cut.sharding.partial.push_back({axis, reduce.reduction});
  FlatSymbolRefAttr meshName = slice.getSharding().getMesh();
  rewriter.setInsertionPoint(slice);
  Value value = buildCollective(rewriter, slice.getLoc(), reduction.getInput(),
                                cut, meshName, mesh, global);
  if (!after.axes.empty())
    value = buildCollective(rewriter, slice.getLoc(), value, after, meshName,
                            mesh, global);
  rewriter.replaceOp(slice, value);
  rewriter.eraseOp(reduction);
  return true;
}

/// Whether the movement only says where elements lie, and does not take up more
/// memory than what it moves, or (`backward`) than what it makes.
static bool isPlain(Operation *op, bool backward) {
  std::optional<Collective> move = readCollective(op);
  if (!move)
    return false;
  switch (move->kind) {
  case CollectiveKind::AllToAll:
  case CollectiveKind::Permute:
    return true;
  case CollectiveKind::AllGather:
    return backward;
  case CollectiveKind::Slice:
    return !backward;
  default:
    return false;
  }
}

bool cleave::spmd::undoCollective(Operation *op, const Mesh &mesh,
                                  RewriterBase &rewriter) {
  if (!isPlain(op, /*backward=*/false))
    return false;
  Operation *before = op->getOperand(0).getDefiningOp();
  if (!before || !isPlain(before, /*backward=*/true))
    return false;
  Value source = before->getOperand(0);
  std::optional<Sharding> from = writtenSharding(source),
                          to = writtenSharding(op->getResult(0));
  if (!from || !to || source.getType() != op->getResult(0).getType() ||
      !sameDims(mesh, from->dims, to->dims) ||
      !samePartial(mesh, from->partial, to->partial))
    return false;
  rewriter.replaceOp(op, source);
  if (before->use_empty())
    rewriter.eraseOp(before);
  return true;
}

namespace {
struct OptimizeCollectivesPass
    : cleave::spmd::impl::OptimizeCollectivesBase<OptimizeCollectivesPass> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    if (!mesh) {
      getOperation().emitError("the module has no spmd.mesh");
      return signalPassFailure();
    }
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() && function.getBody().hasOneBlock())
        Optimizer(function, mesh).run();
  }
};
} // namespace
