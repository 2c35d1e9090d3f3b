//===- Extension.cpp - The compiler and the runtime for Python ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Bindings.h"
#include "cleave-compile/CompileMain.h"
#include "cleave-opt/OptMain.h"
#include "cleave-reference/ReferenceMain.h"
#include "cleave/Dialect/Graph/IR/Messages/ErrorTopic.h"
#include "cleave/Dialect/Graph/Transforms/ContractionWeights.h"
#include "cleave/Dialect/Graph/Transforms/PrecisionPatterns.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Executable/Files/CheckpointFolder.h"
#include "cleave/Pipelines/CompileCache.h"
#include "cleave/Pipelines/Diagnostics.h"
#include "cleave/Pipelines/Options.h"
#include "cleave/Pipelines/PhaseTimes.h"
#include "cleave/Pipelines/PlanFile.h"
#include "cleave/Pipelines/RaiseModel.h"
#include "cleave/Pipelines/Register.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Planning/GenerateCode.h"
#include "cleave/Planning/PlanPhases.h"
#include "cleave/Planning/PredictStep.h"
#include "cleave/Runtime/Core/NewCheckpoint.h"
#include "cleave/Runtime/Session/LearningRate.h"
#include "cleave/Scheduling/Generators/Generators.h"
#include "cleave/Target/CUDA/CompileCuda.h"
#include "mlir/Parser/Parser.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/FormatVariadic.h"

#include <mutex>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

using namespace cleave;
using namespace cleave::python;

namespace {

/// One program is compiled after the other.
std::mutex oneCompilation;

/// A compiled program, with its IR after each phase. Of one that comes from the
/// cache, the IR is made when it is asked for.
class PyCompiled {
public:
  /// Code of kernels that `lender` has too, unless it is null, is shared.
  PyCompiled(const std::string &text, const std::string &optionsJson,
             PyCompiled *lender) {
    auto parsed = parseCompileOptions(optionsJson);
    if (!parsed)
      raise(parsed.takeError());
    options = *parsed;
    std::unique_ptr<CacheFolder> cache;
    if (isCacheable(options)) {
      if (auto opened = CacheFolder::ofEnvironment())
        cache = std::move(*opened);
      else
        cacheProblem = llvm::toString(opened.takeError());
    }
    if (!cache) {
      compile(text, lender);
      return;
    }
    std::string key = compilationKey(text, optionsJson, options);
    if (std::optional<Compilation> found = loadCompilation(*cache, key)) {
      compiled = std::move(found->program);
      facts = std::move(found->report);
      warnings = std::move(found->warnings);
      source = text;
      return;
    }
    compile(text, lender);
    // In the cache a program is complete.
    if (!borrowed.empty())
      return;
    if (llvm::Error error =
            storeCompilation(*cache, key, compiled, facts, warnings))
      cacheProblem = llvm::toString(std::move(error));
  }

  /// Why the cache could not be used, or empty.
  const std::string &problemOfCache() const { return cacheProblem; }
  /// Whether the program comes from the cache, and has no IR yet.
  bool isCached() const { return !module; }

  /// In a form of `parseScheduleFormat`; with the timeline of the trace at the
  /// path `measured`, unless it is empty.
  std::string schedule(const std::string &form, const std::string &measured) {
    std::optional<scheduling::Timeline> timeline;
    if (!measured.empty()) {
      auto read = readMeasuredTimeline(measured);
      if (!read)
        raise(read.takeError());
      timeline = std::move(*read);
    }
    auto format = parseScheduleFormat(form);
    if (!format)
      throw nb::value_error("a schedule is shown as text, svg or perfetto");
    std::string text;
    llvm::raw_string_ostream os(text);
    requireIr();
    if (mlir::failed(writeSchedule(os, *snapshots.at(Phase::Scheduled),
                                   costSource(options.phases), *format,
                                   timeline ? &*timeline : nullptr)))
      throw CompileFailure("the schedule cannot be shown");
    return text;
  }

