//===- LearningRate.cpp - Schedules of the learning rate ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Session/LearningRate.h"

#include <algorithm>
#include <cmath>

using namespace cleave::runtime;

double LearningRate::at(int64_t step) const {
  if (step < warmup)
    return rate * (static_cast<double>(step) /
                   static_cast<double>(std::max<int64_t>(1, warmup)));
  if (kind == Kind::Constant)
    return rate;
  double length = static_cast<double>(std::max<int64_t>(1, steps - warmup));
  double factor;
  if (kind == Kind::Linear) {
    factor = std::max(0.0, static_cast<double>(steps - step) / length);
  } else {
    double progress = static_cast<double>(step - warmup) / length;
    // After its end the curve would rise again.
    factor = progress >= 1.0
                 ? 0.0
                 : 0.5 * (1.0 + std::cos(3.141592653589793 * progress));
  }
  return minimum + (rate - minimum) * factor;
}
