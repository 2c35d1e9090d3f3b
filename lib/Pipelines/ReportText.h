//===- ReportText.h - Numbers in the lines of a report ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_PIPELINES_REPORTTEXT_H
#define CLEAVE_LIB_PIPELINES_REPORTTEXT_H

#include "llvm/Support/JSON.h"
#include <string>

namespace cleave {

/// `264 B`, `16.0 KiB`, `1.2 MiB`, `3.0 GiB`.
std::string formatBytes(double bytes);

/// A number of `object`; 0 when it has none of that name.
inline double number(const llvm::json::Object &object, llvm::StringRef key) {
  return object.getNumber(key).value_or(0);
}

/// A text of `object`; "" when it has none of that name.
inline std::string textOf(const llvm::json::Object &object,
                          llvm::StringRef key) {
  return object.getString(key).value_or("").str();
}

} // namespace cleave

#endif // CLEAVE_LIB_PIPELINES_REPORTTEXT_H
