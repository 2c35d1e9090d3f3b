//===- Spmd.cpp - Collectives ---------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "../Shards.h"
#include "Models.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "cleave/Support/RowOffsets.h"
#include <map>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

static LogicalResult evaluateShardOffset(ShardOffsetOp op, const RefArgs &,
                                         Results results,
                                         ReferenceContext &context) {
  MeshOp mesh = lookupMesh(op, op.getSharding().getMesh());
  if (!mesh)
    return op.emitOpError("has no mesh");
  auto global = cast<RankedTensorType>(op.getGlobal());
  llvm::copy(shardOffsets(mesh.getMesh(), op.getSharding().getSharding(),
                          global.getShape(), context.rank),
             results[0].ints.begin());
  return success();
}

static LogicalResult evaluateSlice(SliceOp op, const RefArgs &args,
                                   Results results, ReferenceContext &context) {
  MeshOp mesh = lookupMesh(op, op.getSharding().getMesh());
  if (!mesh)
    return op.emitOpError("has no mesh");
  results[0] = cutShard(mesh.getMesh(), op.getSharding().getSharding(),
                        args[0u], context.rank);
  return success();
}

static LogicalResult evaluateConstrain(ConstrainOp, const RefArgs &args,
                                       Results results, ReferenceContext &) {
  results[0] = args[0];
  return success();
}

static LogicalResult evaluateBarrier(BarrierOp, const RefArgs &args,
                                     Results results, ReferenceContext &) {
  results[0] = args[0];
  return success();
}

namespace {

/// The values of all ranks before and after a collective.
class Exchange {
public:
  Exchange(Operation *op, ArrayRef<RefArgs> args, ArrayRef<Results> results,
           Precision precision)
      : op(op), args(args), results(results), precision(precision) {}

  LogicalResult run() {
    std::optional<Collective> move = readCollective(op);
    MeshOp meshOp = lookupMesh(
        op, cast<CommunicationOpInterface>(op).getCommunicationMesh());
    auto rows = dyn_cast<AllToAllRowsOp>(op);
    if (!(move || rows) || !meshOp)
      return op->emitOpError("has no mesh");
    mesh = meshOp.getMesh();
    // The same op on global tensors.
    if (move && args.size() == 1 && runsOnWhole(*move))
      return success();
    if (rows && args.size() == 1 && mesh.size() > 1)
      return sendWholeRows(rows);
    // Executes one stage and micro-batch of a program.
    if (Mesh fewer = mesh.together();
        fewer.size() == static_cast<int64_t>(args.size()))
      mesh = std::move(fewer);
    if (mesh.size() != static_cast<int64_t>(args.size()))
      return op->emitOpError("runs on ")
             << args.size() << " ranks, but its mesh has " << mesh.size()
             << " positions";
    if (rows)
      return sendRows(rows);
    Sharding dims = Sharding::replicated(move->dims.size());
    dims.dims = move->dims;
    switch (move->kind) {
    case CollectiveKind::AllReduce:
      reduce(move->axes, move->reduction,
             [](const RefTensor &sum, int64_t) { return sum; });
      break;
    case CollectiveKind::ReduceScatter:
      reduce(cast<CommunicationOpInterface>(op).getCommunicationAxes(),
             move->reduction, [&](const RefTensor &sum, int64_t rank) {
               return cutShard(mesh, dims, sum, rank);
             });
      break;
    case CollectiveKind::AllGather:
      gather(dims);
      break;
    case CollectiveKind::AllToAll:
      exchange(*move);
      break;
    case CollectiveKind::Permute:
      permute({move->dims, move->newDims});
      break;
    case CollectiveKind::Rotate:
      forEachGroup(move->axes, [&](ArrayRef<int64_t> members) {
        for (size_t i = 0, n = members.size(); i < n; ++i)
          results[members[i]][0] = args[members[(i + n - 1) % n]][0u];
      });
      break;
    case CollectiveKind::Broadcast:
      forEachGroup(move->axes, [&](ArrayRef<int64_t> members) {
        for (int64_t rank : members)
          results[rank][0] = args[members[move->part]][0u];
      });
      break;
    case CollectiveKind::Reduce:
      reducePart(*move);
      break;
    case CollectiveKind::Slice:
    case CollectiveKind::Send:
    case CollectiveKind::Receive:
    case CollectiveKind::AllToAllRows:
      break;
    }
    return success();
  }

private:
  /// Ops that are also defined on one device.
  bool runsOnWhole(const Collective &move) {
    int64_t parts = mesh.size(move.axes);
    if (move.kind == CollectiveKind::Rotate) {
      rotateWhole(move.from, parts);
      return true;
    }
    if (move.kind != CollectiveKind::Broadcast &&
        move.kind != CollectiveKind::Reduce)
      return false;
    const RefTensor &tensor = args[0][0u];
    RefTensor &result = results[0][0];
    SmallVector<int64_t, 4> shape(tensor.shape), at(shape.size(), 0);
    if (move.kind == CollectiveKind::Broadcast) {
      shape[move.from] /= parts;
      at[move.from] = move.part * shape[move.from];
      result = cutSlice(tensor, at, shape);
      return true;
    }
    if (move.into)
      result = args[0][1u];
    at[move.from] = move.part * shape[move.from];
    pasteSlice(result, at, tensor);
    return true;
  }

