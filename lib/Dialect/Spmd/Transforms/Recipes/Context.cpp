//===- Context.cpp - Context parallelism ----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The recipe "context": inputs, and by propagation all intermediate values,
/// are sharded over one axis along the sequence. Attention keeps its queries
/// sharded and gathers keys and values.
///
//===----------------------------------------------------------------------===//

#include "Sequence.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

LogicalResult cleave::spmd::applyContext(Annotator &annotator, StringRef axis) {
  bool found = false;
  for (func::FuncOp function : annotator.entries()) {
    FailureOr<bool> split = splitInputs(
        annotator, function,
        sequenceClasses(annotator.classesOf(function), function), axis);
    if (failed(split))
      return failure();
    found |= *split;
  }
  if (!found)
    return refuseWithoutAttention(
        annotator, "context",
        "no input has the sequence dimension of an attention");
  return success();
}
