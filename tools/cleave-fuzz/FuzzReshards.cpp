//===- FuzzReshards.cpp - Random reshards of tensors ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Fuzz.h"
#include "cleave/Testing/CheckReshard.h"

using namespace mlir;
using namespace cleave;

int cleave::fuzzReshards(const DialectRegistry &registry,
                         const FuzzOptions &options) {
  int64_t failures = 0, subAxes = 0, severalAxes = 0, partial = 0, uneven = 0;
  for (int64_t i = 0; i < options.count;) {
    MLIRContext context(registry, MLIRContext::Threading::DISABLED);
    for (int64_t last = std::min<int64_t>(options.count, i + 500); i < last;
         ++i) {
      uint64_t seed = options.seed + i;
      RandomReshard reshard = drawReshard(seed);
      subAxes += reshard.hasSubAxes();
      severalAxes += reshard.hasSeveralAxes();
      partial += reshard.isPartial();
      uneven += reshard.isUneven();
      std::string error = checkReshard(&context, reshard, seed);
      if (error.empty())
        continue;
      ++failures;
      llvm::errs() << "seed " << seed << ": " << error
                   << "\n  cleave-fuzz --reshards --count=1 --seed=" << seed
                   << "\n";
    }
  }
  llvm::outs() << options.count << " reshards, " << failures << " failures; "
               << subAxes << " with sub-axes, " << severalAxes
               << " with several axes on a dimension, " << partial
               << " from partial values, " << uneven << " of uneven sizes\n";
  return failures || options.count == 0 ? 1 : 0;
}