  /// The position of the part gets the sum, the others keep their values.
  void reducePart(const Collective &move) {
    SmallVector<RefTensor> before;
    for (auto [rank, own] : llvm::enumerate(args))
      before.push_back(move.into ? own[1u] : results[rank][0]);
    reduce(move.axes, move.reduction,
           [&](const RefTensor &sum, int64_t rank) -> RefTensor {
             SmallVector<int64_t, 4> coordinates = mesh.coordinates(rank);
             return mesh.partIndex(move.axes, coordinates) == move.part
                        ? sum
                        : before[rank];
           });
  }

  void rotateWhole(unsigned dim, int64_t parts) {
    const RefTensor &tensor = args[0][0u];
    SmallVector<int64_t, 4> shape(tensor.shape), from(shape.size(), 0), to;
    shape[dim] /= parts;
    to = from;
    for (int64_t i = 0; i < parts; ++i) {
      from[dim] = i * shape[dim];
      to[dim] = (i + 1) % parts * shape[dim];
      pasteSlice(results[0][0], to, cutSlice(tensor, from, shape));
    }
  }

  /// Calls `fn` with the ranks of each group, in the order of their coordinates
  /// on `axes`.
  void forEachGroup(ArrayRef<AxisRef> axes,
                    llvm::function_ref<void(ArrayRef<int64_t>)> fn) {
    std::map<int64_t, SmallVector<int64_t>> groups;
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      SmallVector<int64_t, 4> coordinates = mesh.coordinates(rank);
      int64_t part = mesh.partIndex(axes, coordinates);
      mesh.setPart(axes, 0, coordinates);
      SmallVector<int64_t> &members = groups[mesh.position(coordinates)];
      members.resize(mesh.size(axes));
      members[part] = rank;
    }
    for (auto &[first, members] : groups)
      fn(members);
  }

  /// `take` returns the slice of its group's sum that a rank keeps.
  void reduce(ArrayRef<AxisRef> axes, ReductionKind kind,
              llvm::function_ref<RefTensor(const RefTensor &, int64_t)> take) {
    forEachGroup(axes, [&](ArrayRef<int64_t> members) {
      SmallVector<const RefTensor *> parts;
      for (int64_t rank : members)
        parts.push_back(&args[rank][0u]);
      RefTensor sum = combineParts(parts, kind, precision);
      settle(sum, precision);
      for (int64_t rank : members)
        results[rank][0] = take(sum, rank);
    });
  }

  void gather(const Sharding &by) {
    AxisList axes = cast<CommunicationOpInterface>(op).getCommunicationAxes();
    forEachGroup(axes, [&](ArrayRef<int64_t> members) {
      RefTensor whole = results[members.front()][0];
      for (int64_t rank : members)
        pasteSlice(whole, shardOffsets(mesh, by, whole.shape, rank),
                   args[rank][0u]);
      for (int64_t rank : members)
        results[rank][0] = whole;
    });
  }

  /// Each rank's result consists of the slices along `to` that the other ranks
  /// have for it; the slice of coordinate p is at p along `from`.
  void exchange(const Collective &move) {
    forEachGroup(move.axes, [&](ArrayRef<int64_t> members) {
      for (auto [own, rank] : llvm::enumerate(members))
        for (auto [part, source] : llvm::enumerate(members)) {
          const RefTensor &tensor = args[source][0u];
          SmallVector<int64_t, 4> shape(tensor.shape);
          shape[move.to] /= static_cast<int64_t>(members.size());
          SmallVector<int64_t, 4> from(shape.size(), 0), to(shape.size(), 0);
          from[move.to] = own * shape[move.to];
          to[move.from] = part * shape[move.from];
          pasteSlice(results[rank][0], to, cutSlice(tensor, from, shape));
        }
    });
  }

