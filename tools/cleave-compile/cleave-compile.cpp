//===- cleave-compile.cpp - From a model file to an artifact --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "NoDecay.h"
#include "cleave/Dialect/Pipe/IR/Generators.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Pipelines/Compile.h"
#include "cleave/Pipelines/Diagnostics.h"
#include "cleave/Pipelines/Register.h"
#include "cleave/Runtime/FileIO.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "mlir/Bytecode/BytecodeReader.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Support/FileUtilities.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/SourceMgr.h"
#include <cmath>
#include <limits>
#include <thread>

using namespace mlir;
using namespace cleave;
namespace cl = llvm::cl;

static cl::OptionCategory general("General");
static cl::OptionCategory training("Training step");
static cl::OptionCategory target("Target");

namespace {

/// The command line. Not global: the flags that libraries register are removed
/// first, since some have the same names.
struct Flags {
  cl::opt<std::string> input{cl::Positional, cl::Required,
                             cl::desc("<model.mlir>"), cl::cat(general)};
  cl::opt<std::string> output{
      "o", cl::desc("Where to write; `-` is standard output"),
      cl::value_desc("file"), cl::cat(general)};
  cl::opt<std::string> emit{
      "emit",
      cl::desc("What to write instead of an artifact: the IR after a phase "
               "(model, step, placed, local, scheduled, executable), the "
               "kernels as LLVM IR (llvm) or as CUDA C++ (cuda)"),
      cl::value_desc("phase|llvm|cuda"), cl::cat(general)};
  cl::opt<std::string> reportFile{
      "report", cl::desc("Write memory, commands and decisions as JSON"),
      cl::value_desc("file"), cl::cat(general)};

  cl::opt<std::string> optimizer{"optimizer", cl::init("adamw"),
                                 cl::desc("adamw (the default) or sgd"),
                                 cl::value_desc("name"), cl::cat(training)};
  cl::opt<double> beta1{"beta1", cl::init(0.9), cl::cat(training),
                        cl::desc("AdamW: decay of the mean of gradients")};
  cl::opt<double> beta2{
      "beta2", cl::init(0.999), cl::cat(training),
      cl::desc("AdamW: decay of the mean of squared gradients")};
  cl::opt<double> epsilon{"eps", cl::init(1e-8), cl::cat(training),
                          cl::desc("AdamW: added to the denominator")};
  cl::opt<double> weightDecay{"weight-decay", cl::init(-1.0), cl::cat(training),
                              cl::desc("Default: 0.01 for adamw, 0 for sgd")};
  cl::opt<double> momentum{"momentum", cl::init(0.0), cl::cat(training),
                           cl::desc("SGD: momentum")};
  cl::opt<double> dampening{"dampening", cl::init(0.0), cl::cat(training),
                            cl::desc("SGD: dampening of the momentum")};
  cl::opt<bool> nesterov{"nesterov", cl::cat(training),
                         cl::desc("SGD: Nesterov momentum")};
  cl::opt<std::string> noDecay{
      "no-decay", cl::cat(training), cl::value_desc("terms"),
      cl::desc(
          "Parameters without weight decay: `ndim<2`, or globs over names, "
          "separated by commas")};
  cl::opt<double> clip{"clip", cl::init(0.0), cl::cat(training),
                       cl::desc("Clip the gradients' global 2-norm")};
  cl::opt<int64_t> microBatches{
      "micro-batches", cl::init(1), cl::cat(training),
      cl::desc("Equal parts in which the batch is computed, one "
               "after another")};
  cl::opt<int64_t> deterministic{
      "deterministic", cl::init(0), cl::cat(training), cl::value_desc("grains"),
      cl::desc("Compute the batch in so many equal grains, each by one thread, "
               "and sum them up in one tree: losses and weights then have the "
               "same bits for every \"dp\" that divides the grains, a power of "
               "2")};
  cl::opt<std::string> mesh{
      "mesh", cl::cat(training), cl::value_desc("axes"),
      cl::desc(
          "The devices as named axes, major to minor: dp=2,tp=4. Positions "
          "of an axis pp are stages of a pipeline (no native code yet)")};
  cl::opt<std::string> schedule{
      "schedule", cl::cat(training), cl::value_desc("name"),
      cl::desc("The order of a pipeline: gpipe, 1f1b (default), interleaved, "
               "zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe-v")};
  cl::opt<int64_t> chunks{
      "chunks", cl::cat(training), cl::init(0), cl::value_desc("number"),
      cl::desc("Stages for each position of the pipeline; by default what the "
               "schedule needs")};
  cl::opt<std::string> stages{
      "stages", cl::cat(training), cl::value_desc("names"),
      cl::desc(
          "Where stages begin, from the second on: with what first reads a "
          "parameter whose name begins so (transformer.h.6.,transformer.h."
          "12.). Of even cost by default")};
  cl::opt<std::string> recipe{
      "recipe", cl::cat(training), cl::value_desc("recipes"),
      cl::desc("What is split over them, such as megatron-sp,zero1; a recipe "
               "is bound to its own axis, or to another: zero3(fsdp). An axis "
               "\"dp\" splits the samples. --recipe=help lists all")};
  cl::opt<int64_t> maxLogitsMib{
      "max-logits-mib", cl::init(100), cl::cat(training),
      cl::desc("Largest piece of the logits that is held at once, in MiB")};
  cl::opt<int64_t> bucketKib{
      "bucket-kib", cl::init(1024), cl::cat(training),
      cl::desc(
          "Reductions and gathers of one kind are exchanged together up to "
          "so many KiB; 0: each alone")};

