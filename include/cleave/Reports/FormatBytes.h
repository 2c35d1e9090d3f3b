//===- FormatBytes.h - Bytes as text ----------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_REPORTS_FORMATBYTES_H
#define CLEAVE_REPORTS_FORMATBYTES_H

#include <string>

namespace cleave {

/// Formats bytes as `264 B`, `16.0 KiB`, `1.2 MiB` or `3.0 GiB`.
std::string formatBytes(double bytes);

} // namespace cleave

#endif // CLEAVE_REPORTS_FORMATBYTES_H
