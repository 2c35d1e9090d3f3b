//===- ReductionKind.h - Kinds of reductions ------------------ -*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_REDUCTIONKIND_H
#define CLEAVE_SUPPORT_REDUCTIONKIND_H

#include "llvm/ADT/StringRef.h"
#include <cstdint>
#include <optional>

namespace cleave {

/// How elements, or the partial values of ranks, are combined into one. The
/// numbers are those of Communicator.h and of the attribute in IR
/// (Dialect/Graph/IR/Kinds.td).
enum class ReductionKind : uint8_t { Sum, Max, Min };

inline constexpr llvm::StringLiteral kReductionNames[] = {"sum", "max", "min"};

inline llvm::StringRef stringifyReductionKind(ReductionKind kind) {
  return kReductionNames[static_cast<size_t>(kind)];
}

/// The kind of a name or number; nothing for others.
inline std::optional<ReductionKind>
symbolizeReductionKind(llvm::StringRef name) {
  for (size_t i = 0; i < std::size(kReductionNames); ++i)
    if (name == kReductionNames[i])
      return static_cast<ReductionKind>(i);
  return std::nullopt;
}
inline std::optional<ReductionKind> symbolizeReductionKind(uint32_t number) {
  if (number < std::size(kReductionNames))
    return static_cast<ReductionKind>(number);
  return std::nullopt;
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_REDUCTIONKIND_H
