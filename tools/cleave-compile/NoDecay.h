//===- NoDecay.h - Parameters without weight decay --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVE_COMPILE_NODECAY_H
#define CLEAVE_TOOLS_CLEAVE_COMPILE_NODECAY_H

#include "cleave/Pipelines/Compile.h"

/// Sets a weight decay of 0 for the parameters of `module` that a term of
/// `terms` describes. A term is `ndim<N` (or <=, ==, >, >=), of the framework's
/// shape, or a glob over names such as `*.bias`; terms are separated by commas.
/// Fails on a malformed term and on a glob that matches no parameter.
llvm::Error
excludeFromDecay(mlir::ModuleOp module, llvm::StringRef terms,
                 std::map<std::string, cleave::ParameterOptions> &out);

#endif // CLEAVE_TOOLS_CLEAVE_COMPILE_NODECAY_H
