//===- FormBuilder.h - Sums of the terms of a form --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_CLOSEDFORMS_FORMBUILDER_H
#define CLEAVE_LIB_CLOSEDFORMS_FORMBUILDER_H

#include "cleave/ClosedForms/Form.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace cleave::closedforms {

/// Adds the terms of one form.
class FormBuilder {
public:
  FormBuilder(const ModelSizes &sizes, const StepOptions &options, Form &form)
      : sizes(sizes), options(options), form(form) {}

  /// Adds a collective over `axes` of which a rank has `elements` before (after
  /// a gather), of `width` bytes each.
  void send(CollectiveKind kind, llvm::ArrayRef<Axis> axes, double elements,
            double width, llvm::StringRef term);

  /// The axes that shard `split`.
  std::vector<Axis> axesOf(Split split) const;
  /// The number of shards of tokens: of samples and of sequences.
  double tokenRanks() const {
    return options.ranks(Split::Samples) * options.ranks(Split::Sequence);
  }
  /// Whether ranks of `axis` hold other parts of a parameter, ZeRO apart.
  static bool shards(const Axis &axis, const Parameter &parameter) {
    if (axis.experts && parameter.experts)
      return true;
    if (axis.rows)
      return parameter.multiplied || parameter.lookedUp;
    return axis.split == Split::Features &&
           (parameter.hasFeatures || axis.isSumma());
  }
  /// The number of shards of a parameter, ZeRO apart.
  double shardsOf(const Parameter &parameter) const {
    double shards = 1;
    for (const Axis &axis : options.axes)
      if (FormBuilder::shards(axis, parameter))
        shards *= static_cast<double>(axis.size);
    return shards;
  }
  /// The axes over which ZeRO shards a parameter: not those by which the shards
  /// of a vector are not divisible.
  std::vector<Axis> restingAxes(const Parameter &parameter) const;
  /// Bytes on the wire of an element of a parameter, or of its gradient.
  double widthOf(const Parameter &parameter) const {
    return isNarrow(parameter) ? options.copyBytes : 4;
  }
  double gradientWidthOf(const Parameter &parameter) const {
    return isNarrow(parameter) && !parameter.lookedUp ? options.gradientBytes
                                                      : 4;
  }
  /// Whether contractions read a copy of it in mixed precision.
  static bool isNarrow(const Parameter &parameter) {
    return (parameter.multiplied || parameter.lookedUp) && !parameter.staysWide;
  }
  /// Whether the features axis also shards the sequence between blocks.
  bool hasSequenceBetween() const;
  /// Whether it shards the stream, by the sequence or by features.
  bool shardsStream() const;
  /// Whether places of experts go to ranks that hold other samples.
  bool sendsPlaces() const;
  /// Whether partial sums of places of experts are scattered over the ranks of
  /// features, and sent as slices to the ranks of their tokens.
  bool scattersPlaces(const Mixture &mixture) const;
  /// Whether ranks of a sequence also fill places in slices.
  bool fillsSlices(const Mixture &mixture) const;
  /// Whether ranks hold a sequence in zig-zag order.
  bool inZigZag() const;

  const ModelSizes &sizes;
  const StepOptions &options;
  Form &form;
};

// The terms, by file. Each adds what its recipes send.
void addGradients(FormBuilder &builder);
void addFeatures(FormBuilder &builder);
void addBlocks(FormBuilder &builder, llvm::ArrayRef<Axis> columns);
void addExperts(FormBuilder &builder);
void addSequence(FormBuilder &builder);
void addStages(FormBuilder &builder);
void addOperations(FormBuilder &builder);
void addAtRest(FormBuilder &builder);
void addSaved(FormBuilder &builder);

} // namespace cleave::closedforms

#endif // CLEAVE_LIB_CLOSEDFORMS_FORMBUILDER_H
