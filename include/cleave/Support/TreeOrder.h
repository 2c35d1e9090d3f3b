//===- TreeOrder.h - In which order a tree sums up --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Summands of a binary tree, in the order in which neighbours are added, then
/// neighbouring pairs, and so on. Of a power of 2, halves are added first: 0
/// and count/2. A batch whose sample n is in micro-batch n / D of device n % D
/// is so summed up in the same tree for every number D of devices:
/// micro-batches on each device, then devices.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_TREEORDER_H
#define CLEAVE_SUPPORT_TREEORDER_H

#include <cstdint>

namespace cleave {

/// Which of `count` summands is the `place`-th: of a power of 2, the digits of
/// `place` in reverse; else `place`.
inline int64_t treeOrder(int64_t place, int64_t count) {
  if (count & (count - 1))
    return place;
  int64_t result = 0;
  for (int64_t bit = 1; bit < count; bit *= 2, place /= 2)
    result = 2 * result + place % 2;
  return result;
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_TREEORDER_H
