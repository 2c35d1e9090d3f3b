//===- Prediction.h - An estimate of a step on a device ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_MACHINES_PREDICTION_H
#define CLEAVE_MACHINES_PREDICTION_H

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cleave::machines {

/// The sums of commands: how many there are, and what they take.
struct CommandSums {
  int64_t commands = 0, launches = 0;
  double operations = 0, bytes = 0, seconds = 0;
};

/// An estimate of one training step on a device that is not here.
struct Prediction {
  /// Commands of one kind, and those of one label and kind.
  struct Kind {
    std::string kind;
    CommandSums sums;
  };
  struct Label {
    std::string label, kind;
    CommandSums sums;
  };
  std::string device;
  /// The rates that the estimate is made with, by name.
  std::vector<std::pair<std::string, double>> rates;
  /// Those of the smallest input.
  int64_t tokens = 0;
  int64_t launches = 0;
  double seconds = 0;
  /// Bytes that kinds other than contractions and attention move.
  double bytesOutside = 0;
  std::vector<Kind> kinds;
  std::vector<Label> labels;
};

} // namespace cleave::machines

#endif // CLEAVE_MACHINES_PREDICTION_H
