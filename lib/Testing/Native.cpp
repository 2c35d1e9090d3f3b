//===- Native.cpp - Native code against the interpreter -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/Native.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Planning/GenerateCode.h"
#include "cleave/Planning/PlanPhases.h"
#include "cleave/Testing/DrawnOptions.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>
#include <cstring>

using namespace mlir;
using namespace cleave;
using runtime::DType;
using runtime::Role;
using runtime::Session;

static constexpr double kEpsilon = 5.9604644775390625e-8; // 2^-24
static constexpr int64_t kSeed = 17;

CompileOptions cleave::drawNativeOptions(uint64_t seed) {
  Random rng(seed ^ 0x5eed);
  CompileOptions result;
  result.verify = Verify::Passes;
  PhaseOptions &options = result.phases;
  options.maxLogitsBytes = int64_t(100) << 20;
  int64_t devices = 1, zero = 0;
  options.microBatches = int64_t(1) << rng.integer(0, 2);
  options.threads = rng.integer(1, 2);
  result.vectorBits = rng.chance(0.5) ? 256 : 512;
  if (rng.chance(0.3))
    options.maxLogitsBytes = 64;
  graph::OptimizerOptions &optimizer = options.optimizer;
  // The first update of the others shows the sign of what is zero up to
  // rounding.
  SmallVector<const graph::OptimizerRule *> rules =
      llvm::filter_to_vector(graph::optimizerRules(), [](const auto *rule) {
        return !rule->isScaleFree();
      });
  optimizer.rule = rng.pick(rules)->name().str();
  optimizer.maxGradNorm = rng.chance(0.4) ? 0.1 : 0;
  if (rng.chance(0.4)) {
    // Samples are multiples of four: three devices pad them.
    devices = rng.integer(2, 4);
    options.microBatches = devices == 4 ? 1 : rng.integer(1, 2);
    zero = rng.integer(0, 3);
    options.mesh = "dp=" + std::to_string(devices);
    if (zero)
      options.recipes = "zero" + std::to_string(zero);
    options.threads = static_cast<int>(devices);
  }
  if (rng.chance(0.3)) {
    options.mesh += options.mesh.empty() ? "pp=2" : ",pp=2";
    struct Drawn {
      const char *name;
      int64_t chunks;
    };
    static constexpr Drawn schedules[] = {
        {"gpipe", 1}, {"1f1b", 1}, {"zb-h1", 1}, {"zb-h2", 1}, {"zb-v", 2}};
    const Drawn &drawn = schedules[rng.integer(0, 4)];
    options.schedule = drawn.name;
    options.chunks = drawn.chunks;
    options.threads = static_cast<int>(devices * 2);
    options.postValidation = rng.chance(0.4);
  }
  options.checkFinite = rng.chance(0.7);
  // Drawn separately, which leaves other options unchanged.
  Random more(seed ^ 0xf0510);
  // Not the default eps, with which a gradient that is 0 up to rounding makes
  // an update of full size: no comparison would be possible.
  drawSettings(more, 0.1, optimizer);
  static constexpr const char *fusions[] = {"auto", "none", "backward",
                                            "forward", "forward"};
  options.optimizerFusion = more.pick(fusions);
  if (options.postValidation && options.optimizerFusion == "forward")
    options.optimizerFusion = "auto";
  // Updates in backward come before the check.
  if (options.optimizerFusion == "backward")
    options.checkFinite = false;
  static constexpr const char *gathers[] = {"", "each", "once", "auto"};
  options.pipeGather = more.pick(gathers);
  static constexpr const char *slices[] = {"auto", "on", "off"};
  options.pipeSlices = more.pick(slices);
  static constexpr int64_t buckets[] = {1, 256, -1};
  result.bucketBytes = more.pick(buckets);
  options.writeOutActions = more.chance(0.2);
  Random types(seed ^ 0xbf16);
  if (types.chance(0.3)) {
    options.precision = "bf16";
    options.residual = types.chance(0.3) ? "f32" : "16bit";
    static constexpr const char *sums[] = {"f32", "f32", "products", "16bit"};
    options.activationReduction = types.pick(sums);
    options.gradientType = types.chance(0.3) ? "bf16" : "f32";
    options.mergeMatmuls = types.chance(0.5) ? "on" : "off";
  }
  // A tree over samples, which not all devices and recipes support; with 16
  // bits, parameters are sharded too.
  if (more.chance(0.15) && devices != 3 &&
      (zero == 0 || (zero == 1 && options.precision == "f32" &&
                     optimizer.maxGradNorm == 0))) {
    options.grains = 4;
    options.microBatches = 1;
  }
  return result;
}