  std::string ir(const std::string &phase) {
    if (phase == "llvm" || phase == "cuda") {
      requireIr();
      auto text = printKernels(
          *module, phase == "cuda" ? KernelText::Cuda : KernelText::LLVM,
          options);
      if (mlir::failed(text))
        throw CompileFailure("kernels cannot be printed as " + phase);
      return *text;
    }
    auto known = parsePhase(phase);
    if (!known)
      throw nb::value_error(("unknown phase '" + phase +
                             "'; phases: model, step, placed, local, "
                             "scheduled, executable, llvm, cuda")
                                .c_str());
    requireIr();
    std::string text;
    llvm::raw_string_ostream os(text);
    mlir::ModuleOp(*snapshots.at(*known)).print(os);
    return text;
  }

  /// The number of stages of the axis "pp"; 1 without it.
  int64_t stages() const { return countStages(options.phases); }

  /// What the compiler warned of.
  const std::vector<std::string> &givenWarnings() const { return warnings; }

  std::string report() const { return facts.str(); }

  /// The report in lines of text.
  std::vector<std::string> explain(const std::string &detail) const {
    auto known = parseDetail(detail);
    if (!known)
      throw nb::value_error(
          "the detail is summary, layers, full, memory or cost");
    return explainReport(facts, *known);
  }

  /// The text of a plan file.
  std::string plan() const { return writePlan(options); }

  void save(const std::string &path) const {
    CompiledProgram complete = compiled;
    if (!borrowed.empty()) {
      auto planned = planProgram(*module, options);
      auto generated = mlir::failed(planned)
                           ? llvm::FailureOr<CompiledProgram>(mlir::failure())
                           : generateCode(*module, options, *planned);
      if (mlir::failed(generated))
        throw CompileFailure("the kernels cannot be compiled again");
      complete = std::move(*generated);
    }
    if (llvm::Error error = writeArtifact(complete, path))
      raise(std::move(error));
  }

  /// How many kernels were compiled, and how many are those of the lender.
  std::pair<int64_t, int64_t> kernels() {
    requireIr();
    return countKernels(*module, borrowed);
  }

  /// The ranks are `processes`, or threads of this one if that is null,
  /// whatever has started it. Contractions that `like` has too, if it is
  /// given, are implemented alike, and so round alike.
  std::shared_ptr<PySession> session(int threads, bool timing,
                                     PyProcesses *processes,
                                     const PySession *like) {
    runtime::SessionOptions sessionOptions;
    if (like)
      sessionOptions.contractions = like->contractions();
    sessionOptions.threads = threads;
    sessionOptions.timing = timing;
    sessionOptions.offloadFolder = offloadDir;
    sessionOptions.ranksPerDevice = ranksPerDevice;
    sessionOptions.launch = runtime::Launch::Threads;
    int64_t number = 0;
    if (processes) {
      number = processes->open();
      sessionOptions.launch = runtime::Launch::Processes;
      std::string text = runtime::toJSON(compiled.positions);
      sessionOptions.facts = {
          {"the compiled program (hash)", digest(text.data(), text.size())},
          {"its kernels (hash)",
           digest(compiled.object.data(), compiled.object.size())}};
    }
    auto opened = openSession(compiled, library(), lenderKernels, borrowed,
                              sessionOptions);
    if (!opened && processes)
      throw ProcessFailure(llvm::toString(opened.takeError()));
    if (!opened)
      raise(opened.takeError());
    return std::make_shared<PySession>(std::move(*opened), processes, number);
  }

private:
  static std::string describe(mlir::Diagnostic &diagnostic) {
    std::string text;
    llvm::raw_string_ostream os(text);
    os << diagnostic.getLocation() << ": " << diagnostic;
    for (mlir::Diagnostic &note : diagnostic.getNotes())
      os << "\n  note: " << note.getLocation() << ": " << note;
    return text;
  }

  /// Compiles without a cache.
  PyCompiled(const std::string &text, const CompileOptions &options)
      : options(options) {
    compile(text, nullptr);
  }

