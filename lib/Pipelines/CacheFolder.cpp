//===- CacheFolder.cpp - A folder of what was computed before -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/CacheFolder.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Support/ByteSize.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/BLAKE3.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/Path.h"

#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <random>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <tuple>
#include <unistd.h>
#include <vector>

using namespace cleave;
using llvm::Error;
using llvm::Expected;
using llvm::StringRef;
namespace sys_path = llvm::sys::path;

/// After the key in the name of an entry, and of one that is being written.
static constexpr llvm::StringLiteral kEntry = ".cleave", kNext = ".next-";
/// How an entry begins; a form that changes gets another number.
static constexpr llvm::StringLiteral kMagic = "cleave cache 1\n";
static constexpr size_t kHash = 32, kKeyDigits = 2 * kHash,
                        kHeader = 15 + kKeyDigits + 8 + kHash;
static_assert(kMagic.size() == 15);

//===----------------------------------------------------------------------===//
// Keys and the form of an entry
//===----------------------------------------------------------------------===//

static std::string littleEndian(uint64_t number) {
  std::string bytes(8, '\0');
  llvm::support::endian::write64le(bytes.data(), number);
  return bytes;
}

std::string cleave::cacheKey(llvm::ArrayRef<std::string> texts) {
  llvm::BLAKE3 hash;
  for (const std::string &text : texts) {
    hash.update(StringRef(littleEndian(text.size())));
    hash.update(StringRef(text));
  }
  return llvm::toHex(hash.final(), /*LowerCase=*/true);
}

/// The magic, the key, the size and the hash of the content.
static std::string headerOf(StringRef key, StringRef content) {
  llvm::BLAKE3 hash;
  hash.update(key);
  hash.update(content);
  auto bytes = hash.final();
  return (kMagic + key).str() + littleEndian(content.size()) +
         std::string(bytes.begin(), bytes.end());
}

static bool isKey(StringRef text) {
  return text.size() == kKeyDigits && llvm::all_of(text, [](char c) {
           return llvm::isDigit(c) || (c >= 'a' && c <= 'f');
         });
}

static bool isEntry(StringRef name) {
  return name.consume_back(kEntry) && isKey(name);
}

static bool isNext(StringRef name) {
  auto [key, end] = name.split(kNext);
  return isKey(key) && end.size() == 16 && llvm::all_of(end, llvm::isHexDigit);
}

//===----------------------------------------------------------------------===//
// The folder
//===----------------------------------------------------------------------===//

/// Creates a folder and those around it, for this user alone.
static void createFolders(StringRef path) {
  if (path.empty() || ::access(path.str().c_str(), F_OK) == 0)
    return;
  createFolders(sys_path::parent_path(path));
  (void)::mkdir(path.str().c_str(), 0700); // opening it says what is wrong
}

