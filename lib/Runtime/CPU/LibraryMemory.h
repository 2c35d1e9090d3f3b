//===- LibraryMemory.h - Memory of the library ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The contraction library packs operands in buffers that each call allocates
/// and frees, megabytes at a time, and offers no way to bring them along. Here
/// its imports of `posix_memalign` and `free` are pointed at a cache, so that
/// after the first step nothing is asked of the system any more. Where this
/// cannot be done (another platform, another linking), the library simply goes
/// on allocating.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CPU_LIBRARYMEMORY_H
#define CLEAVE_LIB_RUNTIME_CPU_LIBRARYMEMORY_H

#include <cstdint>

namespace cleave::runtime {

/// Redirects the library's allocations, once in a process. Whether it worked.
bool cacheLibraryMemory();

/// Bytes that the cache has taken from the system, in use or not.
int64_t libraryMemoryBytes();

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_CPU_LIBRARYMEMORY_H
