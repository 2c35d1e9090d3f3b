//===- NcclBoard.cpp - Where members in several processes meet ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "NcclBoard.h"
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace fake;
namespace fs = std::filesystem;

static const std::string prefix = "cleave-fake-nccl-";

/// Whose members' processes are gone: the name begins with that of the maker.
static void sweep(const fs::path &memory) {
  std::error_code ignored;
  for (const fs::directory_entry &entry :
       fs::directory_iterator(memory, ignored)) {
    std::string name = entry.path().filename();
    if (!name.starts_with(prefix))
      continue;
    pid_t maker = std::atoi(name.c_str() + prefix.size());
    if (maker > 0 && kill(maker, 0) != 0 && errno == ESRCH)
      fs::remove_all(entry.path(), ignored);
  }
}

std::string Board::make(size_t number) {
  fs::path memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  sweep(memory);
  auto now = std::chrono::system_clock::now().time_since_epoch().count();
  fs::path path = memory / (prefix + std::to_string(getpid()) + "-" +
                            std::to_string(number) + "-" + std::to_string(now));
  std::error_code ignored;
  fs::create_directory(path, ignored);
  return path;
}

std::string Board::file(const std::string &name, int member) const {
  return path + "/" + name + "." + std::to_string(member);
}

void Board::note(const char *name, int member, const std::string &text) const {
  std::string made = file(name, member), part = made + ".part";
  std::ofstream(part) << text;
  std::rename(part.c_str(), made.c_str());
}

std::vector<std::string> Board::notes(const char *name, int members) const {
  std::vector<std::string> found;
  for (int member = 0; member < members; ++member) {
    std::ifstream stream(file(name, member));
    if (!stream)
      return {};
    std::stringstream text;
    text << stream.rdbuf();
    found.push_back(text.str());
  }
  return found;
}

namespace {
/// At the beginning of a parcel.
struct Left {
  std::atomic<unsigned> readers;
  unsigned unused = 0;
};
} // namespace

void Board::send(const std::string &name, int member, int readers,
                 const std::string &head, const void *data,
                 size_t bytes) const {
  if (readers == 0)
    return;
  std::string made = file(name, member), part = made + ".part";
  {
    std::ofstream stream(part, std::ios::binary);
    Left left{unsigned(readers)};
    stream.write(reinterpret_cast<const char *>(&left), sizeof left);
    stream.write(head.data(), std::streamsize(head.size()));
    stream.write(static_cast<const char *>(data), std::streamsize(bytes));
  }
  std::rename(part.c_str(), made.c_str());
}

bool Board::has(const std::string &name, int member) const {
  return access(file(name, member).c_str(), F_OK) == 0;
}

void Board::receive(const std::string &name, int member, size_t headBytes,
                    std::string &head, std::vector<char> &data) const {
  std::string from = file(name, member);
  int file = open(from.c_str(), O_RDWR | O_CLOEXEC);
  struct stat facts;
  if (file < 0)
    return;
  if (fstat(file, &facts) == 0 &&
      size_t(facts.st_size) >= sizeof(Left) + headBytes) {
    size_t bytes = facts.st_size;
    void *mapped =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) {
      auto *text = static_cast<const char *>(mapped) + sizeof(Left);
      head.assign(text, headBytes);
      data.assign(text + headBytes, static_cast<const char *>(mapped) + bytes);
      if (static_cast<Left *>(mapped)->readers.fetch_sub(1) == 1)
        unlink(from.c_str());
      munmap(mapped, bytes);
    }
  }
  close(file);
}

void Board::remove() const {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}
