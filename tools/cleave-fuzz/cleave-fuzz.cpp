//===- cleave-fuzz.cpp - Draws models and compares executions -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Fuzz.h"
#include "cleave/Interpreter/TensorFile.h"
#include "cleave/Pipelines/Register.h"
#include "cleave/Support/CommandLine.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/CommandLine.h"

using namespace mlir;
using namespace cleave;
namespace cl = llvm::cl;

static cl::OptionCategory category("cleave-fuzz");
static cl::opt<uint64_t> firstSeed("seed", cl::desc("The first seed"),
                                   cl::init(1), cl::cat(category));
static cl::opt<int64_t> count("count", cl::desc("How many models"),
                              cl::init(100), cl::cat(category));
static cl::opt<double> tolerance("tolerance",
                                 cl::desc("Largest relative difference"),
                                 cl::init(1e-9), cl::cat(category));
static cl::opt<int64_t>
    differences("finite-differences",
                cl::desc("Check the gradients of every n-th model by finite "
                         "differences (0: none)"),
                cl::init(10), cl::cat(category));
static cl::opt<bool> emit("emit",
                          cl::desc("Print the first model, and run nothing"),
                          cl::cat(category));
static cl::opt<std::string>
    only("phase",
         cl::desc("Compare only with the phases whose names have this prefix"),
         cl::cat(category));
static cl::opt<bool> listPhases("list-phases", cl::desc("Print the phases"),
                                cl::cat(category));
static cl::opt<std::string> rulesOf(
    "rules", cl::value_desc("module"),
    cl::desc("Test the sharding rule of each op of the entry `train` of "
             "a module, and print what was tested as JSON"),
    cl::cat(category));
static cl::opt<std::string> inputsFile("inputs", cl::value_desc("file"),
                                       cl::desc("With --rules, --native-of "
                                                "or --faults-of: its inputs; "
                                                "of the last, several files "
                                                "with commas between"),
                                       cl::cat(category));
static cl::opt<bool> randomRules("random-rules",
                                 cl::desc("Test the sharding rules of the ops "
                                          "of random models' steps"),
                                 cl::cat(category));
static cl::opt<bool> drawnOptions(
    "options",
    cl::desc("Compile random models with random options of a "
             "step, and compare the scheduled program with the step "
             "by the interpreter; prints what was drawn as JSON"),
    cl::cat(category));
static cl::opt<bool>
    listOptions("list-options",
                cl::desc("Print as JSON what --options draws and the passes of "
                         "the phases they run; compile nothing"),
                cl::cat(category));
static cl::opt<bool>
    native("native",
           cl::desc("Compile random models to native code, and compare it with "
                    "the interpreter"),
           cl::cat(category));
static cl::opt<std::string>
    nativeOf("native-of", cl::value_desc("module"),
             cl::desc("The same with the model of a file, in several "
                      "arrangements; prints what was tested as JSON"),
             cl::cat(category));
static cl::opt<int64_t>
    arrangements("arrangements", cl::init(4),
                 cl::desc("With --native-of: how many options are drawn"),
                 cl::cat(category));
static cl::opt<bool>
    oneMicroBatch("one-micro-batch",
                  cl::desc("With --native-of: do not split the batch"),
                  cl::cat(category));
static cl::opt<bool> reshards(
    "reshards",
    cl::desc("Reshard tensors between random shardings of random meshes, "
             "on the interpreter's ranks"),
    cl::cat(category));
static cl::opt<std::string> faultsOf(
    "faults-of", cl::value_desc("module"),
    cl::desc("Make collectives of the entry `train` of a module of the "
             "local phase wrong, --count times, and print as JSON how "
             "many the verifier rejects and how many give other "
             "results"),
    cl::cat(category));
static cl::opt<std::string> costsOf(
    "costs-of", cl::value_desc("model"),
    cl::desc("Plan a model as it is, and with --count ops made dearer in each "
             "way, and print as JSON why each plan exceeds its closed form"),
    cl::cat(category));
