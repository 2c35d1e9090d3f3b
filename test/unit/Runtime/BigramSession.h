//===- BigramSession.h - Sessions of the small model ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_RUNTIME_BIGRAMSESSION_H
#define CLEAVE_TEST_UNIT_RUNTIME_BIGRAMSESSION_H

#include "Bigram.h"
#include "cleave/Runtime/CPU/Executor.h"
#include "cleave/Runtime/Session/Session.h"

extern "C" {
#define KERNEL(name)                                                           \
  void name(void *const *args, int64_t begin, int64_t end, void *scratch);
KERNEL(bigram_count)
KERNEL(bigram_gather)
KERNEL(bigram_gather_dropout)
KERNEL(bigram_loss)
KERNEL(bigram_norm)
KERNEL(bigram_result)
KERNEL(bigram_weight)
KERNEL(bigram_sgd)
#undef KERNEL
}

namespace cleave::test {

/// The kernels of this process.
inline void *resolveBigram(llvm::StringRef symbol) {
  const std::pair<const char *, runtime::KernelFunction> kernels[] = {
      {"bigram_count", bigram_count},
      {"bigram_gather", bigram_gather},
      {"bigram_gather_dropout", bigram_gather_dropout},
      {"bigram_loss", bigram_loss},
      {"bigram_norm", bigram_norm},
      {"bigram_result", bigram_result},
      {"bigram_weight", bigram_weight},
      {"bigram_sgd", bigram_sgd}};
  for (auto [name, function] : kernels)
    if (symbol == name)
      return reinterpret_cast<void *>(function);
  return nullptr;
}

} // namespace cleave::test

#define ASSERT_OK(expression)                                                  \
  do {                                                                         \
    llvm::Error error_ = (expression);                                         \
    ASSERT_FALSE(bool(error_)) << llvm::toString(std::move(error_));           \
  } while (false)

#endif // CLEAVE_TEST_UNIT_RUNTIME_BIGRAMSESSION_H
