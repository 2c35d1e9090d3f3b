//===- ReportText.h - Numbers and names in lines ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_REPORTS_REPORTTEXT_H
#define CLEAVE_LIB_REPORTS_REPORTTEXT_H

#include "cleave/Reports/FormatBytes.h"
#include "llvm/Support/JSON.h"
#include <string>
#include <vector>

namespace cleave {

/// Formats a share of 1 as `12.5 %`.
std::string formatShare(double share);

/// Formats a count with its noun: `1 chunk`, `2 chunks`, `2 micro-batches`.
std::string counted(int64_t count, llvm::StringRef noun);

/// The number `key` of `object`; 0 if it is missing.
inline double number(const llvm::json::Object &object, llvm::StringRef key) {
  return object.getNumber(key).value_or(0);
}

/// The text `key` of `object`; "" if it is missing.
inline std::string textOf(const llvm::json::Object &object,
                          llvm::StringRef key) {
  return object.getString(key).value_or("").str();
}

/// Replaces the numbered components of names in a text: `h.3.mlp.w` becomes
/// `h.*.mlp.w`. A text without such a name stays.
std::string foldLayers(llvm::StringRef text);

/// The numbered components of names in a text, as one key: `3` of `h.3.mlp.w`;
/// empty if there is none.
std::string layerOf(llvm::StringRef text);

/// Makes lines that differ in numbers alone one, with the ranges of those
/// numbers: `position 0: saves 3.0 MiB` and `position 1: saves 2.0 MiB` become
/// `positions 0-1: saves 2.0 MiB to 3.0 MiB`. Lists in lines are folded alike.
std::vector<std::string> foldRanges(llvm::ArrayRef<std::string> lines);

} // namespace cleave

#endif // CLEAVE_LIB_REPORTS_REPORTTEXT_H
