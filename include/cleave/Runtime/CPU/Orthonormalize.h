//===- Orthonormalize.h - Orthonormal columns -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_ORTHONORMALIZE_H
#define CLEAVE_RUNTIME_CPU_ORTHONORMALIZE_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Runtime/CPU/ThreadTeam.h"

namespace cleave::runtime {

/// The Q factors of [batch, rows, columns] matrices, computed in f64 and
/// rounded once. The result does not depend on the team. `in` may be `out`;
/// `scratch` has the size that OrthonormalScratch.h says.
void orthonormalize(const OrthonormalizeCommand &command, const float *in,
                    float *out, double *scratch, const ThreadTeam &team);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_ORTHONORMALIZE_H
