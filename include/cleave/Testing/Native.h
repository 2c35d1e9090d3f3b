//===- Native.h - Native code against the interpreter -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_NATIVE_H
#define CLEAVE_TESTING_NATIVE_H

#include "cleave/Testing/RandomGraph.h"

namespace cleave {

/// How a model is compiled, and how it trains.
struct NativeOptions {
  int64_t microBatches = 1;
  /// Devices among which samples are split; ranks that are threads.
  /// Positions of an axis "dp".
  int64_t devices = 1;
  /// What else those devices split: 0, or a stage of ZeRO.
  int zero = 0;
  /// Positions of a pipeline, each of so many devices, its schedule, and the
  /// stages that each position has.
  int64_t positions = 1;
  std::string schedule;
  int64_t chunks = 1;
  /// Whether the stages update before all have said that they may.
  bool postValidation = false;
  int threads = 1;
  /// 256, 512, or 0: what the processor has.
  int vectorBits = 0;
  /// Largest piece of logits that is held at once.
  int64_t maxLogitsBytes = int64_t(100) << 20;
  bool sgd = true;
  double momentum = 0.5, maxGradNorm = 0;

  /// Options that follow from a seed alone.
  static NativeOptions draw(uint64_t seed);
  std::string text() const;
};

/// What the comparison of one model found.
struct NativeOutcome {
  enum class Kind : uint8_t {
    /// Everything agrees.
    Equal,
    /// The interpreter's results are not finite: nothing was compared.
    NotFinite,
    /// It disagrees, but so does the interpreter with itself when inputs move
    /// by rounding: a comparison or a kink decides otherwise.
    Unstable,
    /// Wrong, and `message` says where.
    Different
  };
  Kind kind = Kind::Equal;
  std::string message;
  /// The largest difference, in units of what is allowed.
  double worst = 0;
  /// Ops of the step that was executed, by name.
  std::map<std::string, int64_t> ops;
};

/// Compiles `module`, which is in the model phase, to native code, runs every
/// entry on `inputs`, the training step twice, and compares every result,
/// updated parameter and state with those of the reference interpreter, which
/// executes the module in the step phase on the very same values. What no entry
/// updates must not change.
///
/// The bound. Let `e` be the exact results, and `t0`, `t1`, ... typed ones: of
/// the inputs as they are, and of inputs moved by up to 4 units of rounding. In
/// every tensor
///
///     |native - e| <= 8 * max_i |t_i - e| + 32 * eps * scale
///
/// where the maximum is over the elements of the tensor, and `scale` is the
/// largest element of the tensor, or 1/4 of the largest of all tensors of the
/// kind (parameters, a state's slot, outputs); at least 1 for outputs, since a
/// loss is what is left when numbers of that size cancel. The first term
/// measures how the model at hand amplifies rounding, on all its intermediate
/// values at once; the second stands for the order of accumulation, `c * k *
/// eps * |A||B|` with the `k <= 64` of these models, and for kernels'
/// mathematics, good to a few units in the last place.
NativeOutcome compareNative(mlir::ModuleOp module, const NamedTensors &inputs,
                            const NativeOptions &options);

} // namespace cleave

#endif // CLEAVE_TESTING_NATIVE_H
