//===- CommunicationFacts.h - What devices send -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_REPORTS_COMMUNICATIONFACTS_H
#define CLEAVE_REPORTS_COMMUNICATIONFACTS_H

#include "mlir/IR/BuiltinOps.h"
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace cleave {

/// The exchanges of one run of an entry at one pipeline position, by ring
/// algorithms (`machines::elementsSent`).
struct CommunicationFacts {
  struct Sent {
    int64_t count = 0;
    double elements = 0, bytes = 0;
    void add(int64_t times, double each, double size) {
      count += times;
      elements += static_cast<double>(times) * each;
      bytes += static_cast<double>(times) * each * size;
    }
  };
  /// By kind, axes, line and cause; where the first of them is.
  struct Place : Sent {
    mlir::LocationAttr location;
    /// The names of the axes.
    std::vector<std::string> axes;
  };
  using Key = std::tuple<std::string, std::string, std::string, std::string>;

  std::string entry;
  std::optional<int64_t> position;
  std::map<Key, Place> places;
  /// By kind and axes.
  std::map<std::pair<std::string, std::string>, Sent> totals;
  /// Of all; and what the repeated update sends in addition.
  Sent all, again;
};

/// The communication of each program of `module`, after `--exec-plan-memory`.
std::vector<CommunicationFacts> findCommunication(mlir::ModuleOp module);

} // namespace cleave

#endif // CLEAVE_REPORTS_COMMUNICATIONFACTS_H
