//===- CudaLibraries.h - Where NVIDIA's libraries are -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_CUDA_CUDALIBRARIES_H
#define CLEAVE_EXECUTABLE_CUDA_CUDALIBRARIES_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace cleave::runtime {

/// The folders that may hold NVIDIA's libraries, in the order in which they are
/// searched: those of $CLEAVE_CUDA_LIBRARIES (with colons in between), of the
/// toolkit ($CUDA_HOME, else /usr/local/cuda), and of the packages of the
/// Python environment: $VIRTUAL_ENV, and the one that this code is installed in
/// or, in a build folder, the .venv beside it.
std::vector<std::string> cudaLibraryFolders();

/// The folders of headers that belong to them, if they are there.
std::vector<std::string> cudaHeaderFolders();

/// Opens a library by its name, such as "libcuda.so.1": from these folders, or
/// by the system's search. One that $CLEAVE_CUDA_LIBRARIES has and that cannot
/// be opened is an error.
/// It is never closed. `purpose` begins the message if it is not found:
/// "running on a GPU".
llvm::Expected<void *> openCudaLibrary(llvm::StringRef name,
                                       llvm::StringRef purpose);

/// The address of a function of such a library; null if it has none.
void *findFunction(void *library, const char *name);

/// The functions of such a library. `missing` is the last one that was asked
/// for and that it has not.
class CudaFunctions {
public:
  explicit CudaFunctions(void *library) : library(library) {}

  template <typename F> void find(F &function, const char *name) {
    function = reinterpret_cast<F>(findFunction(library, name));
    if (!function)
      missing = name;
  }
  /// An error if one is missing from the library, which is called `name`.
  llvm::Error check(llvm::StringRef name) const;

private:
  void *library;
  const char *missing = nullptr;
};

/// What `open` gives at its first success, for the whole process.
template <typename T>
llvm::Expected<const T *> openOnce(llvm::Expected<T> (*open)()) {
  static std::mutex mutex;
  static std::optional<T> opened;
  std::lock_guard<std::mutex> lock(mutex);
  if (!opened) {
    llvm::Expected<T> library = open();
    if (!library)
      return library.takeError();
    opened = *library;
  }
  return &*opened;
}

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_CUDA_CUDALIBRARIES_H