  cl::opt<bool> remarks{
      "remarks", cl::cat(general),
      cl::desc("Print where annotations disagree and what was decided")};
  cl::opt<std::string> cpu{"cpu", cl::cat(target),
                           cl::desc("Processor, as clang names it; "
                                    "default: this one")};
  cl::opt<int> vectorBits{"vector-bits", cl::init(0), cl::cat(target),
                          cl::desc("Width of vectors: 256 or 512; "
                                   "default: what the processor has")};
  cl::opt<int64_t> threads{
      "threads", cl::init(0), cl::cat(target),
      cl::desc("Threads that memory is planned for; default: the cores "
               "of this machine")};
};

} // namespace

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

static int listRecipes() {
  llvm::outs() << "recipe         axes           splits\n";
  for (const spmd::RecipeInfo &info : spmd::recipeTable()) {
    std::string axes;
    for (const spmd::RecipeAxis &axis : info.axes)
      axes += (axes.empty() ? "" : ",") + axis.name.str();
    llvm::outs() << llvm::formatv("{0,-14} {1,-14} {2}\n", info.name, axes,
                                  info.summary);
  }
  return 0;
}

/// Stages for each position of the pipeline: 2 where the schedule needs some
/// and none are given.
static int64_t chunksOf(const Flags &flags) {
  if (flags.chunks > 0)
    return flags.chunks;
  std::string error;
  const pipe::Generator *found = pipe::findGenerator(flags.schedule, error);
  return !found || found->chunks == 1 ? 1 : std::max<int64_t>(found->chunks, 2);
}

/// What is wrong with the schedule; empty when nothing is.
static std::string checkSchedule(const Flags &flags) {
  std::string error;
  if (!flags.schedule.empty() && !pipe::findGenerator(flags.schedule, error))
    return "--schedule: " + error;
  if (flags.chunks < 0)
    return "--chunks must be positive";
  return {};
}

/// What is wrong with the mesh or the recipes; empty when nothing is.
static std::string checkMesh(const Flags &flags) {
  auto axes = spmd::parseMesh(flags.mesh);
  if (!axes)
    return "--mesh: " + llvm::toString(axes.takeError());
  auto plan = spmd::parsePlan(flags.recipe);
  if (!plan)
    return "--recipe: " + llvm::toString(plan.takeError());
  for (const spmd::RecipeCall &call : plan->recipes)
    for (const std::string &bound : call.axes)
      if (llvm::none_of(*axes, [&](const spmd::MeshAxis &axis) {
            return axis.name == bound;
          }))
        return "--recipe: '" + call.name + "' is bound to axis \"" + bound +
               "\", which --mesh does not have";
  return {};
}

