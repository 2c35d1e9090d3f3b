//===- ExchangeRows.cpp - Rows sent to the ranks of their groups ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Expert parallelism as Lepikhin et al., "GShard" (arXiv 2006.16668), section
/// 3.2, of experts that take as many tokens as choose them (Gale et al.,
/// "MegaBlocks", arXiv 2211.15841, section 5): tokens are sent to the ranks of
/// their experts, and outputs back. Partitioning has gathered weights instead:
///
/// weight [e/n, ...] -> all_gather -> grouped_linear of the rank's own rows
/// grouped_linear_weight_grad -> reduce_scatter -> gradient [e/n, ...]
///
/// Both collectives go, and rows travel (SortedRows.h) between what is before
/// the first op on rows of groups and after the last one.
///
/// Where groups are over nodes and over the ranks of a node, tokens that have
/// several rows go to nodes first, once to each (RelayTokens.cpp), and rows
/// from there to the ranks of their groups.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/IR/Attributes/EvenRows.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "cleave/Dialect/Graph/Transforms/SortedRows.h"
#include "cleave/Dialect/Spmd/IR/OfDevice.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/RowExchange.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/OperationSupport.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"

#include <cmath>

namespace cleave::spmd {
#define GEN_PASS_DEF_EXCHANGEROWS
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::GroupedLinearOp;
using graph::GroupedLinearWeightGradOp;
using graph::tensorTypeOf;

//===----------------------------------------------------------------------===//
// Weights and their gradients
//===----------------------------------------------------------------------===//

/// `sharding` without `axes` as the major ones of dimension 0; nothing where
/// they are not that.
static std::optional<ShardingAttr> without(ShardingAttr sharding,
                                           ArrayRef<AxisRef> axes) {
  Sharding rest = sharding.getSharding();
  if (rest.dims.empty() ||
      ArrayRef(rest.dims[0]).take_front(axes.size()) != axes)
    return std::nullopt;
  rest.dims[0].erase(rest.dims[0].begin(), rest.dims[0].begin() + axes.size());
  return ShardingAttr::get(sharding.getMesh(), rest);
}

static bool isReplicated(ShardingAttr sharding) {
  return llvm::all_of(sharding.getSharding().dims,
                      [](const AxisList &axes) { return axes.empty(); });
}

/// The gather of the groups of a weight, below casts.
static AllGatherOp gatherOf(Value weight) {
  while (auto cast = weight.getDefiningOp<graph::CastOp>())
    weight = cast.getInput();
  return weight.getDefiningOp<AllGatherOp>();
}

/// Whether it is over `axes`, and perhaps over further ones.
static bool isGatheredOver(Value weight, ArrayRef<AxisRef> axes) {
  AllGatherOp gather = gatherOf(weight);
  return gather && without(gather.getSharding(), axes);
}

namespace {
/// The reduction of a gradient of all groups to that of the groups held:
/// scatters over the axes of groups, in one or more, sums over other axes, and
/// casts.
struct Reduction {
  struct Step {
    Operation *op;
    /// The axes of groups over which steps before it have scattered.
    size_t scattered;
    /// Of a scatter: what it does beside.
    std::optional<ShardingAttr> rest;
  };
  SmallVector<Step> steps;
};
} // namespace

static std::optional<Reduction> reductionOf(Value gradient,
                                            ArrayRef<AxisRef> axes) {
  Reduction result;
  size_t scattered = 0;
  while (gradient.hasOneUse()) {
    Operation *user = *gradient.user_begin();
    Reduction::Step step{user, scattered, std::nullopt};
    if (auto scatter = dyn_cast<ReduceScatterOp>(user)) {
      ArrayRef<AxisRef> left = axes.drop_front(scattered);
      const Sharding &by = scatter.getSharding().getSharding();
      if (scatter.getKind() != ReductionKind::Sum || by.dims.empty())
        return std::nullopt;
      left = left.take_front(by.dims[0].size());
      step.rest = without(scatter.getSharding(), left);
      if (!step.rest)
        return std::nullopt;
      scattered += left.size();
    } else if (auto sum = dyn_cast<AllReduceOp>(user);
               !isa<graph::CastOp>(user) &&
               !(sum && sum.getKind() == ReductionKind::Sum)) {
      return std::nullopt;
    }
    result.steps.push_back(step);
    if (scattered == axes.size())
      return result;
    gradient = user->getResult(0);
  }
  return std::nullopt;
}

/// Annotates what is held of a value like `all`, the value of all groups, or of
/// those that are left by scatters over the first axes.
static void annotateHeld(Value held, Value all, const Mesh &mesh,
                         ArrayRef<AxisRef> axes, size_t scattered = 0) {
  ArrayRef<AxisRef> left = axes.drop_front(scattered);
  ShardingAttr written = writtenShardingAttr(all);
  Sharding sharding = written.getSharding();
  llvm::append_range(sharding.dims[0], left);
  llvm::erase_if(sharding.partial, [&](const PartialAxis &partial) {
    return mesh.overlap(partial.axis, axes);
  });
  annotate(held.getDefiningOp(), ShardingAttr::get(written.getMesh(), sharding),
           writtenGlobalType(all));
}

/// Rows that were sorted, or received, are of each device alone.
static void markOfDevice(Operation *op) {
  op->setAttr(kOfDeviceAttr, UnitAttr::get(op->getContext()));
}

//===----------------------------------------------------------------------===//
// Rows on their way
//===----------------------------------------------------------------------===//

namespace {
/// Rows between ranks: those that a rank may send, that it may receive, and
/// that it receives if groups are chosen evenly.
struct RowCounts {
  int64_t sent, most, even;
};

/// The ranks that hold groups along some axes, and the rows of one value of
/// groups between them.
class GroupTravel final : public graph::RowTravel {
public:
  /// The dimension of rows is sharded over `rowAxes`. Ranks along `apart` have
  /// the same rows and other groups.
  GroupTravel(const Mesh &mesh, FlatSymbolRefAttr meshName, AxisList axes,
              AxisList rowAxes, AxisList apart, const graph::RowGroups &groups,
              RowCounts counts, double buffer, bool rounds, StringRef name)
      : mesh(mesh), meshName(meshName), axes(std::move(axes)),
        rowAxes(std::move(rowAxes)), apart(std::move(apart)),
        groups(groups.globalSize), rows(counts.sent), share(counts.even),
        received(counts.most), rounds(rounds) {
    int64_t all = counts.most;
    if (buffer > 0)
      received = std::min<int64_t>(
          all, std::max<int64_t>(1, std::ceil(buffer * share)));
    if (received < all)
      bound = RowBound{received, share, name.str(), "--expert-buffer",
                       llvm::formatv("{0}", llvm::format("%g", buffer))};
  }

