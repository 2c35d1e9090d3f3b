//===- Form.cpp - What a step should cost ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FormBuilder.h"
#include "cleave/Machines/CollectiveCost.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

using namespace cleave;
using namespace cleave::closedforms;

void FormBuilder::send(CollectiveKind kind, llvm::ArrayRef<Axis> axes,
                       double elements, double width, llvm::StringRef term) {
  int64_t ranks = 1;
  std::vector<std::string> names;
  for (const Axis &axis : axes)
    if (axis.size > 1) {
      ranks *= axis.size;
      names.push_back(axis.name);
    }
  if (ranks == 1 || elements <= 0)
    return;
  Sent &sent = form.sent[{stringifyCollectiveKind(kind).str(), names}];
  double own = machines::elementsSent(kind, ranks, elements);
  sent.elements += own;
  sent.bytes += own * width;
  if (!llvm::StringRef(sent.terms).contains(term))
    sent.terms += (sent.terms.empty() ? "" : "; ") + term.str();
}

std::vector<Axis> FormBuilder::axesOf(Split split) const {
  std::vector<Axis> found;
  llvm::copy_if(options.axes, std::back_inserter(found),
                [&](const Axis &axis) { return axis.split == split; });
  return found;
}

std::vector<Axis> FormBuilder::restingAxes(const Parameter &parameter) const {
  std::vector<Axis> found;
  auto before = static_cast<int64_t>(shardsOf(parameter));
  auto elements = static_cast<int64_t>(parameter.elements);
  for (const Axis &axis : options.axes) {
    if (!axis.zero || shards(axis, parameter) ||
        (parameter.oneDimension && before > 1 &&
         elements % (before * axis.size) != 0))
      continue;
    found.push_back(axis);
    before *= axis.size;
  }
  return found;
}

bool FormBuilder::hasSequenceBetween() const {
  return llvm::any_of(options.axes, [](const Axis &axis) {
    return axis.recipe == "megatron-sp" && axis.size > 1;
  });
}

bool FormBuilder::shardsStream() const {
  return hasSequenceBetween() ||
         llvm::any_of(options.axes, [](const Axis &axis) {
           return axis.isSumma() && axis.size > 1;
         });
}

bool FormBuilder::sendsPlaces() const {
  return llvm::any_of(options.axes, [](const Axis &axis) {
    return axis.experts && axis.split == Split::Samples && axis.size > 1;
  });
}

bool FormBuilder::scattersPlaces(const Mixture &mixture) const {
  bool folded = false, sums = false;
  for (const Axis &axis : options.axes) {
    folded |= axis.experts && axis.split == Split::Sequence;
    sums |= !axis.experts && axis.split == Split::Features && axis.size > 1;
  }
  bool sends = sendsPlaces() ? options.activationBytes < options.sumBytes
                             : !folded && options.ranks(Split::Sequence) > 1;
  return sends && sums && !mixture.expertsOfRows;
}

bool FormBuilder::fillsSlices(const Mixture &mixture) const {
  return scattersPlaces(mixture) && !sendsPlaces() &&
         options.ranks(Split::Sequence) > 2;
}

/// Around a ring, for scores of which a mask leaves the earlier keys (arXiv
/// 2311.09431, section 3: each rank has rows of both ends).
bool FormBuilder::inZigZag() const {
  return llvm::any_of(options.axes,
                      [](const Axis &axis) {
                        return axis.recipe == "ring" && axis.size > 1;
                      }) &&
         llvm::any_of(sizes.attentions, [](const Attention &a) {
           return a.scores < a.batch * a.heads * a.queries * a.keys;
         });
}

bool closedforms::addRecipe(Axis &axis, const std::string &recipe) {
  llvm::StringRef name = recipe;
  if (name.consume_front("zero")) {
    axis.zero = std::max(axis.zero, name.front() - '0');
    return true;
  }
  if (recipe == "dp")
    return true;
  if (recipe == "expert") {
    axis.experts = true;
    return true;
  }
  if (!llvm::is_contained({"megatron", "megatron-sp", "context", "ring",
                           "two-ring", "ulysses", "summa2d", "summa25d"},
                          name))
    return false;
  axis.recipe = recipe;
  return true;
}

Form closedforms::findForm(const ModelSizes &sizes,
                           const StepOptions &options) {
  Form form;
  form.missing = !options.unknown.empty() ? options.unknown : sizes.unknown;
  if (!form.missing.empty())
    return form;
  FormBuilder builder(sizes, options, form);
  addGradients(builder);
  addFeatures(builder);
  addExperts(builder);
  addSequence(builder);
  addStages(builder);
  addOperations(builder);
  addAtRest(builder);
  addSaved(builder);
  return form;
}
