//===- ReferenceMain.h - The interpreter as a program -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVE_REFERENCE_REFERENCEMAIN_H
#define CLEAVE_TOOLS_CLEAVE_REFERENCE_REFERENCEMAIN_H

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace cleave {

/// Runs an entry of a module on tensors from files, as its arguments specify;
/// see `--help`. Returns the exit status: 0, 1 for an error in the input, 2 for
/// an error in the arguments.
int referenceMain(int argc, char **argv, const mlir::DialectRegistry &registry);

} // namespace cleave

#endif // CLEAVE_TOOLS_CLEAVE_REFERENCE_REFERENCEMAIN_H
