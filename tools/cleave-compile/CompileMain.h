//===- CompileMain.h - From a model to an artifact --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVE_COMPILE_COMPILEMAIN_H
#define CLEAVE_TOOLS_CLEAVE_COMPILE_COMPILEMAIN_H

namespace cleave {

/// Compiles a model, or plans it, as its arguments specify; see `--help`.
/// Returns the exit status: 0, 1 for an error in the input, 2 for an error in
/// the arguments. Options of LLVM are changed: a process calls it once.
int compileMain(int argc, char **argv);

} // namespace cleave

#endif // CLEAVE_TOOLS_CLEAVE_COMPILE_COMPILEMAIN_H
