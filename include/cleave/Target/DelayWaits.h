//===- DelayWaits.h - What runs while something is exchanged ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TARGET_DELAYWAITS_H
#define CLEAVE_TARGET_DELAYWAITS_H

#include "cleave/Runtime/Program.h"

namespace cleave {

/// Moves each wait in front of the first command that touches the memory of its
/// exchange, or to the end of the part. The order of waits follows from the
/// program alone: it is the same on every rank.
void delayWaits(runtime::Program &program);

} // namespace cleave

#endif // CLEAVE_TARGET_DELAYWAITS_H
