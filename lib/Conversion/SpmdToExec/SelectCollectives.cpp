//===- SelectCollectives.cpp - Collectives as exchanges of blocks ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Conversion/Passes.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Exec/IR/Views.h"
#include "cleave/Dialect/Graph/IR/Attributes/EvenRows.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/ErrorTopic.h"
#include "cleave/Dialect/Spmd/IR/Chunks.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Permutation.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "llvm/ADT/TypeSwitch.h"

namespace cleave::exec {
#define GEN_PASS_DEF_SELECTCOLLECTIVES
#include "cleave/Conversion/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
using spmd::AxisList;
using spmd::Mesh;

namespace {

/// An exchange, with the attributes of `exec.collective`.
struct Exchange {
  CollectiveKind kind{};
  ReductionKind reduction = ReductionKind::Sum;
  SmallVector<int64_t> block, srcStarts, dstStarts, sources;
  int64_t root = 0;
  /// Nothing if equal exchanges may be merged.
  IntegerAttr apart;
  /// Reduce: the value that the sum is written to.
  Value into;
};

/// Lowers the collectives of one function.
class Selection {
public:
  explicit Selection(Mesh mesh) : mesh(std::move(mesh)) {}

  LogicalResult run(spmd::CommunicationOpInterface op) {
    AxisList axes = op.getCommunicationAxes();
    for (const spmd::AxisRef &axis : axes)
      if (mesh.isSequential(axis)) {
        InFlightDiagnostic error =
            op->emitOpError("runs along the sequential axis ");
        error << axis.str() << "; run --pipe-split-stages first";
        graph::setTopic(error, graph::ErrorTopic::CoupledSamples);
        return error;
      }
    if (auto rows = dyn_cast<spmd::AllToAllRowsOp>(*op)) {
      auto offsets = cast<RankedTensorType>(rows.getSendOffsets().getType());
      if (offsets.getDimSize(0) != mesh.size(axes) + 1)
        return op->emitOpError("is not of shards over its axes");
      OpBuilder builder(op);
      auto command = AllToAllRowsOp::create(
          builder, op->getLoc(), rows.getType(), rows.getInput(),
          rows.getSendOffsets(), rows.getReceiveOffsets(),
          op.getCommunicationMesh(),
          spmd::AxesAttr::get(builder.getContext(), axes));
      if (Attribute even = rows->getAttr(graph::kEvenRowsAttr))
        command->setAttr(graph::kEvenRowsAttr, even);
      rows.replaceAllUsesWith(command.getOutput());
      rows->erase();
      return success();
    }
    Value input = op->getOperand(0), output = op->getResult(0);
    if (mesh.size(axes) == 1) {
      output.replaceAllUsesWith(input);
      op->erase();
      return success();
    }
    std::optional<Exchange> exchange =
        llvm::TypeSwitch<Operation *, std::optional<Exchange>>(op)
            .Case<spmd::AllReduceOp, spmd::AllGatherOp, spmd::ReduceScatterOp,
                  spmd::AllToAllOp, spmd::PermuteOp, spmd::RotateOp,
                  spmd::BroadcastOp, spmd::ReduceOp>(
                [&](auto typed) { return describe(typed); })
            .Default([](Operation *) { return std::nullopt; });
    if (!exchange)
      return op->emitOpError("has no native form between devices");
    OpBuilder builder(op);
    MLIRContext *context = builder.getContext();
    auto list = [&](ArrayRef<int64_t> values) {
      return builder.getDenseI64ArrayAttr(values);
    };
    auto command = CollectiveOp::create(
        builder, op->getLoc(), output.getType(),
        CollectiveKindAttr::get(context, exchange->kind), input, exchange->into,
        op.getCommunicationMesh(), spmd::AxesAttr::get(context, axes),
        list(exchange->block),
        ReductionKindAttr::get(context, exchange->reduction),
        list(exchange->srcStarts), list(exchange->dstStarts),
        list(exchange->sources), builder.getI64IntegerAttr(exchange->root),
        exchange->apart);
    if (Attribute chunk = op->getAttr(spmd::kChunkAttr))
      command->setAttr(spmd::kChunkAttr, chunk);
    output.replaceAllUsesWith(command.getOutput());
    op->erase();
    return success();
  }

private:
  static SmallVector<int64_t> shapeOf(Value value) {
    return SmallVector<int64_t>(tensorTypeOf(value).getShape());
  }

  /// Coordinates of member `index` of a group.
  SmallVector<int64_t, 4> member(ArrayRef<spmd::AxisRef> axes,
                                 int64_t index) const {
    SmallVector<int64_t, 4> coordinates(mesh.axes.size(), 0);
    mesh.setPart(axes, index, coordinates);
    return coordinates;
  }

