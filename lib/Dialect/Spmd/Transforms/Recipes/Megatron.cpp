//===- Megatron.cpp - Tensor and sequence parallelism ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The recipe "megatron": Shoeybi et al., "Megatron-LM" (arXiv 1909.08053),
/// section 3. A dimension that one product with a weight produces and another
/// one sums over is sharded, so that no collective is needed between the two.
/// These dimensions are the heads of an attention or of a recurrence and the
/// inner features of an MLP, found from how the ops are connected.
///
/// The vocabulary is sharded as well: the dimension that a product with a
/// weight produces and the loss reduces, and the rows of the table that inputs
/// look up. Three numbers per row of logits are reduced over the axis; each row
/// of the table is on one device.
///
/// The recipe "megatron-sp" adds Korthikanti et al. (arXiv 2205.05198), section
/// 4.2: between such pairs values are sharded along the sequence, over the same
/// axis.
///
//===----------------------------------------------------------------------===//

#include "Annotator.h"
#include "DecomposeFeatureNorms.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Whether a product with a weight produces `known`, another one sums over it,
/// and every op can shard it.
static bool isInner(const DimensionClass &known) {
  return !known.wholeIn && !known.samples && !known.producers.empty() &&
         !known.consumers.empty();
}

static int64_t sizeOf(std::pair<BlockArgument, unsigned> entry) {
  return cast<RankedTensorType>(entry.first.getType()).getDimSize(entry.second);
}

/// Whether `known` has the heads of a recurrence, and a norm needs the features
/// of all of them: the norm of a state-space layer whose heads are one group
/// (Dao and Gu, arXiv 2405.21060, section 8.1).
static bool isNormedOverHeads(const DimensionClass &known) {
  return known.wholeIn &&
         isa<graph::RmsNormOp, graph::LayerNormOp>(known.wholeIn) &&
         !known.samples && !known.attended && !known.producers.empty() &&
         !known.consumers.empty() &&
         llvm::any_of(known.arguments, [&](const auto &entry) {
           return sizeOf(entry) != known.divisor;
         });
}

/// Decomposes such norms into sums over rows, of which the devices of the axis
/// have addends: two numbers of each row are reduced over it.
static void decomposeNormsOverHeads(Annotator &annotator) {
  bool found = false;
  for (func::FuncOp function : annotator.entries()) {
    const DimensionClasses &classes = annotator.classesOf(function);
    decomposeFeatureNorms(function, [&](Value value) {
      int64_t rank = cast<RankedTensorType>(value.getType()).getRank();
      bool over = isNormedOverHeads(classes.of(value, rank - 1));
      found |= over;
      return over;
    });
  }
  if (found)
    annotator.beginRecipe();
}

/// Whether `parts` shards have whole heads each, and groups of shards replicate
/// the same keys and values (more shards than heads of keys and values).
static bool sharesHeads(const DimensionClass &known, int64_t parts) {
  return known.heads > 0 && parts > known.divisor &&
         parts % known.divisor == 0 && known.heads % parts == 0 &&
         llvm::all_of(known.arguments, [&](const auto &entry) {
           return llvm::is_contained(known.shared, entry)
                      ? sizeOf(entry) == known.divisor
                      : sizeOf(entry) % parts == 0;
         });
}

/// Whether `known`, of `places` units, can be sharded into `parts`. Sizes that
/// are not divisible are padded later: features, and heads, which are the major
/// factor of all dimensions in their class.
static bool hasParts(const DimensionClass &known, int64_t places,
                     int64_t parts) {
  if (places > 0 && places % parts == 0)
    return true;
  if (places == known.divisor && sharesHeads(known, parts))
    return true;
  return places >= parts &&
         (known.attended ||
          llvm::all_of(known.arguments, [&](const auto &entry) {
            return sizeOf(entry) == known.divisor;
          }));
}

/// Returns the numbers of shards that `known` can have without padding, as
/// text.
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
  // Another axis may shard the dimension already.
  int64_t places = known.divisor / annotator.getMesh().size(
                                       annotator.given(argument).dims[dim]);
  if (hasParts(known, places, parts))
    return success();
  InFlightDiagnostic error = emitError(argument.getLoc());
  error << "dimension " << dim << " of parameter \""
        << graph::getArgString(function, argument.getArgNumber(),
                               graph::kNameAttr)
        << "\" has ";
  if (known.heads > 0)
    error << places << " groups of " << known.heads / known.divisor << " heads";
  else if (known.attended)
    error << places << " heads";
  else if (sizeOf({argument, dim}) != known.divisor)
    error << places << " groups, each of which must not be split";
  else
    error << (places == known.divisor ? "size " : "shards of size ") << places;
  error << ", not divisible by the " << parts << " positions of axis \"" << axis
        << "\"";
  std::string fits = partsThatFit(known, places);
  error << ": " << (fits.empty() ? "" : "use " + fits + ", or ")
        << "replicate the parameter by a placement";
  return error;
}

