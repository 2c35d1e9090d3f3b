//===- Update.cpp - The ops of a training step have no gradient -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Gradients.h"

using namespace mlir;
using namespace cleave::graph;

CLEAVE_ZERO_GRADIENT(CheckOp)
CLEAVE_NO_GRADIENT(SeedOp)
CLEAVE_NO_GRADIENT(GradientOp)
CLEAVE_NO_GRADIENT(WrittenOp)
CLEAVE_NO_GRADIENT(GlobalNormOp)
CLEAVE_NO_GRADIENT(AdamWOp)
CLEAVE_NO_GRADIENT(SgdOp)
CLEAVE_NO_GRADIENT(EncodeOp)
CLEAVE_NO_GRADIENT(DecodeOp)
CLEAVE_NO_GRADIENT(OrthonormalizeOp)
