//===- CompareDrawn.cpp - A step with random options ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Pipelines/Options.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Planning/PlanPhases.h"
#include "cleave/Testing/DrawnOptions.h"
#include "cleave/Testing/RunPhases.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>

using namespace mlir;
using namespace cleave;

namespace {
/// One form of the step: its inputs, which change from step to step.
class Trainee {
public:
  /// `later`: after updates, so that there is state.
  Trainee(ModuleOp module, NamedTensors inputs, bool later)
      : module(module), interpreter(module, Precision::Exact),
        inputs(std::move(inputs)) {
    for (auto function : module.getOps<FunctionOpInterface>())
      if (function.isPublic()) {
        addStepInputs(function, later, this->inputs);
        for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i) {
          auto name =
              function.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
          auto role =
              function.getArgAttrOfType<StringAttr>(i, graph::kRoleAttr);
          if (name)
            roles[name.str()] = role ? role.str() : "";
        }
      }
  }

  FailureOr<ReferenceResult> run(StringRef entry) {
    return interpreter.run(entry, inputs);
  }

  /// Runs one training step. Returns the results other than updated values.
  FailureOr<ReferenceResult> train();
  /// Runs the updates that the last step has deferred, if any, and returns all
  /// parameters, state and buffers.
  FailureOr<NamedTensors> finish();

private:
  LogicalResult update(StringRef entry, ReferenceResult &result);

  ModuleOp module;
  Interpreter interpreter;
  NamedTensors inputs;
  /// Names of arguments by role.
  std::map<std::string, std::string> roles;
};
} // namespace

static RankedTensorType wholeType(FunctionOpInterface function, unsigned i) {
  auto whole = function.getArgAttrOfType<TypeAttr>(i, spmd::kGlobalTypeAttr);
  return dyn_cast<RankedTensorType>(whole ? whole.getValue()
                                          : function.getArgumentTypes()[i]);
}

void cleave::addStepInputs(FunctionOpInterface function, bool later,
                           NamedTensors &inputs) {
  for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i) {
    auto name = function.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
    auto role = function.getArgAttrOfType<StringAttr>(i, graph::kRoleAttr);
    RankedTensorType type = wholeType(function, i);
    if (auto valid = function.getArgAttrOfType<DenseI64ArrayAttr>(
            i, graph::kValidShapeAttr))
      type = type.clone(valid.asArrayRef());
    if (!name || !type)
      continue;
    auto known = inputs.find(name.str());
    if (known != inputs.end()) {
      // A parameter may have another shape.
      if (known->second.size() == type.getNumElements())
        known->second.shape.assign(type.getShape().begin(),
                                   type.getShape().end());
      continue;
    }
    RefTensor tensor(type);
    if (name == "lr")
      tensor.floats[0] = 0.05;
    if (name == "loss_scale")
      tensor.floats[0] = 8.0;
    if (later && name == "step")
      tensor.ints[0] = 2;
    // Positive, because some are means of squares.
    if (later && role == "state")
      for (auto [i, value] : llvm::enumerate(tensor.floats))
        value = 0.25 + 0.125 * static_cast<double>(i * 7 % 11);
    // The first step does not read their initial values.
    if (role == "gradient")
      llvm::fill(tensor.floats, std::nan(""));
    inputs[name.str()] = std::move(tensor);
  }
}

/// Runs `entry`, and stores updated values in the inputs.
LogicalResult Trainee::update(StringRef entry, ReferenceResult &result) {
  auto found = interpreter.run(entry, inputs);
  if (failed(found))
    return failure();
  for (auto it = found->outputs.begin(); it != found->outputs.end();) {
    auto argument = inputs.find(it->first);
    if (argument == inputs.end()) {
      ++it;
      continue;
    }
    argument->second = std::move(it->second);
    it = found->outputs.erase(it);
  }
  result = std::move(*found);
  return success();
}

FailureOr<ReferenceResult> Trainee::train() {
  ++inputs["step"].ints[0];
  if (auto rng = inputs.find("rng"); rng != inputs.end())
    ++rng->second.ints[1];
  ReferenceResult result;
  if (failed(update("train", result)))
    return failure();
  for (auto &[name, tensor] : inputs)
    if (StringRef source(name); source.consume_front("previous."))
      tensor = inputs.at(source.str());
  if (auto flag = inputs.find("update_pending"); flag != inputs.end())
    flag->second.ints[0] = 1;
  return result;
}

FailureOr<NamedTensors> Trainee::finish() {
  ReferenceResult ignored;
  if (SymbolTable::lookupSymbolIn(module, "update") &&
      failed(update("update", ignored)))
    return failure();
  NamedTensors result;
  for (auto &[name, role] : roles)
    if (role == "parameter" || role == "state" || role == "buffer")
      result[name] = inputs.at(name);
  return result;
}

static bool isFinite(const NamedTensors &tensors) {
  return llvm::all_of(tensors, [](const auto &entry) {
    return llvm::all_of(entry.second.floats,
                        [](double x) { return std::isfinite(x); });
  });
}

namespace {
/// Compares the outputs of both forms.
class DrawnComparison {
public:
  /// With `signs`, parameters follow the signs of gradients.
  DrawnComparison(DrawnOutcome &outcome, double tolerance,
                  NamedTensors gradients, bool signs)
      : outcome(outcome), tolerance(tolerance), gradients(std::move(gradients)),
        signs(signs) {}

