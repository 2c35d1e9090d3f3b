//===- FileIO.h - Reading and writing files ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_FILEIO_H
#define CLEAVE_EXECUTABLE_FORMAT_FILEIO_H

#include "cleave/Executable/Format/FileHash.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"
#include <memory>
#include <type_traits>

namespace cleave::runtime {

/// Writes to a temporary file and renames it to `path`: `path` holds either the
/// whole new content or the old one, also after a power cut. Devices and pipes
/// are written in place. An error of `write` is returned. `facts` gets the size
/// and the hash of what was written.
llvm::Error
writeFileAtomically(llvm::StringRef path,
                    llvm::function_ref<llvm::Error(llvm::raw_ostream &)> write,
                    FileFacts *facts = nullptr);

/// The same for a `write` that cannot fail.
template <typename F>
  requires std::is_void_v<std::invoke_result_t<F, llvm::raw_ostream &>>
llvm::Error writeFileAtomically(llvm::StringRef path, const F &write) {
  return writeFileAtomically(
      path, llvm::function_ref<llvm::Error(llvm::raw_ostream &)>(
                [&](llvm::raw_ostream &os) {
                  write(os);
                  return llvm::Error::success();
                }));
}

/// Opens a device or a pipe to be written, which the caller closes; -1 if
/// `path` is another file or none. Nobody may read a pipe: that is waited for
/// as long as ranks wait for each other (Patience.h).
llvm::Expected<int> openSpecial(llvm::StringRef path);

/// Waits until what a file holds is on the disk.
llvm::Error syncFile(llvm::StringRef path);

/// Waits until the names in a folder are on its disk: those that were made,
/// changed and removed.
llvm::Error syncFolder(llvm::StringRef path);

/// Makes a folder and those around it, with the permissions of the umask, on
/// the disk when it returns.
llvm::Error createFolders(llvm::StringRef path);

/// Reads a regular file into memory. It is not mapped: one that others shorten
/// is an error (see InputFile.h, which reads in pieces).
llvm::Expected<std::unique_ptr<llvm::MemoryBuffer>>
readFile(llvm::StringRef path);

/// Fails if no file can be created at `path`, so that a long computation does
/// not end with that error. Creates nothing.
llvm::Error checkWritable(llvm::StringRef path);

/// Fails if files in the folder `path`, which need not exist yet, cannot be
/// created. Creates nothing.
llvm::Error checkWritableFolder(llvm::StringRef path);

/// A file that a command reads or writes, and the flag that names it.
struct NamedFile {
  llvm::StringRef flag, path;
};

/// Says which two flags name one file, if a file that is written is also read
/// or written by another flag; else an empty text. Empty paths and "-" name no
/// file, and special files such as /dev/null may be named twice.
std::string findSharedFile(llvm::ArrayRef<NamedFile> written,
                           llvm::ArrayRef<NamedFile> read);

/// Flushes standard output and returns its error, which would otherwise end the
/// process.
llvm::Error flushStandardOutput();

/// Reads untrusted JSON: text nested deeper than any that Cleave writes is an
/// error, since reading it would exhaust the stack.
llvm::Expected<llvm::json::Value> parseJson(llvm::StringRef text);

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_FILEIO_H
