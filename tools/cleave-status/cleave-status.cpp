//===- cleave-status.cpp - Status of the graph ops ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

///
/// \file
/// Writes docs/Status.md from the interfaces of the registered ops, and
/// docs/Attributes.md from the tables of the dialects. Every op must be
/// complete: with `--check FILE`, the program fails if an op lacks something,
/// or if the file is out of date.
///
//===----------------------------------------------------------------------===//

#include "../../lib/Conversion/GraphToExec/SelectKernels.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Exec/Kernels/KernelBuilder.h"
#include "cleave/Dialect/Graph/IR/Attributes/AttributeTable.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Interpreter/ReferenceInterface.h"
#include "cleave/Pipelines/Register.h"
#include "cleave/Support/CommandLine.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace mlir;
using namespace cleave;

namespace {
/// An op's answer to one question.
enum class Answer {
  Yes,
  No,
  /// The question does not apply.
  None
};

struct Column {
  StringRef title;
  std::function<Answer(RegisteredOperationName)> ask;
};

Answer yesIf(bool condition) { return condition ? Answer::Yes : Answer::No; }

/// Ops that a library command computes, or that a pass replaces by such.
llvm::DenseSet<OperationName> selectedOps(MLIRContext *context) {
  RewritePatternSet patterns(context);
  exec::populateSelectCheck(patterns);
  exec::populateSelectContract(patterns, {});
  exec::populateSelectAttention(patterns);
  exec::populateSelectHeadLoss(patterns, /*chunkBytes=*/1, {});
  exec::populateSelectOrthonormalize(patterns);
  exec::populateSelectGrouped(patterns);
  llvm::DenseSet<OperationName> names;
  for (StringRef replaced :
       {graph::PerWorkerOp::getOperationName(),
        graph::GroupedLinearOp::getOperationName(),
        graph::GroupedLinearWeightGradOp::getOperationName()})
    names.insert(OperationName(replaced, context));
  for (const auto &pattern : patterns.getNativePatterns())
    if (std::optional<OperationName> root = pattern->getRootKind())
      names.insert(*root);
  return names;
}

std::vector<Column> makeColumns(MLIRContext *context) {
  llvm::DenseSet<OperationName> selected = selectedOps(context);
  return {
      {"verifier", [](RegisteredOperationName) { return Answer::Yes; }},
      {"inference",
       [](RegisteredOperationName name) {
         // A type that does not follow from the operands is written out.
         return name.hasInterface<InferTypeOpInterface>() ? Answer::Yes
                                                          : Answer::None;
       }},
      {"gradient",
       [](RegisteredOperationName name) {
         if (name.hasTrait<OpTrait::BackwardOnly>())
           return Answer::None;
         return yesIf(name.hasInterface<graph::DifferentiableOpInterface>());
       }},
      {"sharding rule",
       [](RegisteredOperationName name) {
         return yesIf(name.hasInterface<graph::ShardingRuleOpInterface>());
       }},
      {"cost",
       [](RegisteredOperationName name) {
         return yesIf(name.hasInterface<graph::CostOpInterface>());
       }},
      {"reference",
       [](RegisteredOperationName name) {
         return yesIf(name.hasInterface<ReferenceOpInterface>());
       }},
      // Kernels and commands are of no target: what has one has both.
      {"CPU, CUDA",
       [selected](RegisteredOperationName name) {
         // Commands read constants in place.
         return yesIf(name.hasTrait<OpTrait::ConstantLike>() ||
                      name.hasInterface<KernelLoweringInterface>() ||
                      name.hasInterface<KernelDecompositionInterface>() ||
                      name.hasInterface<exec::ViewLikeOpInterface>() ||
                      name.hasInterface<exec::JoinLikeOpInterface>() ||
                      selected.contains(name));
       }},
  };
}

llvm::cl::opt<std::string>
    check("check", llvm::cl::value_desc("file"),
          llvm::cl::desc("Fail unless this file is the status, and complete"));
llvm::cl::opt<bool>
    attributes("attributes",
               llvm::cl::desc("The attributes of the dialects instead of ops"));
} // namespace

