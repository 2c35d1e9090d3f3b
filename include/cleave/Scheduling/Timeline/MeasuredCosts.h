//===- MeasuredCosts.h - Costs of parts, measured in a run ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Costs for the simulation, in seconds, measured from the timelines of
/// executed steps. Costs are keyed by the part's name and stage, so that they
/// apply to any order of the same parts. Their text form is
/// `F=0.012,1F=0.013,F>=0.0004`, where `F>` is the time to transfer the results
/// of `F` to another position. `F#=1e9` is the number of floating-point
/// operations of a run, by which measurements of another model are recognized.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_TIMELINE_MEASUREDCOSTS_H
#define CLEAVE_SCHEDULING_TIMELINE_MEASUREDCOSTS_H

#include "cleave/Scheduling/Timeline/Simulate.h"
#include "cleave/Scheduling/Timeline/Timeline.h"
#include <map>

namespace cleave::scheduling {

struct MeasuredCosts {
  /// A stage and the name of one of its parts.
  using Part = std::pair<int64_t, std::string>;
  std::map<Part, double> run, transfer;
  /// Floating-point operations of a run, if the timelines contain them.
  std::map<Part, double> flops;

  /// Takes the median over all runs of each part, over all micro-batches and
  /// steps, without the first of several steps (the warm-up); likewise over all
  /// transfers. A transfer lasts from the time when both ends have arrived at
  /// it until the receiver has the values. On failure (an event is not an
  /// action, or none is a run) returns nothing and sets `error`.
  static std::optional<MeasuredCosts> of(llvm::ArrayRef<Timeline> steps,
                                         std::string &error);

  /// Parses the text form; on failure returns nothing and sets `error`.
  static std::optional<MeasuredCosts> parse(llvm::StringRef text,
                                            std::string &error);
  std::string str() const;

  /// Returns the costs of the parts of a program. On failure (the number of
  /// stages differs, or parts were not measured) returns nothing and sets
  /// `error`.
  std::optional<Costs> costsOf(llvm::ArrayRef<PartInfo> parts,
                               std::string &error) const;
  /// Compares the measured floating-point operations with those of a program:
  /// `wanted` has those of a run of each of `parts`, 0 if unknown. Returns a
  /// message if they differ, else an empty string.
  std::string checkWork(llvm::ArrayRef<PartInfo> parts,
                        llvm::ArrayRef<double> wanted) const;
};

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_TIMELINE_MEASUREDCOSTS_H
