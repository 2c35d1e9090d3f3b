//===- Collective.cpp - Collectives as data -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "cleave/Dialect/Spmd/IR/AxesText.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace cleave::spmd;

//===----------------------------------------------------------------------===//
// Effect on a sharding
//===----------------------------------------------------------------------===//

static AxisList flatten(ArrayRef<AxisList> dims) {
  AxisList axes;
  for (const AxisList &list : dims)
    axes.append(list.begin(), list.end());
  return axes;
}

using Error = std::optional<std::string>;

/// Removes the minor axes `axes` of dimension `dim`.
static Error remove(const Mesh &mesh, Sharding &sharding, unsigned dim,
                    ArrayRef<AxisRef> axes) {
  int64_t parts = mesh.size(axes), all = mesh.size(sharding.dims[dim]);
  if (parts == 1)
    return std::nullopt;
  if (all % parts == 0)
    if (auto cut = mesh.split(sharding.dims[dim], all / parts))
      if (mesh.significant(cut->second) == mesh.significant(axes)) {
        sharding.dims[dim] = cut->first;
        return std::nullopt;
      }
  return "takes " + setOfAxes(axes) + " from dimension " + std::to_string(dim) +
         " of a value of sharding " + sharding.str() +
         ", where they are not the minor axes";
}

/// Adds `axes` as the minor axes of dimension `dim`.
static Error add(const Mesh &mesh, Sharding &sharding, unsigned dim,
                 ArrayRef<AxisRef> axes) {
  for (const AxisRef &axis : axes)
    if (mesh.size(axis) > 1 &&
        (sharding.splits(mesh, axis) || sharding.partialOn(mesh, axis)))
      return "splits over " + axis.str() + " a value of sharding " +
             sharding.str();
  sharding.dims[dim].append(axes.begin(), axes.end());
  sharding.dims[dim] = mesh.normalize(sharding.dims[dim]);
  return std::nullopt;
}

static Error reduce(const Mesh &mesh, Sharding &sharding,
                    ArrayRef<AxisRef> axes, ReductionKind kind) {
  AxisList reduced = mesh.significant(axes);
  if (reduced.empty())
    return std::nullopt;
  auto refined = [&] {
    AxisList known;
    for (const PartialAxis &entry : sharding.partial)
      if (mesh.size(entry.axis) > 1)
        known.push_back(entry.axis);
    return mesh.refine(reduced, known);
  };
  auto digits = refined();
  if (!digits) {
    // Their digits must not cross.
    sharding.partial = joinPartial(mesh, sharding.partial);
    digits = refined();
  }
  auto rest = withoutPartial(mesh, sharding.partial, reduced);
  if (!digits || !rest)
    return "has digits of one axis that cross those of sharding " +
           sharding.str();
  for (const AxisRef &digit : *digits)
    if (sharding.partialOn(mesh, digit) != kind)
      return "reduces over " + digit.str() +
             " a value that is not partial on it in this way: sharding " +
             sharding.str();
  for (const PartialAxis &entry : *rest)
    if (entry.kind != kind && mesh.size(entry.axis) > 1)
      return "reduces a value that is partial in two ways: sharding " +
             sharding.str();
  sharding.partial = std::move(*rest);
  return std::nullopt;
}

/// Whether the collective communicates one part of a dimension.
static bool movesPart(const Collective &move) {
  return move.kind == CollectiveKind::Broadcast ||
         move.kind == CollectiveKind::Reduce;
}

RankedTensorType cleave::spmd::collectiveType(const Mesh &mesh,
                                              const Collective &move,
                                              RankedTensorType global) {
  if (!movesPart(move) || global.getRank() <= move.from)
    return global;
  SmallVector<int64_t> shape(global.getShape());
  int64_t parts = mesh.size(move.axes);
  if (move.kind == CollectiveKind::Reduce)
    shape[move.from] *= parts;
  else
    shape[move.from] /= parts;
  return global.clone(shape);
}

AxisList cleave::spmd::summedByItself(Operation *op) {
  std::optional<Collective> move = readCollective(op);
  return move && move->kind == CollectiveKind::Reduce ? move->axes : AxisList();
}

