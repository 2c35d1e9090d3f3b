//===- TestAll.h - Whether long proofs run in full --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_TESTALL_H
#define CLEAVE_TEST_UNIT_TESTALL_H

#include <cstdlib>
#include <string_view>

namespace cleave {

/// Everything, not only the sample of a default run: CLEAVE_TEST_ALL is set,
/// and neither empty nor 0.
inline bool testAll() {
  const char *value = std::getenv("CLEAVE_TEST_ALL");
  std::string_view text = value ? value : "";
  return !text.empty() && text != "0";
}

} // namespace cleave

#endif // CLEAVE_TEST_UNIT_TESTALL_H
