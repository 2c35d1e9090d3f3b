//===- FileIO.cpp - Reading and writing files -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/InputFile.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Support/JsonDepth.h"
#include "cleave/Support/Patience.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Signals.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace cleave::runtime;
using llvm::Error;
namespace fs = llvm::sys::fs;

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

static Error cannotWrite(llvm::StringRef path, const llvm::Twine &reason) {
  return makeError(path + ": cannot write: " + reason);
}

/// Waits until what `descriptor` refers to is on the disk.
static std::error_code sync(int descriptor) {
  while (::fsync(descriptor) != 0) {
    if (errno == EINTR)
      continue;
    // A file system that does not do it, or has no disk.
    if (errno == EINVAL || errno == ENOTSUP || errno == EROFS)
      break;
    return std::error_code(errno, std::generic_category());
  }
  return {};
}

static Error syncPath(llvm::StringRef path, int flags) {
  int descriptor = ::open(path.str().c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor < 0)
    return cannotWrite(path, std::strerror(errno));
  std::error_code error = sync(descriptor);
  ::close(descriptor);
  return error ? cannotWrite(path, error.message()) : Error::success();
}

Error cleave::runtime::syncFile(llvm::StringRef path) {
  return syncPath(path, 0);
}

Error cleave::runtime::syncFolder(llvm::StringRef path) {
  return syncPath(path.empty() ? "." : path, O_DIRECTORY);
}

Error cleave::runtime::createFolders(llvm::StringRef path) {
  if (path.empty() || fs::is_directory(path))
    return Error::success();
  llvm::StringRef parent = llvm::sys::path::parent_path(path);
  if (Error error = createFolders(parent))
    return error;
  if (::mkdir(path.str().c_str(), 0777) == 0)
    return syncFolder(parent);
  std::error_code error(errno, std::generic_category());
  return fs::is_directory(path) ? Error::success()
                                : cannotWrite(path, error.message());
}

/// Calls `write` with a stream for `path`.
static Error writeTo(int descriptor, llvm::StringRef path,
                     llvm::function_ref<Error(llvm::raw_ostream &)> write,
                     FileFacts *facts) {
  llvm::raw_fd_ostream out(descriptor, /*shouldClose=*/false);
  Error error = [&] {
    if (!facts)
      return write(out);
    HashingStream hashing(out);
    Error failed = write(hashing);
    *facts = hashing.finish();
    return failed;
  }();
  out.flush();
  // An error that is not cleared would end the process.
  std::error_code failure = out.error();
  out.clear_error();
  if (!error && failure)
    return cannotWrite(path, failure.message());
  return error;
}

/// Whether `path` is a device or a pipe: renaming would replace it by a file.
static bool isSpecial(llvm::StringRef path) {
  fs::file_status status;
  return !fs::status(path, status) && fs::exists(status) &&
         !fs::is_regular_file(status) && !fs::is_directory(status);
}

llvm::Expected<int> cleave::runtime::openSpecial(llvm::StringRef path) {
  if (!isSpecial(path))
    return -1;
  for (int64_t ms = 0;; ms += 50) {
    int descriptor =
        ::open(path.str().c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor >= 0) {
      ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
      return descriptor;
    }
    if (errno != ENXIO && errno != EINTR)
      return cannotWrite(path, std::strerror(errno));
    fs::file_status status;
    if (fs::status(path, status) || status.type() != fs::file_type::fifo_file)
      return cannotWrite(path, std::strerror(ENXIO));
    if (ms >= int64_t(patienceSeconds()) * 1000)
      return cannotWrite(path, "nothing has read this pipe for " +
                                   llvm::Twine(patienceSeconds()) + " s; " +
                                   patienceHint());
    ::usleep(50000);
  }
}

Error cleave::runtime::writeFileAtomically(
    llvm::StringRef path, llvm::function_ref<Error(llvm::raw_ostream &)> write,
    FileFacts *facts) {
  llvm::Expected<int> special = openSpecial(path);
  if (!special)
    return special.takeError();
  if (int descriptor = *special; descriptor >= 0) {
    Error failure = writeTo(descriptor, path, write, facts);
    ::close(descriptor);
    return failure;
  }
  // The file that a link names, not the link.
  llvm::SmallString<128> target(path);
  if (fs::exists(path) && fs::real_path(path, target))
    target = path;
  int descriptor;
  llvm::SmallString<128> temporary;
  if (std::error_code error =
          fs::createUniqueFile(target + ".tmp-%%%%%%%%", descriptor, temporary))
    return cannotWrite(path, error.message());
  llvm::sys::RemoveFileOnSignal(temporary);
  Error failure = writeTo(descriptor, path, write, facts);
  // Before the file has its name: names may be on the disk before contents.
  std::error_code code;
  if (!failure)
    code = sync(descriptor);
  if (::close(descriptor) != 0 && !code && !failure)
    code = std::error_code(errno, std::generic_category());
  if (!code && !failure)
    code = fs::rename(temporary, target);
  if (code || failure)
    fs::remove(temporary);
  llvm::sys::DontRemoveFileOnSignal(temporary);
  if (failure)
    return failure;
  if (code)
    return cannotWrite(path, code.message());
  return syncFolder(llvm::sys::path::parent_path(target));
}