  /// The kernels, loaded into this process when they are first asked for.
  SharedKernels library() {
    std::lock_guard<std::mutex> lock(loading);
    if (!loaded) {
      auto made = loadKernels(compiled.object);
      if (!made)
        raise(made.takeError());
      loaded = std::move(*made);
    }
    return loaded;
  }

  /// Whether code of this program's kernels is that of a program of `other`
  /// options.
  bool canLend(const CompileOptions &other) const {
    return module && borrowed.empty() && !options.traits().isGpu() &&
           !other.traits().isGpu() && options.cpu == other.cpu &&
           options.vectorBits == other.vectorBits;
  }

  void compile(const std::string &text, PyCompiled *lender) {
    mlir::DialectRegistry registry;
    registerAllDialects(registry);
    context = std::make_unique<mlir::MLIRContext>(registry);
    std::string messages;
    bool couplesSamples = false;
    mlir::ScopedDiagnosticHandler handler(
        context.get(), [&](mlir::Diagnostic &diagnostic) {
          couplesSamples |=
              graph::isAbout(diagnostic, graph::ErrorTopic::CoupledSamples);
          if (diagnostic.getSeverity() == mlir::DiagnosticSeverity::Warning)
            warnings.push_back(describe(diagnostic));
          if (diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error)
            messages += (messages.empty() ? "" : "\n") + describe(diagnostic);
        });
    OneErrorPerPlace onlyFirst(context.get());
    auto failure = [&] {
      CompileFailure failed(messages);
      failed.couplesSamples = couplesSamples;
      return failed;
    };
    context->printOpOnDiagnostic(false);
    module = mlir::parseSourceString<mlir::ModuleOp>(text, context.get());
    Decisions decisions;
    auto after = [&](Phase phase, mlir::ModuleOp reached) {
      keep(phase, reached);
    };
    if (!module ||
        mlir::failed(annotateParameters(*module, options.parameters)) ||
        mlir::failed(
            runPhases(*module, Phase::Executable, options, after, &decisions)))
      throw failure();
    auto planned = planProgram(*module, options);
    if (mlir::failed(planned))
      throw failure();
    if (std::string mistake = checkLimit(planned->memory, options);
        !mistake.empty())
      throw CompileFailure(mistake);
    mlir::TimingScope time = timePhase(options, "code");
    bool shares = lender && lender->canLend(options);
    auto generated = shares ? generateCode(*module, options, *planned,
                                           *lender->module, borrowed)
                            : generateCode(*module, options, *planned);
    if (mlir::failed(generated))
      throw failure();
    compiled = std::move(*generated);
    if (!borrowed.empty())
      lenderKernels = lender->library();
    time = timePhase(options, "report");
    auto schedule = scheduleReport(*snapshots.at(Phase::Scheduled),
                                   costSource(options.phases));
    if (mlir::failed(schedule))
      throw failure();
    facts = programReport(
        *module, describeProgram(*module, options, decisions, *planned),
        std::move(*schedule));
    time.stop();
    printTimes(options);
    // Its threads end: a step has a program for each shape, and keeps them.
    context->disableMultithreading();
  }

  /// Makes the IR of a program that comes from the cache.
  void requireIr() {
    if (module)
      return;
    std::unique_ptr<PyCompiled> made;
    {
      nb::gil_scoped_release released;
      std::lock_guard<std::mutex> lock(oneCompilation);
      made.reset(new PyCompiled(source, options));
    }
    if (module)
      return; // another thread was faster
    context = std::move(made->context);
    module = std::move(made->module);
    snapshots = std::move(made->snapshots);
  }

