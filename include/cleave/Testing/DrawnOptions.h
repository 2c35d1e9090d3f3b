//===- DrawnOptions.h - Random options of a step ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_DRAWNOPTIONS_H
#define CLEAVE_TESTING_DRAWNOPTIONS_H

#include "cleave/Pipelines/Compile.h"
#include "cleave/Testing/RandomGraph.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include <set>

namespace cleave {

/// Options of every kind for a model, drawn from its seed alone. Many
/// combinations are contradictory, or are not for this model; the compiler must
/// refuse these. `ranks` bounds the product of the axes.
CompileOptions drawOptions(const RandomGraph &graph, int64_t ranks);

/// Draws a rule and all its settings; `smallestEpsilon` is a lower bound of
/// what is added to a divisor, by which a gradient that is 0 up to rounding is
/// divided.
graph::OptimizerOptions drawOptimizer(Random &rng, double smallestEpsilon);
/// The same for a given rule; settings that are given stay.
void drawSettings(Random &rng, double smallestEpsilon,
                  graph::OptimizerOptions &options);

/// The settings of `options`, each as `option=value`; a number with many
/// possible values is left out.
std::set<std::string> choicesOf(const CompileOptions &options);

/// The options that are not at their defaults, and the update rule, as text.
std::string givenText(const CompileOptions &options);

/// The arguments of the passes that `options` run up to `last`.
std::set<std::string> passesOf(mlir::MLIRContext *context,
                               const CompileOptions &options, Phase last);

/// Adds to `inputs` a value for each argument of `function` that they lack;
/// with `later`, state is as after some updates.
void addStepInputs(mlir::FunctionOpInterface function, bool later,
                   NamedTensors &inputs);

/// The result of comparing a step with drawn options.
struct DrawnOutcome {
  enum class Kind : uint8_t {
    /// All entries agree.
    Equal,
    /// The step is not finite: nothing was compared.
    NotFinite,
    /// The compiler refuses the options with a message.
    Refused,
    /// Wrong; `message` says where.
    Different
  };
  Kind kind = Kind::Equal;
  std::string message;
  /// The largest relative difference.
  double worst = 0;
};

/// Takes `graph` to the scheduled phase, and executes two training steps and
/// all other entries there and in the step phase, in f64.
DrawnOutcome compareDrawn(const RandomGraph &graph,
                          const CompileOptions &options, double tolerance);
/// The same; options that are refused, with the message `refusal`, are changed
/// in a few places until they are not.
DrawnOutcome compareLegal(const RandomGraph &graph, CompileOptions &options,
                          double tolerance, std::string &refusal);

} // namespace cleave

#endif // CLEAVE_TESTING_DRAWNOPTIONS_H
