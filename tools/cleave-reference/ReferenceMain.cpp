//===- ReferenceMain.cpp - The interpreter as a program -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReferenceMain.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Interpreter/Interpreter.h"
#include "cleave/Interpreter/ReferenceInterface.h"
#include "cleave/Interpreter/TensorFile.h"
#include "cleave/Pipelines/Diagnostics.h"
#include "cleave/Support/CommandLine.h"
#include "cleave/Support/OpenText.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/SourceMgr.h"

using namespace mlir;
using namespace cleave;

static constexpr const char *kHelp = R"(Usage: %s MODULE [options]
       %s --list-ops

Executes an entry of a module with the reference interpreter: no code is
generated, and no device is used. MODULE is a .mlir file in any phase up to
`scheduled`.

Options:
  --entry NAME         the entry to run (default: loss)
  --mode exact|typed   exact: every float is an f64, whatever its type says, and
                       results are written as F64; typed: each result of an op
                       is rounded to its element type (default: exact)
  --inputs FILE        tensors by the names of the arguments (graph.name, or
                       arg0, arg1, ...): a safetensors file, an index of
                       several (.json), or a folder with either; may be given
                       more than once, a later one replaces tensors of an
                       earlier. Floats may be of any float type
  --output FILE        writes the results, by name, as a safetensors file;
                       without it, a summary of each is printed
  --gradients FILE     writes the finished gradients, by parameter, as a
                       safetensors file
  --list-ops           prints what each op of the graph dialect declares, as a
                       JSON object by the op's name
  --help               prints this
  --version            prints the version of Cleave

Exit status: 0, 1 for an error in a file or in the program, 2 for a mistake in
the arguments.
)";

namespace {
struct Options {
  std::string module, entry = "loss", output, gradients;
  std::vector<std::string> inputs;
  bool listOps = false;
  Precision precision = Precision::Exact;
};
} // namespace

/// Fills `options`; returns the exit status if the program should end.
static std::optional<int> parseOptions(int argc, char **argv,
                                       Options &options) {
  auto usage = [&](const Twine &message) {
    llvm::errs() << argv[0] << ": " << message << "; see --help\n";
    return 2;
  };
  for (int i = 1; i < argc; ++i) {
    StringRef argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      llvm::outs() << llvm::format(kHelp, argv[0], argv[0]);
      return 0;
    }
    if (argument == "--version") {
      printVersion(llvm::outs(), "cleave-reference");
      return 0;
    }
    if (!argument.starts_with("-")) {
      if (!options.module.empty())
        return usage("more than one module is given, '" + options.module +
                     "' and '" + argument + "'");
      options.module = argument.str();
      continue;
    }
    if (argument == "--list-ops") {
      options.listOps = true;
      continue;
    }
    // Both `--option value` and `--option=value`.
    auto [name, value] = argument.split('=');
    static constexpr StringLiteral known[] = {"--entry", "--mode", "--inputs",
                                              "--output", "--gradients"};
    if (!llvm::is_contained(known, name))
      return usage("unknown option '" + name + "'");
    if (!argument.contains('=')) {
      if (++i == argc)
        return usage("option '" + name + "' needs a value");
      value = argv[i];
    }
    if (name == "--entry")
      options.entry = value.str();
    else if (name == "--inputs")
      options.inputs.push_back(value.str());
    else if (name == "--output")
      options.output = value.str();
    else if (name == "--gradients")
      options.gradients = value.str();
    else if (value == "exact" || value == "typed")
      options.precision =
          value == "exact" ? Precision::Exact : Precision::Typed;
    else
      return usage("mode '" + value + "' is neither exact nor typed");
  }
  if (options.module.empty() && !options.listOps)
    return usage("no module is given");
  return std::nullopt;
}

/// Prints the properties of each op of the graph dialect.
static void listOps(MLIRContext &context) {
  context.getOrLoadDialect<graph::GraphDialect>();
  llvm::json::Object ops;
  for (RegisteredOperationName op : context.getRegisteredOperations()) {
    if (op.getDialectNamespace() != graph::GraphDialect::getDialectNamespace())
      continue;
    ops[op.getStringRef()] = llvm::json::Object{
        {"backward_only", op.hasTrait<OpTrait::BackwardOnly>()},
        {"differentiable",
         op.hasInterface<graph::DifferentiableOpInterface>() &&
             !op.hasTrait<OpTrait::BackwardOnly>()},
        {"sharding_rule", op.hasInterface<graph::ShardingRuleOpInterface>()},
        {"cost", op.hasInterface<graph::CostOpInterface>()},
        {"reference", op.hasInterface<ReferenceOpInterface>()}};
  }
  llvm::outs() << llvm::formatv("{0:2}", llvm::json::Value(std::move(ops)))
               << "\n";
}

/// Prints name, type and the first elements of each tensor.
static void printSummary(const NamedTensors &tensors) {
  for (auto &[name, tensor] : tensors) {
    llvm::outs() << name << ": " << tensor.type() << " [";
    int64_t shown = std::min<int64_t>(tensor.size(), 8);
    for (int64_t i = 0; i < shown; ++i) {
      llvm::outs() << (i ? ", " : "");
      if (tensor.isFloat())
        llvm::outs() << llvm::format("%.17g", tensor.floats[i]);
      else
        llvm::outs() << tensor.ints[i];
    }
    llvm::outs() << (shown < tensor.size() ? ", ...]\n" : "]\n");
  }
}

int cleave::referenceMain(int argc, char **argv,
                          const DialectRegistry &registry) {
  Options options;
  if (std::optional<int> status = parseOptions(argc, argv, options))
    return *status;
  auto fail = [&](const Twine &message) {
    llvm::errs() << "error: " << message << "\n";
    return 1;
  };

  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  if (options.listOps) {
    listOps(context);
    return 0;
  }
  // Checked before a long run.
  for (const std::string &path : {options.output, options.gradients})
    if (!path.empty())
      if (llvm::Error unwritable = runtime::checkWritable(path))
        return fail(llvm::toString(std::move(unwritable)));
  std::string error;
  auto file = openText(options.module, &error);
  if (!file)
    return fail(error);
  llvm::SourceMgr sources;
  sources.AddNewSourceBuffer(std::move(file), llvm::SMLoc());
  // Messages include the location; notes with whole functions would hide it.
  context.printOpOnDiagnostic(false);
  SourceMgrDiagnosticHandler handler(sources, &context, llvm::errs());
  OneErrorPerPlace onlyFirst(&context);
  OwningOpRef<ModuleOp> module = parseSourceFile<ModuleOp>(sources, &context);
  if (!module)
    return 1;

  NamedTensors inputs;
  for (StringRef path : options.inputs) {
    auto tensors = readTensorFile(path, &context, error);
    if (!tensors)
      return fail(error);
    for (auto &[name, tensor] : *tensors)
      inputs[name] = std::move(tensor);
  }
  auto result =
      Interpreter(*module, options.precision).run(options.entry, inputs);
  if (failed(result))
    return 1;
  for (auto &[path, tensors] :
       {std::pair(options.output, &result->outputs),
        std::pair(options.gradients, &result->published)})
    if (!path.empty())
      if (std::string message =
              writeTensorFile(path, *tensors, options.precision);
          !message.empty())
        return fail(message);
  if (options.output.empty())
    printSummary(result->outputs);
  if (llvm::Error unwritten = runtime::flushStandardOutput())
    return fail(llvm::toString(std::move(unwritten)));
  return 0;
}