  /// For each member, where its block begins when each dimension is sharded by
  /// `dims` into blocks of the sizes of `part`.
  SmallVector<int64_t> partStarts(ArrayRef<spmd::AxisRef> axes,
                                  ArrayRef<AxisList> dims,
                                  ArrayRef<int64_t> part) const {
    SmallVector<int64_t> starts;
    for (int64_t i = 0, n = mesh.size(axes); i < n; ++i) {
      SmallVector<int64_t, 4> coordinates = member(axes, i);
      for (auto [dim, size] : llvm::zip_equal(dims, part))
        starts.push_back(mesh.partIndex(dim, coordinates) * size);
    }
    return starts;
  }

  std::optional<Exchange> describe(spmd::AllReduceOp op) const {
    Exchange e;
    e.kind = CollectiveKind::AllReduce;
    e.reduction = op.getKind();
    e.block = shapeOf(op.getInput());
    return e;
  }

  std::optional<Exchange> describe(spmd::AllGatherOp op) const {
    Exchange e;
    e.kind = CollectiveKind::AllGather;
    e.block = shapeOf(op.getInput());
    e.dstStarts = partStarts(op.getCommunicationAxes(),
                             op.getSharding().getSharding().dims, e.block);
    return e;
  }

  std::optional<Exchange> describe(spmd::ReduceScatterOp op) const {
    Exchange e;
    e.kind = CollectiveKind::ReduceScatter;
    e.reduction = op.getKind();
    e.block = shapeOf(op.getOutput());
    e.srcStarts = partStarts(op.getCommunicationAxes(),
                             op.getSharding().getSharding().dims, e.block);
    return e;
  }

  std::optional<Exchange> describe(spmd::AllToAllOp op) const {
    Exchange e;
    e.kind = CollectiveKind::AllToAll;
    e.block = shapeOf(op.getInput());
    AxisList axes = op.getCommunicationAxes();
    e.block[op.getTo()] /= mesh.size(axes);
    SmallVector<AxisList> from(e.block.size()), to(e.block.size());
    to[op.getTo()] = axes;
    from[op.getFrom()] = axes;
    e.srcStarts = partStarts(axes, to, e.block);
    e.dstStarts = partStarts(axes, from, e.block);
    return e;
  }

  std::optional<Exchange> describe(spmd::PermuteOp op) const {
    Exchange e;
    e.kind = CollectiveKind::Permute;
    e.block = shapeOf(op.getInput());
    spmd::Permutation permutation = op.getPermutation();
    AxisList axes = op.getCommunicationAxes();
    for (int64_t i = 0, n = mesh.size(axes); i < n; ++i)
      e.sources.push_back(
          mesh.partIndex(axes, permutation.source(mesh, member(axes, i))));
    return e;
  }

  std::optional<Exchange> describe(spmd::RotateOp op) const {
    Exchange e;
    e.kind = CollectiveKind::Permute;
    e.block = shapeOf(op.getInput());
    for (int64_t i = 0, n = mesh.size(op.getCommunicationAxes()); i < n; ++i)
      e.sources.push_back((i + n - 1) % n);
    return e;
  }

  std::optional<Exchange> describe(spmd::BroadcastOp op) const {
    Exchange e;
    e.kind = CollectiveKind::Broadcast;
    e.block = shapeOf(op.getInput());
    e.root = op.getPart();
    e.apart = op.getApartAttr();
    return e;
  }

  /// Whether the following sums fill all other blocks before any reader.
  bool isFilledLater(spmd::ReduceOp op) const {
    llvm::SmallDenseSet<uint64_t> parts{op.getPart()};
    for (spmd::ReduceOp last = op; last->hasOneUse();) {
      auto next = dyn_cast<spmd::ReduceOp>(*last->user_begin());
      if (!next || next.getInto() != last.getOutput() ||
          next.getInput() == last.getOutput() || next.getDim() != op.getDim() ||
          next.getAxes() != op.getAxes())
        break;
      parts.insert(next.getPart());
      last = next;
    }
    return static_cast<int64_t>(parts.size()) ==
           mesh.size(op.getAxes().getAxes());
  }

  std::optional<Exchange> describe(spmd::ReduceOp op) const {
    Exchange e;
    e.kind = CollectiveKind::Reduce;
    e.block = shapeOf(op.getInput());
    e.root = op.getPart();
    e.into = op.getInto();
    if (!e.into && !isFilledLater(op)) {
      OpBuilder builder(op);
      RankedTensorType type = tensorTypeOf(op.getOutput());
      e.into = graph::ConstantOp::create(
          builder, op.getLoc(),
          DenseElementsAttr::get(type,
                                 builder.getZeroAttr(type.getElementType())));
    }
    return e;
  }

  Mesh mesh;
};

struct SelectCollectives
    : exec::impl::SelectCollectivesBase<SelectCollectives> {
  void runOnOperation() override {
    SmallVector<spmd::CommunicationOpInterface> ops;
    getOperation().walk(
        [&](spmd::CommunicationOpInterface op) { ops.push_back(op); });
    for (spmd::CommunicationOpInterface op : ops) {
      spmd::MeshOp mesh = spmd::lookupMesh(op, op.getCommunicationMesh());
      if (!mesh || failed(Selection(mesh.getMesh()).run(op)))
        return signalPassFailure();
    }
  }
};

} // namespace
