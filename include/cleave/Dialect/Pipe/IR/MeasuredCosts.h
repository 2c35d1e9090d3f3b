//===- MeasuredCosts.h - How long parts took in a run -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Costs of a simulation, in seconds, from the timelines of steps that ran.
/// Parts are known by name and stage, so that they serve any order of the same
/// parts. As text: `F=0.012,1F=0.013,F>=0.0004`, where `F>` is what moving the
/// results of `F` to another device took. `F#=1e9` is how much a run computed:
/// by it, measurements of another model are told apart.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_MEASUREDCOSTS_H
#define CLEAVE_DIALECT_PIPE_IR_MEASUREDCOSTS_H

#include "cleave/Dialect/Pipe/IR/Simulate.h"
#include "cleave/Dialect/Pipe/IR/Timeline.h"
#include <map>

namespace cleave::pipe {

struct MeasuredCosts {
  /// A stage and the name of one of its parts.
  using Part = std::pair<int64_t, std::string>;
  std::map<Part, double> run, transfer;
  /// Floating-point operations of a run, where the timelines say so.
  std::map<Part, double> flops;

  /// The median of each part's runs, of all micro-batches and steps but the
  /// first of several, which warms up; likewise of what is sent. A transfer
  /// takes from when both ends have come to it until the receiver has it. On
  /// failure (an event is no action,
  /// or none is a run) returns nothing and sets `error`.
  static std::optional<MeasuredCosts> of(llvm::ArrayRef<Timeline> steps,
                                         std::string &error);

  /// Reads what `str` wrote; on failure returns nothing and sets `error`.
  static std::optional<MeasuredCosts> parse(llvm::StringRef text,
                                            std::string &error);
  std::string str() const;

  /// Those of the parts of a program. On failure (its stages are not as many,
  /// or parts are missing) returns nothing and sets `error`.
  std::optional<Costs> costsOf(llvm::ArrayRef<PartInfo> parts,
                               std::string &error) const;
  /// What is wrong where a run of each of `parts` computes as much as `wanted`
  /// says (0: not known), and not what was measured; empty when nothing is.
  std::string checkWork(llvm::ArrayRef<PartInfo> parts,
                        llvm::ArrayRef<double> wanted) const;
};

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_MEASUREDCOSTS_H
