//===- Native.h - Native code against the interpreter -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_NATIVE_H
#define CLEAVE_TESTING_NATIVE_H

#include "cleave/Pipelines/Compile.h"
#include "cleave/Testing/RandomGraph.h"

namespace cleave {

/// How a model is compiled and trained, drawn from a seed alone: samples are
/// sharded over an axis "dp", ranks are threads.
CompileOptions drawNativeOptions(uint64_t seed);
/// Takes the stages away, and what they are for.
void dropStages(CompileOptions &options);

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
                            const CompileOptions &options);

} // namespace cleave

#endif // CLEAVE_TESTING_NATIVE_H
