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

/// Sends rows that are drawn from `seed` from each rank to each, several times
/// with other numbers, and back; compares all rows. An error text, or "".
std::string runRowTrial(cleave_communicator *communicator, uint64_t seed);

/// Sends rows of which rank 1 gives a wrong number ("other", "held",
/// "negative", "huge", "begin"), or for which there is no "room". The error
/// of this rank, without the name of the one that failed; and whether a row was
/// written.
std::string runRowFault(cleave_communicator *communicator,
                        const std::string &fault);

/// The faults, and what all ranks are told of each.
inline constexpr const char *kRowFaults[][2] = {
    {"other", "an all-to-all of rows: member 1 sends 1 row to member 2, which "
              "expects 2"},
    {"held", "an all-to-all of rows: member 1 sends 9 rows, 3 more than it "
             "holds"},
    {"negative", "an all-to-all of rows: member 1 receives a negative number "
                 "of rows"},
    {"huge", "an all-to-all of rows: member 1 receives a negative number of "
             "rows"},
    {"begin", "an all-to-all of rows: member 1 sends rows from row 1 on, not "
              "from row 0"},
    {"room", "an all-to-all of rows: member 0 receives 6 rows, 1 more than it "
             "has room for"}};

/// A team of one thread.
cleave_team singleThread();

} // namespace cleave::test

#endif // CLEAVE_TEST_UNIT_RUNTIME_COMMUNICATORTRIAL_H
