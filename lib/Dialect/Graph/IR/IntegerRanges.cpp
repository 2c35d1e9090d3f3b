//===- IntegerRanges.cpp - Value ranges of integer results ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A range covers all elements of a tensor. An operand without a range, such as
/// a float, gives no information about the result.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/IntegerRanges.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/Interfaces/InferIntRangeInterface.h"
#include "mlir/Interfaces/Utils/InferIntRangeCommon.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

using Range = std::optional<ConstantIntRanges>;
using Ranges = ArrayRef<IntegerValueRange>;

static unsigned widthOf(Value value) {
  return ConstantIntRanges::getStorageBitwidth(value.getType());
}

static ConstantIntRanges between(Value result, int64_t low, int64_t high) {
  unsigned width = widthOf(result);
  return ConstantIntRanges::fromSigned(APInt(width, low, /*isSigned=*/true),
                                       APInt(width, high, /*isSigned=*/true));
}

/// The values of the operands `from` only.
static Range joined(Ranges operands, unsigned from = 0) {
  Range all;
  for (const IntegerValueRange &own : operands.drop_front(from)) {
    if (own.isUninitialized())
      return std::nullopt;
    all = all ? all->rangeUnion(own.getValue()) : own.getValue();
  }
  return all;
}

/// The sum of 1 to `count` elements of one operand.
static Range summed(Value result, const IntegerValueRange &operand,
                    int64_t count) {
  if (operand.isUninitialized())
    return std::nullopt;
  // Computed with enough bits for the sum.
  unsigned width = widthOf(result);
  APInt low = operand.getValue().smin().sext(width + 64);
  APInt high = operand.getValue().smax().sext(width + 64);
  APInt number(width + 64, count);
  low = llvm::APIntOps::smin(low, low * number);
  high = llvm::APIntOps::smax(high, high * number);
  if (!low.isSignedIntN(width) || !high.isSignedIntN(width))
    return std::nullopt;
  return ConstantIntRanges::fromSigned(low.trunc(width), high.trunc(width));
}

//===----------------------------------------------------------------------===//
// By op
//===----------------------------------------------------------------------===//

template <typename OpTy>
using IsMovement = llvm::is_one_of<OpTy, ReshapeOp, TransposeOp, BroadcastOp,
                                   SliceOp, ConcatOp, StopGradientOp>;

template <typename OpTy>
static std::enable_if_t<IsMovement<OpTy>::value, Range> rangeOf(OpTy,
                                                                Ranges in) {
  return joined(in);
}

static Range rangeOf(SelectOp, Ranges in) { return joined(in, 1); }

static Range rangeOf(ConstantOp op, Ranges) {
  auto values = dyn_cast<DenseIntElementsAttr>(op.getValue());
  if (!values || values.empty())
    return std::nullopt;
  APInt low = *values.begin(), high = low;
  for (const APInt &value : values) {
    low = llvm::APIntOps::smin(low, value);
    high = llvm::APIntOps::smax(high, value);
    if (values.isSplat())
      break;
  }
  return ConstantIntRanges::fromSigned(low, high);
}

static Range rangeOf(IotaOp op, Ranges) {
  int64_t start = op.getStart();
  int64_t size = tensorTypeOf(op.getOutput()).getDimSize(op.getDim());
  return between(op.getOutput(), start, start + std::max<int64_t>(size, 1) - 1);
}

/// Flags become 0 or 1.
static Range rangeOf(CastOp op, Ranges in) {
  if (in[0].isUninitialized())
    return std::nullopt;
  unsigned from = widthOf(op.getInput()), to = widthOf(op.getOutput());
  if (from == 1)
    return between(op.getOutput(), 0, 1);
  const ConstantIntRanges &range = in[0].getValue();
  if (!range.smin().isSignedIntN(to) || !range.smax().isSignedIntN(to))
    return std::nullopt;
  return ConstantIntRanges::fromSigned(range.smin().sextOrTrunc(to),
                                       range.smax().sextOrTrunc(to));
}

static Range rangeOf(PadOp op, Ranges in) {
  if (in[0].isUninitialized())
    return std::nullopt;
  auto value = static_cast<int64_t>(op.getValue().convertToDouble());
  return in[0].getValue().rangeUnion(between(op.getOutput(), value, value));
}

/// Elements outside of the slice at `origin` are 0.
static Range rangeOf(GatherOp op, Ranges in) {
  if (in[0].isUninitialized())
    return std::nullopt;
  return in[0].getValue().rangeUnion(between(op.getOutput(), 0, 0));
}

static Range rangeOf(ReduceOp op, Ranges in) {
  if (op.getKind() != ReductionKind::Sum)
    return joined(in);
  int64_t count = 1;
  for (int64_t dim : op.getDims())
    count *= tensorTypeOf(op.getInput()).getDimSize(dim);
  return summed(op.getOutput(), in[0], count);
}

