//===- Native.h - Native code against the interpreter -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_NATIVE_H
#define CLEAVE_TESTING_NATIVE_H

#include "cleave/Dialect/Graph/Transforms/Optimizer.h"
#include "cleave/Testing/RandomGraph.h"

namespace cleave {

/// How a model is compiled and trained.
struct NativeOptions {
  int64_t microBatches = 1;
  /// The number of devices over which samples are sharded, on an axis "dp";
  /// ranks are threads.
  int64_t devices = 1;
  /// The stage of ZeRO on these devices, or 0.
  int zero = 0;
  /// The number of pipeline positions, each of `devices` devices, the schedule,
  /// and the stages of each position.
  int64_t positions = 1;
  std::string schedule;
  int64_t chunks = 1;
  /// Whether updates run before all positions have validated the step.
  bool postValidation = false;
  /// Whether a step that is not finite stops.
  bool checkFinite = true;
  int threads = 1;
  /// 256, 512, or 0 for that of the processor.
  int vectorBits = 0;
  /// The largest chunk of logits in memory at once.
  int64_t maxLogitsBytes = int64_t(100) << 20;
  /// Reductions are merged into exchanges of up to this many bytes.
  int64_t bucketBytes = int64_t(1) << 20;
  /// Whether every action is written out instead of repeated.
  bool writeOut = false;
  /// The number of grains of a step that is summed in a tree; 0 without a tree.
  int64_t grains = 0;
  /// See PhaseOptions.
  std::string fusion = "auto", gather, slices = "auto";
  std::string precision = "f32", activationReduction = "f32",
              residual = "16bit", gradientType = "f32", mergeMatmuls = "off";
  graph::OptimizerOptions optimizer;

  /// Options drawn from a seed alone.
  static NativeOptions draw(uint64_t seed);
  std::string text() const;
};

/// The result of comparing one model.
struct NativeOutcome {
  enum class Kind : uint8_t {
    /// Everything agrees.
    Equal,
    /// The interpreter's results are not finite: nothing was compared.
    NotFinite,
    /// It disagrees, but so does the interpreter with itself when inputs change
    /// by rounding: a comparison or a kink has another result.
    Unstable,
    /// Wrong; `message` says where.
    Different
  };
  Kind kind = Kind::Equal;
  std::string message;
  /// The largest difference, in units of the tolerance.
  double worst = 0;
  /// Ops of the executed step, by name.
  std::map<std::string, int64_t> ops;
};

/// Compiles `module`, which is in the model phase, to native code, runs every
/// entry on `inputs`, the training step three times, and compares every result,
/// updated parameter and state with those of the reference interpreter, which
/// executes the module in the step phase on the same values. Tensors that no
/// entry updates must not change.
///
/// The tolerance. Let `e` be the exact results, and `t0`, `t1`, ... typed ones:
/// of the given inputs, and of inputs changed by up to 4 units of rounding. In
/// every tensor
///
///     |native - e| <= 8 * max_i |t_i - e| + 32 * eps * scale
///
/// where the maximum is over the elements of the tensor, and `scale` is the
/// largest element of the tensor, or 1/4 of the largest of all tensors of the
/// kind (parameters, a state's slot, outputs); at least 1 for outputs, since a
/// loss is a difference of numbers of that size. The first term measures how
/// the given model amplifies rounding, on all its intermediate values together;
/// the second accounts for the order of accumulation, `c * k * eps * |A||B|`
/// with the `k <= 64` of these models, and for kernels' mathematics, accurate
/// to a few units in the last place.
NativeOutcome compareNative(mlir::ModuleOp module, const NamedTensors &inputs,
                            const NativeOptions &options);

} // namespace cleave

#endif // CLEAVE_TESTING_NATIVE_H
