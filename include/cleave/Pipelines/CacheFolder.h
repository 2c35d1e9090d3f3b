//===- CacheFolder.h - A folder of what was computed before -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Entries on disk that may be lost at any time. An entry is a file of its own,
/// whose name is the hash of all that its content follows from. It is written
/// to a temporary name and renamed, so that processes may race; its own hash is
/// verified when it is read, so that a damaged one counts as missing.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_CACHEFOLDER_H
#define CLEAVE_PIPELINES_CACHEFOLDER_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <memory>
#include <optional>
#include <string>

namespace cleave {

/// The BLAKE3 hash of texts, in hexadecimal digits. Where one text ends and the
/// next begins is part of it.
std::string cacheKey(llvm::ArrayRef<std::string> texts);

class CacheFolder {
public:
  /// The folder that `CLEAVE_CACHE` names, with the limit of
  /// `CLEAVE_CACHE_BYTES`; null if it is "off". Fails if the folder cannot be
  /// used, with the reason.
  static llvm::Expected<std::unique_ptr<CacheFolder>> ofEnvironment();

  /// Opens `path`, a folder of this user to which no other writes; it is
  /// created with mode 700. Files in it may have up to `limit` bytes together.
  static llvm::Expected<std::unique_ptr<CacheFolder>> open(llvm::StringRef path,
                                                           uint64_t limit);
  ~CacheFolder();
  CacheFolder(const CacheFolder &) = delete;
  CacheFolder &operator=(const CacheFolder &) = delete;

  /// The content of an entry, which is then the one that was used last; nothing
  /// if there is none, or if it is damaged or of another user.
  std::optional<std::string> load(llvm::StringRef key) const;

  /// Writes an entry, and removes those that were not used for the longest time
  /// as far as the limit requires. Files of other names are left.
  llvm::Error store(llvm::StringRef key, llvm::StringRef content) const;

private:
  CacheFolder(std::string path, int folder, uint64_t limit)
      : path(std::move(path)), folder(folder), limit(limit) {}
  int createNext(llvm::StringRef key, std::string &name) const;
  /// Removes the oldest entries but `kept`, and what writers left that ended.
  void trim(llvm::StringRef kept) const;

  std::string path;
  /// The open folder: names are looked up in it, whatever `path` becomes.
  int folder;
  uint64_t limit;
};

} // namespace cleave

#endif // CLEAVE_PIPELINES_CACHEFOLDER_H
