//===- CompileMain.cpp - From a model file to an artifact -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CompileMain.h"
#include "Flags.h"
#include "ParameterGroups.h"
#include "cleave/Dialect/Graph/Transforms/PrecisionPatterns.h"
#include "cleave/Dialect/Pipe/Transforms/RecomputePolicy.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Pipelines/Compile.h"
#include "cleave/Pipelines/Diagnostics.h"
#include "cleave/Pipelines/Options.h"
#include "cleave/Pipelines/PhaseTimes.h"
#include "cleave/Pipelines/PlanFile.h"
#include "cleave/Pipelines/RaiseModel.h"
#include "cleave/Pipelines/Register.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Planning/CostForms.h"
#include "cleave/Planning/Fit.h"
#include "cleave/Planning/GenerateCode.h"
#include "cleave/Planning/MeasureMachine.h"
#include "cleave/Planning/PlanPhases.h"
#include "cleave/Planning/PredictStep.h"
#include "cleave/Support/CommandLine.h"
#include "cleave/Support/OpenText.h"
#include "mlir/Bytecode/BytecodeReader.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/SourceMgr.h"
#include <thread>

using namespace mlir;
using namespace cleave;

static int fail(const llvm::Twine &message) {
  llvm::errs() << "error: " << message << "\n";
  return 1;
}

/// A flag whose value is out of range, or flags that exclude each other.
static int usage(const llvm::Twine &message) {
  llvm::errs() << "cleave-compile: " << message
               << "; see cleave-compile --help\n";
  return 2;
}

/// Writes to `path`, completely or not at all; `-` is standard output.
static int writeFile(StringRef path,
                     llvm::function_ref<void(raw_ostream &)> write) {
  if (path == "-")
    write(llvm::outs());
  llvm::Error error = path == "-" ? runtime::flushStandardOutput()
                                  : runtime::writeFileAtomically(path, write);
  return error ? fail(llvm::toString(std::move(error))) : 0;
}

/// Whether the command line asks for the values of a flag, as in --plan=help.
static bool asks(int argc, char **argv, StringRef flag) {
  for (int i = 1; i < argc; ++i) {
    StringRef word = StringRef(argv[i]).ltrim('-');
    if (word.consume_front(flag) &&
        (word == "=help" ||
         (word.empty() && i + 1 < argc && StringRef(argv[i + 1]) == "help")))
      return true;
  }
  return false;
}

/// Writes a report, if a file is named.
static int writeReport(StringRef path, const Report &report) {
  if (path.empty())
    return 0;
  return writeFile(path, [&](raw_ostream &os) { report.print(os); });
}

/// Reads --recompute-file.
static int readPolicyFile(const Flags &flags, CompileOptions &options) {
  if (flags.recomputeFile.empty())
    return 0;
  std::string error;
  auto buffer = openText(flags.recomputeFile, &error);
  if (!buffer)
    return fail(error);
  auto parsed = pipe::RecomputePolicy::parse(buffer->getBuffer(), error);
  if (!parsed)
    return fail(flags.recomputeFile + ": " + error);
  options.phases.recompute = parsed->str();
  options.given.insert("recompute");
  return 0;
}

/// Answers --fit. The status is 1 if nothing fits.
static int answerFit(ModuleOp model, const CompileOptions &options,
                     const Flags &flags) {
  FailureOr<FitAnswer> fit =
      findFit(model, options, *parseFitQuestion(flags.fit));
  if (failed(fit))
    return 1;
  if (flags.reportFile.empty()) {
    if (int status = writeFile("-", [&](raw_ostream &os) {
          for (const std::string &line : explainFit(*fit))
            os << line << "\n";
        }))
      return status;
  } else if (int status = writeReport(flags.reportFile, fitReport(*fit))) {
    return status;
  }
  if (!fit->answer)
    return fail("no plan that was tried fits the memory limit");
  return 0;
}