  /// Sends rows between parts of `givenRows` and of `room` rows.
  LogicalResult
  sendRows(const RowOffsets &rows, int64_t givenRows, int64_t room,
           function_ref<RefTensor(int)> part,
           function_ref<void(int, int64_t, const RefTensor &)> put) {
    if (std::string why = rows.problem(givenRows, room); !why.empty())
      return op->emitOpError() << why;
    for (int from = 0; from < rows.members(); ++from) {
      RefTensor tensor = part(from);
      for (int to = 0; to < rows.members(); ++to) {
        SmallVector<int64_t, 4> shape(tensor.shape), at(shape.size(), 0);
        shape[0] = rows.rows(from, to);
        at[0] = rows.sendBegin(from, to);
        if (shape[0] > 0)
          put(to, rows.receiveBegin(to, from), cutSlice(tensor, at, shape));
      }
    }
    return success();
  }

  LogicalResult sendRows(AllToAllRowsOp rowsOp) {
    LogicalResult done = success();
    forEachGroup(rowsOp.getAxes().getAxes(), [&](ArrayRef<int64_t> members) {
      RowOffsets rows(static_cast<int>(members.size()));
      for (auto [own, rank] : llvm::enumerate(members))
        rows.set(static_cast<int>(own), args[rank][1u].ints.data(),
                 args[rank][2u].ints.data());
      LogicalResult sent = sendRows(
          rows, args[members[0]][0u].shape[0], results[members[0]][0].shape[0],
          [&](int own) { return args[members[own]][0u]; },
          [&](int own, int64_t row, const RefTensor &values) {
            SmallVector<int64_t, 4> at(values.shape.size(), 0);
            at[0] = row;
            pasteSlice(results[members[own]][0], at, values);
          });
      if (failed(sent))
        done = failure();
    });
    return done;
  }

  /// The parts of global tensors.
  LogicalResult sendWholeRows(AllToAllRowsOp rowsOp) {
    int64_t parts = mesh.size(rowsOp.getAxes().getAxes());
    const RefTensor &tensor = args[0][0u];
    RowOffsets rows(static_cast<int>(parts));
    for (int i = 0; i < parts; ++i)
      rows.set(i, args[0][1u].ints.data() + i * (parts + 1),
               args[0][2u].ints.data() + i * (parts + 1));
    SmallVector<int64_t, 4> shape(tensor.shape), at(shape.size(), 0);
    shape[0] /= parts;
    int64_t room = results[0][0].shape[0] / parts;
    return sendRows(
        rows, shape[0], room,
        [&](int own) {
          at[0] = own * shape[0];
          return cutSlice(tensor, at, shape);
        },
        [&](int own, int64_t row, const RefTensor &values) {
          SmallVector<int64_t, 4> to(values.shape.size(), 0);
          to[0] = own * room + row;
          pasteSlice(results[0][0], to, values);
        });
  }

  void permute(const Permutation &permutation) {
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      auto source = permutation.source(mesh, mesh.coordinates(rank));
      results[rank][0] = args[mesh.position(source)][0u];
    }
  }

  Operation *op;
  ArrayRef<RefArgs> args;
  ArrayRef<Results> results;
  Precision precision;
  Mesh mesh;
};

template <typename Op>
struct MovementModel
    : ReferenceCollectiveOpInterface::ExternalModel<MovementModel<Op>, Op> {
  LogicalResult evaluateTogether(Operation *op, ArrayRef<RefArgs> args,
                                 ArrayRef<Results> results,
                                 ReferenceContext &context) const {
    return Exchange(op, args, results, context.precision).run();
  }
};
} // namespace

template <typename... Ops> static void attachMovements(MLIRContext *context) {
  (Ops::template attachInterface<MovementModel<Ops>>(*context), ...);
}

void cleave::attachSpmdModels(MLIRContext *c) {
  ReferenceModel<ShardOffsetOp, evaluateShardOffset>::attach(c);
  ReferenceModel<SliceOp, evaluateSlice>::attach(c);
  ReferenceModel<BarrierOp, evaluateBarrier>::attach(c);
  ReferenceModel<ConstrainOp, evaluateConstrain>::attach(c);
  attachMovements<AllReduceOp, ReduceScatterOp, AllGatherOp, AllToAllOp,
                  AllToAllRowsOp, PermuteOp, RotateOp, BroadcastOp, ReduceOp>(
      c);
}
