//===- cleave-compile.cpp - From a model to an artifact, as a program -----===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CompileMain.h"

int main(int argc, char **argv) { return cleave::compileMain(argc, argv); }
