//===- AttentionRows.cpp - Choosing row functions -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "AttentionRows.h"
#include "llvm/ADT/StringRef.h"

namespace cleave::runtime {
extern const AttentionRowFunctions attentionRowsAVX512, attentionRowsAVX2,
    attentionRowsBaseline;
} // namespace cleave::runtime

using namespace cleave::runtime;

const AttentionRowFunctions *
cleave::runtime::getAttentionRows(const char *wanted) {
#if defined(__x86_64__)
  bool avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi2");
#else
  bool avx512 = false, avx2 = false;
#endif
  llvm::StringRef isa = wanted ? wanted : "";
  if (avx512 && (isa.empty() || isa == "avx512"))
    return &attentionRowsAVX512;
  if (avx2 && (isa.empty() || isa == "avx2"))
    return &attentionRowsAVX2;
  if (isa.empty() || isa == "baseline")
    return &attentionRowsBaseline;
  return nullptr;
}
