//===- ParameterGroups.h - Settings of parameters by their names -*- C++ -*-==//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Parameters are described by terms, separated by commas. A term is `ndim<N`
/// (or <=, ==, >, >=), of the framework's shape, or a glob over names such as
/// `*.bias`. A malformed term, and a glob that matches no parameter, is an
/// error.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVE_COMPILE_PARAMETERGROUPS_H
#define CLEAVE_TOOLS_CLEAVE_COMPILE_PARAMETERGROUPS_H

#include "cleave/Pipelines/Compile.h"

/// Sets the settings of `groups`, each `terms: setting=value ...`; the first
/// group that matches a parameter applies. `optimizer` names an update rule,
/// `lr-scale` multiplies the learning rate.
llvm::Error applyGroups(mlir::ModuleOp module,
                        llvm::ArrayRef<std::string> groups,
                        std::map<std::string, cleave::ParameterOptions> &out);

/// Sets a weight decay of 0 for the parameters that a term of `terms`
/// describes, except where a group has set it.
llvm::Error
excludeFromDecay(mlir::ModuleOp module, llvm::StringRef terms,
                 std::map<std::string, cleave::ParameterOptions> &out);

#endif // CLEAVE_TOOLS_CLEAVE_COMPILE_PARAMETERGROUPS_H
