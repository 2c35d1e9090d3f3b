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
    // Computed before annotations are inserted.
    const DimensionClasses &classes = annotator.classesOf(function);
    ComposedAttention composed(classes, function);
    SequenceClasses sequences = sequenceClasses(classes, function, composed);
    FailureOr<bool> split = splitInputs(annotator, function, sequences, axis);
    if (succeeded(split) && !*split)
      split = splitMadeSequences(annotator, function, sequences, axis);
    if (failed(split))
      return failure();
    composed.splitQueries(annotator, axis);
    found |= *split || !composed.empty();
  }
  if (!found)
    return refuseWithoutAttention(
        annotator, "context",
        "no input has the sequence dimension of an attention");
  return success();
}
