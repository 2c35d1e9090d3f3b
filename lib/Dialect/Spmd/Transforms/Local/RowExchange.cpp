//===- RowExchange.cpp - Rows to the positions of their groups ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/Transforms/RowExchange.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Dialect/Spmd/IR/OfDevice.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// Builds the offsets of one collective.
class ExchangeBuilder {
public:
  ExchangeBuilder(OpBuilder &builder, Location loc, int64_t positions,
                  int64_t groups)
      : builder(builder), f{builder, loc}, positions(positions),
        groups(groups) {}

  RowExchange build(Value offsets, ShardingAttr by, ShardingAttr own,
                    const std::optional<RowBound> &bound) {
    int64_t all = positions * groups;
    Value list = f.reshape(offsets, {all + 1});
    // 1. How many rows each position has of each group.
    Value counts =
        f.sub(slice(list, {1}, {all}, {1}), slice(list, {0}, {all}, {1}));
    counts = AllGatherOp::create(builder, f.loc, typeOf({positions, all}),
                                 f.reshape(counts, {1, all}), by);
    // 2. The rows for this position, from each position and of each group, and
    // how many come before each.
    Value mine = SliceOp::create(builder, f.loc, typeOf({positions, groups}),
                                 counts, own);
    if (bound) {
      Value fits = check(counts, mine, *bound);
      mine = f.select(fits, mine, f.scalar(mine, 0));
      list = f.select(fits, list, f.scalar(list, 0));
    }
    Value sums = graph::CumulativeSumOp::create(
        builder, f.loc, f.reshape(mine, {all}), /*dim=*/0, /*reverse=*/false);
    Value before = graph::PadOp::create(
        builder, f.loc, sums, builder.getF64FloatAttr(0),
        builder.getDenseI64ArrayAttr({1}), builder.getDenseI64ArrayAttr({0}),
        builder.getDenseI64ArrayAttr({0}));
    // 3. Each range begins where the one before it ends.
    Value begins =
        f.reshape(slice(before, {0}, {all}, {1}), {positions, groups});
    Value ends = f.reshape(slice(before, {groups}, {positions}, {groups}),
                           {positions, 1});
    RowExchange result;
    result.sendOffsets = slice(list, {0}, {positions + 1}, {groups});
    result.receiveOffsets = slice(before, {0}, {positions + 1}, {groups});
    result.ranges =
        graph::ConcatOp::create(builder, f.loc, ValueRange{begins, ends}, 1);
    return result;
  }

private:
  RankedTensorType typeOf(ArrayRef<int64_t> shape) {
    return RankedTensorType::get(shape, builder.getI64Type());
  }

  Value slice(Value value, ArrayRef<int64_t> offsets, ArrayRef<int64_t> sizes,
              ArrayRef<int64_t> strides) {
    return graph::SliceOp::create(builder, f.loc, value,
                                  builder.getDenseI64ArrayAttr(offsets),
                                  builder.getDenseI64ArrayAttr(sizes),
                                  builder.getDenseI64ArrayAttr(strides));
  }

  /// Ends the step where this position has no room for its rows. Whether all
  /// positions have it: the step goes on until ranks agree on checks.
  Value check(Value counts, Value mine, const RowBound &bound) {
    Value received =
        f.sum(f.reshape(counts, {positions, positions, groups}), {0, 2});
    Value most =
        graph::ReduceOp::create(builder, f.loc, ReductionKind::Max, received,
                                builder.getDenseI64ArrayAttr({0}));
    Value own = f.sum(mine, {0, 1});
    auto fits = [&](Value rows) {
      return f.compare(graph::Predicate::le, rows,
                       f.scalar(rows, static_cast<double>(bound.rows)));
    };
    std::string text = sourceLine(f.loc);
    text += (text.empty() ? "" : ": ") + bound.name +
            ": rank {rank} receives {0} rows, and has room for " +
            std::to_string(bound.rows) + " (" + bound.option + "=" +
            bound.shares + "); " + bound.option + "={1/" +
            std::to_string(bound.even) +
            "} has room for the most that a rank receives";
    Value values = graph::ConcatOp::create(
        builder, f.loc, ValueRange{f.reshape(own, {1}), f.reshape(most, {1})},
        0);
    auto check = graph::CheckOp::create(builder, f.loc, fits(own), text,
                                        /*skips=*/false, /*room=*/true, values);
    check->setAttr(kOfDeviceAttr, builder.getUnitAttr());
    return fits(most);
  }

  OpBuilder &builder;
  graph::Formula f;
  int64_t positions, groups;
};
} // namespace

RowExchange
cleave::spmd::buildRowExchange(OpBuilder &builder, Location loc, Value offsets,
                               FlatSymbolRefAttr meshName, const Mesh &mesh,
                               ArrayRef<AxisRef> axes,
                               const std::optional<RowBound> &bound) {
  int64_t positions = mesh.size(axes);
  int64_t all = cast<RankedTensorType>(offsets.getType()).getShape().back() - 1;
  auto sharding = [&](unsigned dim) {
    Sharding result = Sharding::replicated(2);
    result.dims[dim] = AxisList(axes);
    return ShardingAttr::get(meshName, result);
  };
  return ExchangeBuilder(builder, loc, positions, all / positions)
      .build(offsets, sharding(0), sharding(1), bound);
}
