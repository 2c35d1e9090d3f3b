//===- FolderLock.h - Exclusive use of a folder -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_SESSION_FOLDERLOCK_H
#define CLEAVE_RUNTIME_SESSION_FOLDERLOCK_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <string>

namespace cleave::runtime {

/// An advisory lock of a folder, which ends with the process that holds it. It
/// is on the folder itself and needs no file.
class FolderLock {
public:
  /// Locks a folder, creating it if needed, and waits for at most `patience`
  /// seconds. Fails if another process holds the lock, and names that process
  /// if the system gives it.
  static llvm::Expected<FolderLock> take(llvm::StringRef folder,
                                         double patience = 0);
  /// Whether this is a lock of `folder`.
  bool covers(llvm::StringRef folder) const;
  /// Whether the file system has locks, so that nobody else has this one.
  bool isHeld() const { return held; }

  FolderLock() = default;
  FolderLock(FolderLock &&other) noexcept;
  FolderLock &operator=(FolderLock &&other) noexcept;
  /// Unlocks the folder. Removes it if this lock has created it and it is still
  /// empty.
  ~FolderLock();

private:
  std::string path;
  int descriptor = -1;
  bool made = false, held = false;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_SESSION_FOLDERLOCK_H
