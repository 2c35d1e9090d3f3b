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
  double at = static_cast<double>(step), last = static_cast<double>(steps);
  if (at < warmup)
    return rate * (at / std::max(1.0, warmup));
  if (kind == Kind::Constant)
    return rate;
  double length = std::max(1.0, last - warmup);
  double factor;
  if (kind == Kind::Linear) {
    factor = std::max(0.0, (last - at) / length);
  } else {
    double progress = (at - warmup) / length;
    // After its end the curve would rise again.
    factor =
        progress >= 1.0 && !goesOn
            ? 0.0
            : std::max(0.0, 0.5 * (1.0 + std::cos(3.141592653589793 * cycles *
                                                  2.0 * progress)));
  }
  return minimum + (rate - minimum) * factor;
}
