//===- LibraryMemory.cpp - Memory of the library --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "LibraryMemory.h"
#include "OneDnn.h"

#if defined(__linux__) && defined(__x86_64__)

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

using namespace cleave::runtime;

namespace {

/// Blocks of whole units in one reserved range of addresses, so that the
/// address alone says whether a block belongs to the cache. Freed blocks are
/// kept by size for reuse; the library asks for the same sizes in each step.
class Cache {
public:
  static constexpr size_t unit = size_t(1) << 16;
  static constexpr size_t reserved = size_t(1) << 36;
  /// Larger and small blocks are left to the system.
  static constexpr size_t largest = size_t(1) << 28;
  static constexpr size_t smallest = 4096;

  bool reserve() {
    void *p = ::mmap(nullptr, unit + reserved + sizes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
      return false;
    // Blocks are aligned as units are. The size of each, by its first unit, is
    // stored after the range.
    auto address = (reinterpret_cast<uintptr_t>(p) + unit - 1) / unit * unit;
    base = reinterpret_cast<char *>(address);
    unitsOf = reinterpret_cast<uint32_t *>(base + reserved);
    return true;
  }

  bool owns(void *p) const { return p >= base && p < base + reserved; }

  /// Null if the range is used up.
  void *allocate(size_t bytes) {
    size_t units = (bytes + unit - 1) / unit;
    Lock guard(*this);
    if (Free *block = lists[units]) {
      lists[units] = block->next;
      return block;
    }
    size_t used = taken.load(std::memory_order_relaxed);
    if (units * unit > reserved - used)
      return nullptr;
    taken.store(used + units * unit, std::memory_order_relaxed);
    unitsOf[used / unit] = static_cast<uint32_t>(units);
    return base + used;
  }

  void release(void *p) {
    auto *block = static_cast<Free *>(p);
    Lock guard(*this);
    uint32_t units =
        unitsOf[static_cast<size_t>(static_cast<char *>(p) - base) / unit];
    block->next = lists[units];
    lists[units] = block;
  }

  int64_t bytes() const { return static_cast<int64_t>(taken.load()); }

private:
  struct Free {
    Free *next;
  };
  struct Lock {
    explicit Lock(Cache &cache) : cache(cache) {
      while (cache.busy.test_and_set(std::memory_order_acquire))
        __builtin_ia32_pause();
    }
    ~Lock() { cache.busy.clear(std::memory_order_release); }
    Cache &cache;
  };
  static constexpr size_t sizes = reserved / unit * sizeof(uint32_t);

  char *base = nullptr;
  uint32_t *unitsOf = nullptr;
  Free *lists[largest / unit + 1] = {};
  std::atomic<size_t> taken{0};
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
};

/// Never destroyed: the library may free memory after the last destructor has
/// run.
Cache &cache() {
  static Cache *instance = new Cache;
  return *instance;
}

using AllocateFunction = int (*)(void **, size_t, size_t);
using FreeFunction = void (*)(void *);
AllocateFunction systemAllocate;
FreeFunction systemFree;

int allocateHook(void **result, size_t alignment, size_t bytes) {
  if (bytes >= Cache::smallest && bytes <= Cache::largest &&
      alignment <= Cache::unit)
    if (void *p = cache().allocate(bytes)) {
      *result = p;
      return 0;
    }
  return systemAllocate(result, alignment, bytes);
}

void freeHook(void *p) {
  if (cache().owns(p))
    return cache().release(p);
  systemFree(p);
}

/// The slots in which the library keeps the addresses of its two imports.
struct Imports {
  uintptr_t base = 0;
  void **allocate = nullptr, **free = nullptr;
  /// Pages that the loader made read-only after resolving imports.
  uintptr_t readOnlyBegin = 0, readOnlyEnd = 0;

