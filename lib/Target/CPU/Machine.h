//===- Machine.h - The code generator of LLVM -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_TARGET_CPU_MACHINE_H
#define CLEAVE_LIB_TARGET_CPU_MACHINE_H

#include "cleave/Target/CPU/CodeGen.h"
#include "llvm/Target/TargetMachine.h"

namespace cleave::cpu {

/// LLVM's code generator for `target`.
llvm::Expected<std::unique_ptr<llvm::TargetMachine>>
createMachine(const CpuTarget &target);

/// Relocatable object code of `module`.
llvm::Expected<std::string> emitObject(llvm::Module &module,
                                       llvm::TargetMachine &machine);

} // namespace cleave::cpu

#endif // CLEAVE_LIB_TARGET_CPU_MACHINE_H
