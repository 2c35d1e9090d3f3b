//===- KernelModels.h - Registration of kernel code -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_CONVERSION_GRAPHTOEXEC_KERNELS_KERNELMODELS_H
#define CLEAVE_LIB_CONVERSION_GRAPHTOEXEC_KERNELS_KERNELMODELS_H

#include "cleave/Dialect/Exec/Kernels/KernelBuilder.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "mlir/Dialect/Arith/IR/Arith.h"

namespace cleave {

inline int64_t numElements(mlir::Value value) {
  return mlir::cast<mlir::RankedTensorType>(value.getType()).getNumElements();
}

using graph::tensorTypeOf;

inline int64_t product(llvm::ArrayRef<int64_t> shape) {
  int64_t n = 1;
  for (int64_t d : shape)
    n *= d;
  return n;
}

/// An op that computes each element of result 0 independently.
template <typename Derived, typename OpTy>
struct FlatModel : KernelLoweringInterface::ExternalModel<Derived, OpTy> {
  KernelSpace getKernelSpace(mlir::Operation *op) const {
    return KernelSpace::flat(numElements(op->getResult(0)));
  }
};

inline mlir::Value i64Constant(KernelBuilder &k, int64_t value) {
  mlir::OpBuilder &b = k.getBuilder();
  return mlir::arith::ConstantOp::create(b, k.getLoc(),
                                         b.getI64IntegerAttr(value));
}

inline mlir::Value compare(KernelBuilder &k,
                           mlir::arith::CmpIPredicate predicate, mlir::Value a,
                           int64_t value) {
  return mlir::arith::CmpIOp::create(k.getBuilder(), k.getLoc(), predicate, a,
                                     i64Constant(k, value));
}

/// `where and condition`, where a null `where` is true.
inline mlir::Value both(KernelBuilder &k, mlir::Value where,
                        mlir::Value condition) {
  return where ? k.min(where, condition) : condition;
}

/// Builds the value of `op` from ops that have kernels; `op` stays.
mlir::Value decomposeConcat(graph::ConcatOp op, mlir::OpBuilder &b);

void attachElementwiseKernels(mlir::MLIRContext *context);
void attachRowKernels(mlir::MLIRContext *context);
void attachReduceKernels(mlir::MLIRContext *context);
void attachShapeKernels(mlir::MLIRContext *context);
void attachIndexKernels(mlir::MLIRContext *context);
void attachWindowKernels(mlir::MLIRContext *context);
void attachRopeKernels(mlir::MLIRContext *context);
void attachOptimizerKernels(mlir::MLIRContext *context);

} // namespace cleave

#endif // CLEAVE_LIB_CONVERSION_GRAPHTOEXEC_KERNELS_KERNELMODELS_H