  int64_t room() const override { return received; }
  int64_t even() const override { return share; }

  Value begin(OpBuilder &builder, Location loc, Value offsets) override {
    exchange =
        buildRowExchange(builder, loc, offsets, meshName, mesh, axes, bound);
    return exchange.ranges;
  }

  Value send(OpBuilder &builder, Location loc, Value sent) override {
    return exchanged(builder, loc, sent, received, exchange.sendOffsets,
                     exchange.receiveOffsets);
  }

  Value sendBack(OpBuilder &builder, Location loc, Value sent) override {
    return exchanged(builder, loc, sent, rows, exchange.receiveOffsets,
                     exchange.sendOffsets);
  }

  bool differs(Value value) const override {
    std::optional<Sharding> sharding = writtenSharding(value);
    return !sharding || llvm::any_of(axes, [&](const AxisRef &axis) {
      return sharding->splits(mesh, axis);
    });
  }

  Value weightOf(GroupedLinearOp op) override { return heldOf(op.getWeight()); }

  std::pair<Value, Value> round(OpBuilder &builder, Value value) override {
    std::optional<Sharding> sharding = writtenSharding(value);
    FloatType type = rounds ? graph::roundedType(value) : FloatType();
    // Of ranks with other groups one has the row, and the others zeros.
    if (!type || !sharding ||
        !llvm::all_of(sharding->partial, [&](const PartialAxis &partial) {
          return mesh.overlap(partial.axis, apart);
        }))
      return {};
    auto castTo = [&](Value from, Type element) -> Value {
      auto cast = graph::CastOp::create(
          builder, value.getLoc(), tensorTypeOf(value).clone(element), from);
      annotate(cast, writtenShardingAttr(value),
               writtenGlobalType(value).clone(element));
      return cast;
    };
    Value narrow = castTo(value, type);
    return {narrow, castTo(narrow, tensorTypeOf(value).getElementType())};
  }

