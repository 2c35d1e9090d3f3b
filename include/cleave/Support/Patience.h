//===- Patience.h - How long ranks wait for each other ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_PATIENCE_H
#define CLEAVE_SUPPORT_PATIENCE_H

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

/// A rank that writes what others wait for has that many times as long.
constexpr int writingPatience = 10;

/// What is wrong with the variable, or "".
inline std::string patienceProblem() {
  const char *text = std::getenv(patienceVariable);
  char *end = nullptr;
  long seconds = text ? std::strtol(text, &end, 10) : defaultPatience;
  if (!text || !*text ||
      (end != text && *end == 0 && seconds >= 1 && seconds <= mostPatience))
    return "";
  return std::string(patienceVariable) + " is '" + text +
         "'; it must be an integer from 1 to " + std::to_string(mostPatience);
}

/// How a message says what can be changed.
inline std::string patienceHint() {
  return std::string("--patience (of Python: patience; else ") +
         patienceVariable + ") sets another time";
}

/// Before other threads begin.
inline void setPatience(int seconds) {
  ::setenv(patienceVariable, std::to_string(seconds).c_str(), 1);
}

} // namespace cleave::runtime

#endif // CLEAVE_SUPPORT_PATIENCE_H
