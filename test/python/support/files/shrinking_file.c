/* Part of the Cleave project, under the Apache License v2.0 with LLVM
 * Exceptions. See LICENSE for license information.
 *
 * In front of libc (LD_PRELOAD): before the read number SHRINKING_AT, from 0, of the file
 * SHRINKING_FILE, an absolute path, it is truncated to SHRINKING_TO bytes; shrinking_file.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static atomic_long reads;

static void look(int file) {
  const char *wanted = getenv("SHRINKING_FILE"), *at = getenv("SHRINKING_AT"), *to = getenv("SHRINKING_TO");
  char link[64], path[PATH_MAX];
  if (!wanted || !at || !to)
    return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t size = readlink(link, path, sizeof path - 1);
  path[size < 0 ? 0 : size] = 0;
  if (strcmp(path, wanted) == 0 && atomic_fetch_add(&reads, 1) == atol(at) && truncate(path, atol(to)))
    abort();
}

ssize_t read(int file, void *to, size_t size) {
  look(file);
  return REAL(read)(file, to, size);
}

ssize_t pread(int file, void *to, size_t size, off_t at) {
  look(file);
  return REAL(pread)(file, to, size, at);
}

ssize_t pread64(int file, void *to, size_t size, off64_t at) {
  look(file);
  return REAL(pread64)(file, to, size, at);
}