/// Answers requests for help that need no model.
static bool answerHelp(int argc, char **argv) {
  if (asks(argc, argv, "plan") || asks(argc, argv, "recipe")) {
    listRecipes(llvm::outs());
    return true;
  }
  if (asks(argc, argv, "schedule")) {
    listSchedules(llvm::outs());
    return true;
  }
  return false;
}

/// Reads the command line, but not what depends on files.
static int readCommandLine(int argc, char **argv, const Flags &flags,
                           CompileOptions &options) {
  printVersionOf("cleave-compile");
  if (std::string mistake = findUnknownOption(argc, argv); !mistake.empty())
    return usage(mistake);
  if (!cl::ParseCommandLineOptions(
          argc, argv,
          "Cleave: compiles a model into a training step for this machine\n\n"
          "  cleave-compile gpt2.mlir --max-grad-norm 1 -o gpt2.so\n",
          &llvm::errs()))
    return 2;
  if (std::string mistake = readOptions(flags, options); !mistake.empty())
    return usage(mistake);
  if (std::string mistake = checkFlags(flags, options); !mistake.empty())
    return usage(mistake);
  if (StringRef(flags.input).ends_with(".py"))
    return fail(flags.input +
                " is a Python file; trace the model in it first, as in python "
                "-m cleave.trace " +
                flags.input + ":build -o model.mlir");
  for (const OptionMistake &idle : findIdleOptions(options))
    llvm::errs() << "warning: " << idle.str(Entrance::CommandLine) << "\n";
  return 0;
}

/// Checks, before minutes of compilation, that files are different ones and can
/// be written.
static int checkFiles(const Flags &flags, const CompileOptions &options) {
  if (std::string mistake = runtime::findSharedFile(
          {{"-o", flags.output},
           {"--report", flags.reportFile},
           {"--save-plan", flags.savePlan},
           {"--measure-machine", flags.measureMachine}},
          {{"cleave-compile", flags.input},
           {"--schedule-file", options.phases.scheduleFile},
           {"--recompute-file", flags.recomputeFile},
           {"--precision-policy", flags.precisionPolicy},
           {"--measured-costs", options.phases.measuredFrom},
           {"--measured-timeline", flags.measured}});
      !mistake.empty())
    return usage(mistake);
  for (const std::string &path :
       {flags.output.getValue(), flags.reportFile.getValue(),
        flags.savePlan.getValue(), flags.measureMachine.getValue()})
    if (!path.empty() && path != "-")
      if (llvm::Error e = runtime::checkWritable(path))
        return fail(llvm::toString(std::move(e)));
  return 0;
}

/// Reads the files that options name, and checks the options after that.
static int complete(const Flags &flags, CompileOptions &options) {
  if (int status = readPolicyFile(flags, options))
    return status;
  if (llvm::Error error = completeOptions(options))
    return fail(llvm::toString(std::move(error)));
  if (!options.given.count("threads") && !options.traits().isGpu() &&
      !options.phases.grains)
    options.phases.threads = std::max(1u, std::thread::hardware_concurrency());
  if (std::string mistake = findMistake(flags, options); !mistake.empty()) {
    // In the file of a schedule it has a place, as diagnostics do.
    if (StringRef(mistake).starts_with("--"))
      return usage(mistake);
    llvm::errs() << mistake << "\n";
    return 1;
  }
  return 0;
}

/// Reads the file of the model for the parser.
static int openModel(const Flags &flags, llvm::SourceMgr &sources) {
  std::string error;
  auto buffer = openText(flags.input, &error);
  if (!buffer)
    return fail(error);
  if (!isBytecode(buffer->getMemBufferRef()) &&
      buffer->getBuffer().contains('\0'))
    return fail(flags.input + " is not a model: neither text nor bytecode");
  sources.AddNewSourceBuffer(std::move(buffer), SMLoc());
  return 0;
}

