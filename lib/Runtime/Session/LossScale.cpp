//===- LossScale.cpp - The factor of the loss in 16-bit training ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Session/LossScale.h"

#include <algorithm>

using namespace cleave::runtime;

void LossScaleState::update(const LossScaling &settings, bool finite) {
  if (!settings.dynamic)
    return;
  if (!finite) {
    growth = 0;
    if (--hysteresis <= 0) {
      hysteresis = 0;
      scale = std::max<double>(scale / 2, settings.minimum);
    }
    return;
  }
  if (++growth < settings.window)
    return;
  growth = 0;
  hysteresis = settings.hysteresis;
  // A greater factor is no f32 any more.
  scale = std::min(scale * 2, 0x1p127);
}