void cleave::dropStages(CompileOptions &options) {
  static const PhaseOptions defaults;
  PhaseOptions &phases = options.phases;
  SmallVector<StringRef> axes;
  StringRef(phases.mesh).split(axes, ',', -1, /*KeepEmpty=*/false);
  llvm::erase_if(axes, [](StringRef axis) { return axis.starts_with("pp="); });
  phases.mesh = llvm::join(axes, ",");
  phases.schedule = defaults.schedule;
  phases.chunks = defaults.chunks;
  phases.postValidation = false;
}

//===----------------------------------------------------------------------===//
// Tensors of the session
//===----------------------------------------------------------------------===//

template <typename Element, typename List>
static void readAs(const char *data, List &to) {
  for (size_t i = 0; i < to.size(); ++i) {
    Element x;
    std::memcpy(&x, data + i * sizeof(Element), sizeof(Element));
    to[i] = x;
  }
}

template <typename Element, typename List>
static void writeAs(char *data, const List &from) {
  for (size_t i = 0; i < from.size(); ++i) {
    Element x = static_cast<Element>(from[i]);
    std::memcpy(data + i * sizeof(Element), &x, sizeof(Element));
  }
}

static Type elementType(MLIRContext *context, DType dtype) {
  Builder builder(context);
  switch (dtype) {
  case DType::F64:
    return builder.getF64Type();
  case DType::F16:
    return builder.getF16Type();
  case DType::BF16:
    return builder.getBF16Type();
  case DType::F8E4M3:
    return builder.getType<Float8E4M3FNType>();
  case DType::F8E5M2:
    return builder.getType<Float8E5M2Type>();
  case DType::F32:
    return builder.getF32Type();
  case DType::I64:
    return builder.getI64Type();
  case DType::I32:
    return builder.getI32Type();
  case DType::I8:
    return builder.getI8Type();
  case DType::I1:
    return builder.getI1Type();
  }
  return Type();
}

/// Whether values of the type are read and written here.
static bool isKnown(DType dtype) {
  return dtype != DType::F16 && dtype != DType::BF16 &&
         dtype != DType::F8E4M3 && dtype != DType::F8E5M2;
}

static RefTensor read(MLIRContext *context, const Session &session,
                      const runtime::Tensor &tensor) {
  RefTensor result(tensor.shape, elementType(context, tensor.dtype));
  std::vector<char> whole(static_cast<size_t>(session.bytes(tensor)));
  // Ranks are threads here: reading cannot fail.
  llvm::cantFail(session.read(tensor, whole.data()));
  const char *data = whole.data();
  switch (tensor.dtype) {
  case DType::F64:
    readAs<double>(data, result.floats);
    break;
  case DType::F32:
    readAs<float>(data, result.floats);
    break;
  case DType::I64:
    readAs<int64_t>(data, result.ints);
    break;
  case DType::I32:
    readAs<int32_t>(data, result.ints);
    break;
  default:
    readAs<int8_t>(data, result.ints);
  }
  return result;
}

static void write(Session &session, const runtime::Tensor &tensor,
                  const RefTensor &value) {
  std::vector<char> whole(static_cast<size_t>(session.bytes(tensor)));
  char *data = whole.data();
  switch (tensor.dtype) {
  case DType::F64:
    writeAs<double>(data, value.floats);
    break;
  case DType::F32:
    writeAs<float>(data, value.floats);
    break;
  case DType::I64:
    writeAs<int64_t>(data, value.ints);
    break;
  case DType::I32:
    writeAs<int32_t>(data, value.ints);
    break;
  default:
    writeAs<int8_t>(data, value.ints);
  }
  session.write(tensor, data);
}

static NamedTensors readAll(MLIRContext *context, const Session &session) {
  NamedTensors result;
  for (const runtime::Tensor &tensor : session.getProgram().tensors)
    if (isKnown(tensor.dtype))
      result[tensor.name] = read(context, session, tensor);
  return result;
}

//===----------------------------------------------------------------------===//
// The interpreter's results
//===----------------------------------------------------------------------===//

namespace {

/// The expected results of one entry, and their tolerance for rounding.
struct Expectation {
  NamedTensors exact, typed;
  /// By name: the largest deviation of a typed run in any element.
  std::map<std::string, double> spread;
};

/// Compares one model's native code with its step.
class Comparison {
public:
  /// With `checksFinite`, native steps that are not finite stop; `step` does
  /// not, so that it gives the results they would have had. With `narrow`, the
  /// step has values of 16 bits.
  Comparison(ModuleOp step, Session &session, bool checksFinite, bool narrow,
             NativeOutcome &outcome)
      : step(step), session(session), checksFinite(checksFinite),
        narrow(narrow), outcome(outcome) {}