/// Writes what the command line says of parameters and ops to the model.
static int annotateModel(ModuleOp module, const Flags &flags,
                         CompileOptions &options) {
  if (llvm::Error e = applyGroups(
          module,
          SmallVector<std::string>(flags.groups.begin(), flags.groups.end()),
          options.parameters))
    return fail("--group: " + llvm::toString(std::move(e)));
  if (llvm::Error e =
          excludeFromDecay(module, flags.noDecay, options.parameters))
    return fail("--no-decay: " + llvm::toString(std::move(e)));
  if (!flags.precisionPolicy.empty()) {
    // It names whole ops.
    if (failed(raiseModel(module)))
      return 1;
    auto policy = graph::PrecisionPatterns::read(flags.precisionPolicy);
    if (!policy)
      return fail("--precision-policy: " + llvm::toString(policy.takeError()));
    if (llvm::Error e = policy->apply(module))
      return fail("--precision-policy: " + llvm::toString(std::move(e)));
  }
  return failed(annotateParameters(module, options.parameters)) ? 1 : 0;
}

/// Where --emit writes.
static StringRef destinationOf(const Flags &flags) {
  return flags.output.empty() ? StringRef("-") : StringRef(flags.output);
}

static int writeTimeline(ModuleOp module, const CompileOptions &options,
                         const Flags &flags, const scheduling::Timeline *shown,
                         const Report &schedule) {
  std::string text;
  llvm::raw_string_ostream os(text);
  ScheduleFormat format = parseScheduleFormat(flags.scheduleFormat)
                              .value_or(scheduleFormatOf(flags.output));
  if (failed(
          writeSchedule(os, module, costSource(options.phases), format, shown)))
    return 1;
  if (int status = writeFile(destinationOf(flags),
                             [&](raw_ostream &out) { out << text; }))
    return status;
  return writeReport(flags.reportFile, schedule);
}

/// Prints what --explain or --plan-only asks for, if anything.
static int explain(const Report &report, const ProgramFacts &facts,
                   const Flags &flags) {
  bool silent = flags.explain.empty() && !flags.reportFile.empty();
  std::optional<Detail> detail =
      flags.planOnly && flags.explain.empty() && !silent
          ? Detail::Memory
          : parseDetail(flags.explain);
  if (!detail)
    return 0;
  return writeFile("-", [&](raw_ostream &os) {
    std::vector<std::string> lines = explainReport(report, *detail);
    if (facts.prediction)
      llvm::append_range(lines, explainPrediction(*facts.prediction));
    for (const std::string &line : lines)
      os << line << "\n";
  });
}

/// Writes the artifact of a module in the executable phase, or what is asked
/// for instead.
static int writeProgram(ModuleOp module, const CompileOptions &options,
                        const Flags &flags, const Decisions &decisions,
                        Report schedule) {
  if (flags.emit == "llvm" || flags.emit == "cuda") {
    FailureOr<std::string> text = printKernels(
        module, flags.emit == "cuda" ? KernelText::Cuda : KernelText::LLVM,
        options);
    if (failed(text))
      return 1;
    return writeFile(destinationOf(flags),
                     [&](raw_ostream &os) { os << *text; });
  }
  FailureOr<PlannedProgram> planned = planProgram(module, options);
  if (failed(planned))
    return 1;
  if (std::string mistake = checkLimit(planned->memory, options);
      !mistake.empty())
    return fail(mistake);
  TimingScope time = timePhase(options, "code");
  FailureOr<CompiledProgram> compiled =
      flags.planOnly || flags.emit == "memory"
          ? CompiledProgram()
          : generateCode(module, options, *planned);
  if (failed(compiled))
    return 1;
  time = timePhase(options, "report");
  ProgramFacts facts = describeProgram(module, options, decisions, *planned);
  if (options.checkCost && facts.cost && failed(checkCost(module, *facts.cost)))
    return 1;
  Report report = programReport(module, facts, std::move(schedule));
  if (flags.emit == "memory")
    return writeFile(destinationOf(flags), [&](raw_ostream &os) {
      os << memoryTrace(report) << "\n";
    });
  if (!flags.output.empty())
    if (llvm::Error e = writeArtifact(*compiled, flags.output))
      return fail(llvm::toString(std::move(e)));
  if (int status = explain(report, facts, flags))
    return status;
  return writeReport(flags.reportFile, report);
}

