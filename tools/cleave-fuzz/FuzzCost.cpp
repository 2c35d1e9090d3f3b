//===- FuzzCost.cpp - Plans that are too dear -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Fuzz.h"
#include "cleave/Testing/CostDefects.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace cleave;

int cleave::fuzzCost(MLIRContext &context, const FuzzOptions &options) {
  OwningOpRef<ModuleOp> model =
      parseSourceFile<ModuleOp>(StringRef(options.module), &context);
  if (!model)
    return 1;
  auto asked = parseCompileOptions(options.stepOptions);
  auto planned = parseCompileOptions(options.plannedOptions);
  if (!asked || !planned) {
    llvm::errs() << "error: "
                 << llvm::toString(llvm::joinErrors(
                        asked ? llvm::Error::success() : asked.takeError(),
                        planned ? llvm::Error::success() : planned.takeError()))
                 << "\n";
    return 1;
  }
  llvm::json::Array findings;
  auto judge = [&](const CostDefect *defect) {
    int64_t seeded = 0;
    FailureOr<CostFacts> cost =
        judgeCost(*model, *asked, *planned, defect, options.count, seeded);
    if (failed(cost)) {
      llvm::errs() << "refused: "
                   << (defect ? StringRef(defect->name) : StringRef("none"))
                   << "\n";
      return false;
    }
    if (defect && !seeded)
      return true;
    llvm::json::Array excesses;
    for (const CostFacts::Excess &excess : cost->excesses)
      excesses.push_back(excess.text);
    findings.push_back(llvm::json::Object{
        {"defect", defect ? StringRef(defect->name) : StringRef("none")},
        {"seeded", seeded},
        {"missing", cost->missing},
        {"excesses", std::move(excesses)}});
    return true;
  };
  if (!judge(nullptr))
    return 1;
  // A plan of other options is dearer as it is.
  if (options.plannedOptions == options.stepOptions)
    for (const CostDefect &defect : costDefects())
      if (!judge(&defect))
        return 1;
  llvm::outs() << llvm::formatv("{0:2}", llvm::json::Value(std::move(findings)))
               << "\n";
  return 0;
}
