//===- FuzzFaults.cpp - Faults in collectives -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Fuzz.h"
#include "cleave/Interpreter/TensorFile.h"
#include "cleave/Testing/Faults.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace cleave;

namespace {
/// The outcomes of the faults of one class.
struct FaultTally {
  int64_t drawn = 0, equivalent = 0, rejected = 0, unequal = 0;
};
} // namespace

int cleave::fuzzFaults(MLIRContext &context, const FuzzOptions &options) {
  OwningOpRef<ModuleOp> module =
      parseSourceFile<ModuleOp>(StringRef(options.module), &context);
  if (!module)
    return 1;
  std::vector<NamedTensors> inputs;
  std::vector<ReferenceResult> expected;
  for (StringRef file : llvm::split(StringRef(options.inputs), ',')) {
    std::string error;
    auto tensors = readTensorFile(file, &context, error);
    if (!tensors) {
      llvm::errs() << "error: " << error << "\n";
      return 1;
    }
    auto result = Interpreter(*module, Precision::Exact).run("train", *tensors);
    if (failed(result))
      return 1;
    inputs.push_back(std::move(*tensors));
    expected.push_back(std::move(*result));
  }
  unsigned movements = countCollectives(*module, "train");
  if (movements == 0) {
    llvm::errs() << "error: '" << options.module
                 << "' has no collectives in @train\n";
    return 1;
  }
  FaultTally tallies[kFaultClasses];
  int64_t missed = 0;
  for (int64_t i = 0; i < options.count; ++i) {
    Random random(options.seed + i);
    auto fault = static_cast<FaultClass>(random.integer(0, kFaultClasses - 1));
    unsigned index = random.integer(0, movements - 1);
    std::string what;
    OwningOpRef<ModuleOp> faulty =
        injectFault(*module, "train", index, fault, random, what);
    if (!faulty)
      continue;
    FaultTally &tally = tallies[static_cast<unsigned>(fault)];
    ++tally.drawn;
    FaultVerdict verdict =
        judgeFault(*faulty, "train", inputs, expected, options.tolerance);
    tally.equivalent += verdict.equivalent;
    tally.rejected += !verdict.equivalent && verdict.rejected;
    tally.unequal += !verdict.equivalent && verdict.unequal;
    bool isMissed =
        !verdict.equivalent && !verdict.unequal && !verdict.rejected;
    missed += isMissed;
    if (options.verbose || isMissed)
      llvm::errs() << faultName(fault) << ": " << what << ": "
                   << (verdict.equivalent ? "equivalent"
                       : verdict.rejected ? "rejected"
                                          : "accepted")
                   << (verdict.unequal ? ", other results\n"
                                       : ", the same results\n");
  }
  llvm::json::Object classes;
  for (unsigned i = 0; i < kFaultClasses; ++i)
    classes[faultName(static_cast<FaultClass>(i))] =
        llvm::json::Object{{"drawn", tallies[i].drawn},
                           {"equivalent", tallies[i].equivalent},
                           {"rejected", tallies[i].rejected},
                           {"unequal", tallies[i].unequal}};
  llvm::outs() << llvm::formatv("{0:2}", llvm::json::Value(llvm::json::Object{
                                             {"movements", movements},
                                             {"missed", missed},
                                             {"classes", std::move(classes)}}))
               << "\n";
  return missed ? 1 : 0;
}