  void putBack(Value back, Value value) override {
    annotate(back.getDefiningOp(), writtenShardingAttr(value),
             writtenGlobalType(value));
    markOfDevice(back.getDefiningOp());
  }

  void replaceGradient(GroupedLinearWeightGradOp op, Value held) override {
    Reduction reduction = *reductionOf(op.getOutput(), axes);
    annotateHeld(held, op.getOutput(), mesh, axes);
    markOfDevice(held.getDefiningOp());
    for (const Reduction::Step &step : reduction.steps)
      held = repeat(step, held);
    Operation *last = reduction.steps.back().op;
    last->getResult(0).replaceAllUsesWith(held);
    for (const Reduction::Step &step : llvm::reverse(reduction.steps))
      step.op->erase();
  }

  Value origin(OpBuilder &builder, Location loc) override {
    Sharding held = Sharding::replicated(1);
    held.dims[0] = axes;
    auto index = RankedTensorType::get(1, builder.getI64Type());
    auto offset = ShardOffsetOp::create(
        builder, loc, index, ShardingAttr::get(meshName, held),
        RankedTensorType::get(groups, builder.getI64Type()));
    annotate(offset, ShardingAttr::get(meshName, Sharding::replicated(1)),
             index);
    return offset;
  }

  void annotateLike(Value built, Value like, int64_t from,
                    int64_t to) override {
    std::optional<Sharding> known = writtenSharding(like);
    Operation *op = built.getDefiningOp();
    auto type = tensorTypeOf(built);
    if (!known || op->getNumResults() != 1)
      return;
    Sharding sharding = *known;
    if (type.getShape() != tensorTypeOf(like).getShape()) {
      sharding = Sharding::replicated(type.getRank());
      sharding.dims[to - 1] = rowAxes;
      llvm::copy(ArrayRef(known->dims).drop_front(from),
                 sharding.dims.begin() + to);
      sharding.partial = known->partial;
    }
    SmallVector<int64_t> shape(type.getShape());
    for (auto [size, over] : llvm::zip_equal(shape, sharding.dims))
      size *= mesh.size(over);
    annotate(op, ShardingAttr::get(meshName, sharding), type.clone(shape));
    markOfDevice(op);
  }

private:
  /// A step of a reduction, of what is held.
  Value repeat(const Reduction::Step &step, Value held) {
    if (step.rest && isReplicated(*step.rest))
      return held;
    OpBuilder builder(step.op);
    Value old = step.op->getResult(0);
    SmallVector<int64_t> shape(tensorTypeOf(held).getShape());
    size_t scattered = step.scattered;
    Operation *copy;
    if (step.rest) {
      auto scatter = cast<ReduceScatterOp>(step.op);
      const Sharding &rest = step.rest->getSharding();
      scattered += scatter.getSharding().getSharding().dims[0].size() -
                   rest.dims[0].size();
      for (auto [size, over] : llvm::zip_equal(shape, rest.dims))
        size /= mesh.size(over);
      copy = ReduceScatterOp::create(builder, scatter.getLoc(),
                                     tensorTypeOf(old).clone(shape),
                                     scatter.getKind(), held, *step.rest);
    } else {
      copy = builder.clone(*step.op);
      copy->setOperand(0, held);
      copy->getResult(0).setType(tensorTypeOf(old).clone(shape));
    }
    annotateHeld(copy->getResult(0), old, mesh, axes, scattered);
    return copy->getResult(0);
  }

