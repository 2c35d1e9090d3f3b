//===- MachineModel.cpp - Rates of a device and its link ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Machines/MachineModel.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringSwitch.h"
#include <cmath>

using namespace cleave::machines;

std::optional<MachineModel> MachineModel::parse(llvm::StringRef text,
                                                std::string &error) {
  MachineModel machine;
  llvm::SmallVector<llvm::StringRef> entries;
  text.split(entries, ',', -1, /*KeepEmpty=*/false);
  for (llvm::StringRef entry : entries) {
    auto [name, value] = entry.trim().split('=');
    double *number = llvm::StringSwitch<double *>(name.trim())
                         .Case("flops", &machine.flops)
                         .Case("memory", &machine.memory)
                         .Case("link", &machine.link)
                         .Case("latency", &machine.latency)
                         .Case("contraction", &machine.contraction)
                         .Case("contraction-16bit", &machine.contraction16)
                         .Case("contraction-8bit", &machine.contraction8)
                         .Case("attention", &machine.attention)
                         .Case("streamed", &machine.streamed)
                         .Default(nullptr);
    if (!number || value.trim().getAsDouble(*number) ||
        !std::isfinite(*number) || *number <= 0) {
      error = "'" + entry.trim().str() +
              "' is not a rate; write flops=, memory= or link= and a positive "
              "number per second, as in flops=1e12,memory=1e11,link=1e10";
      return std::nullopt;
    }
  }
  return machine;
}
