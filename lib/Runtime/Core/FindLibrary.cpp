//===- FindLibrary.cpp - Libraries that are opened at run time ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Core/FindLibrary.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <dlfcn.h>

std::string cleave::runtime::findLibrary(llvm::StringRef name) {
  void *code = reinterpret_cast<void *>(&findLibrary);
  Dl_info self;
  if (::dladdr(code, &self) && self.dli_fname) {
    llvm::SmallString<256> here(self.dli_fname);
    // A program's path is the one it was called by.
    if (!llvm::sys::path::has_parent_path(here))
      here = llvm::sys::fs::getMainExecutable(nullptr, code);
    llvm::StringRef folder = llvm::sys::path::parent_path(here);
    // The modules of a package are in its folder, its program in `bin` of that.
    for (llvm::StringRef way :
         {"", "libs", "..", "../libs", "../lib", "../../build/lib"}) {
      llvm::SmallString<256> path(folder);
      llvm::sys::path::append(path, way, name);
      if (llvm::sys::fs::exists(path))
        return std::string(path);
    }
  }
  return name.str();
}