/// The page of the ops. Sets `complete` where no op lacks anything.
static std::string opsPage(MLIRContext &context, bool &complete) {
  std::vector<Column> columns = makeColumns(&context);
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "# Status of the graph ops\n\n"
        "Written by `cleave-status` from the interfaces of the ops; a test "
        "fails when it\nis out of date or an op is incomplete. `-`: the "
        "question does not arise (an op\nmade by differentiation is not "
        "differentiated again; a type is written where\nit does not follow "
        "from the operands). Kernels and commands are the same\non processors "
        "and GPUs.\n\n| op |";
  for (const Column &column : columns)
    os << " " << column.title << " |";
  os << "\n|---|";
  for (size_t i = 0; i < columns.size(); ++i)
    os << "---|";
  os << "\n";
  complete = true;
  auto registered = context.getRegisteredOperationsByDialect("graph");
  std::vector<RegisteredOperationName> names(registered.begin(),
                                             registered.end());
  llvm::sort(names, [](RegisteredOperationName a, RegisteredOperationName b) {
    return a.getStringRef() < b.getStringRef();
  });
  for (RegisteredOperationName name : names) {
    os << "| `" << name.getStringRef() << "` |";
    for (const Column &column : columns) {
      Answer answer = column.ask(name);
      os << (answer == Answer::Yes  ? " yes |"
             : answer == Answer::No ? " **no** |"
                                    : " - |");
      if (answer == Answer::No) {
        complete = false;
        llvm::errs() << "error: " << name.getStringRef() << " has no "
                     << column.title << "\n";
      }
    }
    os << "\n";
  }
  return text;
}

/// The page of the attributes of the dialects.
static std::string attributesPage() {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "# Attributes\n\nWritten by `cleave-status --attributes` from the "
        "tables of the dialects\n(`lib/Dialect/*/IR/*Attributes.cpp`); a test "
        "fails when it is out of date. These\nare the attributes on ops, and "
        "on "
        "arguments and results of functions, besides\nthose that an op itself "
        "declares. A dialect refuses other names with its prefix,\nanother "
        "form "
        "of value, and a value that is not as said here.\n";
  for (auto [dialect, rows] : {std::pair("graph", graph::attributeTable()),
                               std::pair("spmd", spmd::attributeTable()),
                               std::pair("pipe", pipe::attributeTable()),
                               std::pair("exec", exec::attributeTable())}) {
    os << "\n## " << dialect
       << "\n\n| attribute | on | form | value | meaning "
          "|\n|---|---|---|---|---|"
          "\n";
    for (const graph::AttributeRow &row : rows)
      os << "| `" << row.name << "` | "
         << graph::attributeHolderNames(row.holders) << " | "
         << graph::attributeFormName(row.form) << " | " << row.expected << " | "
         << row.meaning << " |\n";
  }
  return text;
}

int main(int argc, char **argv) {
  printVersionOf("cleave-status");
  llvm::cl::ParseCommandLineOptions(argc, argv,
                                    "Cleave: what each graph op can do\n");
  DialectRegistry registry;
  registerAllDialects(registry);
  MLIRContext context(registry);
  context.loadAllAvailableDialects();
  bool complete = true;
  std::string text = attributes ? attributesPage() : opsPage(context, complete);
  if (check.empty()) {
    llvm::outs() << text;
    return complete ? 0 : 1;
  }
  auto file = llvm::MemoryBuffer::getFile(check);
  if (!file) {
    llvm::errs() << "error: cannot read " << check << ": "
                 << file.getError().message() << "\n";
    return 1;
  }
  if ((*file)->getBuffer() != text) {
    llvm::errs() << "error: " << check
                 << " is out of date: write it anew with `cleave-status "
                 << (attributes ? "--attributes " : "") << "> " << check
                 << "`\n";
    return 1;
  }
  return complete ? 0 : 1;
}
