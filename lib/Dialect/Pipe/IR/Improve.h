//===- Improve.h - Better orders than those given ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_IR_IMPROVE_H
#define CLEAVE_LIB_DIALECT_PIPE_IR_IMPROVE_H

#include "Chain.h"

namespace cleave::pipe {

/// The times of the letters of words, and what each waited for.
class Timing {
public:
  explicit Timing(const Chain &chain);

  /// When the last letter ends; never, if the words deadlock. Does not look at
  /// limits.
  double run(const Words &words);

  /// Of what decides the end of the last run: neighbours on a device, of which
  /// the second waits for the first (the place of the second).
  void criticalPairs(const Words &words,
                     std::vector<std::pair<int, int>> &pairs) const;

private:
  struct Place {
    int device, index;
  };
  bool place(const Words &words, int device);

  const Chain &chain;
  int64_t m;
  std::vector<double> forward, backward, free;
  std::vector<Place> forwardAt, backwardAt;
  std::vector<std::array<int64_t, 3>> count;
  std::vector<int> at;
  /// For each letter, the place of what it waited for on another device, or
  /// a device of -1 when its own device was what it waited for.
  std::vector<std::vector<Place>> waited;
  double last = 0;
  Place lastAt = {0, -1};
};

/// Local search: moves letters where they decide the makespan. Never worse than
/// `words`, always the same for the same input. `tries` bounds its work.
Words improve(const Chain &chain, Words words, int64_t tries);

/// The best words, if they can be found in so many steps, for one stage on each
/// device; nothing if not, or if none end earlier than `known`. Sets `proved`
/// when the search was complete.
std::optional<Words> findOptimum(const Chain &chain, double known,
                                 int64_t steps, bool &proved);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_IR_IMPROVE_H