static cl::opt<std::string> stepOptions(
    "step-options", cl::init("{}"), cl::value_desc("json"),
    cl::desc("With --costs-of: the options of the step, of which the form is"),
    cl::cat(category));
static cl::opt<std::string> plannedOptions(
    "planned-options", cl::value_desc("json"),
    cl::desc("With --costs-of: other options, that it is planned by"),
    cl::cat(category));
static cl::opt<bool> staleReaders(
    "stale-readers",
    cl::desc("Make parts of random models' pipelines read copies of "
             "parameters and state that their positions do not update, and "
             "print as JSON how many of them the verifier rejects"),
    cl::cat(category));
static cl::opt<bool> reportKeys(
    "report-keys",
    cl::desc("Plan random models with random options, as they are and with all "
             "keys of reports renamed: nothing that is decided may differ; "
             "prints what was asked as JSON"),
    cl::cat(category));
static cl::opt<bool> verbose("verbose", cl::desc("Print a line per model"),
                             cl::cat(category));

std::optional<GivenModule> cleave::readGiven(MLIRContext &context,
                                             const FuzzOptions &options) {
  auto module = parseSourceFile<ModuleOp>(StringRef(options.module), &context);
  std::string error;
  auto inputs = readTensorFile(options.inputs, &context, error);
  if (!inputs)
    llvm::errs() << "error: " << error << "\n";
  if (!module || !inputs)
    return std::nullopt;
  return GivenModule{std::move(module), std::move(*inputs)};
}

int main(int argc, char **argv) {
  printVersionOf("cleave-fuzz");
  cl::HideUnrelatedOptions(category);
  cl::ParseCommandLineOptions(
      argc, argv,
      "Draws random models and executes them in every phase by the reference "
      "interpreter;\nloss, gradients and updates must agree. Ends with status "
      "1 "
      "when some do not.\n");
  DialectRegistry registry;
  registerAllDialects(registry);
  registerAllPasses();
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);

  std::vector<StepForm> phases = allPhases();
  if (listPhases) {
    for (const StepForm &phase : phases)
      llvm::outs() << phase.name << ": " << phase.pipeline << "\n";
    return 0;
  }
  if (emit) {
    drawRandomGraph(&context, firstSeed, {}).module->print(llvm::outs());
    return 0;
  }
  if (llvm::none_of(phases, [](const StepForm &phase) {
        return StringRef(phase.name).starts_with(only);
      })) {
    llvm::errs() << "no phase name begins with '" << only
                 << "'; see --list-phases\n";
    return 2;
  }
  FuzzOptions options;
  options.seed = firstSeed;
  options.count = count;
  options.tolerance = tolerance;
  options.differences = differences;
  options.only = only;
  options.module = !rulesOf.empty()    ? rulesOf
                   : !nativeOf.empty() ? nativeOf
                   : !costsOf.empty()  ? costsOf
                                       : faultsOf;
  options.inputs = inputsFile;
  options.arrangements = arrangements;
  options.oneMicroBatch = oneMicroBatch;
  options.verbose = verbose;
  options.stepOptions = stepOptions;
  options.plannedOptions =
      plannedOptions.empty() ? stepOptions : plannedOptions;
  if (!costsOf.empty())
    return fuzzCost(context, options);
  if (!rulesOf.empty())
    return checkRulesOfModule(context, options);
  if (listOptions)
    return listDrawn(registry, options);
  if (drawnOptions)
    return fuzzDrawn(registry, options);
  if (native)
    return fuzzNative(registry, options);
  if (!nativeOf.empty())
    return fuzzNativeOfModule(context, options);
  if (randomRules)
    return checkRulesOfModels(context, options);
  if (reshards)
    return fuzzReshards(registry, options);
  if (staleReaders)
    return fuzzReaders(registry, options);
  if (reportKeys)
    return fuzzKeys(registry, options);
  if (!faultsOf.empty())
    return fuzzFaults(context, options);
  return fuzzModels(registry, phases, options);
}