  void scan(const ElfW(Dyn) * dynamic) {
    const ElfW(Sym) *symbols = nullptr;
    const char *strings = nullptr;
    const ElfW(Rela) * tables[2] = {};
    size_t bytes[2] = {};
    for (; dynamic->d_tag != DT_NULL; ++dynamic) {
      uintptr_t at = dynamic->d_un.d_ptr;
      switch (dynamic->d_tag) {
      case DT_SYMTAB:
        symbols = reinterpret_cast<const ElfW(Sym) *>(at);
        break;
      case DT_STRTAB:
        strings = reinterpret_cast<const char *>(at);
        break;
      case DT_JMPREL:
        tables[0] = reinterpret_cast<const ElfW(Rela) *>(at);
        break;
      case DT_PLTRELSZ:
        bytes[0] = dynamic->d_un.d_val;
        break;
      case DT_RELA:
        tables[1] = reinterpret_cast<const ElfW(Rela) *>(at);
        break;
      case DT_RELASZ:
        bytes[1] = dynamic->d_un.d_val;
        break;
      }
    }
    if (!symbols || !strings)
      return;
    for (int t = 0; t < 2; ++t)
      for (size_t i = 0; tables[t] && i < bytes[t] / sizeof(ElfW(Rela)); ++i) {
        const ElfW(Rela) &entry = tables[t][i];
        auto type = ELF64_R_TYPE(entry.r_info);
        if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT)
          continue;
        const char *name = strings + symbols[ELF64_R_SYM(entry.r_info)].st_name;
        auto **slot = reinterpret_cast<void **>(base + entry.r_offset);
        if (std::strcmp(name, "posix_memalign") == 0)
          allocate = slot;
        else if (std::strcmp(name, "free") == 0)
          free = slot;
      }
  }
};

/// Writes to a slot, which may lie in a read-only page.
bool writeSlot(const Imports &imports, void **slot, void *value) {
  auto address = reinterpret_cast<uintptr_t>(slot);
  uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto *start = reinterpret_cast<void *>(address & ~(page - 1));
  bool readOnly =
      address >= imports.readOnlyBegin && address < imports.readOnlyEnd;
  if (readOnly && ::mprotect(start, page, PROT_READ | PROT_WRITE) != 0)
    return false;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (readOnly)
    (void)::mprotect(start, page, PROT_READ);
  return true;
}

bool install() {
  // The base address of the library, by one of its functions.
  Dl_info info;
  if (!::dladdr(reinterpret_cast<void *>(oneDnn().sgemm), &info))
    return false;
  Imports imports;
  imports.base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  ::dl_iterate_phdr(
      [](dl_phdr_info *object, size_t, void *data) {
        auto &imports = *static_cast<Imports *>(data);
        if (object->dlpi_addr != imports.base)
          return 0;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr) &segment = object->dlpi_phdr[i];
          uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
          if (segment.p_type == PT_DYNAMIC)
            imports.scan(reinterpret_cast<const ElfW(Dyn) *>(begin));
          if (segment.p_type == PT_GNU_RELRO) {
            imports.readOnlyBegin = begin;
            imports.readOnlyEnd = begin + segment.p_memsz;
          }
        }
        return 1;
      },
      &imports);
  if (!imports.allocate || !imports.free || !cache().reserve())
    return false;
  systemAllocate = reinterpret_cast<AllocateFunction>(*imports.allocate);
  systemFree = reinterpret_cast<FreeFunction>(*imports.free);
  // `free` first: it recognises pointers of the system.
  return writeSlot(imports, imports.free,
                   reinterpret_cast<void *>(&freeHook)) &&
         writeSlot(imports, imports.allocate,
                   reinterpret_cast<void *>(&allocateHook));
}

} // namespace

bool cleave::runtime::cacheLibraryMemory() {
  static bool installed = install();
  return installed;
}

int64_t cleave::runtime::libraryMemoryBytes() { return cache().bytes(); }

#else

bool cleave::runtime::cacheLibraryMemory() { return false; }
int64_t cleave::runtime::libraryMemoryBytes() { return 0; }

#endif
