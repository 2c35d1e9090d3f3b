//===- RaiseModel.cpp - Ops that a model composes of smaller ones ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/RaiseModel.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"

using namespace mlir;
using namespace cleave;

void cleave::addRaise(OpPassManager &passes) {
  // Each reads what the ones before it have made of smaller ops, and attention
  // what a front end wrote.
  passes.addPass(graph::createRaiseAttention());
  passes.addPass(graph::createRaiseNorms());
  passes.addPass(graph::createRaiseRotary());
}

LogicalResult cleave::raiseModel(ModuleOp module) {
  PassManager passes(module.getContext());
  addRaise(passes);
  return passes.run(module);
}

FailureOr<std::vector<std::pair<unsigned, std::string>>>
cleave::raisedOps(ModuleOp module) {
  if (failed(raiseModel(module)))
    return failure();
  std::vector<std::pair<unsigned, std::string>> ops;
  for (auto function : module.getOps<func::FuncOp>())
    for (Operation &op : function.getOps())
      if (auto place = op.getLoc()->findInstanceOf<FileLineColLoc>())
        ops.emplace_back(place.getLine(), op.getName().stripDialect().str());
  return ops;
}
