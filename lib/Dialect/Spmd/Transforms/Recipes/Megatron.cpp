//===- Megatron.cpp - Tensor and sequence parallelism ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), section 3: what one
/// product with a weight makes and another sums over is split, so that between
/// the two nothing moves. Those are the heads of an attention and the inner
/// features of an MLP, found by how the ops are connected.
///
/// Korthikanti et al. (arXiv 2205.05198), section 4.2: between such pairs
/// values are split along the sequence, over the same axis.
///
//===----------------------------------------------------------------------===//

#include "Annotator.h"
#include "cleave/Dialect/Graph/IR/Entry.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Whether `known` lies between two products with weights, and nothing needs it
/// whole.
static bool isInner(const DimensionClass &known) {
  return !known.wholeIn && !known.samples && !known.producers.empty() &&
         !known.consumers.empty();
}

static LogicalResult checkParts(func::FuncOp function,
                                const DimensionClass &known, StringRef axis,
                                int64_t parts) {
  if (known.divisor % parts == 0)
    return success();
  // Features are padded later; heads, and what comes in groups, are not.
  if (!known.attended && known.divisor >= parts &&
      llvm::all_of(known.arguments, [&](const auto &entry) {
        auto type = cast<RankedTensorType>(entry.first.getType());
        return type.getDimSize(entry.second) == known.divisor;
      }))
    return success();
  auto [argument, dim] = known.arguments.front();
  InFlightDiagnostic error = emitError(argument.getLoc());
  error << "dimension " << dim << " of parameter \""
        << graph::getArgString(function, argument.getArgNumber(),
                               graph::kNameAttr)
        << "\" comes in " << known.divisor << ", which the " << parts
        << " positions of axis \"" << axis << "\" do not divide";
  std::string fits = partsThatFit(known.divisor);
  if (!fits.empty())
    error << ": use " << fits;
  return error;
}

LogicalResult cleave::spmd::applyMegatron(Annotator &annotator,
                                          StringRef axis) {
  if (annotator.entries().empty())
    return success();
  func::FuncOp function =
      annotator.training() ? annotator.training() : annotator.entries().front();
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  // What fewer weights share is further inside.
  SmallVector<const DimensionClass *> inner;
  for (const DimensionClass &known : annotator.classesOf(function).all())
    if (isInner(known))
      inner.push_back(&known);
  llvm::stable_sort(inner, [](const auto *a, const auto *b) {
    return a->arguments.size() < b->arguments.size();
  });
  bool found = false;
  for (const DimensionClass *known : inner) {
    // One axis splits a weight once: of two classes that meet in a weight, the
    // first is split.
    if (llvm::any_of(known->arguments, [&](const auto &entry) {
          return annotator.isSplit(entry.first, axis);
        }))
      continue;
    if (failed(checkParts(function, *known, axis, parts)))
      return failure();
    for (auto [argument, dim] : known->arguments)
      annotator.split(argument, dim, axis);
    found = true;
  }
  if (!found)
    return function.emitOpError(
               "has no two products with weights between which "
               "features could be split over axis \"")
           << axis << "\"";
  return success();
}

/// The dimension of `value` that can hold the sequence: not the samples, not
/// what is made or summed over by products.
static std::optional<unsigned> sequenceDim(Annotator &annotator,
                                           const DimensionClasses &classes,
                                           Value value, int64_t parts) {
  auto type = cast<RankedTensorType>(value.getType());
  for (int64_t dim = 0; dim < type.getRank(); ++dim) {
    const DimensionClass &known = classes.of(value, dim);
    if (!known.samples && known.producers.empty() && known.consumers.empty() &&
        type.getDimSize(dim) >= parts)
      return dim;
  }
  return std::nullopt;
}

LogicalResult cleave::spmd::applyMegatronSequence(Annotator &annotator,
                                                  StringRef axis) {
  if (failed(applyMegatron(annotator, axis)))
    return failure();
  AxisRef split{annotator.getMesh().find(axis)->name};
  int64_t parts = annotator.getMesh().size(split);
  for (func::FuncOp function : annotator.entries()) {
    const DimensionClasses &classes = annotator.classesOf(function);
    for (const DimensionClass &known : classes.all()) {
      if (!isInner(known) ||
          llvm::none_of(known.arguments, [&](const auto &entry) {
            return annotator.given(entry.first).dims[entry.second].size() &&
                   annotator.given(entry.first).dims[entry.second].back() ==
                       split;
          }))
        continue;
      for (Operation *consumer : known.consumers) {
        Value value = consumer->getResult(0);
        auto dim = sequenceDim(annotator, classes, value, parts);
        if (!dim) {
          consumer->emitRemark("stays whole along axis \"")
              << axis << "\": no dimension of " << value.getType()
              << " holds a sequence of at least " << parts << " places";
          continue;
        }
        Sharding sharding = Sharding::replicated(
            cast<RankedTensorType>(value.getType()).getRank(), /*open=*/true);
        sharding.dims[*dim].push_back(split);
        sharding.open[*dim] = false;
        OpBuilder builder(consumer);
        builder.setInsertionPointAfter(consumer);
        ConstrainOp constrain = annotator.constrain(builder, value, sharding);
        value.replaceAllUsesExcept(constrain, constrain);
      }
    }
  }
  return success();
}
