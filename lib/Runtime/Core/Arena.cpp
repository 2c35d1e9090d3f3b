//===- Arena.cpp - The memory of a rank -----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Core/Arena.h"
#include "cleave/Executable/Format/ProgramIO.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

using namespace cleave::runtime;

static constexpr int64_t hugePage = int64_t(2) << 20;

Arena::Arena(Arena &&other) noexcept { *this = std::move(other); }

Arena &Arena::operator=(Arena &&other) noexcept {
  std::swap(base, other.base);
  std::swap(bytes, other.bytes);
  std::swap(mappedBytes, other.mappedBytes);
  return *this;
}

Arena::~Arena() {
  if (base)
    ::munmap(base, mappedBytes);
}

llvm::Expected<Arena> Arena::map(int64_t bytes) {
  Arena arena;
  if (bytes < 0 || bytes > INT64_MAX / 2)
    return makeError("an arena of " + llvm::Twine(bytes) +
                     " bytes is not possible");
  // Huge pages start at multiples of their size; pages that were mapped only
  // for alignment are unmapped.
  bool large = bytes >= 2 * hugePage;
  auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  size_t wanted =
      (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + page - 1) / page *
      page;
  size_t slack = large ? static_cast<size_t>(hugePage) : 0;
  void *p = ::mmap(nullptr, wanted + slack, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    return makeError("cannot map an arena of " + llvm::Twine(bytes) +
                     " bytes: " + std::strerror(errno));
  uintptr_t address = reinterpret_cast<uintptr_t>(p);
  size_t before = large ? -address % static_cast<size_t>(hugePage) : 0;
  arena.base = static_cast<char *>(p) + before;
  arena.bytes = bytes;
  arena.mappedBytes = wanted;
  if (before)
    (void)::munmap(p, before);
  if (slack > before)
    (void)::munmap(arena.base + wanted, slack - before);
  // An advice only: a system without huge pages works as well.
  if (large)
    (void)::madvise(arena.base, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return arena;
}

void Arena::touch(int64_t index, int64_t count) const {
  // Shares end at huge pages, so that no two threads touch the same page.
  int64_t pages = (bytes + hugePage - 1) / hugePage;
  int64_t begin = pages * index / count * hugePage;
  int64_t end = std::min(bytes, pages * (index + 1) / count * hugePage);
  int64_t step = ::sysconf(_SC_PAGESIZE);
  for (int64_t i = begin; i < end; i += step) {
    volatile char *page = base + i;
    *page = *page;
  }
}
