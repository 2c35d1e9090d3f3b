//===- Recorder.c - Records the allocations of each step ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Preloaded into a program that writes a line to a log after each step. Writes
// lines of JSON to the file RECORDER_OUTPUT:
//
//   {"step": n, "call": "malloc", "bytes": b, "address": a}
//     an allocation above 64 KiB, or an anonymous mapping above it
//   {"step": n, "minor": m, "major": j}
//     page faults of the process since it started, when line n of the file
//     RECORDER_LOG was written
//
// With line RECORDER_LAST, /proc/self/smaps and /proc/self/status are copied to
// RECORDER_OUTPUT.smaps and RECORDER_OUTPUT.status.
//
// The C library's own names of its functions are called, so that nothing needs
// to be looked up, which would allocate.
//
//===----------------------------------------------------------------------===//

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

enum { threshold = 1 << 16 };

static atomic_long step = 1;
static int output = -1;

static void put(int fd, const char *text, size_t size) {
  // What cannot be written is missed by the reader.
  if (syscall(SYS_write, fd, text, size) < 0)
    return;
}

/// Appends a line to the output, from the first call on.
static void record(const char *format, ...) {
  int saved = errno;
  if (output < 0) {
    const char *path = getenv("RECORDER_OUTPUT");
    if (path)
      output = (int)syscall(SYS_openat, AT_FDCWD, path,
                            O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }
  if (output >= 0) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    put(output, line, (size_t)size);
  }
  errno = saved;
}

static void *seen(const char *call, size_t bytes, void *address) {
  if (bytes > threshold)
    record("{\"step\": %ld, \"call\": \"%s\", \"bytes\": %zu, "
           "\"address\": %lu}\n",
           atomic_load(&step), call, bytes, (unsigned long)(uintptr_t)address);
  return address;
}

//===----------------------------------------------------------------------===//
// Allocations
//===----------------------------------------------------------------------===//

void *malloc(size_t bytes) {
  return seen("malloc", bytes, __libc_malloc(bytes));
}

void *calloc(size_t count, size_t size) {
  return seen("calloc", count * size, __libc_calloc(count, size));
}

void *realloc(void *old, size_t bytes) {
  return seen("realloc", bytes, __libc_realloc(old, bytes));
}

void *reallocarray(void *old, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return NULL;
  }
  return seen("reallocarray", bytes, __libc_realloc(old, bytes));
}

int posix_memalign(void **result, size_t alignment, size_t bytes) {
  void *p = seen("posix_memalign", bytes, __libc_memalign(alignment, bytes));
  if (!p)
    return ENOMEM;
  *result = p;
  return 0;
}

void *aligned_alloc(size_t alignment, size_t bytes) {
  return seen("aligned_alloc", bytes, __libc_memalign(alignment, bytes));
}

void *memalign(size_t alignment, size_t bytes) {
  return seen("memalign", bytes, __libc_memalign(alignment, bytes));
}

void *valloc(size_t bytes) {
  return seen("valloc", bytes, __libc_memalign(4096, bytes));
}

static void *map(void *at, size_t bytes, int protection, int flags, int fd,
                 off_t offset) {
  void *p = (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
  return flags & MAP_ANONYMOUS ? seen("mmap", bytes, p) : p;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd,
           off_t offset) {
  return map(at, bytes, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd,
             off_t offset) {
  return map(at, bytes, protection, flags, fd, offset);
}

void *mremap(void *old, size_t oldBytes, size_t bytes, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  void *to = flags & MREMAP_FIXED ? va_arg(arguments, void *) : NULL;
  va_end(arguments);
  void *p = (void *)syscall(SYS_mremap, old, oldBytes, bytes, flags, to);
  return seen("mremap", bytes, p);
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

static void copyFile(const char *from, const char *suffix) {
  static char buffer[1 << 16];
  char path[4096];
  snprintf(path, sizeof path, "%s%s", getenv("RECORDER_OUTPUT"), suffix);
  int in = (int)syscall(SYS_openat, AT_FDCWD, from, O_RDONLY);
  int out = (int)syscall(SYS_openat, AT_FDCWD, path,
                         O_WRONLY | O_CREAT | O_TRUNC, 0644);
  for (long size; (size = syscall(SYS_read, in, buffer, sizeof buffer)) > 0;)
    put(out, buffer, (size_t)size);
  syscall(SYS_close, in);
  syscall(SYS_close, out);
}

static void endStep(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  long number = atomic_load(&step);
  record("{\"step\": %ld, \"minor\": %ld, \"major\": %ld}\n", number,
         usage.ru_minflt, usage.ru_majflt);
  const char *last = getenv("RECORDER_LAST");
  if (last && atol(last) == number) {
    copyFile("/proc/self/smaps", ".smaps");
    copyFile("/proc/self/status", ".status");
  }
  atomic_fetch_add(&step, 1);
}

static int isLog(int fd) {
  const char *path = getenv("RECORDER_LOG");
  struct stat log, file;
  return path && stat(path, &log) == 0 && fstat(fd, &file) == 0 &&
         log.st_dev == file.st_dev && log.st_ino == file.st_ino;
}

ssize_t write(int fd, const void *data, size_t size) {
  ssize_t written = syscall(SYS_write, fd, data, size);
  int saved = errno;
  if (written > 0 && isLog(fd))
    for (ssize_t i = 0; i < written; ++i)
      if (((const char *)data)[i] == '\n')
        endStep();
  errno = saved;
  return written;
}
