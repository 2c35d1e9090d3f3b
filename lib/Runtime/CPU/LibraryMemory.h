//===- LibraryMemory.h - Memory of the library ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The contraction library packs operands in buffers that each call allocates
/// and frees, megabytes at a time, and it does not accept buffers of the
/// caller. Here its imports of `posix_memalign` and `free` are redirected to a
/// cache, so that no memory is requested from the system after the first step.
/// If this is not possible (another platform, another kind of linking), the
/// library keeps allocating.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CPU_LIBRARYMEMORY_H
#define CLEAVE_LIB_RUNTIME_CPU_LIBRARYMEMORY_H

#include <cstdint>

namespace cleave::runtime {

/// Redirects the library's allocations, once in a process. Returns whether it
/// worked.
bool cacheLibraryMemory();

/// Bytes that the cache has taken from the system, in use or not.
int64_t libraryMemoryBytes();

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_CPU_LIBRARYMEMORY_H
