//===- Patience.h - How long ranks wait for each other ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_PATIENCE_H
#define CLEAVE_RUNTIME_CORE_PATIENCE_H

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace cleave::runtime {

/// One number of the whole process, which plugins read too: a variable of the
/// environment, which options set.
constexpr const char *patienceVariable = "CLEAVE_PATIENCE";
constexpr int defaultPatience = 300, mostPatience = 1 << 20;

/// The longest time, in seconds, for which a rank waits for others.
inline int patienceSeconds() {
  const char *text = std::getenv(patienceVariable);
  int seconds = text ? std::atoi(text) : defaultPatience;
  return seconds < 1 ? defaultPatience : std::min(seconds, mostPatience);
}

/// Before other threads begin.
inline void setPatience(int seconds) {
  ::setenv(patienceVariable, std::to_string(seconds).c_str(), 1);
}

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CORE_PATIENCE_H