/// Compiles an annotated model.
static int compileModel(ModuleOp module, const CompileOptions &options,
                        const Flags &flags, const scheduling::Timeline *shown) {
  std::optional<Phase> stop = parsePhase(flags.emit);
  if (flags.emit == "schedule")
    stop = Phase::Scheduled;
  // The executable phase has no pipelines.
  Report schedule;
  bool described = true;
  auto after = [&](Phase phase, ModuleOp reached) {
    if (phase != Phase::Scheduled ||
        (flags.reportFile.empty() && flags.explain.empty() && !flags.planOnly &&
         flags.emit != "memory"))
      return;
    TimingScope time = timePhase(options, "report");
    FailureOr<Report> report =
        scheduleReport(reached, costSource(options.phases), shown);
    described = succeeded(report);
    if (described)
      schedule = std::move(*report);
  };
  Decisions decisions;
  if (failed(runPhases(module, stop.value_or(Phase::Executable), options, after,
                       &decisions)) ||
      !described)
    return 1;
  if (flags.emit == "schedule")
    return writeTimeline(module, options, flags, shown, schedule);
  if (stop)
    return writeFile(destinationOf(flags), [&](raw_ostream &os) {
      module->print(os, OpPrintingFlags().enableDebugInfo(false));
      os << "\n";
    });
  return writeProgram(module, options, flags, decisions, std::move(schedule));
}

int cleave::compileMain(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  cleave::failWithoutSignals();
  cleave::removeForeignOptions();
  Flags flags;
  SmallVector<const cl::OptionCategory *> categories{&general, &training};
  for (const Option &option : optionTable())
    categories.push_back(&categoryOf(option.group));
  cl::HideUnrelatedOptions(categories);
  if (answerHelp(argc, argv))
    return 0;
  CompileOptions options;
  if (int status = readCommandLine(argc, argv, flags, options))
    return status;
  if (int status = checkFiles(flags, options))
    return status;
  std::optional<scheduling::Timeline> measured;
  if (!flags.measured.empty()) {
    auto timeline = readMeasuredTimeline(flags.measured);
    if (!timeline)
      return fail(llvm::toString(timeline.takeError()));
    measured = std::move(*timeline);
  }
  if (int status = complete(flags, options))
    return status;

  DialectRegistry registry;
  registerAllDialects(registry);
  MLIRContext context(registry);
  llvm::SourceMgr sources;
  if (int status = openModel(flags, sources))
    return status;
  // Messages include the location; notes with whole functions would hide it.
  context.printOpOnDiagnostic(false);
  SourceMgrDiagnosticHandler diagnostics(sources, &context);
  OneErrorPerPlace onlyFirst(&context);
  // The last registered handler is called first.
  ScopedDiagnosticHandler remarks(&context, [&](Diagnostic &diagnostic) {
    return success(diagnostic.getSeverity() == DiagnosticSeverity::Remark &&
                   !flags.remarks);
  });
  TimingScope time = timePhase(options, "read");
  OwningOpRef<ModuleOp> module = parseSourceFile<ModuleOp>(sources, &context);
  if (!module)
    return 1;
  if (int status = annotateModel(*module, flags, options))
    return status;
  time.stop();
  if (!flags.measureMachine.empty()) {
    auto rates = measureMachine(*module, options);
    if (!rates)
      return fail("--measure-machine: " + llvm::toString(rates.takeError()));
    return writeFile(flags.measureMachine,
                     [&](raw_ostream &os) { os << *rates; });
  }
  if (!flags.fit.empty())
    return answerFit(*module, options, flags);
  int status =
      compileModel(*module, options, flags, measured ? &*measured : nullptr);
  // Of what was compiled or planned.
  if (status == 0 && !flags.savePlan.empty())
    status = writeFile(flags.savePlan,
                       [&](raw_ostream &os) { os << writePlan(options); });
  printTimes(options);
  return status;
}