/// What is wrong with the numbers of the optimizer; empty when nothing is.
static std::string checkOptimizer(const Flags &flags) {
  auto outside = [](double value, double end) {
    return !(value >= 0 && value < end);
  };
  const double infinity = std::numeric_limits<double>::infinity();
  if (flags.optimizer != "adamw" && flags.optimizer != "sgd")
    return "--optimizer is adamw or sgd, not '" + flags.optimizer + "'";
  if (outside(flags.beta1, 1) || outside(flags.beta2, 1))
    return "--beta1 and --beta2 are at least 0 and below 1";
  if (outside(flags.epsilon, infinity) || outside(flags.momentum, infinity) ||
      outside(flags.clip, infinity))
    return "--eps, --momentum and --clip are finite and not negative";
  if (flags.weightDecay.getNumOccurrences() &&
      outside(flags.weightDecay, infinity))
    return "--weight-decay is finite and not negative";
  if (!std::isfinite(flags.dampening))
    return "--dampening is finite";
  // What has no effect was meant for another optimizer.
  bool sgd = flags.optimizer == "sgd";
  struct {
    const cl::Option &flag;
    bool ofSgd;
  } own[] = {{flags.beta1, false},    {flags.beta2, false},
             {flags.epsilon, false},  {flags.momentum, true},
             {flags.dampening, true}, {flags.nesterov, true}};
  for (const auto &[flag, ofSgd] : own)
    if (flag.getNumOccurrences() && ofSgd != sgd)
      return ("--" + flag.ArgStr + " has no effect with --optimizer " +
              flags.optimizer)
          .str();
  if (flags.nesterov && (flags.momentum == 0 || flags.dampening != 0))
    return "--nesterov needs --momentum and no --dampening";
  return "";
}

/// Writes to `path`, whole or not at all; `-` is standard output.
static int writeFile(StringRef path,
                     llvm::function_ref<void(raw_ostream &)> write) {
  llvm::Error error = llvm::Error::success();
  if (path == "-") {
    write(llvm::outs());
    error = runtime::flushStandardOutput();
  } else {
    error = runtime::writeFileAtomically(path, write);
  }
  return error ? fail(llvm::toString(std::move(error))) : 0;
}

/// The flags as options, but for what depends on the module.
static CompileOptions collectOptions(const Flags &flags) {
  CompileOptions options;
  options.phases.optimizer.kind = flags.optimizer == "sgd"
                                      ? graph::OptimizerOptions::Kind::Sgd
                                      : graph::OptimizerOptions::Kind::AdamW;
  options.phases.optimizer.beta1 = flags.beta1;
  options.phases.optimizer.beta2 = flags.beta2;
  options.phases.optimizer.epsilon = flags.epsilon;
  if (flags.weightDecay.getNumOccurrences())
    options.phases.optimizer.weightDecay = flags.weightDecay;
  options.phases.optimizer.momentum = flags.momentum;
  options.phases.optimizer.dampening = flags.dampening;
  options.phases.optimizer.nesterov = flags.nesterov;
  options.phases.optimizer.maxGradNorm = flags.clip;
  options.phases.microBatches = flags.microBatches;
  options.phases.grains = flags.deterministic;
  options.phases.mesh = flags.mesh;
  options.phases.stages = flags.stages;
  options.phases.schedule = flags.schedule;
  options.phases.chunks = chunksOf(flags);
  options.phases.recipes = flags.recipe;
  // More than any machine has is as good as no limit.
  options.phases.maxLogitsBytes =
      std::min<int64_t>(flags.maxLogitsMib, int64_t(1) << 40) << 20;
  options.phases.threads =
      flags.deterministic ? 1
      : flags.threads     ? flags.threads
                          : std::max(1u, std::thread::hardware_concurrency());
  options.bucketBytes = std::min<int64_t>(flags.bucketKib, int64_t(1) << 40)
                        << 10;
  options.cpu = flags.cpu;
  options.vectorBits = flags.vectorBits;
  return options;
}

