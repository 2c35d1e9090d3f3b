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
/// The vocabulary is split as well: what a product with a weight makes and the
/// loss reduces, and what an input looks up. Of each row's logits three numbers
/// are summed up; of a looked-up row, one device has all.
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

static int64_t sizeOf(std::pair<BlockArgument, unsigned> entry) {
  return cast<RankedTensorType>(entry.first.getType()).getDimSize(entry.second);
}

/// Whether `parts` devices each have some heads, and several of them the same
/// keys and values.
static bool sharesHeads(const DimensionClass &known, int64_t parts) {
  return known.heads > 0 && parts > known.divisor &&
         parts % known.divisor == 0 && known.heads % parts == 0 &&
         llvm::all_of(known.arguments, [&](const auto &entry) {
           return llvm::is_contained(known.shared, entry)
                      ? sizeOf(entry) == known.divisor
                      : sizeOf(entry) % parts == 0;
         });
}

/// Whether `known`, which comes in `places`, has `parts` parts: what does not
/// divide is padded later, but for heads and for what comes in groups.
static bool hasParts(const DimensionClass &known, int64_t places,
                     int64_t parts) {
  if (places > 0 && places % parts == 0)
    return true;
  if (places == known.divisor && sharesHeads(known, parts))
    return true;
  return !known.attended && places >= parts &&
         llvm::all_of(known.arguments, [&](const auto &entry) {
           return sizeOf(entry) == known.divisor;
         });
}

/// The parts that `known` can have, as a sentence's end; of features, which can
/// be padded, those that need none.
static std::string partsThatFit(const DimensionClass &known, int64_t places) {
  SmallVector<int64_t> parts;
  for (int64_t n = 2; n <= std::max(places, known.heads); ++n)
    if (places % n == 0 || (places == known.divisor && sharesHeads(known, n)))
      parts.push_back(n);
  return cleave::spmd::partsThatFit(parts);
}

static LogicalResult checkParts(Annotator &annotator, func::FuncOp function,
                                const DimensionClass &known, StringRef axis,
                                int64_t parts) {
  auto [argument, dim] = known.arguments.front();
  // What another axis splits already comes in fewer places.
  int64_t places =
      known.divisor /
      annotator.getMesh().size(annotator.given(argument).dims[dim]);
  if (hasParts(known, places, parts))
    return success();
  InFlightDiagnostic error = emitError(argument.getLoc());
  error << "dimension " << dim << " of parameter \""
        << graph::getArgString(function, argument.getArgNumber(),
                               graph::kNameAttr)
        << "\" comes in " << places;
  if (known.heads > 0)
    error << " groups of " << known.heads / known.divisor << " heads";
  else if (known.attended)
    error << " heads";
  else if (sizeOf({argument, dim}) != known.divisor)
    error << " groups, of which each is used as a whole";
  error << ", which the " << parts << " positions of axis \"" << axis
        << "\" do not divide";
  std::string fits = partsThatFit(known, places);
  if (!fits.empty())
    error << ": use " << fits;
  return error;
}

/// Whether `known` is made by a product, and only reduced: the classes of a
/// loss.
static bool isReducedOnly(const DimensionClass &known) {
  return !known.wholeIn && !known.samples && known.reduced &&
         !known.producers.empty() && known.consumers.empty();
}

static bool isLookedUp(const DimensionClass &known) {
  return !known.wholeIn && !known.samples && !known.lookups.empty() &&
         known.consumers.empty();
}

/// Whether an op of any entry needs what `known` has of arguments whole.
static bool isWholeSomewhere(Annotator &annotator,
                             const DimensionClass &known) {
  for (auto [argument, dim] : known.arguments) {
    auto own = cast<func::FuncOp>(argument.getOwner()->getParentOp());
    StringRef name =
        graph::getArgString(own, argument.getArgNumber(), graph::kNameAttr);
    for (func::FuncOp function : annotator.entries())
      for (BlockArgument other : function.getArguments())
        if (other == argument ||
            (!name.empty() &&
             name == graph::getArgString(function, other.getArgNumber(),
                                         graph::kNameAttr)))
          if (annotator.classesOf(function).of(other, dim).wholeIn)
            return true;
  }
  return false;
}

/// Whether something in `known` is split by `axis` already, or a person said
/// where it lies: the rest follows from that.
static bool isDecided(Annotator &annotator, const DimensionClass &known,
                      StringRef axis) {
  return llvm::any_of(known.arguments, [&](const auto &entry) {
    return annotator.isSplit(entry.first, axis) ||
           annotator.isPlaced(entry.first);
  });
}

/// Splits `known` unless something in it is split already. Where the parts do
/// not fit it stays whole: a model works without it.
static void splitIfFits(Annotator &annotator, const DimensionClass &known,
                        StringRef axis) {
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  if (isWholeSomewhere(annotator, known) || isDecided(annotator, known, axis))
    return;
  if (!hasParts(known, known.divisor, parts)) {
    auto [argument, dim] = known.arguments.front();
    mlir::emitRemark(argument.getLoc())
        << "dimension " << dim << " stays whole: the " << parts
        << " positions of axis \"" << axis << "\" do not divide its "
        << known.divisor << " places";
    return;
  }
  for (auto [argument, dim] : known.arguments)
    annotator.split(argument, dim, axis);
}

/// Splits the vocabulary: the classes of losses, in whichever entry they belong
/// to forward, and the largest of the tables that inputs look up.
static void splitVocabulary(Annotator &annotator, StringRef axis) {
  for (func::FuncOp function : annotator.entries()) {
    ArrayRef<DimensionClass> classes = annotator.classesOf(function).all();
    int64_t largest = 0;
    for (const DimensionClass &known : classes)
      if (isLookedUp(known))
        largest = std::max(largest, known.divisor);
    for (const DimensionClass &known : classes)
      if (isReducedOnly(known) ||
          (isLookedUp(known) && known.divisor == largest))
        splitIfFits(annotator, known, axis);
  }
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
    if (isDecided(annotator, *known, axis)) {
      found = true;
      continue;
    }
    if (failed(checkParts(annotator, function, *known, axis, parts)))
      return failure();
    // The devices of a group that shares keys and values are the minor digit.
    AxisRef major{axis, 1, known->divisor};
    for (auto [argument, dim] : known->arguments)
      annotator.split(argument, dim,
                      parts > known->divisor &&
                              llvm::is_contained(known->shared,
                                                 std::pair(argument, dim))
                          ? major
                          : AxisRef{axis});
    found = true;
  }
  if (!found)
    return function.emitOpError(
               "has no two products with weights between which "
               "features could be split over axis \"")
           << axis << "\"";
  splitVocabulary(annotator, axis);
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
        annotator.addStream(constrain, *dim);
      }
    }
  }
  return success();
}
