//===- CostForms.h - A plan beside its closed form --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Reads what closed forms (ClosedForms/) are functions of, and holds a plan to
/// them.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PLANNING_COSTFORMS_H
#define CLEAVE_PLANNING_COSTFORMS_H

#include "cleave/ClosedForms/Form.h"
#include "cleave/Executable/Format/MemoryPlan.h"
#include "cleave/Pipelines/Compile.h"
#include "cleave/Reports/CostFacts.h"

namespace cleave {

/// The sizes of a model in the model phase.
closedforms::ModelSizes findSizes(mlir::ModuleOp module);

/// What `options` say of the cost of a step of a model of `sizes`, with the
/// policy of recomputation `policy`.
closedforms::StepOptions findStepOptions(const CompileOptions &options,
                                         llvm::StringRef policy,
                                         const closedforms::ModelSizes &sizes);

/// The operations of contractions and attention in a step of one rank of each
/// pipeline position, of a module in the scheduled phase.
double findOperations(mlir::ModuleOp module);

/// The operations of `op` that a form counts; nothing of other ops.
std::optional<double> operationsOf(mlir::Operation *op);

/// The axes whose ranks repeat operations of each other, of a module in the
/// local phase.
std::vector<CostFacts::Replicated> findReplicated(mlir::ModuleOp module);

/// Emits a remark for each of `found`.
void remarkReplicated(llvm::ArrayRef<CostFacts::Replicated> found);

/// Compares a form with the plan of `module`, which is in the executable phase:
/// what its entry that trains sends, `operations`, and what `memory` holds
/// between steps.
CostFacts findCost(mlir::ModuleOp module, const closedforms::Form &form,
                   const closedforms::StepOptions &options, double operations,
                   const runtime::MemoryPlan &memory);

/// Reports why a plan is dearer than its form, or that there is none.
llvm::LogicalResult checkCost(mlir::ModuleOp module, const CostFacts &cost);

} // namespace cleave

#endif // CLEAVE_PLANNING_COSTFORMS_H
