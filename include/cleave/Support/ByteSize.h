//===- ByteSize.h - Sizes as people write them ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_BYTESIZE_H
#define CLEAVE_SUPPORT_BYTESIZE_H

#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/StringSwitch.h"

#include <algorithm>
#include <optional>
#include <string>

namespace cleave {

/// The bytes of a size such as `80GB` (10^9 bytes each), `24GiB` (2^30) or
/// `1.5 MiB`; a number alone counts units of `bare` bytes. Sizes above those of
/// any machine are cut.
inline std::optional<int64_t> parseByteSize(llvm::StringRef text, double bare) {
  llvm::StringRef number = text.trim();
  size_t end = number.find_last_of("0123456789.") + 1;
  llvm::StringRef unit = number.drop_front(end).trim();
  double scale = llvm::StringSwitch<double>(unit.lower())
                     .Case("", bare)
                     .Case("b", 1)
                     .Case("kb", 1e3)
                     .Case("mb", 1e6)
                     .Case("gb", 1e9)
                     .Case("tb", 1e12)
                     .Case("kib", 1024)
                     .Case("mib", 1048576)
                     .Case("gib", 1073741824)
                     .Case("tib", 1099511627776)
                     .Default(-1);
  double value;
  if (scale < 0 || number.take_front(end).trim().getAsDouble(value) ||
      !(value >= 0))
    return std::nullopt;
  return static_cast<int64_t>(std::min(value * scale, 0x1p60));
}

/// A size that may be given again as a limit: `6700.125 MiB (7025459200
/// bytes)`, where MiB are rounded up.
inline std::string formatLimit(int64_t bytes) {
  int64_t rest = bytes % 1048576;
  int64_t thousandths = (rest * 1000 + 1048575) / 1048576;
  std::string digits = std::to_string(1000 + thousandths % 1000).substr(1);
  return std::to_string(bytes / 1048576 + thousandths / 1000) + "." + digits +
         " MiB (" + std::to_string(bytes) + " bytes)";
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_BYTESIZE_H