  /// Runs an entry the given number of times before its results are read, since
  /// reading runs deferred updates; returns whether to continue.
  bool run(StringRef entry, int times);

private:
  static FailureOr<NamedTensors> interpret(Interpreter &interpreter,
                                           StringRef entry, NamedTensors inputs,
                                           ArrayRef<NamedTensors> scalars);
  bool expect(StringRef entry, const NamedTensors &inputs,
              ArrayRef<NamedTensors> scalars, int runs, double units,
              bool disturbed, Expectation &expectation);
  double scaleOf(StringRef name, const Expectation &expectation);
  double differences(const Expectation &expectation, double factor,
                     const NamedTensors &actual, std::string &message);
  std::string unchanged(const NamedTensors &before, const NamedTensors &after,
                        const Expectation &expectation);
  bool fail(const Twine &message) {
    outcome.kind = NativeOutcome::Kind::Different;
    outcome.message = message.str();
    return false;
  }

  ModuleOp step;
  Session &session;
  bool checksFinite, narrow;
  NativeOutcome &outcome;
  /// Whether a training step was compared.
  bool trained = false;
};

} // namespace

static double largest(const RefTensor &tensor) {
  double result = 0;
  for (double x : tensor.floats)
    result = std::max(result, std::fabs(x));
  return result;
}

static bool isFinite(const NamedTensors &tensors) {
  return llvm::all_of(tensors, [](const auto &entry) {
    return llvm::all_of(entry.second.floats,
                        [](double x) { return std::isfinite(x); });
  });
}

/// Whether the elements are equal; a NaN equals itself.
static bool sameBits(const RefTensor &a, const RefTensor &b) {
  return a.ints == b.ints && a.floats.size() == b.floats.size() &&
         std::memcmp(a.floats.data(), b.floats.data(),
                     a.floats.size() * sizeof(double)) == 0;
}

/// Runs an entry once for each of `scalars`, each time on the values that the
/// previous run has updated; returns the results of the last run, and all
/// updated values.
FailureOr<NamedTensors> Comparison::interpret(Interpreter &interpreter,
                                              StringRef entry,
                                              NamedTensors inputs,
                                              ArrayRef<NamedTensors> scalars) {
  NamedTensors outputs;
  for (const NamedTensors &own : scalars) {
    for (const auto &[name, tensor] : own)
      inputs[name] = tensor;
    auto result = interpreter.run(entry, inputs);
    if (failed(result))
      return failure();
    outputs = std::move(result->outputs);
    for (const auto &[name, tensor] : outputs)
      if (auto known = inputs.find(name); known != inputs.end())
        known->second = tensor;
  }
  return outputs;
}

/// Runs typed arithmetic `runs` times, all but once on inputs changed by up to
/// `units` roundings; with `disturbed`, results of each op that computes are
/// changed by one rounding too, because values that cancel exactly in one order
/// of operations do not in another.
bool Comparison::expect(StringRef entry, const NamedTensors &inputs,
                        ArrayRef<NamedTensors> scalars, int runs, double units,
                        bool disturbed, Expectation &expectation) {
  Interpreter whole(step, Precision::Exact);
  FailureOr<NamedTensors> exact = interpret(whole, entry, inputs, scalars);
  if (failed(exact))
    return false;
  expectation.exact = std::move(*exact);
  Random rng(units * 1000);
  for (int i = 0; i < runs; ++i) {
    NamedTensors moved = inputs;
    if (i > 0)
      for (auto &[name, tensor] : moved)
        for (double &x : tensor.floats)
          x *= 1 + rng.uniform(-units, units) * kEpsilon;
    Interpreter interpreter(step, Precision::Typed);
    if (disturbed && i > 0)
      interpreter.disturb([&](Operation *op, RefTensor &tensor) {
        auto costed = dyn_cast<graph::CostOpInterface>(op);
        if (!costed || costed.getCost().flops == 0)
          return;
        // Stages add what they have of a sum first: in 16 bits too.
        auto type = dyn_cast<RankedTensorType>(op->getResult(0).getType());
        double unit =
            narrow && type && type.getElementType().getIntOrFloatBitWidth() < 32
                ? 0x1p-9
                : 2 * kEpsilon;
        for (double &x : tensor.floats)
          x *= 1 + rng.uniform(-unit, unit);
      });
    FailureOr<NamedTensors> typed =
        interpret(interpreter, entry, std::move(moved), scalars);
    if (failed(typed))
      return false;
    for (auto &[name, tensor] : *typed) {
      const RefTensor &e = expectation.exact.at(name);
      double &spread = expectation.spread[name];
      for (auto [a, b] : llvm::zip_equal(tensor.floats, e.floats))
        if (double d = std::fabs(a - b); !(d <= spread))
          spread = d;
    }
    if (i == 0)
      expectation.typed = std::move(*typed);
  }
  return true;
}

