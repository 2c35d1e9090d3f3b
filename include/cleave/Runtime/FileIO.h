//===- FileIO.h - Reading and writing files ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_FILEIO_H
#define CLEAVE_RUNTIME_FILEIO_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"
#include <type_traits>

namespace cleave::runtime {

/// Writes to a file beside `path` and renames it: `path` holds all of it, or
/// what it held before. Devices and pipes are written in place. An error of
/// `write` is returned.
llvm::Error
writeFileAtomically(llvm::StringRef path,
                    llvm::function_ref<llvm::Error(llvm::raw_ostream &)> write);

/// The same for what cannot fail.
template <typename F>
  requires std::is_void_v<std::invoke_result_t<F, llvm::raw_ostream &>>
llvm::Error writeFileAtomically(llvm::StringRef path, const F &write) {
  return writeFileAtomically(
      path,
      llvm::function_ref<llvm::Error(llvm::raw_ostream &)>(
          [&](llvm::raw_ostream &os) {
            write(os);
            return llvm::Error::success();
          }));
}

/// Fails where no file can be created at `path`, so that a long computation
/// need not end with that message. Creates nothing.
llvm::Error checkWritable(llvm::StringRef path);

/// Fails where files in the folder `path`, which need not exist yet, cannot be
/// created. Creates nothing.
llvm::Error checkWritableFolder(llvm::StringRef path);

/// Writes out what standard output still holds. Its error would end the process
/// otherwise.
llvm::Error flushStandardOutput();

/// Reads JSON that anybody may have written: text nested deeper than any of
/// ours is an error, since reading it would use up the stack.
llvm::Expected<llvm::json::Value> parseJson(llvm::StringRef text);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_FILEIO_H
