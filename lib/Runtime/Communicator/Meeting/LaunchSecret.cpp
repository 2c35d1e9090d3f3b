//===- LaunchSecret.cpp - The secret of a launch in a file ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "LaunchSecret.h"
#include "Handshake.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

using namespace cleave::runtime;

std::string cleave::runtime::writeSecret(const std::string &path,
                                         std::string &secret) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : randomDigest()) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  // The system says below whether they are there.
  std::filesystem::create_directories(folder.parent_path(), ignored);
  ::mkdir(folder.c_str(), 0700);
  // Readers see all of it or nothing.
  std::string fresh = path + "." + std::to_string(::getpid());
  ::unlink(fresh.c_str());
  Socket file(::open(fresh.c_str(),
                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                     0600));
  bool written = file && ::write(file.get(), text.data(), text.size()) ==
                             static_cast<ssize_t>(text.size());
  if (!written || ::rename(fresh.c_str(), path.c_str()) != 0) {
    std::string why = std::strerror(errno);
    if (file)
      ::unlink(fresh.c_str());
    return "cannot write '" + path + "': " + why;
  }
  secret = text;
  return "";
}

std::string cleave::runtime::readSecret(const std::string &path,
                                        std::string &secret) {
  Socket file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file)
    return "cannot read '" + path + "': " + std::strerror(errno);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid() || (status.st_mode & 077) != 0)
    return "'" + path +
           "' is not a file of mode 600 of the user of this process";
  char text[65];
  if (::read(file.get(), text, sizeof(text)) != 64)
    return "'" + path + "' has no secret of a launch";
  secret.assign(text, 64);
  return "";
}
