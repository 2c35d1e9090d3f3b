//===- Control.c - A program whose allocations are known ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Writes three lines to the file that RECORDER_LOG names. Before the second it
// makes one allocation of just above 64 KiB with each function, and before the
// third one of 64 KiB with each, and touches 100 new pages.
//
//===----------------------------------------------------------------------===//

#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/// Keeps the compiler from leaving an allocation out.
static void *volatile sink;

static void *anonymous(size_t bytes) {
  return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
              -1, 0);
}

static void allocate(size_t bytes) {
  void *aligned;
  sink = malloc(bytes);
  sink = calloc(1, bytes);
  sink = realloc(NULL, bytes);
  sink = reallocarray(NULL, 1, bytes);
  if (posix_memalign(&aligned, 64, bytes) == 0)
    sink = aligned;
  sink = aligned_alloc(64, bytes);
  sink = memalign(64, bytes);
  sink = valloc(bytes);
  sink = anonymous(bytes);
  sink = mremap(anonymous(4096), 4096, bytes, MREMAP_MAYMOVE);
}

int main(void) {
  int log = open(getenv("RECORDER_LOG"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  volatile char *pages = anonymous(100 * 4096);
  if (log < 0 || write(log, "1\n", 2) != 2)
    return 1;
  allocate((1 << 16) + 1);
  if (write(log, "2\n", 2) != 2)
    return 1;
  allocate(1 << 16);
  for (int i = 0; i < 100; ++i)
    pages[i * 4096] = 1;
  return write(log, "3\n", 2) != 2;
}
