//===- SumShards.cpp - Cumulative sums along a sharded dimension ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A cumulative sum over n shards (Blelloch, Prefix Sums and Their
/// Applications, CMU-CS-90-190, section 1.2) is that of each shard and the sum
/// of all shards before it. With the dimension [t] as [n, t / n], of which a
/// rank has one row:
/// ```mlir
/// %own = graph.cumulative_sum %x {dim = 1}   // of its own row
/// %sum = graph.reduce sum %x {dims = [1]}
/// %all = spmd.all_gather %sum                // a number for each shard
/// %upto = graph.cumulative_sum %all {dim = 0}
/// %y = %own + (%upto - %all) of its own row
/// ```
//
//===----------------------------------------------------------------------===//

#include "SumShards.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "mlir/IR/PatternMatch.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// Builds annotated ops on values whose sharded dimension is written as two.
class ShardSums {
public:
  ShardSums(RewriterBase &rewriter, graph::CumulativeSumOp sum, SliceOp slice,
            const Mesh &mesh, const Sharding &own, RankedTensorType global)
      : rewriter(rewriter), f{rewriter, sum.getLoc()}, sum(sum), mesh(mesh),
        meshName(slice.getSharding().getMesh()), dim(sum.getDim()), own(own),
        global(global), shards(mesh.size(own.dims[dim])) {}

  /// The rank's part of the sums of `input`.
  Value of(Value input, const Collective &gather) {
    Value rows = split(input, 2);
    Value inner =
        along(rows, dim + 1, split(own, 2), split(global.getShape(), 2));
    Value total = noted(f.sum(rows, {dim + 1}), split(own, 1),
                        split(global.getShape(), 1));
    Sharding whole = split(own, 1);
    whole.dims[dim].clear();
    Collective move = gather;
    move.sharding = whole;
    auto totals = global.clone(split(global.getShape(), 1));
    Value all =
        buildCollective(rewriter, f.loc, total, move, meshName, mesh, totals);
    Value before = noted(f.sub(along(all, dim, whole, totals.getShape()), all),
                         whole, totals.getShape());
    move.kind = CollectiveKind::Slice;
    move.sharding = split(own, 1);
    before =
        buildCollective(rewriter, f.loc, before, move, meshName, mesh, totals);
    SmallVector<int64_t> one(split(global.getShape(), 2));
    one[dim + 1] = 1;
    SmallVector<int64_t> local(graph::tensorTypeOf(rows).getShape());
    local[dim + 1] = 1;
    before = noted(f.reshape(before, local), split(own, 2), one);
    Value result =
        noted(f.add(inner, before), split(own, 2), split(global.getShape(), 2));
    return noted(f.reshape(result, graph::tensorTypeOf(input).getShape()), own,
                 global.getShape());
  }

private:
  /// The sizes with that of `dim` as the number of shards and, with two
  /// `parts`, the elements of each.
  SmallVector<int64_t> split(ArrayRef<int64_t> shape, int parts,
                             int64_t shards) const {
    SmallVector<int64_t> sizes(shape);
    if (parts == 2)
      sizes.insert(sizes.begin() + dim + 1, sizes[dim] / shards);
    sizes[dim] = shards;
    return sizes;
  }
  SmallVector<int64_t> split(ArrayRef<int64_t> shape, int parts) const {
    return split(shape, parts, shards);
  }
  Sharding split(const Sharding &from, int parts) const {
    Sharding sharding = from;
    if (parts == 2) {
      sharding.dims.insert(sharding.dims.begin() + dim + 1, AxisList());
      sharding.open.insert(sharding.open.begin() + dim + 1, false);
    }
    return sharding;
  }
  Value split(Value input, int parts) {
    return noted(f.reshape(input, split(graph::tensorTypeOf(input).getShape(),
                                        parts, /*shards=*/1)),
                 split(own, parts), split(global.getShape(), parts));
  }
  Value along(Value input, int64_t dim, const Sharding &sharding,
              ArrayRef<int64_t> shape) {
    return noted(graph::CumulativeSumOp::create(rewriter, f.loc, input, dim,
                                                sum.getReverse()),
                 sharding, shape);
  }
  Value noted(Value value, const Sharding &sharding, ArrayRef<int64_t> shape) {
    annotate(value.getDefiningOp(), ShardingAttr::get(meshName, sharding),
             global.clone(shape));
    return value;
  }

  RewriterBase &rewriter;
  graph::Formula f;
  graph::CumulativeSumOp sum;
  const Mesh &mesh;
  FlatSymbolRefAttr meshName;
  int64_t dim;
  Sharding own;
  RankedTensorType global;
  int64_t shards;
};
} // namespace

bool cleave::spmd::sumShards(SliceOp slice, const Mesh &mesh,
                             RewriterBase &rewriter) {
  auto sum = slice.getInput().getDefiningOp<graph::CumulativeSumOp>();
  auto gather =
      sum ? sum.getInput().getDefiningOp<AllGatherOp>() : AllGatherOp();
  if (!gather || !sum->hasOneUse() || !gather->hasOneUse() ||
      !graph::tensorTypeOf(sum).getElementType().isInteger(64))
    return false;
  Value input = gather.getInput();
  std::optional<Sharding> own = writtenSharding(input),
                          to = writtenSharding(slice->getResult(0));
  RankedTensorType global = writtenGlobalType(slice->getResult(0));
  int64_t dim = sum.getDim();
  if (!own || !to || !global || !own->partial.empty() || !to->partial.empty() ||
      !sameDims(mesh, own->dims, to->dims))
    return false;
  Collective gathered = *readCollective(gather), cut = *readCollective(slice);
  for (auto [i, axes] : llvm::enumerate(gathered.dims))
    if (i != static_cast<size_t>(dim) && mesh.size(axes) > 1)
      return false;
  if (!sameDims(mesh, gathered.dims, cut.dims) ||
      mesh.size(own->dims[dim]) != mesh.size(gathered.dims[dim]) ||
      global.getDimSize(dim) % mesh.size(own->dims[dim]) != 0 ||
      llvm::any_of(own->dims[dim], [&](const AxisRef &axis) {
        return mesh.isSequential(axis);
      }))
    return false;
  rewriter.setInsertionPoint(slice);
  Value result =
      ShardSums(rewriter, sum, slice, mesh, *own, global).of(input, gathered);
  rewriter.replaceOp(slice, result);
  rewriter.eraseOp(sum);
  rewriter.eraseOp(gather);
  return true;
}