  Value exchanged(OpBuilder &builder, Location loc, Value sent, int64_t number,
                  Value from, Value to) {
    SmallVector<int64_t> shape(tensorTypeOf(sent).getShape());
    shape.front() = number;
    auto op = AllToAllRowsOp::create(
        builder, loc, tensorTypeOf(sent).clone(shape), sent, from, to, meshName,
        AxesAttr::get(builder.getContext(), axes));
    if (share < rows)
      graph::setEvenRows(op, share);
    return op;
  }

  Value heldOf(Value weight) {
    if (Value known = weights.lookup(weight))
      return known;
    Value held;
    if (auto gather = weight.getDefiningOp<AllGatherOp>()) {
      held = gather.getInput();
      ShardingAttr rest = *without(gather.getSharding(), axes);
      if (!isReplicated(rest)) {
        OpBuilder builder(gather);
        SmallVector<int64_t> shape(tensorTypeOf(weight).getShape());
        shape.front() /= mesh.size(axes);
        held =
            AllGatherOp::create(builder, gather.getLoc(),
                                tensorTypeOf(weight).clone(shape), held, rest);
        annotateHeld(held, weight, mesh, axes);
      }
    } else {
      auto cast = weight.getDefiningOp<graph::CastOp>();
      Value input = heldOf(cast.getInput());
      OpBuilder builder(cast);
      Operation *copy = builder.clone(*cast);
      copy->setOperand(0, input);
      held = copy->getResult(0);
      held.setType(
          tensorTypeOf(input).clone(tensorTypeOf(weight).getElementType()));
      annotateHeld(held, weight, mesh, axes);
    }
    return weights[weight] = held;
  }

