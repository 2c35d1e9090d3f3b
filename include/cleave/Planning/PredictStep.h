//===- PredictStep.h - An estimate of a step on a GPU -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PLANNING_PREDICTSTEP_H
#define CLEAVE_PLANNING_PREDICTSTEP_H

#include "cleave/Executable/Format/Program.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/JSON.h"

namespace cleave {

/// The names of the devices whose steps can be predicted.
llvm::ArrayRef<llvm::StringRef> predictedDevices();

/// An estimate, without any run, of one training step of `program` on
/// `device`, of its commands: how many launches, operations and bytes they are,
/// and what these take at rates that are stated with it:
/// ```
/// {"device": "h200", "estimate": true, "launches": n, "tokens": n,
///  "seconds": x, "bytes_outside": x,
///  "rates": {"memory_bytes": x, ...},
///  "kinds": [{"kind": "products of bf16", "commands": n, "launches": n,
///    "operations": x, "bytes": x, "seconds": x}, ...],
///  "commands": [{"label": "add_3 model.py:7", "kind": "...", "count": n,
///    "launches": n, "operations": x, "bytes": x, "seconds": x}, ...]}
/// ```
/// `commands` sums up those of one label and kind, as a trace has labels.
/// `bytes_outside` are those of all kinds but contractions and attention.
/// Collectives are not counted. `module` has the kernels.
llvm::json::Object predictStep(mlir::ModuleOp module,
                               const runtime::Program &program,
                               llvm::StringRef device);

/// The same as lines for people.
std::vector<std::string> predictionText(const llvm::json::Object &prediction);

} // namespace cleave

#endif // CLEAVE_PLANNING_PREDICTSTEP_H
