//===- ReportText.cpp - Numbers in the lines of a report ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportText.h"
#include "llvm/Support/FormatVariadic.h"

using llvm::StringRef;

std::string cleave::formatBytes(double bytes) {
  if (bytes < 1024)
    return llvm::formatv("{0} B", static_cast<int64_t>(bytes));
  StringRef unit;
  for (StringRef larger : {"KiB", "MiB", "GiB"}) {
    if (bytes < 1024)
      break;
    bytes /= 1024;
    unit = larger;
  }
  return llvm::formatv("{0:F1} {1}", bytes, unit);
}

std::string cleave::formatShare(double share) {
  return llvm::formatv("{0:F1} %", share * 100);
}

std::string cleave::counted(int64_t count, StringRef noun) {
  return (llvm::Twine(count) + " " + noun +
          (count == 1             ? ""
           : noun.ends_with("ch") ? "es"
                                  : "s"))
      .str();
}
