//===- CollectiveCost.h - Communication volume of collectives ---*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_MACHINES_COLLECTIVECOST_H
#define CLEAVE_MACHINES_COLLECTIVECOST_H

#include "cleave/Support/CollectiveKind.h"

namespace cleave::machines {

/// The kinds of collectives, by the volume that they send.
/// Returns the elements that one of `ranks` ranks sends in a ring algorithm.
/// `elements` is the number that a rank has before an all-reduce, a
/// reduce-scatter, an all-to-all, a permutation or a reduction, and after an
/// all-gather or a broadcast.
///
///   all-reduce                                              2 (N-1)/N elements
///   reduce-scatter, all-gather, all-to-all, broadcast, reduce (N-1)/N elements
///   permute                                                           elements
///
/// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
/// workstations", section 3.
double elementsSent(CollectiveKind kind, int64_t ranks, double elements);

/// The latency of a collective, as the bytes that could be sent in that time.
/// It decides between plans of equal volume.
inline constexpr double kStartBytes = 64;
/// The cost of a copy within a rank, in the same unit.
inline constexpr double kCopyBytes = 1;

} // namespace cleave::machines

#endif // CLEAVE_MACHINES_COLLECTIVECOST_H
