//===- Models.h - Attaching reference semantics -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_INTERPRETER_MODELS_H
#define CLEAVE_LIB_INTERPRETER_MODELS_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Interpreter/ReferenceInterface.h"

namespace cleave {

using Results = llvm::MutableArrayRef<RefTensor>;

/// The reference semantics of one op as a function of the op.
template <typename OpTy>
using Evaluate = llvm::LogicalResult (*)(OpTy op, const RefArgs &args,
                                         Results results,
                                         ReferenceContext &context);

/// Gives `OpTy` the semantics `evaluateFn`.
template <typename OpTy, Evaluate<OpTy> evaluateFn>
struct ReferenceModel
    : ReferenceOpInterface::ExternalModel<ReferenceModel<OpTy, evaluateFn>,
                                          OpTy> {
  llvm::LogicalResult evaluate(mlir::Operation *op, const RefArgs &args,
                               Results results,
                               ReferenceContext &context) const {
    return evaluateFn(llvm::cast<OpTy>(op), args, results, context);
  }

  static void attach(mlir::MLIRContext *context) {
    OpTy::template attachInterface<ReferenceModel>(*context);
  }
};

// One registration function for each group of ops.
void attachElementwiseModels(mlir::MLIRContext *context);
void attachShapeModels(mlir::MLIRContext *context);
void attachGatherModels(mlir::MLIRContext *context);
void attachContractionModels(mlir::MLIRContext *context);
void attachGroupedModels(mlir::MLIRContext *context);
void attachAttentionModels(mlir::MLIRContext *context);
void attachNormModels(mlir::MLIRContext *context);
void attachLossModels(mlir::MLIRContext *context);
void attachUpdateModels(mlir::MLIRContext *context);
void attachPerWorkerModel(mlir::MLIRContext *context);
void attachSpmdModels(mlir::MLIRContext *context);

/// `c[m, n] += a[m, k] b[k, n]`, row-major, summed over k in increasing order;
/// `Accumulator` is the type of `c`.
template <typename Accumulator>
void multiply(const double *a, const double *b, Accumulator *c, int64_t m,
              int64_t n, int64_t k);

/// The contraction `equation` ("bsh,oh->bso") of two float tensors, with
/// elements of the type `element`; those of the operands where it is null.
RefTensor contract(llvm::StringRef equation, const RefTensor &lhs,
                   const RefTensor &rhs, Precision precision,
                   mlir::Type element = {});

/// `input weight^T + bias` with elements of the type `element`; `bias` may be
/// null.
RefTensor linear(const RefTensor &input, const RefTensor &weight,
                 const RefTensor *bias, Precision precision,
                 mlir::Type element);

/// Loss and log-sum-exp of one row of `classes` logits; `target` is valid.
struct RowLoss {
  double loss, lse;
};
RowLoss crossEntropyRow(const double *logits, int64_t classes, int64_t target,
                        double smoothing);

/// The gradient of that loss, times `scale`, for each logit.
void crossEntropyRowGradient(const double *logits, int64_t classes,
                             int64_t target, double smoothing, double lse,
                             double scale, double *gradient);

/// The factor that dropout applies to the element at `index` of the global
/// tensor: 0, or 1 / (1 - probability).
double dropoutFactor(const RefTensor &rng, int64_t id, double probability,
                     int64_t index);

} // namespace cleave

#endif // CLEAVE_LIB_INTERPRETER_MODELS_H
