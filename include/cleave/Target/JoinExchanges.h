//===- JoinExchanges.h - Small exchanges at once ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TARGET_JOINEXCHANGES_H
#define CLEAVE_TARGET_JOINEXCHANGES_H

#include "cleave/Runtime/Program.h"

namespace cleave {

/// Makes one exchange of reductions and gathers of one kind among the same
/// devices, while a rank holds at most `maxBytes` of their operands together;
/// what is larger stays alone. An exchange begins later than before, but never
/// after a command that touches its memory, so that memory stays as planned.
/// Each wait comes right behind its exchange, as `delayWaits` expects it. The
/// result follows from the program alone: it is the same on every rank.
/// Li et al., "PyTorch Distributed" (arXiv 2006.15704), section 3.2, "gradient
/// bucketing".
void joinExchanges(runtime::Program &program, int64_t maxBytes);

} // namespace cleave

#endif // CLEAVE_TARGET_JOINEXCHANGES_H
