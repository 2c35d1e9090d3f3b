//===- AttentionRowsAVX2.cpp - Row functions of attention -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#define CLEAVE_ROWS attentionRowsAVX2
#include "AttentionRows.inc"