std::optional<std::string> cleave::spmd::applyCollective(const Mesh &mesh,
                                                         const Collective &move,
                                                         Sharding &sharding) {
  unsigned rank = sharding.dims.size();
  bool byDims = move.kind != CollectiveKind::AllReduce &&
                move.kind != CollectiveKind::AllToAll &&
                move.kind != CollectiveKind::Rotate && !movesPart(move);
  if ((byDims && move.dims.size() != rank) ||
      (move.kind == CollectiveKind::Permute && move.newDims.size() != rank) ||
      ((move.kind == CollectiveKind::Rotate || movesPart(move)) &&
       move.from >= rank) ||
      (move.kind == CollectiveKind::AllToAll &&
       std::max(move.from, move.to) >= rank))
    return "names dimensions that sharding " + sharding.str() +
           " does not have";
  switch (move.kind) {
  case CollectiveKind::Rotate: {
    // Minor axes would rotate the parts within each major one.
    auto cut = mesh.split(sharding.dims[move.from], mesh.size(move.axes));
    if (cut && mesh.significant(cut->first) == mesh.significant(move.axes))
      return std::nullopt;
    return "rotates over " + setOfAxes(move.axes) + " dimension " +
           std::to_string(move.from) + " of a value of sharding " +
           sharding.str() + ", where they are not the major axes";
  }
  case CollectiveKind::Broadcast: {
    AxisList &dim = sharding.dims[move.from];
    auto cut = mesh.split(dim, mesh.size(move.axes));
    if (!cut || mesh.significant(cut->first) != mesh.significant(move.axes))
      return "takes a part by " + setOfAxes(move.axes) + " of dimension " +
             std::to_string(move.from) + " of a value of sharding " +
             sharding.str() + ", where they are not the major axes";
    dim = cut->second;
    return std::nullopt;
  }
  case CollectiveKind::Reduce: {
    if (Error error = reduce(mesh, sharding, move.axes, move.reduction))
      return error;
    AxisList minor = std::move(sharding.dims[move.from]);
    sharding.dims[move.from].clear();
    if (Error error = add(mesh, sharding, move.from, move.axes))
      return error;
    return add(mesh, sharding, move.from, minor);
  }
  case CollectiveKind::AllReduce:
    return reduce(mesh, sharding, move.axes, move.reduction);
  case CollectiveKind::AllToAll:
    if (Error error = remove(mesh, sharding, move.from, move.axes))
      return error;
    return add(mesh, sharding, move.to, move.axes);
  case CollectiveKind::ReduceScatter:
    if (Error error =
            reduce(mesh, sharding, flatten(move.dims), move.reduction))
      return error;
    break;
  case CollectiveKind::AllGather:
  case CollectiveKind::Permute:
    for (unsigned dim = 0; dim < rank; ++dim)
      if (Error error = remove(mesh, sharding, dim, move.dims[dim]))
        return error;
    break;
  case CollectiveKind::Slice:
    break;
  case CollectiveKind::Send:
  case CollectiveKind::Receive:
  case CollectiveKind::AllToAllRows:
    return "is no collective of a reshard";
  }
  if (move.kind == CollectiveKind::AllGather)
    return std::nullopt;
  bool isPermute = move.kind == CollectiveKind::Permute;
  for (unsigned dim = 0; dim < rank; ++dim)
    if (Error error = add(mesh, sharding, dim,
                          isPermute ? move.newDims[dim] : move.dims[dim]))
      return error;
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

static SmallVector<AxisList, 4> dimsOf(ShardingAttr attribute) {
  return std::move(attribute.getSharding().dims);
}

std::optional<Collective> cleave::spmd::readCollective(Operation *op) {
  Collective move;
  bool known = llvm::TypeSwitch<Operation *, bool>(op)
                   .Case([&](SliceOp slice) {
                     move.kind = CollectiveKind::Slice;
                     move.dims = dimsOf(slice.getSharding());
                     return true;
                   })
                   .Case([&](AllReduceOp reduction) {
                     move.kind = CollectiveKind::AllReduce;
                     move.axes = AxisList(reduction.getAxes().getAxes());
                     move.reduction = reduction.getKind();
                     return true;
                   })
                   .Case([&](ReduceScatterOp reduction) {
                     move.kind = CollectiveKind::ReduceScatter;
                     move.dims = dimsOf(reduction.getSharding());
                     move.reduction = reduction.getKind();
                     return true;
                   })
                   .Case([&](AllGatherOp gather) {
                     move.kind = CollectiveKind::AllGather;
                     move.dims = dimsOf(gather.getSharding());
                     return true;
                   })
                   .Case([&](AllToAllOp exchange) {
                     move.kind = CollectiveKind::AllToAll;
                     move.axes = AxisList(exchange.getAxes().getAxes());
                     move.from = exchange.getFrom();
                     move.to = exchange.getTo();
                     return true;
                   })
                   .Case([&](PermuteOp permute) {
                     move.kind = CollectiveKind::Permute;
                     move.dims = dimsOf(permute.getFrom());
                     move.newDims = dimsOf(permute.getTo());
                     return true;
                   })
                   .Case([&](RotateOp rotate) {
                     move.kind = CollectiveKind::Rotate;
                     move.axes = AxisList(rotate.getAxes().getAxes());
                     move.from = rotate.getDim();
                     return true;
                   })
                   .Case([&](BroadcastOp broadcast) {
                     move.kind = CollectiveKind::Broadcast;
                     move.axes = AxisList(broadcast.getAxes().getAxes());
                     move.from = broadcast.getDim();
                     move.part = broadcast.getPart();
                     return true;
                   })
                   .Case([&](ReduceOp reduction) {
                     move.kind = CollectiveKind::Reduce;
                     move.axes = AxisList(reduction.getAxes().getAxes());
                     move.from = reduction.getDim();
                     move.part = reduction.getPart();
                     move.into = reduction.getInto();
                     return true;
                   })
                   .Default([](Operation *) { return false; });
  return known ? std::optional(move) : std::nullopt;
}

Value cleave::spmd::buildCollective(OpBuilder &builder, Location loc,
                                    Value value, const Collective &move,
                                    FlatSymbolRefAttr meshName,
                                    const Mesh &mesh, RankedTensorType global) {
  global = collectiveType(mesh, move, global);
  unsigned dim;
  auto shape = localShape(mesh, move.sharding, global.getShape(), dim);
  auto type = RankedTensorType::get(*shape, global.getElementType());
  auto by = [&](ArrayRef<AxisList> dims) {
    Sharding sharding = Sharding::replicated(dims.size());
    sharding.dims.assign(dims.begin(), dims.end());
    return ShardingAttr::get(meshName, sharding);
  };
  auto axes = AxesAttr::get(builder.getContext(), move.axes);
  Operation *op = nullptr;
  switch (move.kind) {
  case CollectiveKind::Slice:
    op = SliceOp::create(builder, loc, type, value, by(move.dims));
    break;
  case CollectiveKind::AllReduce:
    op = AllReduceOp::create(builder, loc, type, move.reduction, value,
                             meshName.getValue(), axes);
    break;
  case CollectiveKind::ReduceScatter:
    op = ReduceScatterOp::create(builder, loc, type, move.reduction, value,
                                 by(move.dims));
    break;
  case CollectiveKind::AllGather:
    op = AllGatherOp::create(builder, loc, type, value, by(move.dims));
    break;
  case CollectiveKind::AllToAll:
    op = AllToAllOp::create(builder, loc, type, value, meshName.getValue(),
                            axes, move.from, move.to);
    break;
  case CollectiveKind::Permute:
    op = PermuteOp::create(builder, loc, type, value, by(move.dims),
                           by(move.newDims));
    break;
  case CollectiveKind::Rotate:
    op = RotateOp::create(builder, loc, type, value, meshName.getValue(), axes,
                          move.from);
    break;
  case CollectiveKind::Broadcast:
    op = BroadcastOp::create(builder, loc, type, value, meshName.getValue(),
                             axes, move.from, move.part, /*apart=*/nullptr);
    break;
  case CollectiveKind::Reduce:
    op = ReduceOp::create(builder, loc, type, value, move.into,
                          meshName.getValue(), axes, move.from, move.part);
    break;
  case CollectiveKind::Send:
  case CollectiveKind::Receive:
  case CollectiveKind::AllToAllRows:
    llvm_unreachable("no collective of a reshard");
  }
  annotate(op, ShardingAttr::get(meshName, move.sharding), global);
  return op->getResult(0);
}
