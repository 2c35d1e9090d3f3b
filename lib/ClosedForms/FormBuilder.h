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
  /// The number of shards of a parameter over features.
  double shardsOf(const Parameter &parameter) const {
    return parameter.hasFeatures ? options.ranks(Split::Features) : 1;
  }
  /// Bytes on the wire of an element of a parameter, or of its gradient.
  double widthOf(const Parameter &parameter) const {
    return parameter.isVector() || parameter.positions ? 4 : options.copyBytes;
  }
  double gradientWidthOf(const Parameter &parameter) const {
    return parameter.multiplied && !parameter.lookedUp ? options.gradientBytes
                                                       : 4;
  }
  /// Whether the features axis also shards the sequence between blocks.
  bool hasSequenceBetween() const;

  const ModelSizes &sizes;
  const StepOptions &options;
  Form &form;
};

// The terms, by file. Each adds what its recipes send.
void addGradients(FormBuilder &builder);
void addFeatures(FormBuilder &builder);
void addSequence(FormBuilder &builder);
void addStages(FormBuilder &builder);
void addOperations(FormBuilder &builder);
void addAtRest(FormBuilder &builder);

} // namespace cleave::closedforms

#endif // CLEAVE_LIB_CLOSEDFORMS_FORMBUILDER_H