/// Why files cannot be created in a folder, or null.
static const char *whyNotIn(llvm::StringRef folder) {
  fs::file_status status;
  if (fs::status(folder, status))
    return std::strerror(ENOENT);
  if (!fs::is_directory(status))
    return std::strerror(ENOTDIR);
  return ::access(folder.str().c_str(), W_OK | X_OK) == 0
             ? nullptr
             : std::strerror(errno);
}

Error cleave::runtime::checkWritable(llvm::StringRef path) {
  if (fs::is_directory(path))
    return cannotWrite(path, std::strerror(EISDIR));
  if (isSpecial(path))
    return Error::success();
  llvm::StringRef folder = llvm::sys::path::parent_path(path);
  if (const char *reason = whyNotIn(folder.empty() ? "." : folder))
    return cannotWrite(path, reason);
  return Error::success();
}

/// Whether two paths name one file, which need not exist.
static bool isSameFile(llvm::StringRef a, llvm::StringRef b) {
  if (fs::exists(a) && fs::exists(b))
    return fs::equivalent(a, b);
  auto whole = [](llvm::StringRef path) {
    llvm::SmallString<128> folder = llvm::sys::path::parent_path(path), real;
    if (folder.empty())
      folder = ".";
    if (fs::real_path(folder, real))
      real = folder;
    llvm::sys::path::append(real, llvm::sys::path::filename(path));
    return real;
  };
  return whole(a) == whole(b);
}

std::string cleave::runtime::findSharedFile(llvm::ArrayRef<NamedFile> written,
                                            llvm::ArrayRef<NamedFile> read) {
  auto isFile = [](llvm::StringRef path) {
    return !path.empty() && path != "-" && !isSpecial(path);
  };
  for (size_t i = 0; i < written.size(); ++i) {
    if (!isFile(written[i].path))
      continue;
    auto clash = [&](const NamedFile &other) {
      return isFile(other.path) && isSameFile(written[i].path, other.path);
    };
    for (const NamedFile &other : written.drop_front(i + 1))
      if (clash(other))
        return (written[i].flag + " and " + other.flag +
                " write to one file, " + written[i].path)
            .str();
    for (const NamedFile &other : read)
      if (clash(other))
        return (written[i].flag + " would overwrite " + written[i].path +
                ", which " + other.flag + " reads")
            .str();
  }
  return "";
}

Error cleave::runtime::checkWritableFolder(llvm::StringRef path) {
  llvm::StringRef folder = path;
  while (!folder.empty() && !fs::exists(folder))
    folder = llvm::sys::path::parent_path(folder);
  if (folder.empty())
    folder = ".";
  if (const char *reason = whyNotIn(folder))
    return cannotWrite(path, reason);
  // Permissions are not sufficient, for example on a file system that takes no
  // files.
  llvm::SmallString<128> model(folder), made;
  fs::make_absolute(model);
  llvm::sys::path::append(model, ".tmp-%%%%%%%%");
  fs::createUniquePath(model, made, /*MakeAbsolute=*/false);
  if (std::error_code error =
          fs::create_directory(made, /*IgnoreExisting=*/false))
    return cannotWrite(path, error.message());
  if (std::error_code error = fs::remove(made))
    return cannotWrite(path, error.message());
  return Error::success();
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

llvm::Expected<std::unique_ptr<llvm::MemoryBuffer>>
cleave::runtime::readFile(llvm::StringRef path) {
  llvm::Expected<InputFile> file = InputFile::open(path);
  if (!file)
    return file.takeError();
  auto buffer = llvm::WritableMemoryBuffer::getNewUninitMemBuffer(
      static_cast<size_t>(file->size()), path);
  if (!buffer)
    return makeError(path + ": cannot read: no memory for " +
                     llvm::Twine(file->size()) + " bytes");
  if (Error error = file->read(0, file->size(), buffer->getBufferStart()))
    return makeError(path + ": " + llvm::toString(std::move(error)));
  return std::unique_ptr<llvm::MemoryBuffer>(std::move(buffer));
}

Error cleave::runtime::flushStandardOutput() {
  llvm::raw_fd_ostream &out = llvm::outs();
  out.flush();
  std::error_code failure = out.error();
  out.clear_error();
  return failure ? cannotWrite("standard output", failure.message())
                 : Error::success();
}

//===----------------------------------------------------------------------===//
// JSON
//===----------------------------------------------------------------------===//

llvm::Expected<llvm::json::Value>
cleave::runtime::parseJson(llvm::StringRef text) {
  if (isJsonTooDeep(text))
    return makeError("nested more than " + llvm::Twine(kMostJsonDepth) +
                     " deep");
  return llvm::json::parse(text);
}
