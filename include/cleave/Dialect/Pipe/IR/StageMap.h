//===- StageMap.h - Which device runs a stage -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// With p devices, stages go round and round them (`modular`), down and up
/// again (`v`), or both ways at once, each device holding two stages
/// (`bidirectional`: even micro-batches go down, odd ones up).
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_STAGEMAP_H
#define CLEAVE_DIALECT_PIPE_IR_STAGEMAP_H

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <cstdint>
#include <optional>
#include <string>

namespace cleave::pipe {

struct StageMap {
  enum class Kind { Modular, V, Bidirectional };

  Kind kind = Kind::Modular;
  int64_t devices = 1;

  /// A map by its name; on failure returns nothing and sets `error`.
  static std::optional<StageMap> parse(llvm::StringRef name, int64_t devices,
                                       std::string &error);
  llvm::StringRef name() const;

  /// What is wrong with so many stages on these devices, or nothing.
  std::optional<std::string> check(int64_t stages) const;

  /// The device that runs a stage for a micro-batch. For what runs once, with
  /// no micro-batch, the first of `devicesOf`.
  int64_t device(int64_t stage, int64_t microBatch = -1) const;
  /// All devices that hold a stage.
  llvm::SmallVector<int64_t, 2> devicesOf(int64_t stage) const;

  bool operator==(const StageMap &other) const = default;
};

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_STAGEMAP_H