  /// Returns whether to continue.
  bool note(const Twine &where, FailureOr<NamedTensors> expected,
            FailureOr<NamedTensors> actual);

private:
  bool fail(const Twine &message) {
    outcome.kind = DrawnOutcome::Kind::Different;
    outcome.message = message.str();
    return false;
  }

  void dropNoise(NamedTensors &updated) const;

  DrawnOutcome &outcome;
  double tolerance;
  /// Differences that are small relative to these are rounding.
  NamedTensors gradients;
  bool signs;
};
} // namespace

/// Sets to 0 what follows the sign of a gradient that is 0 but for rounding.
/// The state, which is compared too, holds that gradient itself.
void DrawnComparison::dropNoise(NamedTensors &updated) const {
  double largest = 0;
  for (const auto &[name, gradient] : gradients)
    for (double x : gradient.floats)
      largest = std::max(largest, std::abs(x));
  for (const auto &[name, gradient] : gradients) {
    auto own = updated.find(name);
    if (own == updated.end() || own->second.size() != gradient.size())
      continue;
    for (auto [x, value] : llvm::zip_equal(gradient.floats, own->second.floats))
      if (std::abs(x) < 1e-13 * largest)
        value = 0;
  }
}

bool DrawnComparison::note(const Twine &where, FailureOr<NamedTensors> expected,
                           FailureOr<NamedTensors> actual) {
  if (failed(expected))
    return fail(where + ": the interpreter refuses the step");
  if (failed(actual))
    return fail(where + ": the interpreter refuses the scheduled program");
  if (!isFinite(*expected)) {
    outcome.kind = DrawnOutcome::Kind::NotFinite;
    return false;
  }
  if (signs) {
    dropNoise(*expected);
    dropNoise(*actual);
  }
  Difference difference =
      compareResults({*expected, gradients}, {std::move(*actual), gradients});
  if (!(difference.error <= outcome.worst))
    outcome.worst = difference.error;
  if (!(difference.error <= tolerance))
    return fail(where + ": '" + difference.name + "' differs by " +
                Twine(llvm::formatv("{0:e}", difference.error).str()));
  return true;
}

static FailureOr<NamedTensors> outputsOf(FailureOr<ReferenceResult> result) {
  if (failed(result))
    return failure();
  return std::move(result->outputs);
}

static std::string diagnosticsOf(ModuleOp module,
                                 llvm::function_ref<LogicalResult()> run) {
  std::string text;
  ScopedDiagnosticHandler handler(
      module.getContext(), [&](Diagnostic &diagnostic) {
        if (diagnostic.getSeverity() == DiagnosticSeverity::Error)
          text += diagnostic.str() + "\n";
      });
  if (succeeded(run()))
    return "";
  return text.empty() ? "it fails and does not say why" : text;
}

DrawnOutcome cleave::compareDrawn(const RandomGraph &graph,
                                  const CompileOptions &options,
                                  double tolerance) {
  DrawnOutcome outcome;
  if (auto mistake = checkOptions(options))
    outcome.message = mistake->str(Entrance::CommandLine);
  OwningOpRef<ModuleOp> lowered = graph.module.get().clone(), step;
  if (outcome.message.empty())
    outcome.message = diagnosticsOf(*lowered, [&] {
      if (failed(annotateParameters(*lowered, options.parameters)))
        return failure();
      return runPhases(*lowered, Phase::Scheduled, options,
                       [&](Phase phase, ModuleOp reached) {
                         // What changes the mathematics is the whole-tensor
                         // program in which it has been done.
                         if (phase == (options.phases.compress.empty() &&
                                               !reducesNext(options.phases)
                                           ? Phase::Step
                                           : Phase::Placed))
                           step = reached.clone();
                       });
    });
  if (!outcome.message.empty()) {
    outcome.kind = DrawnOutcome::Kind::Refused;
    return outcome;
  }
  std::string errors = diagnosticsOf(*lowered, [&] {
    bool later =
        graph::findOptimizerRule(options.phases.optimizer.rule)->isScaleFree();
    Trainee whole(*step, graph.inputs, later);
    Trainee drawn(*lowered, graph.inputs, later);
    auto first = whole.run("train");
    if (failed(first))
      return failure();
    DrawnComparison comparison(outcome, tolerance, std::move(first->published),
                               later);
    bool goOn = true;
    for (auto function : step->getOps<FunctionOpInterface>())
      if (goOn && function.isPublic() && function.getName() != "train")
        goOn = comparison.note(function.getName(),
                               outputsOf(whole.run(function.getName())),
                               outputsOf(drawn.run(function.getName())));
    for (int number = 1; goOn && number <= 2; ++number)
      goOn = comparison.note("step " + Twine(number), outputsOf(whole.train()),
                             outputsOf(drawn.train()));
    if (goOn)
      goOn = comparison.note("after 2 steps", whole.finish(), drawn.finish());
    return success(goOn || outcome.kind == DrawnOutcome::Kind::NotFinite);
  });
  if (outcome.kind == DrawnOutcome::Kind::Different &&
      StringRef(outcome.message).contains("refuses"))
    outcome.message += "\n" + errors;
  return outcome;
}
