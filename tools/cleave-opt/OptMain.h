//===- OptMain.h - Passes on a module ---------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVE_OPT_OPTMAIN_H
#define CLEAVE_TOOLS_CLEAVE_OPT_OPTMAIN_H

namespace cleave {

/// Runs passes on a module, as its arguments specify; see `--help`.
/// Returns the exit status: 0, 1 for an error in the input, 2 for an error in
/// the arguments. Options of LLVM are changed: a process calls it once.
int optMain(int argc, char **argv);

} // namespace cleave

#endif // CLEAVE_TOOLS_CLEAVE_OPT_OPTMAIN_H