  const Mesh &mesh;
  FlatSymbolRefAttr meshName;
  AxisList axes, rowAxes, apart;
  int64_t groups, rows, share, received;
  /// Whether sums of matmuls of 16-bit values are sent in 16 bits.
  bool rounds;
  /// Fewer rows than may be sent.
  std::optional<RowBound> bound;
  RowExchange exchange;
  DenseMap<Value, Value> weights;
};
} // namespace

//===----------------------------------------------------------------------===//
// Values that backward computes again
//===----------------------------------------------------------------------===//

/// Whether both are the same but for barriers, which hold what backward gathers
/// again apart from what forward gathered.
static bool isSameBelowBarriers(Value a, Value b, int depth = 8) {
  while (auto barrier = b.getDefiningOp<BarrierOp>())
    b = barrier.getInput();
  while (auto barrier = a.getDefiningOp<BarrierOp>())
    a = barrier.getInput();
  if (a == b)
    return true;
  auto left = dyn_cast<OpResult>(a), right = dyn_cast<OpResult>(b);
  if (depth == 0 || !left || !right ||
      left.getResultNumber() != right.getResultNumber() ||
      !isPure(left.getOwner()))
    return false;
  return OperationEquivalence::isEquivalentTo(
      left.getOwner(), right.getOwner(),
      [&](Value x, Value y) {
        return success(isSameBelowBarriers(x, y, depth - 1));
      },
      /*markEquivalent=*/nullptr, OperationEquivalence::IgnoreLocations);
}

/// Lets ops read the first of values that are the same: rows and groups are
/// kept where they were sent to, not sent again.
static void
readFirst(ArrayRef<Operation *> ops,
          function_ref<MutableArrayRef<OpOperand>(Operation *)> of) {
  SmallVector<Value> known;
  for (Operation *op : ops)
    for (OpOperand &operand : of(op)) {
      auto *same = llvm::find_if(known, [&](Value value) {
        return isSameBelowBarriers(value, operand.get());
      });
      if (same == known.end())
        known.push_back(operand.get());
      else
        operand.set(*same);
    }
}

static void readFirstRowsAndGroups(Block &block) {
  SmallVector<Operation *> ops;
  for (Operation &op : block)
    if (isa<GroupedLinearOp, GroupedLinearWeightGradOp>(op))
      ops.push_back(&op);
  readFirst(ops, [](Operation *op) { return op->getOpOperands().slice(2, 1); });
  readFirst(ops, [](Operation *op) {
    return op->getOpOperands().take_front(
        isa<GroupedLinearWeightGradOp>(op) ? 2 : 1);
  });
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

/// Annotates what was built without a sharding: values of rows are sharded as
/// the groups of the rows, their other dimensions as in the operands.
static void annotateRows(Operation *op, const Mesh &mesh,
                         FlatSymbolRefAttr meshName, const AxisList &rows) {
  SmallVector<Attribute> shardings, globals;
  for (Value result : op->getResults()) {
    auto type = tensorTypeOf(result);
    int64_t rank = type.getRank(), first = 0;
    // Ops of several dimensions of rows have all in the last of these.
    while (rank > 2 && first + 1 < rank && type.getDimSize(first) == 1)
      ++first;
    Sharding sharding = Sharding::replicated(rank);
    if (rank > 0)
      sharding.dims[first] = rows;
    auto isFree = [&](const AxisRef &axis) {
      return !sharding.splits(mesh, axis) && !sharding.partialOn(mesh, axis);
    };
    for (Value operand : op->getOperands()) {
      std::optional<Sharding> like = writtenSharding(operand);
      if (!like)
        continue;
      int64_t shift = tensorTypeOf(operand).getRank() - rank;
      for (int64_t dim = first + 1; dim < rank; ++dim)
        if (dim + shift > 0 &&
            tensorTypeOf(operand).getDimSize(dim + shift) ==
                type.getDimSize(dim) &&
            llvm::all_of(like->dims[dim + shift], isFree) &&
            sharding.dims[dim].empty())
          sharding.dims[dim] = like->dims[dim + shift];
      for (const PartialAxis &partial : like->partial)
        if (isFree(partial.axis))
          sharding.partial.push_back(partial);
    }
    // Summed over.
    if (auto product = dyn_cast<graph::GroupedContractOp>(op))
      if (std::optional<Sharding> like = writtenSharding(product.getRows()))
        for (const AxisRef &axis : like->dims[1])
          if (isFree(axis))
            sharding.partial.push_back({axis, ReductionKind::Sum});
    SmallVector<int64_t> shape(type.getShape());
    for (auto [size, axes] : llvm::zip_equal(shape, sharding.dims))
      size *= mesh.size(axes);
    shardings.push_back(ShardingAttr::get(meshName, sharding));
    globals.push_back(TypeAttr::get(type.clone(shape)));
  }
  Builder builder(op->getContext());
  op->setAttr(kShardingsAttr, builder.getArrayAttr(shardings));
  op->setAttr(kGlobalTypesAttr, builder.getArrayAttr(globals));
  markOfDevice(op);
}

/// The axis of ranks that share slower links than those of other axes.
static constexpr StringLiteral kNodeAxis = "node";

static std::string namesOf(ArrayRef<AxisRef> axes) {
  std::string text;
  for (const AxisRef &axis : axes)
    text += (text.empty() ? "\"" : ", \"") + axis.name.str() + "\"";
  return text;
}

/// The name of the parameter that a weight is made of.
static std::string nameOf(Value weight) {
  while (Operation *op = weight.getDefiningOp()) {
    if (op->getNumOperands() == 0)
      return "experts";
    weight = op->getOperand(0);
  }
  auto argument = cast<BlockArgument>(weight);
  auto function = dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp());
  auto name = function ? function.getArgAttrOfType<StringAttr>(
                             argument.getArgNumber(), graph::kNameAttr)
                       : StringAttr();
  return name ? name.str() : "experts";
}

namespace {
struct ExchangeRowsPass
    : cleave::spmd::impl::ExchangeRowsBase<ExchangeRowsPass> {
  using ExchangeRowsBase::ExchangeRowsBase;

  void runOnOperation() override {
    MeshOp meshOp = findMesh(getOperation());
    if (!meshOp)
      return;
    Mesh mesh = meshOp.getMesh();
    for (func::FuncOp function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() &&
          failed(exchange(function, mesh,
                          FlatSymbolRefAttr::get(meshOp.getSymNameAttr()))))
        return signalPassFailure();
  }

private:
  /// The axes, of those that are asked for, over which the groups of a weight
  /// are gathered, up to the first that is not asked for.
  AxisList gatheredOver(Operation *op, const Mesh &mesh) const {
    auto linear = dyn_cast<GroupedLinearOp>(op);
    AllGatherOp gather = linear ? gatherOf(linear.getWeight()) : AllGatherOp();
    AxisList found;
    if (!gather)
      return found;
    for (const AxisRef &axis : gather.getSharding().getSharding().dims[0]) {
      if (llvm::none_of(axes, [&](StringRef name) {
            return axis == AxisRef{name} && mesh.size(axis) > 1;
          }))
        break;
      found.push_back(axis);
    }
    return found;
  }

  /// Ops on rows of the same groups, which are on several ranks.
  struct Mixture {
    graph::GroupedOps grouped;
    GroupedLinearOp linear;
    /// Axes along which ranks have other rows and other groups.
    AxisList sent;
    /// Those of all dimensions of rows.
    AxisList rows;
    /// Why rows do not travel.
    std::optional<std::string> why;
  };

  std::optional<Mixture> mixtureOf(const graph::GroupedOps &grouped,
                                   const Mesh &mesh) const {
    auto first = llvm::find_if(grouped.ops, llvm::IsaPred<GroupedLinearOp>);
    AxisList along;
    if (first != grouped.ops.end())
      along = gatheredOver(*first, mesh);
    if (along.empty())
      return std::nullopt;
    Mixture mixture{grouped, cast<GroupedLinearOp>(*first), {}, {}, {}};
    std::optional<Sharding> groups = writtenSharding(grouped.groups.root);
    // Ranks that have the same rows do not send them to each other.
    for (const AxisRef &axis : along) {
      if (!groups || !groups->splits(mesh, axis))
        break;
      mixture.sent.push_back(axis);
    }
    mixture.why = "rows are not sharded over it";
    if (!mixture.sent.empty())
      mixture.why = whyGathered(grouped, mesh, mixture.sent);
    if (!mixture.why)
      for (const AxisList &dim : groups->dims)
        llvm::append_range(mixture.rows, dim);
    return mixture;
  }

  /// Removes ops that nothing reads, and annotates new ones.
  static void finish(Block &block, const Mesh &mesh, FlatSymbolRefAttr meshName,
                     const AxisList &rows) {
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
      if (isOpTriviallyDead(&op))
        op.erase();
    for (Operation &op : block.without_terminator())
      if (op.getNumResults() && !op.hasAttr(kShardingsAttr))
        annotateRows(&op, mesh, meshName, rows);
  }

  LogicalResult exchange(func::FuncOp function, const Mesh &mesh,
                         FlatSymbolRefAttr meshName) {
    Block &block = function.front();
    if (llvm::all_of(block, [&](Operation &op) {
          return gatheredOver(&op, mesh).empty();
        }))
      return success();
    readFirstRowsAndGroups(block);
    // Of the groups of a node, the rows that a rank is expected to receive.
    DenseMap<Value, int64_t> relayed;
    if (dispatch != "flat")
      for (const graph::GroupedOps &grouped : graph::findGroupedOps(block))
        if (failed(relay(grouped, mesh, meshName, relayed)))
          return failure();
    for (const graph::GroupedOps &grouped : graph::findGroupedOps(block)) {
      std::optional<Mixture> mixture = mixtureOf(grouped, mesh);
      if (!mixture)
        continue;
      if (mixture->why) {
        mixture->linear->emitRemark(
            "weights of all groups are gathered over \"")
            << gatheredOver(mixture->linear, mesh).front().name << "\", since "
            << *mixture->why;
        continue;
      }
      int64_t rows = grouped.groups.rows(), even;
      // Of all rows, those of the groups that ranks along the axes hold.
      if (auto it = relayed.find(grouped.groups.root); it != relayed.end())
        even = it->second;
      else
        even = llvm::divideCeil(rows * grouped.groups.size,
                                grouped.groups.globalSize);
      GroupTravel travel(
          mesh, meshName, mixture->sent, mixture->rows, apart(mixture->linear),
          grouped.groups, {rows, mesh.size(mixture->sent) * rows, even}, buffer,
          roundsIn(mixture->linear), nameOf(mixture->linear.getWeight()));
      graph::sortRows(grouped, &travel);
      finish(block, mesh, meshName, mixture->rows);
    }
    return success();
  }

  /// The axes over which the groups of a weight are sharded.
  static AxisList apart(GroupedLinearOp linear) {
    std::optional<Sharding> held = writtenSharding(linear.getWeight());
    return held ? held->dims[0] : AxisList();
  }

  bool roundsIn(Operation *op) const {
    return rounds && !graph::usesFloat8(op->getParentOfType<func::FuncOp>());
  }

  /// Sends tokens to nodes first, if groups are over nodes and further ranks.
  LogicalResult relay(const graph::GroupedOps &grouped, const Mesh &mesh,
                      FlatSymbolRefAttr meshName,
                      DenseMap<Value, int64_t> &relayed) const {
    bool always = dispatch == "hierarchical";
    std::optional<Mixture> mixture = mixtureOf(grouped, mesh);
    if (!mixture || mixture->why)
      return success();
    const graph::RowGroups &groups = grouped.groups;
    const AxisList &sent = mixture->sent;
    if (sent.size() < 2 || sent.front() != AxisRef{kNodeAxis} ||
        groups.origin || groups.size != groups.globalSize) {
      if (!always)
        return success();
      return mixture->linear->emitError(
                 "--expert-dispatch=hierarchical needs experts and tokens "
                 "sharded over an axis \"")
             << kNodeAxis << "\" and further ones inside it, not over "
             << namesOf(sent);
    }
    int64_t nodes = mesh.size(sent.front());
    graph::Choices choices = graph::Choices::of(groups);
    int64_t pairs = choices.tokens * nodes;
    GroupTravel travel(
        mesh, meshName, {sent.front()}, mixture->rows, /*apart=*/{}, groups,
        {pairs, pairs, expectedPairs(choices, groups.size, nodes)}, buffer,
        /*rounds=*/false, nameOf(mixture->linear.getWeight()));
    Block &block = *mixture->linear->getBlock();
    Location loc = mixture->linear.getLoc();
    auto done = graph::relayTokens(grouped, nodes, travel, always);
    if (const auto *why = std::get_if<std::string>(&done)) {
      emitRemark(loc, "a row for each choice is sent over \"")
          << kNodeAxis << "\", since " << *why;
      return success();
    }
    relayed[std::get<graph::RowGroups>(done).root] = groups.rows();
    finish(block, mesh, meshName, mixture->rows);
    return success();
  }

  /// Of tokens that choose their groups evenly, each one once, the pairs of a
  /// token and a node that holds a group of it.
  static int64_t expectedPairs(const graph::Choices &choices, int64_t groups,
                               int64_t nodes) {
    int64_t others = groups - groups / nodes;
    double none = 1;
    for (int64_t choice = 0; choice < choices.perToken; ++choice)
      none *= std::max<double>(0, others - choice) /
              std::max<double>(1, groups - choice);
    return std::max<int64_t>(1,
                             std::llround(choices.tokens * nodes * (1 - none)));
  }

  /// Why rows cannot travel along `axes`, or nothing.
  static std::optional<std::string>
  whyGathered(const graph::GroupedOps &grouped, const Mesh &mesh,
              ArrayRef<AxisRef> axes) {
    if (grouped.groups.size % mesh.size(axes) != 0)
      return std::to_string(grouped.groups.size) +
             " groups are not divisible by its " +
             std::to_string(mesh.size(axes)) + " positions";
    for (Operation *op : grouped.ops) {
      auto linear = dyn_cast<GroupedLinearOp>(op);
      if (linear ? !isGatheredOver(linear.getWeight(), axes)
                 : !reductionOf(op->getResult(0), axes))
        return linear ? "a weight of the same rows is not gathered"
                      : "the gradient of a weight is not scattered";
    }
    return std::nullopt;
  }
};
} // namespace
