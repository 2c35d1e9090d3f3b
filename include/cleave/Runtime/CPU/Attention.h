//===- Attention.h - Blockwise attention ------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_ATTENTION_H
#define CLEAVE_RUNTIME_CPU_ATTENTION_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Runtime/CPU/ThreadTeam.h"

namespace cleave::runtime {

/// Bytes of scratch memory for each thread that the forward or backward pass of
/// `command` needs; the code generator stores it in `scratchBytesPerThread`. It
/// is linear in the number of keys.
int64_t attentionScratchBytes(const AttentionCommand &command, bool backward);

/// The operands of an attention command as pointers; null if absent. `lse` has
/// one number for each row; with a bias two, whose sum it is.
struct AttentionPointers {
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  float *o = nullptr, *lse = nullptr;
  const float *bias = nullptr;
  const uint8_t *mask = nullptr;
  const int64_t *querySegments = nullptr, *keySegments = nullptr;
  const int64_t *rng = nullptr, *origin = nullptr;
  const int64_t *queryStarts = nullptr, *keyStarts = nullptr;
  const float *dO = nullptr;
  float *dQ = nullptr, *dK = nullptr, *dV = nullptr, *dBias = nullptr;
  char *scratch = nullptr;
};

/// Neither result depends on the number of threads. The backward pass
/// overwrites its outputs.
void attentionForward(const AttentionCommand &command,
                      const AttentionPointers &pointers,
                      const ThreadTeam &team);
void attentionBackward(const AttentionCommand &command,
                       const AttentionPointers &pointers,
                       const ThreadTeam &team);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_ATTENTION_H
