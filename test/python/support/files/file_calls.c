/* Part of the Cleave project, under the Apache License v2.0 with LLVM
 * Exceptions. See LICENSE for license information.
 *
 * In front of libc (LD_PRELOAD): records the calls that change files below FILE_CALLS_ROOT, with
 * what they write, in FILE_CALLS_LOG; file_calls.py reads it. The call number FILE_CALLS_AT, and
 * FILE_CALLS_FOR - 1 further ones, do not happen: with FILE_CALLS_DO=kill the process ends
 * there, else they fail with that number of an error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static atomic_long calls;

/* The absolute path of a name, if it is below the root; links on the way are not followed. */
static int below(int folder, const char *name, char *path) {
  const char *root = getenv("FILE_CALLS_ROOT");
  char base[PATH_MAX] = "", link[64];
  if (!root || !getenv("FILE_CALLS_LOG"))
    return 0;
  if (name[0] != '/') {
    if (folder == AT_FDCWD) {
      if (!getcwd(base, sizeof base))
        return 0;
    } else {
      snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
      ssize_t size = readlink(link, base, sizeof base - 1);
      base[size < 0 ? 0 : size] = 0;
    }
    snprintf(path, PATH_MAX, "%s/%s", base, name);
  } else {
    snprintf(path, PATH_MAX, "%s", name);
  }
  size_t size = strlen(root);
  return strncmp(path, root, size) == 0 && (path[size] == '/' || !path[size]);
}

static int of(int file, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t size = readlink(link, path, PATH_MAX - 1);
  path[size < 0 ? 0 : size] = 0;
  char again[PATH_MAX];
  return size > 0 && path[0] == '/' && below(AT_FDCWD, path, again);
}

static void put(const char *kind, const char *a, const char *b, long at, const void *data, size_t size) {
  char head[2 * PATH_MAX + 100];
  int length = snprintf(head, sizeof head, "%s\t%s\t%s\t%ld\t%zu\n", kind, a, b, at, size);
  struct iovec parts[] = {{head, (size_t)length}, {(void *)data, size}};
  int log = (int)syscall(SYS_openat, AT_FDCWD, getenv("FILE_CALLS_LOG"),
                         O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (log < 0 || syscall(SYS_writev, log, parts, 2) != (long)(length + size))
    _exit(97);
  syscall(SYS_close, log);
}

/* Whether this call shall not happen; `frees`: one that a full disk does not refuse. */
static int stopped(int frees) {
  const char *at = getenv("FILE_CALLS_AT"), *count = getenv("FILE_CALLS_FOR"), *what = getenv("FILE_CALLS_DO");
  long number = atomic_fetch_add(&calls, 1);
  if (!at || number < atol(at) || number >= atol(at) + (count ? atol(count) : 1))
    return 0;
  if (strcmp(what, "kill") == 0) {
    kill(getpid(), SIGKILL);
    pause();
  }
  if (frees && atoi(what) == ENOSPC)
    return 0;
  put("failed", "", "", number, "", 0);
  errno = atoi(what);
  return 1;
}

static int opened(int folder, const char *name, int flags, mode_t mode) {
  char path[PATH_MAX];
  int makes = (flags & (O_CREAT | O_TRUNC)) && (flags & O_TMPFILE) != O_TMPFILE && below(folder, name, path);
  if (makes && stopped(0))
    return -1;
  int fresh = makes && syscall(SYS_faccessat, folder, name, F_OK) != 0;
  int file = (int)syscall(SYS_openat, folder, name, flags, mode);
  if (makes && file >= 0)
    put(fresh ? "create" : (flags & O_TRUNC) ? "truncate" : "open", path, "", 0, "", 0);
  return file;
}

#define MODE(flags) mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { \
  va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
int open(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int openat(int folder, const char *name, int flags, ...) { MODE(flags) return opened(folder, name, flags, mode); }
int openat64(int folder, const char *name, int flags, ...) { MODE(flags) return opened(folder, name, flags, mode); }

static ssize_t written(int file, const void *data, size_t size, off_t at) {
  char path[PATH_MAX];
  int own = of(file, path);
  if (own && stopped(0))
    return -1;
  off_t from = at >= 0 ? at : lseek(file, 0, (fcntl(file, F_GETFL) & O_APPEND) ? SEEK_END : SEEK_CUR);
  ssize_t done = at >= 0 ? syscall(SYS_pwrite64, file, data, size, at) : syscall(SYS_write, file, data, size);
  if (own && done > 0)
    put("write", path, "", (long)from, data, (size_t)done);
  return done;
}
ssize_t write(int file, const void *data, size_t size) { return written(file, data, size, -1); }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { return written(file, data, size, at); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { return written(file, data, size, at); }

/* A call on an open file, or on one or two names, that changes something. */
#define ON_FILE(name, kind, params, args, file, at, frees) int name params { char path[PATH_MAX]; \
  int own = of(file, path); if (own && stopped(frees)) return -1; int done = REAL(name) args; \
  if (own && done == 0) put(kind, path, "", at, "", 0); return done; }
ON_FILE(fsync, "sync", (int file), (file), file, 0, 0)
ON_FILE(fdatasync, "sync", (int file), (file), file, 0, 0)
ON_FILE(ftruncate, "resize", (int file, off_t size), (file, size), file, (long)size, 0)
ON_FILE(ftruncate64, "resize", (int file, off64_t size), (file, size), file, (long)size, 0)

#define ON_NAME(name, kind, params, args, folder, of, frees) int name params { char path[PATH_MAX]; \
  int own = below(folder, of, path); if (own && stopped(frees)) return -1; int done = REAL(name) args; \
  if (own && done == 0) put(kind, path, "", 0, "", 0); return done; }
ON_NAME(mkdir, "mkdir", (const char *a, mode_t mode), (a, mode), AT_FDCWD, a, 0)
ON_NAME(mkdirat, "mkdir", (int f, const char *a, mode_t mode), (f, a, mode), f, a, 0)
ON_NAME(rmdir, "remove", (const char *a), (a), AT_FDCWD, a, 1)
ON_NAME(unlink, "remove", (const char *a), (a), AT_FDCWD, a, 1)
ON_NAME(remove, "remove", (const char *a), (a), AT_FDCWD, a, 1)
ON_NAME(unlinkat, "remove", (int f, const char *a, int flags), (f, a, flags), f, a, 1)

static int renamed(int f, const char *a, int g, const char *b, unsigned flags) {
  char from[PATH_MAX], to[PATH_MAX];
  int own = below(f, a, from), other = below(g, b, to);
  if ((own || other) && stopped(0))
    return -1;
  int done = (int)syscall(SYS_renameat2, f, a, g, b, flags);
  if ((own || other) && done == 0)
    put((flags & RENAME_EXCHANGE) ? "exchange" : "rename", from, to, 0, "", 0);
  return done;
}
int rename(const char *a, const char *b) { return renamed(AT_FDCWD, a, AT_FDCWD, b, 0); }
int renameat(int f, const char *a, int g, const char *b) { return renamed(f, a, g, b, 0); }
int renameat2(int f, const char *a, int g, const char *b, unsigned flags) { return renamed(f, a, g, b, flags); }
