//===- GraphOps.cpp - Generated definitions of the graph ops ---===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave::graph;

#define GET_OP_CLASSES
#include "cleave/Dialect/Graph/IR/GraphOps.cpp.inc"
