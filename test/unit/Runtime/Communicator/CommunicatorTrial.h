//===- CommunicatorTrial.h - Drawn collectives ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_RUNTIME_COMMUNICATORTRIAL_H
#define CLEAVE_TEST_UNIT_RUNTIME_COMMUNICATORTRIAL_H

#include "cleave/Runtime/Communicator/Communicator.h"
#include <string>

namespace cleave::test {

/// Runs collectives that are drawn from `seed`, as one rank of all; every rank
/// draws the same, computes what each of them should receive from the data of
/// all, and compares its own, also what lies between the elements. Blocks have
/// up to about `largest` elements. All collectives are of `kind`, where that is
/// given and groups can have it. What is wrong, or "".
std::string runTrial(cleave_communicator *communicator, uint64_t seed,
                     int64_t largest = 500, int32_t kind = -1);

/// A team of one thread.
cleave_team singleThread();

} // namespace cleave::test

#endif // CLEAVE_TEST_UNIT_RUNTIME_COMMUNICATORTRIAL_H