int main(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  SmallVector<cl::Option *> foreign;
  for (auto &entry : cl::getRegisteredOptions())
    if (!entry.first.starts_with("help") && entry.first != "version")
      foreign.push_back(entry.second);
  for (cl::Option *option : foreign)
    option->removeArgument();
  Flags flags;
  cl::HideUnrelatedOptions({&general, &training, &target});
  // A question, which needs no model.
  for (int i = 1; i < argc; ++i)
    if (StringRef(argv[i]).ltrim('-') == "recipe=help" ||
        (StringRef(argv[i]).ltrim('-') == "recipe" && i + 1 < argc &&
         StringRef(argv[i + 1]) == "help"))
      return listRecipes();
  if (!cl::ParseCommandLineOptions(
          argc, argv,
          "Cleave: compiles a model into a training step for this machine\n\n"
          "  cleave-compile gpt2.mlir --clip 1.0 -o gpt2.so\n",
          &llvm::errs()))
    return 2;
  if (std::string mistake = checkOptimizer(flags); !mistake.empty())
    return usage(mistake);
  if (flags.bucketKib < 0)
    return usage("--bucket-kib is not negative");
  if (flags.microBatches < 1 || flags.threads < 0 || flags.maxLogitsMib < 1)
    return usage("--micro-batches, --threads and --max-logits-mib are "
                 "positive");
  if (std::string mistake = checkMesh(flags); !mistake.empty())
    return usage(mistake);
  if (std::string mistake = checkSchedule(flags); !mistake.empty())
    return usage(mistake);
  if (flags.deterministic < 0 ||
      (flags.deterministic && !llvm::isPowerOf2_64(flags.deterministic)))
    return usage("--deterministic is a power of 2");
  if (flags.deterministic && (flags.microBatches.getNumOccurrences() ||
                              flags.threads.getNumOccurrences()))
    return usage("--deterministic says how the batch is cut and that one "
                 "thread computes it: leave out --micro-batches and --threads");
  if (flags.threads > runtime::Program::kMaxThreads)
    return usage("--threads is at most " +
                 llvm::Twine(runtime::Program::kMaxThreads));
  if (auto known = CpuTarget::get(flags.cpu, flags.vectorBits); !known)
    return usage(llvm::toString(known.takeError()));
  std::optional<Phase> stop;
  if (!flags.emit.empty() && flags.emit != "llvm" && flags.emit != "cuda") {
    stop = parsePhase(flags.emit);
    if (!stop)
      return usage("--emit does not know '" + flags.emit + "'");
  }
  if (flags.emit.empty() && flags.output.empty() && flags.reportFile.empty())
    return usage("nothing to write: give -o, --emit or --report");
  if (flags.emit.empty() && flags.output == "-")
    return usage("an artifact cannot be written to standard output");
  if (!flags.emit.empty() && !flags.reportFile.empty())
    return usage("--report is of an artifact: it excludes --emit");
  // Not after minutes of compilation.
  for (const std::string &path :
       {flags.output.getValue(), flags.reportFile.getValue()})
    if (!path.empty() && path != "-")
      if (llvm::Error e = runtime::checkWritable(path))
        return fail(llvm::toString(std::move(e)));

  DialectRegistry registry;
  registerAllDialects(registry);
  MLIRContext context(registry);
  std::string error;
  auto buffer = openInputFile(flags.input, &error);
  if (!buffer)
    return fail(error);
  if (!isBytecode(buffer->getMemBufferRef()) &&
      buffer->getBuffer().contains('\0'))
    return fail(flags.input + " is not a model: neither text nor bytecode");
  llvm::SourceMgr sources;
  sources.AddNewSourceBuffer(std::move(buffer), SMLoc());
  // Messages name the place; whole functions as notes would bury it.
  context.printOpOnDiagnostic(false);
  SourceMgrDiagnosticHandler diagnostics(sources, &context);
  OneErrorPerPlace onlyFirst(&context);
  // The handler that came last is asked first.
  ScopedDiagnosticHandler remarks(&context, [&](Diagnostic &diagnostic) {
    return success(diagnostic.getSeverity() == DiagnosticSeverity::Remark &&
                   !flags.remarks);
  });
  OwningOpRef<ModuleOp> module = parseSourceFile<ModuleOp>(sources, &context);
  if (!module)
    return 1;

  CompileOptions options = collectOptions(flags);
  if (llvm::Error e =
          excludeFromDecay(*module, flags.noDecay, options.parameters))
    return fail("--no-decay: " + llvm::toString(std::move(e)));
  if (failed(annotateParameters(*module, options.parameters)))
    return 1;
  if (failed(runPhases(*module, stop.value_or(Phase::Executable), options,
                       nullptr)))
    return 1;
  StringRef destination =
      flags.output.empty() ? StringRef("-") : StringRef(flags.output);
  if (stop)
    return writeFile(destination, [&](raw_ostream &os) {
      module->print(os, OpPrintingFlags().enableDebugInfo(false));
      os << "\n";
    });
  if (flags.emit == "llvm" || flags.emit == "cuda") {
    FailureOr<std::string> text = printKernels(
        *module, flags.emit == "cuda" ? KernelText::Cuda : KernelText::LLVM,
        options);
    if (failed(text))
      return 1;
    return writeFile(destination, [&](raw_ostream &os) { os << *text; });
  }

  FailureOr<CompiledProgram> compiled = generateCode(*module, options);
  if (failed(compiled))
    return 1;
  if (!flags.output.empty())
    if (llvm::Error e = writeArtifact(*compiled, flags.output))
      return fail(llvm::toString(std::move(e)));
  if (flags.reportFile.empty())
    return 0;
  return writeFile(flags.reportFile, [&](raw_ostream &os) {
    os << llvm::formatv(
        "{0:2}\n", llvm::json::Value(llvm::json::Object(compiled->report)));
  });
}