/// Whether a product with a weight produces `known`, and all other ops reduce
/// it: the classes of a loss.
static bool isReducedOnly(const DimensionClass &known) {
  return !known.wholeIn && !known.samples && known.reduced &&
         !known.producers.empty() && known.consumers.empty();
}

static bool isLookedUp(const DimensionClass &known) {
  // A bias of experts is looked up by their numbers.
  return !known.wholeIn && !known.samples && !known.lookups.empty() &&
         known.consumers.empty() && known.stacked.empty();
}

/// Whether an op of any entry cannot shard a dimension of an argument in
/// `known`.
static bool isReplicatedSomewhere(Annotator &annotator,
                                  const DimensionClass &known) {
  for (auto [argument, dim] : known.arguments) {
    auto owner = cast<func::FuncOp>(argument.getOwner()->getParentOp());
    StringRef name =
        graph::getArgString(owner, argument.getArgNumber(), graph::kNameAttr);
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

/// Whether an argument in `known` is sharded over `axis` already or placed by
/// the user: propagation decides the rest.
static bool isDecided(Annotator &annotator, const DimensionClass &known,
                      StringRef axis) {
  return llvm::any_of(known.arguments, [&](const auto &entry) {
    return annotator.isSplit(entry.first, axis) ||
           annotator.isPlaced(entry.first);
  });
}

/// Shards `known` unless an argument in it is decided already. A size that is
/// not divisible stays replicated, with a remark.
static void splitIfFits(Annotator &annotator, const DimensionClass &known,
                        StringRef axis) {
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  if (isReplicatedSomewhere(annotator, known) ||
      isDecided(annotator, known, axis))
    return;
  if (!hasParts(known, known.divisor, parts)) {
    auto [argument, dim] = known.arguments.front();
    mlir::emitRemark(argument.getLoc())
        << "dimension " << dim << " is not sharded over axis \"" << axis
        << "\": " << known.divisor << " is not divisible by its " << parts
        << " positions";
    return;
  }
  for (auto [argument, dim] : known.arguments)
    annotator.split(argument, dim, axis);
}

/// Shards the vocabulary: the classes of losses, in every entry whose forward
/// pass has one, and the rows of the largest table that inputs look up.
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

/// Says that no inner features of `function` can be sharded, and which op needs
/// those that there are whole.
static LogicalResult refuseWithoutInner(Annotator &annotator,
                                        func::FuncOp function, StringRef axis) {
  InFlightDiagnostic error = function.emitOpError(
      "has no pair of products with weights whose inner features could be "
      "sharded over axis \"");
  error << axis << "\"";
  for (const DimensionClass &known : annotator.classesOf(function).all())
    if (known.wholeIn && !known.samples && !known.producers.empty() &&
        !known.consumers.empty()) {
      error.attachNote(known.wholeIn->getLoc())
          << "inner features of size " << known.divisor
          << " are needed whole here, by '" << known.wholeIn->getName() << "'";
      break;
    }
  return error;
}

LogicalResult cleave::spmd::applyMegatron(Annotator &annotator,
                                          StringRef axis) {
  if (annotator.entries().empty())
    return success();
  func::FuncOp function =
      annotator.training() ? annotator.training() : annotator.entries().front();
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  decomposeNormsOverHeads(annotator);
  // Classes of fewer weights are further inside, and come first.
  SmallVector<const DimensionClass *> inner;
  for (const DimensionClass &known : annotator.classesOf(function).all())
    if (isInner(known))
      inner.push_back(&known);
  llvm::stable_sort(inner, [](const auto *a, const auto *b) {
    return a->arguments.size() < b->arguments.size();
  });
  bool found = false;
  for (const DimensionClass *known : inner) {
    // An axis shards a weight once: of two classes in one weight, the first is
    // sharded.
    if (isDecided(annotator, *known, axis)) {
      found = true;
      continue;
    }
    if (failed(checkParts(annotator, function, *known, axis, parts)))
      return failure();
    // The minor digit numbers the devices that share keys and values.
    AxisRef major{axis, 1, known->divisor};
    for (auto [argument, dim] : known->arguments)
      annotator.split(
          argument, dim,
          parts > known->divisor &&
                  llvm::is_contained(known->shared, std::pair(argument, dim))
              ? major
              : AxisRef{axis});
    found = true;
  }
  if (!found)
    return refuseWithoutInner(annotator, function, axis);
  splitVocabulary(annotator, axis);
  return success();
}

/// Returns the first dimension of `value` that can be the sequence: it has at
/// least `parts` elements, no samples, and no product produces or sums over it.
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
          consumer->emitRemark("is not sharded over axis \"")
              << axis << "\": no dimension of " << value.getType()
              << " holds a sequence of length " << parts << " or more";
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
