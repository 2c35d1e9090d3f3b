//===- FileHash.h - Hashes of files -----------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_FILEHASH_H
#define CLEAVE_EXECUTABLE_FORMAT_FILEHASH_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/raw_ostream.h"
#include <string>

namespace cleave::runtime {

/// The size and the hash of a file.
struct FileFacts {
  uint64_t bytes = 0;
  std::string hash;
};

/// The hash of bytes that come in pieces: XXH3-128 of the XXH3-128 hashes of
/// each MiB. It finds damage, at the speed of memory; it is no protection
/// against who wants to deceive.
class FileHash {
public:
  void update(llvm::StringRef bytes);
  /// The hash in hexadecimal digits, and the number of bytes; called once.
  FileFacts finish();

private:
  void add(llvm::StringRef block);

  /// Bytes that do not fill a block yet, and the hashes of blocks.
  std::string rest, blocks;
  uint64_t count = 0;
};

/// The hash of a text.
std::string hashOf(llvm::StringRef text);

/// Reads a file from beginning to end.
llvm::Expected<FileFacts> hashFile(llvm::StringRef path);

/// A stream that passes on what it gets, and hashes it.
class HashingStream : public llvm::raw_ostream {
public:
  explicit HashingStream(llvm::raw_ostream &to) : to(to) {}
  ~HashingStream() override { flush(); }
  FileFacts finish();

private:
  void write_impl(const char *data, size_t size) override;
  uint64_t current_pos() const override { return written; }

  llvm::raw_ostream &to;
  FileHash hash;
  uint64_t written = 0;
};

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_FILEHASH_H