  /// Clones are cheap beside text: constants and types are shared.
  void keep(Phase phase, mlir::ModuleOp reached) {
    snapshots[phase] = mlir::OwningOpRef<mlir::ModuleOp>(reached.clone());
  }

public:
  /// The folder for what sessions offload; empty: that for temporary files.
  std::string offloadDir;
  /// The ranks of a host that share a device.
  int ranksPerDevice = 1;

private:
  CompileOptions options;
  /// The text of a module that is not in the memory as IR.
  std::string source;
  std::string cacheProblem;
  std::vector<std::string> warnings;
  std::unique_ptr<mlir::MLIRContext> context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::map<Phase, mlir::OwningOpRef<mlir::ModuleOp>> snapshots;
  CompiledProgram compiled;
  std::mutex loading;
  SharedKernels loaded;
  /// The loaded kernels of another program, and what this one calls of them.
  SharedKernels lenderKernels;
  BorrowedFunctions borrowed;
  Report facts;
};

/// The key in the cache of what follows from `texts` and the code that runs.
std::string keyOf(std::vector<std::string> texts) {
  texts.insert(texts.begin(), {"finding", codeIdentity()});
  return cacheKey(texts);
}

/// What was kept that follows from `texts`; see `keepFinding`.
std::optional<std::string> loadFinding(const std::vector<std::string> &texts) {
  auto cache = CacheFolder::ofEnvironment();
  if (!cache)
    llvm::consumeError(cache.takeError()); // said where programs are compiled
  else if (*cache && !codeIdentity().empty())
    return (*cache)->load(keyOf(texts));
  return std::nullopt;
}

/// Keeps `content`, which follows from `texts`.
void keepFinding(const std::vector<std::string> &texts,
                 llvm::StringRef content) {
  auto cache = CacheFolder::ofEnvironment();
  if (!cache)
    llvm::consumeError(cache.takeError());
  else if (*cache && !codeIdentity().empty())
    llvm::consumeError((*cache)->store(keyOf(texts), content));
}

/// Whether what follows from `texts` was found before; see `noteFinding`.
bool isFound(const std::vector<std::string> &texts) {
  return loadFinding(texts).has_value();
}

/// Keeps that something holds which follows from `texts`.
void noteFinding(const std::vector<std::string> &texts) {
  keepFinding(texts, "it holds");
}

/// The axes over which samples are sharded: that of samples, and those of the
/// recipes of a plan; none of a plan that is wrong, of which the compiler says
/// more.
std::vector<std::string> sampleAxes(const std::string &plan) {
  std::vector<std::string> axes{spmd::kSamplesAxis.str()};
  auto parsed = spmd::parsePlan(plan);
  if (!parsed) {
    llvm::consumeError(parsed.takeError());
    return axes;
  }
  for (const spmd::RecipeCall &call : parsed->recipes)
    for (const std::string &axis : call.axes)
      if (spmd::splitBy(call, axis) == spmd::RecipeSplit::Samples)
        axes.push_back(axis);
  return axes;
}

/// Why this is not the name of a schedule; empty if it is.
std::string scheduleProblem(const std::string &name) {
  std::string error;
  if (name != "auto")
    scheduling::findGenerator(name, error);
  return error;
}

mlir::DialectRegistry allDialects() {
  mlir::DialectRegistry registry;
  registerAllDialects(registry);
  return registry;
}

/// A module of text in a context of its own, of which no message is shown; null
/// if it cannot be read.
struct ReadModule {
  explicit ReadModule(const std::string &text)
      : context(allDialects()),
        silent(&context, [](mlir::Diagnostic &) { return mlir::success(); }),
        module(mlir::parseSourceString<mlir::ModuleOp>(text, &context)) {}

