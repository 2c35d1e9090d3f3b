//===- cleave-opt.cpp - Passes on a module, as a program ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "OptMain.h"

int main(int argc, char **argv) { return cleave::optMain(argc, argv); }
