//===- Form.h - What a step should cost -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The published price of a recipe: what a rank sends in a step, computes, and
/// holds between steps, from sizes and options alone. In a pipeline it is that
/// of one rank of each position, together.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_CLOSEDFORMS_FORM_H
#define CLEAVE_CLOSEDFORMS_FORM_H

#include "cleave/ClosedForms/Sizes.h"
#include "cleave/Support/CollectiveKind.h"
#include <map>

namespace cleave::closedforms {

/// What is sent by one kind of collective over some axes.
struct Sent {
  double elements = 0, bytes = 0;
  /// The terms of the sum, "gradients (ring all-reduce)".
  std::string terms;
};

/// A kind of collective, and the names of its axes in the order of the mesh.
using SentKey = std::pair<std::string, std::vector<std::string>>;

/// Elements that forward keeps for backward, as one device would, and the ranks
/// that have a part each.
struct Kept {
  std::string term;
  double elements = 0, ranks = 1;
};

struct Form {
  /// Why there is none; empty if there is one.
  std::string missing;
  std::map<SentKey, Sent> sent;
  /// Operations of contractions and attention of a rank, and of one device.
  double operations = 0, wholeOperations = 0;
  /// Operations of matmuls of forward and backward of all devices, each once:
  /// those of attention without the scores that its backward computes again,
  /// and no recomputation.
  double modelOperations = 0;
  /// Bytes between steps: parameters, and state of the optimizer (negative: no
  /// form).
  double parameterBytes = 0, stateBytes = 0;
  /// What forward of a step without micro-batches keeps of each kind, and
  /// elements that a backward works on beside it; empty and 0: no form.
  std::vector<Kept> kept;
  double working = 0;
};

/// Lets `recipe` shard over `axis`. Returns false if no form speaks of it.
bool addRecipe(Axis &axis, const std::string &recipe);

/// The form of a step.
Form findForm(const ModelSizes &sizes, const StepOptions &options);

/// A plan's cost that is more than its form says by this share is an excess.
inline constexpr double kTolerance = 0.02;
/// Bytes of numbers (losses, norms, flags) in a micro-batch, of which forms do
/// not speak.
inline constexpr double kNumbers = 1024;

} // namespace cleave::closedforms

#endif // CLEAVE_CLOSEDFORMS_FORM_H
