//===- ReferenceMain.h - The interpreter as a program -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_INTERPRETER_REFERENCEMAIN_H
#define CLEAVE_INTERPRETER_REFERENCEMAIN_H

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace cleave {

/// Runs an entry of a module on tensors from files, as its arguments say; see
/// `--help`. Returns the exit status: 0, 1 for an error in the input, 2 for a
/// mistake in the arguments.
int referenceMain(int argc, char **argv, const mlir::DialectRegistry &registry);

} // namespace cleave

#endif // CLEAVE_INTERPRETER_REFERENCEMAIN_H
