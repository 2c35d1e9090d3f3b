//===- Chunks.h - Collectives in chunks -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_CHUNKS_H
#define CLEAVE_DIALECT_SPMD_IR_CHUNKS_H

#include "llvm/ADT/StringRef.h"

namespace cleave::spmd {

/// On a collective that is one chunk of a larger one: `array<i64: n, i>`, where
/// `n` is a number that the chunks of one collective share in their function
/// and `i` the number of the chunk. Commands stay in an order in which a gather
/// begins before the readers of the previous chunk, and a reduction before the
/// operand of the next chunk is computed.
inline constexpr llvm::StringLiteral kChunkAttr = "spmd.chunk";

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_CHUNKS_H