/// See `compareNative`.
double Comparison::scaleOf(StringRef name, const Expectation &expectation) {
  double own = largest(expectation.exact.at(name.str())), all = 0;
  const runtime::Tensor *tensor = session.find(name);
  // A loss is a difference of logits and the logarithm of a sum.
  if (tensor && tensor->role == Role::Output)
    all = 4;
  for (auto &[otherName, value] : expectation.exact) {
    const runtime::Tensor *other = session.find(otherName);
    if (tensor && other && other->role == tensor->role &&
        other->slot == tensor->slot)
      all = std::max(all, largest(value));
  }
  return std::max(own, all / 4);
}

/// The largest difference in units of the tolerance; above 1, `message` says
/// where.
double Comparison::differences(const Expectation &expectation, double factor,
                               const NamedTensors &actual,
                               std::string &message) {
  double worst = 0;
  for (auto &[name, exact] : expectation.exact) {
    auto it = actual.find(name);
    if (it == actual.end()) {
      message = "the program has no tensor '" + name + "'";
      return INFINITY;
    }
    const RefTensor &native = it->second;
    const RefTensor &typed = expectation.typed.at(name);
    if (native.shape != exact.shape || native.isFloat() != exact.isFloat()) {
      message = "'" + name + "' has another type";
      return INFINITY;
    }
    double bound = factor * expectation.spread.at(name) +
                   32 * kEpsilon * scaleOf(name, expectation);
    for (int64_t i = 0, e = exact.size(); i < e; ++i) {
      double difference, found, wanted;
      if (exact.isFloat()) {
        found = native.floats[i], wanted = exact.floats[i];
        difference = std::fabs(found - wanted);
        difference = difference == 0 ? 0 : difference / bound;
      } else {
        found = native.ints[i], wanted = typed.ints[i];
        difference = found == wanted ? 0 : INFINITY;
      }
      if (difference <= worst)
        continue;
      worst = std::isnan(difference) ? INFINITY : difference;
      if (worst > 1)
        message = llvm::formatv(
            "'{0}' at {1} of {2} is {3:e}, not {4:e} (typed "
            "{5:e}): {6} of the tolerance",
            name, i, e, found, wanted,
            exact.isFloat() ? typed.floats[i] : double(typed.ints[i]), worst);
    }
  }
  return worst;
}

/// Names a tensor that no result replaces but that has changed.
std::string Comparison::unchanged(const NamedTensors &before,
                                  const NamedTensors &after,
                                  const Expectation &expectation) {
  for (auto &[name, value] : before) {
    const runtime::Tensor *tensor = session.find(name);
    if (tensor->role == Role::Scalar || tensor->role == Role::Output ||
        tensor->role == Role::Gradient || expectation.exact.count(name))
      continue;
    const RefTensor &now = after.at(name);
    bool same = value.ints == now.ints &&
                std::memcmp(value.floats.data(), now.floats.data(),
                            value.floats.size() * sizeof(double)) == 0;
    if (!same)
      return name;
  }
  return "";
}

