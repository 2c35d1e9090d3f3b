//===- FileTier.cpp - A file as a second tier of memory -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/FileTier.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/CPU/ThreadTeam.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

/// A call copies at most so much, so that none is longer than the system
/// permits.
static constexpr int64_t kPiece = int64_t(64) << 20;

/// A file in `folder` that no name refers to; -1 with `errno` on failure.
static int openUnnamed(const std::string &folder) {
#ifdef O_TMPFILE
  int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
    return file;
#endif
  std::string path = folder + "/cleave-offload-XXXXXX";
  int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0)
    (void)::unlink(path.c_str());
  return named;
}

Expected<std::unique_ptr<FileTier>> FileTier::create(llvm::StringRef folder,
                                                     int64_t bytes) {
  llvm::SmallString<128> path(folder);
  if (path.empty())
    llvm::sys::path::system_temp_directory(/*ErasedOnReboot=*/true, path);
  std::string where = path.str().str();
  auto fail = [&](const Twine &what, int error) {
    return makeError(where + ": cannot " + what + ": " + std::strerror(error) +
                     " (--offload-dir, offload_dir, name another folder)");
  };
  int file = openUnnamed(where);
  if (file < 0)
    return fail("create the file for what is offloaded", errno);
  // Space is reserved now, so that no step ends for want of it.
  if (int error = ::posix_fallocate(file, 0, std::max<int64_t>(bytes, 1))) {
    ::close(file);
    return fail("reserve " + Twine(bytes) + " bytes for what is offloaded",
                error);
  }
  return std::unique_ptr<FileTier>(new FileTier(file, where));
}

FileTier::FileTier(int file, std::string folder)
    : file(file), folder(std::move(folder)) {
  // Signals are for the threads that expect them.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread = std::thread([this] { work(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

FileTier::~FileTier() {
  {
    std::lock_guard<std::mutex> lock(mutex);
    stopping = true;
  }
  begun.notify_one();
  thread.join();
  ::close(file);
}

std::string FileTier::copy(const Move &move) const {
  for (int64_t done = 0; done < move.bytes;) {
    auto size = static_cast<size_t>(std::min(kPiece, move.bytes - done));
    char *memory = move.memory + done;
    ssize_t count = move.evicts
                        ? ::pwrite(file, memory, size, move.offset + done)
                        : ::pread(file, memory, size, move.offset + done);
    if (count < 0 && errno == EINTR)
      continue;
    if (count <= 0)
      return folder + ": cannot " + (move.evicts ? "write " : "read ") +
             std::to_string(move.bytes - done) + " of " +
             std::to_string(move.bytes) + " bytes of what is offloaded: " +
             (count < 0 ? std::strerror(errno) : "the file has ended");
    done += count;
  }
  return "";
}

void FileTier::work() {
  // The thread that made it may be pinned to a core that computes.
  ThreadTeam::unpin();
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    begun.wait(lock, [&] { return first || stopping; });
    if (!first)
      return;
    Move *move = first;
    if (problem.empty()) {
      lock.unlock();
      std::string why = copy(*move);
      lock.lock();
      if (!why.empty())
        problem = why + "; parameters and state of this run are lost, and the "
                        "last checkpoint is what remains";
    }
    first = move->next;
    if (!first)
      last = nullptr;
    move->done = true;
    ended.notify_all();
  }
}

void FileTier::start(Move &move) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    move.done = false;
    move.next = nullptr;
    (last ? last->next : first) = &move;
    last = &move;
  }
  begun.notify_one();
}

bool FileTier::wait(Move &move) {
  std::unique_lock<std::mutex> lock(mutex);
  ended.wait(lock, [&] { return move.done; });
  return problem.empty();
}

void FileTier::drain() {
  std::unique_lock<std::mutex> lock(mutex);
  ended.wait(lock, [&] { return !first; });
}

std::string FileTier::failure() const {
  std::lock_guard<std::mutex> lock(mutex);
  return problem;
}

Error FileTier::now(Move &move) {
  start(move);
  if (wait(move))
    return Error::success();
  return makeError(failure());
}

Error FileTier::read(int64_t offset, char *to, int64_t bytes) {
  Move move;
  move.memory = to;
  move.offset = offset;
  move.bytes = bytes;
  return now(move);
}

Error FileTier::write(int64_t offset, const char *from, int64_t bytes) {
  Move move;
  move.memory = const_cast<char *>(from);
  move.offset = offset;
  move.bytes = bytes;
  move.evicts = true;
  return now(move);
}