static Range rangeOf(CumulativeSumOp op, Ranges in) {
  return summed(op.getOutput(), in[0],
                tensorTypeOf(op.getInput()).getDimSize(op.getDim()));
}

/// Two operands: MLIR's rules.
static Range
combined(Ranges in,
         function_ref<ConstantIntRanges(ArrayRef<ConstantIntRanges>)> combine) {
  if (in[0].isUninitialized() || in[1].isUninitialized())
    return std::nullopt;
  return combine({in[0].getValue(), in[1].getValue()});
}

static Range rangeOf(AddOp, Ranges in) {
  return combined(in, [](auto range) { return intrange::inferAdd(range); });
}
static Range rangeOf(SubOp, Ranges in) {
  return combined(in, [](auto range) { return intrange::inferSub(range); });
}
static Range rangeOf(MulOp, Ranges in) {
  return combined(in, [](auto range) { return intrange::inferMul(range); });
}
static Range rangeOf(MaximumOp, Ranges in) {
  return combined(in, intrange::inferMaxS);
}
static Range rangeOf(MinimumOp, Ranges in) {
  return combined(in, intrange::inferMinS);
}

//===----------------------------------------------------------------------===//
// External models
//===----------------------------------------------------------------------===//

namespace {
template <typename OpTy>
struct RangeModel
    : InferIntRangeInterface::ExternalModel<RangeModel<OpTy>, OpTy> {
  void inferResultRanges(Operation *op, ArrayRef<ConstantIntRanges> operands,
                         SetIntRangeFn set) const {
    SmallVector<IntegerValueRange> ranges(operands.begin(), operands.end());
    inferResultRangesFromOptional(
        op, ranges, [&](Value result, const IntegerValueRange &range) {
          if (!range.isUninitialized())
            set(result, range.getValue());
        });
  }

  void inferResultRangesFromOptional(Operation *op, Ranges operands,
                                     SetIntLatticeFn set) const {
    Value result = op->getResult(0);
    // Ranges of floats have no bits or do not exist.
    SmallVector<IntegerValueRange> integers(operands);
    for (auto [operand, range] : llvm::zip_equal(op->getOperands(), integers))
      if (widthOf(operand) == 0)
        range = IntegerValueRange();
    Range range;
    if (widthOf(result) != 0)
      range = rangeOf(cast<OpTy>(op), integers);
    set(result, range ? IntegerValueRange(*range)
                      : IntegerValueRange::getMaxRange(result));
  }
};

/// The second result holds the integers.
struct TopKModel : InferIntRangeInterface::ExternalModel<TopKModel, TopKOp> {
  void inferResultRanges(Operation *op, ArrayRef<ConstantIntRanges>,
                         SetIntRangeFn set) const {
    Value indices = cast<TopKOp>(op).getIndices();
    int64_t size = tensorTypeOf(cast<TopKOp>(op).getInput()).getShape().back();
    set(indices, between(indices, 0, std::max<int64_t>(size, 1) - 1));
  }
  void inferResultRangesFromOptional(Operation *op, Ranges,
                                     SetIntLatticeFn set) const {
    inferResultRanges(op, {}, [&](Value value, const ConstantIntRanges &range) {
      set(value, IntegerValueRange(range));
    });
  }
};

/// Rows, places and bounds of both.
struct SortRowsModel
    : InferIntRangeInterface::ExternalModel<SortRowsModel, SortRowsOp> {
  void inferResultRanges(Operation *operation, ArrayRef<ConstantIntRanges>,
                         SetIntRangeFn set) const {
    auto op = cast<SortRowsOp>(operation);
    int64_t rows = tensorTypeOf(op.getGroups()).getDimSize(0);
    for (Value value : {op.getOrder(), op.getInverse()})
      set(value, between(value, 0, std::max<int64_t>(rows, 1) - 1));
    set(op.getOffsets(), between(op.getOffsets(), 0, rows));
  }
  void inferResultRangesFromOptional(Operation *op, Ranges,
                                     SetIntLatticeFn set) const {
    inferResultRanges(op, {}, [&](Value value, const ConstantIntRanges &range) {
      set(value, IntegerValueRange(range));
    });
  }
};

template <typename... OpTys> void attach(MLIRContext *context) {
  (OpTys::template attachInterface<RangeModel<OpTys>>(*context), ...);
}
} // namespace

void cleave::graph::registerIntegerRangeModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, GraphDialect *) {
    attach<ReshapeOp, TransposeOp, BroadcastOp, SliceOp, ConcatOp,
           StopGradientOp, SelectOp, ConstantOp, IotaOp, CastOp, PadOp,
           GatherOp, ReduceOp, CumulativeSumOp, AddOp, SubOp, MulOp, MaximumOp,
           MinimumOp>(context);
    TopKOp::attachInterface<TopKModel>(*context);
    SortRowsOp::attachInterface<SortRowsModel>(*context);
  });
}
