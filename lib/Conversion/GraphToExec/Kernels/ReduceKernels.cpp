//===- ReduceKernels.cpp - Scalar code of reductions ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelModels.h"
#include "cleave/Dialect/Graph/IR/Attributes/OrderedSum.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

struct ReduceModel
    : KernelLoweringInterface::ExternalModel<ReduceModel, ReduceOp> {
  enum class Form { None, All, Rows, Columns, FewRows };

  /// Dimensions of size 1 do not matter: which of the others are reduced?
  static Form formOf(ReduceOp op) {
    auto type = tensorTypeOf(op.getInput());
    SmallVector<bool> reduced;
    for (int64_t d = 0; d < type.getRank(); ++d)
      if (type.getDimSize(d) != 1)
        reduced.push_back(llvm::is_contained(op.getDims(), d));
    if (!llvm::is_contained(reduced, true))
      return Form::None;
    if (op->hasAttr(graph::kOrderedAttr))
      return Form::Rows;
    if (!llvm::is_contained(reduced, false))
      return Form::All;
    // A reduction to few long rows adds element by element, in one stage.
    int64_t m = numElements(op.getOutput()), rows = type.getNumElements() / m;
    if (llvm::is_sorted(reduced, std::greater<>()))
      return rows <= 8 && m >= 65536 ? Form::FewRows : Form::Columns;
    return Form::Rows;
  }

  KernelSpace getKernelSpace(Operation *operation) const {
    auto op = cast<ReduceOp>(operation);
    int64_t n = numElements(op.getInput()), m = numElements(op.getOutput());
    switch (formOf(op)) {
    case Form::None:
    case Form::All:
      return KernelSpace::flat(n);
    case Form::Rows:
      return KernelSpace::fixed(m, n / m);
    case Form::Columns:
      return KernelSpace::fixed(n / m, m);
    case Form::FewRows:
      return KernelSpace::flat(m);
    }
    llvm_unreachable("covered switch");
  }

  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<ReduceOp>(operation);
    auto type = tensorTypeOf(op.getInput());
    ReductionKind kind = op.getKind();
    switch (formOf(op)) {
    case Form::None:
      k.define(op.getOutput(), k.readInOrder(op.getInput()));
      break;
    case Form::All:
      k.accumulateAll(kind, k.readInOrder(op.getInput()), op.getOutput());
      break;
    case Form::FewRows: {
      // One element of each row; dimensions of size 1 make no difference.
      int64_t m = numElements(op.getOutput());
      int64_t rows = type.getNumElements() / m;
      SmallVector<int64_t> dims, sizes;
      for (int64_t d = 0; d < type.getRank(); ++d)
        if (!llvm::is_contained(op.getDims(), d)) {
          dims.push_back(d);
          sizes.push_back(type.getDimSize(d));
        }
      Value sum;
      for (int64_t r = 0; r < rows; ++r) {
        SmallVector<int64_t> begin(type.getRank(), 0);
        int64_t rest = r;
        for (int64_t d = type.getRank() - 1; d >= 0; --d)
          if (llvm::is_contained(op.getDims(), d)) {
            begin[d] = rest % type.getDimSize(d);
            rest /= type.getDimSize(d);
          }
        Value x =
            k.read(op.getInput(), Access::get(type, sizes, dims, {}, begin));
        if (!sum)
          sum = x;
        else if (kind == ReductionKind::Sum)
          sum = k.add(sum, x);
        else
          sum = kind == ReductionKind::Max ? k.max(sum, x) : k.min(sum, x);
      }
      k.define(op.getOutput(), sum);
      break;
    }
    case Form::Columns:
      k.accumulate(kind, k.readInOrder(op.getInput()), op.getOutput());
      break;
    case Form::Rows: {
      // Kept dimensions become the row, reduced ones the columns.
      SmallVector<int64_t> dims, sizes;
      for (bool reduced : {false, true})
        for (int64_t d = 0; d < type.getRank(); ++d)
          if (llvm::is_contained(op.getDims(), d) == reduced) {
            dims.push_back(d);
            sizes.push_back(type.getDimSize(d));
          }
      Value x = k.read(op.getInput(), Access::get(type, sizes, dims));
      k.define(op.getOutput(),
               k.reduce(kind, x, op->hasAttr(graph::kOrderedAttr)), Level::Row);
      break;
    }
    }
    return success();
  }
};

/// One row for each line of a tensor along `dim`.
KernelSpace linesAlong(RankedTensorType type, int64_t dim) {
  int64_t cols = type.getDimSize(dim);
  return KernelSpace::fixed(type.getNumElements() / cols, cols);
}

/// The elements of a tensor of `type`, line by line along `dim`.
Access alongLines(RankedTensorType type, int64_t dim) {
  SmallVector<int64_t> dims, sizes;
  for (int64_t d = 0; d < type.getRank(); ++d)
    if (d != dim)
      dims.push_back(d);
  dims.push_back(dim);
  for (int64_t d : dims)
    sizes.push_back(type.getDimSize(d));
  return Access::get(type, sizes, dims);
}

/// Defines `output`, line by line along `dim`.
void defineLines(KernelBuilder &k, Value output, Value y, int64_t dim) {
  RankedTensorType type = tensorTypeOf(output);
  if (dim == type.getRank() - 1)
    k.define(output, y);
  else
    k.defineAt(output, y, alongLines(type, dim));
}

struct CumulativeSumModel
    : KernelLoweringInterface::ExternalModel<CumulativeSumModel,
                                             CumulativeSumOp> {
  KernelSpace getKernelSpace(Operation *operation) const {
    auto op = cast<CumulativeSumOp>(operation);
    return linesAlong(tensorTypeOf(op.getInput()), op.getDim());
  }
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<CumulativeSumOp>(operation);
    Value x = k.read(op.getInput(),
                     alongLines(tensorTypeOf(op.getInput()), op.getDim()));
    defineLines(k, op.getOutput(), k.scan(x, op.getReverse()), op.getDim());
    return success();
  }
};

struct LinearScanModel
    : KernelLoweringInterface::ExternalModel<LinearScanModel, LinearScanOp> {
  KernelSpace getKernelSpace(Operation *operation) const {
    auto op = cast<LinearScanOp>(operation);
    return linesAlong(tensorTypeOf(op.getInput()), op.getDim());
  }
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<LinearScanOp>(operation);
    int64_t dim = op.getDim();
    Value a =
        k.read(op.getFactor(), alongLines(tensorTypeOf(op.getFactor()), dim));
    Value x =
        k.read(op.getInput(), alongLines(tensorTypeOf(op.getInput()), dim));
    defineLines(k, op.getOutput(), k.scan(x, op.getReverse(), a), dim);
    return success();
  }
};

} // namespace

void cleave::attachReduceKernels(MLIRContext *context) {
  ReduceOp::attachInterface<ReduceModel>(*context);
  CumulativeSumOp::attachInterface<CumulativeSumModel>(*context);
  LinearScanOp::attachInterface<LinearScanModel>(*context);
}
