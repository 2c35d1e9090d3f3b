//===- RegisterModels.cpp - Reference semantics of all ops ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Models.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Interpreter/Interpreter.h"
#include "mlir/IR/DialectRegistry.h"

using namespace mlir;
using namespace cleave;

#include "cleave/Interpreter/ReferenceInterface.cpp.inc"

void cleave::registerReferenceModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, graph::GraphDialect *) {
    attachElementwiseModels(context);
    attachShapeModels(context);
    attachGatherModels(context);
    attachContractionModels(context);
    attachGroupedModels(context);
    attachAttentionModels(context);
    attachNormModels(context);
    attachLossModels(context);
    attachUpdateModels(context);
    attachPerWorkerModel(context);
  });
  registry.addExtension(+[](MLIRContext *context, spmd::SpmdDialect *) {
    attachSpmdModels(context);
  });
}
