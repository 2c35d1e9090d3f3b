//===- Compression.h - Compressed sums of gradients -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_TRANSFORMS_COMPRESSION_H
#define CLEAVE_DIALECT_SPMD_TRANSFORMS_COMPRESSION_H

#include "llvm/ADT/StringRef.h"
#include <string>

namespace cleave::spmd {

/// The name of the state that holds what a compressed gradient did not send.
inline constexpr llvm::StringLiteral kResidualSlot = "residual";

/// Why `text`, such as "powersgd,rank=4", names no compression; empty if it
/// does.
std::string compressionProblem(llvm::StringRef text);

/// The names of all compressors, for texts: "powersgd, topk".
std::string compressorNames();

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_TRANSFORMS_COMPRESSION_H
