//===- FileIO.cpp - Files that appear whole -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/FileIO.h"
#include "cleave/Runtime/ProgramIO.h"
#include "llvm/Support/FileSystem.h"

using namespace cleave::runtime;

llvm::Error cleave::runtime::writeFileAtomically(
    llvm::StringRef path, llvm::function_ref<void(llvm::raw_ostream &)> write) {
  llvm::Expected<llvm::sys::fs::TempFile> file =
      llvm::sys::fs::TempFile::create(path + ".tmp-%%%%%%%%");
  if (!file)
    return makeError(path +
                     ": cannot write: " + llvm::toString(file.takeError()));
  std::error_code failure;
  {
    llvm::raw_fd_ostream out(file->FD, /*shouldClose=*/false);
    write(out);
    out.flush();
    // An error that is not taken from the stream would end the process.
    failure = out.error();
    out.clear_error();
  }
  if (failure) {
    llvm::consumeError(file->discard());
    return makeError(path + ": cannot write: " + failure.message());
  }
  if (llvm::Error error = file->keep(path))
    return makeError(path +
                     ": cannot write: " + llvm::toString(std::move(error)));
  return llvm::Error::success();
}
