//===- InputFile.cpp - A file that is read --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/InputFile.h"
#include "cleave/Executable/Format/ProgramIO.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace cleave::runtime;

InputFile &InputFile::operator=(InputFile &&other) noexcept {
  std::swap(descriptor, other.descriptor);
  std::swap(bytes, other.bytes);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor >= 0)
    ::close(descriptor);
}

llvm::Expected<InputFile> InputFile::open(llvm::StringRef path) {
  auto fail = [&](const llvm::Twine &why) {
    return makeError(path + ": cannot read: " + why);
  };
  InputFile file;
  // A pipe without a writer is not waited for.
  file.descriptor =
      ::open(path.str().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat facts;
  if (file.descriptor < 0 || ::fstat(file.descriptor, &facts) != 0)
    return fail(std::strerror(errno));
  if (S_ISDIR(facts.st_mode))
    return fail(std::strerror(EISDIR));
  if (!S_ISREG(facts.st_mode))
    return fail("it is a device or a pipe, which may have no end; give a file");
  file.bytes = facts.st_size;
  return file;
}

llvm::Error InputFile::read(int64_t from, int64_t count, char *to) const {
  while (count > 0) {
    ssize_t done = ::pread(descriptor, to, static_cast<size_t>(count), from);
    if (done < 0 && errno == EINTR)
      continue;
    if (done < 0)
      return makeError(llvm::Twine("cannot read: ") + std::strerror(errno));
    if (done == 0)
      return makeError("the file was shortened while it was read: it ends at "
                       "byte " +
                       llvm::Twine(from) + ", and had " + llvm::Twine(bytes) +
                       " bytes");
    from += done;
    to += done;
    count -= done;
  }
  return llvm::Error::success();
}
