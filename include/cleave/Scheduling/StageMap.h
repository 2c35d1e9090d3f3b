//===- StageMap.h - The pipeline position of each stage ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The assignment of stages to p pipeline positions:
///
///   modular        stage s is at position s mod p (Megatron's interleaving)
///   v              stages go down the positions and up again, in turn
///   bidirectional  p stages; even micro-batches run stage s at position s, odd
///                  ones at position p-1-s, so that a position holds two stages
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_STAGEMAP_H
#define CLEAVE_SCHEDULING_STAGEMAP_H

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <cstdint>
#include <optional>
#include <string>

namespace cleave::scheduling {

struct StageMap {
  enum class Kind { Modular, V, Bidirectional };

  Kind kind = Kind::Modular;
  int64_t devices = 1;

  /// Returns the map of this name; on failure returns nothing and sets `error`.
  static std::optional<StageMap> parse(llvm::StringRef name, int64_t devices,
                                       std::string &error);
  llvm::StringRef name() const;

  /// Why this number of stages cannot be assigned to the positions, or nothing.
  std::optional<std::string> check(int64_t stages) const;

  /// The position that runs a stage for a micro-batch. For a part that runs
  /// once (`microBatch` is -1), the first of `devicesOf`.
  int64_t device(int64_t stage, int64_t microBatch = -1) const;
  /// All positions that hold a stage.
  llvm::SmallVector<int64_t, 2> devicesOf(int64_t stage) const;

  bool operator==(const StageMap &other) const = default;
};

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_STAGEMAP_H
