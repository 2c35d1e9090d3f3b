//===- LearningRate.h - Schedules of the learning rate ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_SESSION_LEARNINGRATE_H
#define CLEAVE_RUNTIME_SESSION_LEARNINGRATE_H

#include <cstdint>

namespace cleave::runtime {

/// A learning rate as a function of the step, with the values of transformers'
/// get_constant_schedule_with_warmup, get_linear_schedule_with_warmup and
/// get_cosine_schedule_with_warmup: `warmup` steps rise linearly from 0 (so the
/// first step has rate 0), then the rate falls to `minimum` at step `steps`.
struct LearningRate {
  enum class Kind { Constant, Linear, Cosine };
  Kind kind = Kind::Constant;
  double rate = 0;
  /// The steps of a linear warm-up from 0, and those up to which the rate
  /// falls.
  double warmup = 0;
  int64_t steps = 0;
  /// The rate at `steps`.
  double minimum = 0;
  /// Of a cosine: the waves up to `steps`, and whether it goes on after them,
  /// as in the transformers library, or stays at the minimum.
  double cycles = 0.5;
  bool goesOn = false;

  /// The rate of a step; the first has index 0.
  double at(int64_t step) const;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_SESSION_LEARNINGRATE_H
