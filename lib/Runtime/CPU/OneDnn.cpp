//===- OneDnn.cpp - The library of contractions ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "OneDnn.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/Core/FindLibrary.h"
#include "llvm/Support/ErrorHandling.h"

#include <dlfcn.h>
#include <string>

using namespace cleave::runtime;

namespace {
struct Opened {
  OneDnn functions;
  std::string problem;

  Opened() {
    void *library = ::dlopen(findLibrary(CLEAVE_DNNL_SONAME).c_str(),
                             RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      problem = std::string("computing on this processor needs oneDNN, " +
                            std::string(CLEAVE_DNNL_SONAME) +
                            ", which cannot be opened: ") +
                ::dlerror() + "; install the package libdnnl2";
      return;
    }
    auto find = [&](auto &function, const char *name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          ::dlsym(library, name));
      if (!function)
        problem = std::string(CLEAVE_DNNL_SONAME) + " lacks " + name;
    };
#define CLEAVE_FIND(name) find(functions.name, "dnnl_" #name);
    CLEAVE_ONEDNN_FUNCTIONS(CLEAVE_FIND)
#undef CLEAVE_FIND
  }

  static const Opened &get() {
    static const Opened opened;
    return opened;
  }
};
} // namespace

llvm::Error cleave::runtime::openOneDnn() {
  const std::string &problem = Opened::get().problem;
  return problem.empty() ? llvm::Error::success() : makeError(problem);
}

const OneDnn &cleave::runtime::oneDnn() {
  if (!Opened::get().problem.empty())
    llvm::report_fatal_error(llvm::StringRef(Opened::get().problem),
                             /*gen_crash_diag=*/false);
  return Opened::get().functions;
}