bool Comparison::run(StringRef entry, int times) {
  MLIRContext *context = step.getContext();
  NamedTensors before = readAll(context, session);
  // The session sets scalars when a run begins.
  SmallVector<NamedTensors> scalars;
  std::string stopped;
  for (int number = 0; number < times && stopped.empty(); ++number) {
    if (auto result = session.run(entry); !result)
      stopped = llvm::toString(result.takeError());
    NamedTensors &own = scalars.emplace_back();
    for (const runtime::Tensor &tensor : session.getProgram().tensors)
      if (tensor.role == Role::Scalar)
        own[tensor.name] = read(context, session, tensor);
  }
  bool notFinite = StringRef(stopped).contains("not finite");
  if (!stopped.empty() && !notFinite)
    return fail(entry + ": " + stopped);
  NamedTensors after = readAll(context, session);
  const NamedTensors &inputs = before;

  Expectation expectation;
  if (!expect(entry, inputs, scalars, 3, 4, false, expectation)) {
    // The norm of a clip stops both.
    if (notFinite && !trained)
      outcome.kind = NativeOutcome::Kind::NotFinite;
    return !notFinite && fail("the interpreter refuses " + entry);
  }
  if (notFinite) {
    if (isFinite(expectation.exact) && isFinite(expectation.typed))
      return fail(entry + ": " + stopped + ", and the interpreter's is");
    // Runs before the one that stopped have changed them correctly.
    if (scalars.size() == 1)
      for (const runtime::Tensor &tensor : session.getProgram().tensors)
        if ((tensor.role == Role::Parameter || tensor.role == Role::State) &&
            isKnown(tensor.dtype) &&
            !sameBits(before.at(tensor.name), after.at(tensor.name)))
          return fail(entry + " stops and changes '" + tensor.name + "'");
  }
  if (auto loss = after.find("loss"); stopped.empty() && checksFinite &&
                                      entry == "train" && loss != after.end() &&
                                      !isFinite({*loss}))
    return fail("a loss that is not finite does not stop the step");
  if (!isFinite(expectation.exact) || !isFinite(expectation.typed)) {
    // Training may diverge after a step that agreed.
    if (!trained)
      outcome.kind = NativeOutcome::Kind::NotFinite;
    return false;
  }
  trained |= entry == "train";
  std::string message;
  double worst = differences(expectation, 8, after, message);
  if (worst > 1) {
    Expectation moved;
    std::string ignored;
    for (double units : {4.0, 32.0, 256.0})
      if (expect(entry, inputs, scalars, 8, units, true, moved) &&
          differences(moved, 4, after, ignored) <= 1) {
        outcome.kind = NativeOutcome::Kind::Unstable;
        outcome.message = (entry + ": " + message).str();
        return false;
      }
    outcome.worst = worst;
    return fail(entry + ": " + message);
  }
  outcome.worst = std::max(outcome.worst, worst);
  if (std::string name = unchanged(before, after, expectation); !name.empty())
    return fail(entry + " changes '" + name + "'");
  return true;
}

NativeOutcome cleave::compareNative(ModuleOp module, const NamedTensors &inputs,
                                    const CompileOptions &options) {
  NativeOutcome outcome;
  auto fail = [&](const Twine &message) {
    outcome.kind = NativeOutcome::Kind::Different;
    outcome.message = message.str();
    return outcome;
  };
  std::string diagnostics;
  ScopedDiagnosticHandler handler(
      module.getContext(), [&](Diagnostic &diagnostic) {
        if (diagnostic.getSeverity() == DiagnosticSeverity::Error)
          diagnostics += diagnostic.str() + "\n";
      });
  CompileOptions unchecked = options;
  unchecked.phases.checkFinite = false;
  OwningOpRef<ModuleOp> lowered = module.clone(), step = module.clone();
  if (failed(runPhases(*lowered, Phase::Executable, options, {})) ||
      failed(runPhases(*step, Phase::Step, unchecked, {})))
    return fail("is not compiled: " + diagnostics);
  step->walk([&](Operation *op) {
    ++outcome.ops[op->getName().getStringRef().str()];
  });
  auto program = generateCode(*lowered, options);
  if (failed(program))
    return fail("has no code: " + diagnostics);
  runtime::SessionOptions sessionOptions;
  sessionOptions.threads = options.phases.threads;
  sessionOptions.seed = kSeed;
  auto session = openSession(*program, sessionOptions);
  if (!session)
    return fail("does not start: " + llvm::toString(session.takeError()));

  for (const runtime::Tensor &tensor : (*session)->getProgram().tensors) {
    auto it = inputs.find(tensor.name);
    if (it != inputs.end() && it->second.size() == tensor.numElements())
      write(**session, tensor, it->second);
  }
  if ((*session)->find("lr"))
    if (llvm::Error error = (*session)->setScalar("lr", 0.5))
      return fail(llvm::toString(std::move(error)));
  Comparison comparison(*step, **session, options.phases.checkFinite,
                        options.phases.precision != "f32", outcome);
  // Each step continues from the previous one; two run before any result is
  // read.
  struct Run {
    const char *entry;
    int times;
  };
  int number = 0;
  for (const Run &own : {Run{"logits", 1}, Run{"evaluate", 1}, Run{"train", 1},
                         Run{"train", 2}, Run{"evaluate", 1}}) {
    ++number;
    if ((*session)->hasEntry(own.entry) &&
        !comparison.run(own.entry, own.times)) {
      outcome.message =
          "run " + std::to_string(number) + ", " + outcome.message;
      break;
    }
  }
  if (outcome.kind == NativeOutcome::Kind::Different && !diagnostics.empty())
    outcome.message += "\n" + diagnostics;
  return outcome;
}
