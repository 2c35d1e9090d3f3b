//===- Register.h - Everything the project registers ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_REGISTER_H
#define CLEAVE_PIPELINES_REGISTER_H

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace cleave {

/// Registers the dialects of all phases, the upstream dialects that they
/// build on, and the interface implementations that live outside dialects.
void registerAllDialects(mlir::DialectRegistry &registry);

/// Registers every pass; PhasePipelines.h has the pipelines of the phases.
void registerAllPasses();

} // namespace cleave

#endif // CLEAVE_PIPELINES_REGISTER_H