  mlir::MLIRContext context;
  mlir::ScopedDiagnosticHandler silent;
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

/// The parameters of the entry `@loss` of a traced module that are weights of
/// contractions, each with the dimensions that are summed over.
std::map<std::string, std::vector<int64_t>>
contractionWeights(const std::string &text) {
  ReadModule read(text);
  auto &module = read.module;
  auto loss =
      module ? module->lookupSymbol<mlir::func::FuncOp>("loss") : nullptr;
  if (!loss || !loss.getBody().hasOneBlock())
    throw CompileFailure("the module has no entry '@loss'");
  std::map<std::string, std::vector<int64_t>> result;
  for (const auto &weight : graph::findContractionWeights(loss))
    if (weight.reason.empty())
      result[weight.name].assign(weight.inputs.begin(), weight.inputs.end());
  return result;
}

/// The ops of a module as the phase `model` has them: the line of each one's
/// location, and its name.
std::vector<std::pair<unsigned, std::string>>
raisedOpsOf(const std::string &text) {
  ReadModule read(text);
  if (!read.module)
    throw CompileFailure("the module cannot be read");
  auto ops = raisedOps(*read.module);
  if (failed(ops))
    throw CompileFailure("ops of the module cannot be raised");
  return std::move(*ops);
}

/// The rate of a step by a schedule of the runtime.
double learningRate(const std::string &kind, double rate, double warmup,
                    int64_t steps, double minimum, double cycles, bool goesOn,
                    int64_t step) {
  using runtime::LearningRate;
  auto found = llvm::StringSwitch<LearningRate::Kind>(kind)
                   .Case("linear", LearningRate::Kind::Linear)
                   .Case("cosine", LearningRate::Kind::Cosine)
                   .Default(LearningRate::Kind::Constant);
  return LearningRate{found, rate, warmup, steps, minimum, cycles, goesOn}.at(
      step);
}

/// Runs a tool with its arguments, of which the first one is the name by which
/// it was called.
int runTool(const std::string &name, std::vector<std::string> arguments) {
  std::vector<char *> argv;
  for (std::string &argument : arguments)
    argv.push_back(argument.data());
  int argc = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  int status = 2;
  if (name == "cleave-compile")
    status = compileMain(argc, argv.data());
  else if (name == "cleave-opt")
    status = optMain(argc, argv.data());
  else if (name == "cleave-reference")
    status = referenceMain(argc, argv.data(), allDialects());
  else
    throw nb::value_error(("unknown tool '" + name + "'").c_str());
  llvm::outs().flush();
  return status;
}

/// The functions about the table of options.
void bindOptions(nb::module_ &m) {
  m.def(
      "option_table",
      [] {
        return llvm::formatv("{0}", llvm::json::Value(describeOptions())).str();
      },
      "The table of options, as JSON.");
  m.def(
      "check_options",
      [](const std::string &options) {
        auto parsed = parseCompileOptions(options);
        return parsed ? std::string() : llvm::toString(parsed.takeError());
      },
      nb::arg("options"), "Why options are refused; empty if they are not.");
  m.def(
      "option_facts",
      [](const std::string &options) {
        auto parsed = parseCompileOptions(options);
        if (!parsed)
          raise(parsed.takeError());
        return llvm::formatv(
                   "{0}", llvm::json::Value(llvm::json::Object{
                              {"updates_each",
                               pipelineShape(parsed->phases).asynchronous},
                              {"reduces_next", reducesNext(parsed->phases)}}))
            .str();
      },
      nb::arg("options"),
      "What follows from options, as JSON: whether there is an update after "
      "each micro-batch, and whether ranks add up gradients in the next step.");
  m.def(
      "plan_of",
      [](const std::string &options) {
        auto parsed = parseCompileOptions(options);
        if (!parsed)
          raise(parsed.takeError());
        return writePlan(*parsed);
      },
      nb::arg("options"),
      "The mesh and the plan of options as the text of a plan file, by which a "
      "plan that is one is replaced.");
  m.def(
      "option_warnings",
      [](const std::string &options) { return warnOfOptions(options); },
      nb::arg("options"), "What of options has no effect, or a former name.");
  m.def(
      "check_architecture",
      [](const std::string &name) { return checkArchitecture(name); },
      nb::arg("name"));
}

} // namespace

NB_MODULE(_cleave, m) {
  m.doc() = "The compiler and the runtime; use the package `cleave` instead.";
  bindSession(m);
  m.def(
      "checkpoint_file",
      [](const std::string &folder, const std::string &name) {
        auto facts = runtime::readFacts(folder);
        if (!facts)
          raise(facts.takeError());
        auto path = runtime::findFile(folder, name, *facts);
        if (!path)
          raise(path.takeError());
        return *path;
      },
      nb::arg("folder"), nb::arg("name"));
  m.def(
      "remove_checkpoint",
      [](const std::string &folder) {
        if (llvm::Error error = runtime::removeCheckpoint(folder))
          raise(std::move(error));
      },
      nb::arg("folder"));
  m.def("peak_operations", [] {
    std::map<std::string, double> peaks;
    for (llvm::StringRef device : predictedDevices())
      peaks[device.str()] = *peakOperations(device);
    return peaks;
  });
  m.attr("MAX_THREADS") = int64_t(runtime::Program::kMaxThreads);
  nb::class_<PyCompiled>(m, "Compiled")
      .def("ir", &PyCompiled::ir, nb::arg("phase"))
      .def("report", &PyCompiled::report)
      .def("explain", &PyCompiled::explain, nb::arg("detail"))
      .def("warnings", &PyCompiled::givenWarnings)
      .def("schedule", &PyCompiled::schedule, nb::arg("form"),
           nb::arg("measured") = "")
      .def("plan", &PyCompiled::plan)
      .def("save", &PyCompiled::save, nb::arg("path"))
      .def_prop_ro("kernels", &PyCompiled::kernels,
                   "How many kernels were compiled, and how many are those of "
                   "the lender.")
      .def_prop_ro("stages", &PyCompiled::stages)
      .def_prop_ro("cached", &PyCompiled::isCached)
      .def_prop_ro("cache_problem", &PyCompiled::problemOfCache)
      .def_rw("offload_dir", &PyCompiled::offloadDir)
      .def_rw("ranks_per_device", &PyCompiled::ranksPerDevice)
      .def("session", &PyCompiled::session, nb::arg("threads") = 0,
           nb::arg("timing") = false, nb::arg("processes").none() = nb::none(),
           nb::arg("like").none() = nb::none());
  bindProcesses(m);
  bindOptions(m);
  m.def("run_tool", &runTool, nb::arg("name"), nb::arg("arguments"),
        "Runs a command-line tool in this process, and returns its status; the "
        "process ends then.");
  m.def("is_found", &isFound, nb::arg("texts"));
  m.def("note_finding", &noteFinding, nb::arg("texts"));
  m.def(
      "load_finding",
      [](const std::vector<std::string> &texts) -> std::optional<nb::bytes> {
        std::optional<std::string> content = loadFinding(texts);
        if (!content)
          return std::nullopt;
        return nb::bytes(content->data(), content->size());
      },
      nb::arg("texts"));
  m.def(
      "keep_finding",
      [](const std::vector<std::string> &texts, nb::bytes content) {
        keepFinding(texts, llvm::StringRef(content.c_str(), content.size()));
      },
      nb::arg("texts"), nb::arg("content"));
  m.def("sample_axes", &sampleAxes, nb::arg("plan"));
  m.def("schedule_problem", &scheduleProblem, nb::arg("name"));
  m.def("learning_rate", &learningRate, nb::arg("kind"), nb::arg("rate"),
        nb::arg("warmup"), nb::arg("steps"), nb::arg("minimum"),
        nb::arg("cycles"), nb::arg("goes_on"), nb::arg("step"));
  nb::class_<graph::PrecisionPatterns>(m, "PrecisionPatterns")
      .def("match", &graph::PrecisionPatterns::match, nb::arg("names"))
      .def("unmatched", &graph::PrecisionPatterns::unmatched);
  m.def(
      "precision_patterns",
      [](const std::vector<std::pair<std::string, std::string>> &entries) {
        auto patterns = graph::PrecisionPatterns::of(entries);
        if (!patterns)
          throw nb::value_error(llvm::toString(patterns.takeError()).c_str());
        return std::move(*patterns);
      },
      nb::arg("entries"));
  m.def("contraction_weights", &contractionWeights, nb::arg("text"));
  m.def("raised_ops", &raisedOpsOf, nb::arg("text"));
  m.def(
      "compile",
      [](const std::string &text, const std::string &options,
         PyCompiled *lender) {
        // Other threads of Python go on.
        nb::gil_scoped_release released;
        std::lock_guard<std::mutex> lock(oneCompilation);
        return new PyCompiled(text, options, lender);
      },
      nb::arg("text"), nb::arg("options"),
      nb::arg("lender").none() = nb::none(), nb::rv_policy::take_ownership);
}
