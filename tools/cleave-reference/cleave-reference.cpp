//===- cleave-reference.cpp - Runs the reference interpreter --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReferenceMain.h"
#include "cleave/Pipelines/Register.h"
#include "mlir/IR/DialectRegistry.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  cleave::registerAllDialects(registry);
  return cleave::referenceMain(argc, argv, registry);
}
