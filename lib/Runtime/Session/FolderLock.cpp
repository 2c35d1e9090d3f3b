//===- FolderLock.cpp - Exclusive use of a folder -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Session/FolderLock.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

FolderLock::FolderLock(FolderLock &&other) noexcept {
  *this = std::move(other);
}

FolderLock &FolderLock::operator=(FolderLock &&other) noexcept {
  std::swap(path, other.path);
  std::swap(descriptor, other.descriptor);
  std::swap(made, other.made);
  std::swap(held, other.held);
  return *this;
}

FolderLock::~FolderLock() {
  if (descriptor < 0)
    return;
  if (made)
    ::rmdir(path.c_str());
  ::close(descriptor);
}

/// The process that has the lock of an open file, as " (process 12,
/// cleave-run)"; empty if it is on another machine or hidden.
static std::string holder(int descriptor) {
  struct stat file;
  auto buffer = llvm::MemoryBuffer::getFileAsStream("/proc/locks");
  if (!buffer || ::fstat(descriptor, &file))
    return "";
  // "1: FLOCK  ADVISORY  WRITE 12 00:2a:345 0 EOF"; some file systems show
  // another device there.
  llvm::SmallVector<llvm::StringRef> lines;
  (*buffer)->getBuffer().split(lines, '\n', -1, /*KeepEmpty=*/false);
  for (llvm::StringRef line : lines) {
    llvm::SmallVector<llvm::StringRef> words;
    line.split(words, ' ', -1, /*KeepEmpty=*/false);
    uint64_t inode;
    int64_t process;
    if (words.size() < 6 || words[1] != "FLOCK" ||
        words[4].getAsInteger(10, process) || process <= 0 ||
        words[5].rsplit(':').second.getAsInteger(10, inode) ||
        inode != file.st_ino)
      continue;
    std::string text = " (process " + std::to_string(process);
    if (auto name = llvm::MemoryBuffer::getFileAsStream(
            "/proc/" + Twine(process) + "/comm"))
      text += ", " + (*name)->getBuffer().trim().str();
    return text + ")";
  }
  return "";
}

Expected<FolderLock> FolderLock::take(llvm::StringRef folder, double patience) {
  FolderLock lock;
  lock.path = folder.empty() ? "." : folder.str();
  lock.made = !llvm::sys::fs::exists(lock.path);
  if (Error error = createFolders(lock.path))
    return std::move(error);
  auto end = std::chrono::steady_clock::now() +
             std::chrono::duration<double>(patience);
  lock.descriptor =
      ::open(lock.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock.descriptor < 0)
    return makeError(folder + ": cannot open: " + std::strerror(errno));
  while (!lock.held) {
    lock.held = ::flock(lock.descriptor, LOCK_EX | LOCK_NB) == 0;
    if (lock.held)
      break;
    int why = errno;
    if (why == EINTR)
      continue;
    // A file system without locks is assumed to have one user.
    if (why != EWOULDBLOCK)
      break;
    if (std::chrono::steady_clock::now() >= end) {
      lock.made = false;
      return makeError(folder + ": another run" + holder(lock.descriptor) +
                       " saves here; wait for its end, or name another folder");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return lock;
}

bool FolderLock::covers(llvm::StringRef folder) const {
  struct stat own, other;
  return descriptor >= 0 && ::fstat(descriptor, &own) == 0 &&
         ::stat(folder.empty() ? "." : folder.str().c_str(), &other) == 0 &&
         own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}
