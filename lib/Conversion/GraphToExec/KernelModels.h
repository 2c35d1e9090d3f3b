//===- KernelModels.h - Registration of kernel code -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_CONVERSION_GRAPHTOEXEC_KERNELMODELS_H
#define CLEAVE_LIB_CONVERSION_GRAPHTOEXEC_KERNELMODELS_H

#include "cleave/Conversion/GraphToExec/KernelBuilder.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

namespace cleave {

inline int64_t numElements(mlir::Value value) {
  return mlir::cast<mlir::RankedTensorType>(value.getType()).getNumElements();
}

void attachElementwiseKernels(mlir::MLIRContext *context);
void attachRowKernels(mlir::MLIRContext *context);
void attachShapeKernels(mlir::MLIRContext *context);
void attachTrainingKernels(mlir::MLIRContext *context);

} // namespace cleave

#endif // CLEAVE_LIB_CONVERSION_GRAPHTOEXEC_KERNELMODELS_H