/// Whether only this user can write to a file or folder.
static bool isOurs(const struct stat &facts) {
  return facts.st_uid == ::geteuid() &&
         (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

Expected<std::unique_ptr<CacheFolder>> CacheFolder::open(StringRef path,
                                                         uint64_t limit) {
  auto fail = [&](const llvm::Twine &why) {
    return runtime::makeError(path + ": " + why);
  };
  createFolders(path);
  int folder = ::open(path.str().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0)
    return fail(std::strerror(errno));
  std::unique_ptr<CacheFolder> result(
      new CacheFolder(path.str(), folder, limit));
  struct stat facts;
  if (::fstat(folder, &facts) != 0)
    return fail(std::strerror(errno));
  if (facts.st_uid != ::geteuid())
    return fail("the folder belongs to another user");
  if (!isOurs(facts))
    return fail("other users can write to the folder");
  if (::faccessat(folder, ".", R_OK | W_OK | X_OK, AT_EACCESS) != 0)
    return fail(std::strerror(errno));
  return result;
}

Expected<std::unique_ptr<CacheFolder>> CacheFolder::ofEnvironment() {
  auto variable = [](const char *name) {
    const char *text = std::getenv(name);
    return StringRef(text ? text : "");
  };
  StringRef chosen = variable("CLEAVE_CACHE");
  if (chosen == "off")
    return nullptr;
  llvm::SmallString<128> path(chosen);
  if (StringRef cache = variable("XDG_CACHE_HOME");
      path.empty() && sys_path::is_absolute(cache))
    sys_path::append(path, cache, "cleave", "compiled");
  if (StringRef home = variable("HOME"); path.empty() && !home.empty())
    sys_path::append(path, home, ".cache", "cleave", "compiled");
  if (path.empty())
    return runtime::makeError("HOME is not set, and CLEAVE_CACHE names no "
                              "folder");
  uint64_t limit = uint64_t(2) << 30;
  if (StringRef text = variable("CLEAVE_CACHE_BYTES"); !text.empty()) {
    std::optional<int64_t> bytes = parseByteSize(text, 1);
    if (!bytes)
      return runtime::makeError("CLEAVE_CACHE_BYTES is '" + text +
                                "', which is no size, such as 2GiB");
    limit = static_cast<uint64_t>(*bytes);
  }
  return open(path, limit);
}

CacheFolder::~CacheFolder() { ::close(folder); }

//===----------------------------------------------------------------------===//
// Entries
//===----------------------------------------------------------------------===//

std::optional<std::string> CacheFolder::load(StringRef key) const {
  // A pipe does not block, and a link is not followed.
  int file = ::openat(folder, (key + kEntry).str().c_str(),
                      O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0)
    return std::nullopt;
  auto read = [&]() -> std::optional<std::string> {
    struct stat facts;
    if (::fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) ||
        !isOurs(facts) || facts.st_size < static_cast<off_t>(kHeader))
      return std::nullopt;
    // The header says the size: that of the file may be anything.
    std::string header(kHeader, '\0');
    auto fill = [&](std::string &to) {
      for (size_t at = 0; at < to.size();) {
        ssize_t count = ::read(file, to.data() + at, to.size() - at);
        if (count < 0 && errno == EINTR)
          continue;
        if (count <= 0)
          return false;
        at += static_cast<size_t>(count);
      }
      return true;
    };
    if (!fill(header))
      return std::nullopt;
    uint64_t size = llvm::support::endian::read64le(header.data() +
                                                    kMagic.size() + kKeyDigits);
    if (size != static_cast<uint64_t>(facts.st_size) - kHeader)
      return std::nullopt;
    std::string content(size, '\0');
    if (!fill(content) || header != headerOf(key, content))
      return std::nullopt;
    // The time of its last use, as far as this clock knows it.
    (void)::futimens(file, nullptr);
    return content;
  }();
  ::close(file);
  return read;
}

/// Creates a file of a new name for an entry that is being written. Who holds
/// its lock is alive; before it is held, another process may remove the file.
int CacheFolder::createNext(StringRef key, std::string &name) const {
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    uint64_t number = (uint64_t(random()) << 32) | random();
    name = (key + kNext).str() +
           llvm::utohexstr(number, /*LowerCase=*/true, /*Width=*/16);
    int file =
        ::openat(folder, name.c_str(),
                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
      return -1;
    bool taken = ::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat facts;
    if (!taken && ::fstat(file, &facts) == 0 && facts.st_nlink > 0)
      return file;
    ::unlinkat(folder, name.c_str(), 0);
    ::close(file);
    errno = EAGAIN;
  }
  return -1;
}

Error CacheFolder::store(StringRef key, StringRef content) const {
  std::string header = headerOf(key, content);
  if (header.size() + content.size() > limit)
    return Error::success();
  auto fail = [&](int error) {
    return runtime::makeError(path + ": cannot write: " + std::strerror(error));
  };
  std::string next;
  int file = createNext(key, next);
  if (file < 0)
    return fail(errno);
  int error = 0;
  for (StringRef rest : {StringRef(header), content})
    while (!rest.empty() && !error) {
      ssize_t count = ::write(file, rest.data(), rest.size());
      if (count > 0)
        rest = rest.drop_front(static_cast<size_t>(count));
      else if (count == 0 || errno != EINTR)
        error = count == 0 ? EIO : errno;
    }
  if (!error && ::renameat(folder, next.c_str(), folder,
                           (key + kEntry).str().c_str()) != 0)
    error = errno;
  if (error)
    ::unlinkat(folder, next.c_str(), 0);
  if (::close(file) != 0 && !error)
    error = errno; // what was written may be incomplete, which its hash shows
  if (error)
    return fail(error);
  trim((key + kEntry).str());
  return Error::success();
}

void CacheFolder::trim(StringRef kept) const {
  struct Entry {
    std::string name;
    uint64_t bytes;
    timespec used;
  };
  int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *names = copy < 0 ? nullptr : ::fdopendir(copy);
  if (!names) {
    if (copy >= 0)
      ::close(copy);
    return;
  }
  std::vector<Entry> entries;
  uint64_t bytes = 0;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  while (const dirent *found = ::readdir(names)) {
    StringRef name = found->d_name;
    struct stat facts;
    if ((!isEntry(name) && !isNext(name)) ||
        ::fstatat(folder, found->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(facts.st_mode) || facts.st_uid != ::geteuid())
      continue;
    if (isNext(name)) {
      // Its writer has ended if nobody holds the lock.
      int file = ::openat(folder, found->d_name,
                          O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
      if (file < 0)
        continue;
      if (::flock(file, LOCK_EX | LOCK_NB) == 0)
        ::unlinkat(folder, found->d_name, 0);
      ::close(file);
      continue;
    }
    // A time that is still to come, of a clock that was wrong, says nothing.
    bool known = facts.st_mtim.tv_sec <= now.tv_sec + 1;
    entries.push_back({name.str(), static_cast<uint64_t>(facts.st_size),
                       known ? facts.st_mtim : timespec{0, 0}});
    bytes += entries.back().bytes;
  }
  ::closedir(names);
  if (bytes <= limit)
    return;
  llvm::sort(entries, [](const Entry &a, const Entry &b) {
    return std::tie(a.used.tv_sec, a.used.tv_nsec, a.name) <
           std::tie(b.used.tv_sec, b.used.tv_nsec, b.name);
  });
  for (const Entry &entry : entries) {
    if (bytes <= limit)
      return;
    if (entry.name == kept)
      continue;
    // Another process may have removed it.
    ::unlinkat(folder, entry.name.c_str(), 0);
    bytes -= entry.bytes;
  }
}
