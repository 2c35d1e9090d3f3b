//===- ViewLayouts.cpp - Graph ops that only move data --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Conversion/Passes.h"
#include "cleave/Dialect/Exec/IR/ExecInterfaces.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// The layout of a dense tensor of the type of `value`.
static Strided denseLayout(Value value) {
  return getLayout(denseType(cast<RankedTensorType>(value.getType())));
}

static std::optional<Strided> viewLayout(graph::ReshapeOp op) {
  return denseLayout(op.getOutput());
}

static std::optional<Strided> viewLayout(graph::GradientOp op) {
  return denseLayout(op.getOutput());
}

static std::optional<Strided> viewLayout(graph::WrittenOp op) {
  return denseLayout(op.getOutput());
}

static std::optional<Strided> viewLayout(graph::TransposeOp op) {
  Strided input = denseLayout(op.getInput()), result;
  for (int64_t dim : op.getPermutation())
    result.strides.push_back(input.strides[dim]);
  return result;
}

static std::optional<Strided> viewLayout(graph::BroadcastOp op) {
  Strided input = denseLayout(op.getInput()), result;
  auto from = cast<RankedTensorType>(op.getInput().getType());
  auto to = cast<RankedTensorType>(op.getOutput().getType());
  int64_t added = to.getRank() - from.getRank();
  for (int64_t i = 0; i < to.getRank(); ++i)
    result.strides.push_back(i < added || from.getDimSize(i - added) == 1
                                 ? 0
                                 : input.strides[i - added]);
  return result;
}

static std::optional<Strided> viewLayout(graph::SliceOp op) {
  Strided input = denseLayout(op.getInput()), result;
  for (auto [i, stride] : llvm::enumerate(input.strides)) {
    result.strides.push_back(stride * op.getStrides()[i]);
    result.offset += stride * op.getOffsets()[i];
  }
  return result;
}

/// Overlapping windows can be read; padding is not in memory.
static std::optional<Strided> viewLayout(graph::PatchesOp op) {
  if (llvm::any_of(op.getPadding(), [](int64_t p) { return p != 0; }))
    return std::nullopt;
  Strided in = denseLayout(op.getInput());
  int64_t row = in.strides[2], column = in.strides[3];
  return Strided{{in.strides[0], op.getStride()[0] * row,
                  op.getStride()[1] * column, in.strides[1],
                  op.getDilation()[0] * row, op.getDilation()[1] * column},
                 0};
}

namespace {

template <typename OpTy>
struct ViewModel : ViewLikeOpInterface::ExternalModel<ViewModel<OpTy>, OpTy> {
  std::optional<Strided> getViewLayout(Operation *op) const {
    return viewLayout(cast<OpTy>(op));
  }
};

struct ConcatModel
    : JoinLikeOpInterface::ExternalModel<ConcatModel, graph::ConcatOp> {
  SmallVector<Strided> getOperandLayouts(Operation *op) const {
    auto concat = cast<graph::ConcatOp>(op);
    Strided whole = denseLayout(concat.getOutput());
    SmallVector<Strided> layouts;
    for (Value input : concat.getInputs()) {
      layouts.push_back(whole);
      whole.offset +=
          whole.strides[concat.getDim()] *
          cast<RankedTensorType>(input.getType()).getDimSize(concat.getDim());
    }
    return layouts;
  }
};

} // namespace

void cleave::exec::registerViewLayoutModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, graph::GraphDialect *) {
    graph::ReshapeOp::attachInterface<ViewModel<graph::ReshapeOp>>(*context);
    graph::GradientOp::attachInterface<ViewModel<graph::GradientOp>>(*context);
    graph::WrittenOp::attachInterface<ViewModel<graph::WrittenOp>>(*context);
    graph::TransposeOp::attachInterface<ViewModel<graph::TransposeOp>>(
        *context);
    graph::BroadcastOp::attachInterface<ViewModel<graph::BroadcastOp>>(
        *context);
    graph::SliceOp::attachInterface<ViewModel<graph::SliceOp>>(*context);
    graph::PatchesOp::attachInterface<ViewModel<graph::PatchesOp>>(*context);
    graph::ConcatOp::attachInterface<ConcatModel>(*context);
  });
}
