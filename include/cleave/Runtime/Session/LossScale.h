//===- LossScale.h - The factor of the loss in 16-bit training --*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Gradients in fp16 underflow unless the loss, and with it all gradients, is
/// multiplied by a factor (Micikevicius et al., arXiv 1710.03740, section 3.2).
/// A step whose gradients overflow is skipped, and lowers the factor; steps
/// that do not overflow raise it.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_SESSION_LOSSSCALE_H
#define CLEAVE_RUNTIME_SESSION_LOSSSCALE_H

#include "cleave/Executable/Format/Program.h"

namespace cleave::runtime {

/// Where a run is with its loss scale.
struct LossScaleState {
  /// The factor of the next step.
  double scale = 1;
  /// Finite steps since the scale was changed, and overflows that it still
  /// stands before it is halved.
  int64_t growth = 0, hysteresis = 0;

  static LossScaleState initial(const LossScaling &settings) {
    return {settings.initial, 0, settings.hysteresis};
  }
  /// Whether the numbers are those of some run.
  bool isValid() const {
    return scale > 0 && scale <= 0x1p127 && growth >= 0 && hysteresis >= 0;
  }
  /// Whether a step that overflows can be repeated with a lower scale.
  bool canFall(const LossScaling &settings) const {
    return settings.dynamic && scale > settings.minimum;
  }
  /// After a step of which all gradients were finite, or not: Megatron's
  /// rule. An overflow restarts growth, and, once `hysteresis` of them are used
  /// up, halves the scale. A window of finite steps doubles it, and resets the
  /// hysteresis.
  void update(const LossScaling &settings, bool finite);

  bool operator==(const LossScaleState &) const = default;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_SESSION_LOSSSCALE_H
