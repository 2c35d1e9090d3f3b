//===- Conversion.h - Element types of files --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A file may hold a tensor in another element type than the program: weights
/// in 16 bits, for example. Floats become floats, rounded to the nearest value
/// (ties to even), bit for bit as PyTorch converts them; integers and booleans
/// become integers and booleans of the same value.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FILES_CONVERSION_H
#define CLEAVE_EXECUTABLE_FILES_CONVERSION_H

#include "cleave/Executable/Format/Program.h"
#include "llvm/ADT/StringRef.h"
#include <optional>

namespace cleave::runtime {

/// How elements of a file become those of a program.
struct Conversion {
  /// Bytes of an element before and after.
  int64_t fromBytes, toBytes;
  /// Whether the bytes are the same.
  bool copies;
  /// Whether each value has one in the program.
  bool total;
  /// Converts `count` elements, which need no alignment. Returns the index of
  /// the first one that has no value in the program (a finite float that would
  /// become infinite, an integer out of range), or -1. Without a destination it
  /// only looks for that.
  int64_t (*run)(const char *from, char *to, int64_t count);

  /// The conversion of elements of `dtype`, as a safetensors file spells it;
  /// none if elements of that type never become `to`.
  static std::optional<Conversion> find(llvm::StringRef dtype, DType to);
};

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FILES_CONVERSION_H
