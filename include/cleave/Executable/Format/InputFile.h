//===- InputFile.h - A file that is read ------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_INPUTFILE_H
#define CLEAVE_EXECUTABLE_FORMAT_INPUTFILE_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <cstdint>
#include <utility>

namespace cleave::runtime {

/// A regular file that is read piece by piece, and not mapped: a file that
/// others shorten meanwhile is an error, and not the end of the process.
class InputFile {
public:
  InputFile() = default;
  InputFile(InputFile &&other) noexcept { *this = std::move(other); }
  InputFile &operator=(InputFile &&other) noexcept;
  ~InputFile();

  /// A folder, and a device or a pipe, which may have no end, are errors.
  static llvm::Expected<InputFile> open(llvm::StringRef path);

  /// The size that it had when it was opened.
  int64_t size() const { return bytes; }
  /// Reads `count` bytes from `from` on. The error does not name the file.
  llvm::Error read(int64_t from, int64_t count, char *to) const;

private:
  int descriptor = -1;
  int64_t bytes = 0;
};

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_INPUTFILE_H
