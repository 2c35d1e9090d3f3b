//===- FoundLaunches.h - Launches and their functions -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_FOUNDLAUNCHES_H
#define CLEAVE_LIB_RUNTIME_CUDA_FOUNDLAUNCHES_H

#include "Gpu.h"
#include "cleave/Executable/Cuda/CollectivePlan.h"
#include <utility>
#include <vector>

namespace cleave::runtime::cuda {

using FoundLaunches = std::vector<std::pair<CUfunction, Launch>>;

/// Finds the functions of what a plan launches before and after its exchange.
inline llvm::Error findLaunches(Gpu &gpu, CollectivePlan &plan,
                                FoundLaunches &before, FoundLaunches &after) {
  for (auto [from, to] :
       {std::pair(&plan.before, &before), std::pair(&plan.after, &after)})
    for (Launch &launch : *from) {
      llvm::Expected<CUfunction> function =
          gpu.find(launch.symbol, static_cast<int>(launch.sharedBytes));
      if (!function)
        return function.takeError();
      to->push_back({*function, std::move(launch)});
    }
  return llvm::Error::success();
}

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_FOUNDLAUNCHES_H
