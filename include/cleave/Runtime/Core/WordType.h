//===- WordType.h - An integer type for each element size -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_WORDTYPE_H
#define CLEAVE_RUNTIME_CORE_WORDTYPE_H

#include <cstdint>

namespace cleave::runtime {

/// Calls `function` with a null pointer to the unsigned integer of `bytes`
/// bytes (1, 2, 4 or 8): what moves elements needs their size alone.
template <typename Function>
void withWordType(int64_t bytes, Function &&function) {
  switch (bytes) {
  case 1:
    return function(static_cast<uint8_t *>(nullptr));
  case 2:
    return function(static_cast<uint16_t *>(nullptr));
  case 4:
    return function(static_cast<uint32_t *>(nullptr));
  default:
    return function(static_cast<uint64_t *>(nullptr));
  }
}

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CORE_WORDTYPE_H
