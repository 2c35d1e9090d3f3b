//===- CostFacts.h - A plan beside its closed form --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_REPORTS_COSTFACTS_H
#define CLEAVE_REPORTS_COSTFACTS_H

#include "mlir/IR/Location.h"
#include <string>
#include <vector>

namespace cleave {

/// What a training step costs by its closed form and in its plan. In a pipeline
/// it is one rank of each position, together.
struct CostFacts {
  struct Pair {
    double form = 0, plan = 0;
  };
  /// What is sent by one kind of collective over some axes.
  struct Row {
    std::string kind, axes, terms;
    int64_t count = 0;
    Pair elements, bytes;
    bool exceeds = false;
  };
  /// Why the plan is dearer than its form, and where.
  struct Excess {
    mlir::LocationAttr location;
    std::string text;
  };

  /// An axis whose ranks repeat operations of each other.
  struct Replicated {
    /// The place where most of them are, and its line.
    mlir::LocationAttr location;
    std::string axis, line;
    int64_t ranks = 1;
    /// The operations of these ranks together, against those of the whole.
    double times = 1;
  };

  /// Why there is no form; empty if there is one.
  std::string missing;
  std::vector<Row> sent;
  Pair operations, parameterBytes;
  /// Operations of the model, of all devices: see `Form::modelOperations`.
  double modelOperations = 0;
  /// The operations of all ranks, over those of one device.
  Pair repeated;
  /// Negative in the form: there is none.
  Pair stateBytes;
  /// Elements that forward keeps for backward, by the form: of one device, and
  /// the ranks that have a part each; and that backward works on. Empty and 0
  /// without a form.
  struct Kept {
    std::string term;
    double elements = 0, ranks = 1;
  };
  std::vector<Kept> kept;
  double working = 0;
  std::vector<Excess> excesses;
  /// Those that repeat more than the tolerance of a form.
  std::vector<Replicated> replicated;
};

} // namespace cleave

#endif // CLEAVE_REPORTS_COSTFACTS_H
