//===- FileHash.cpp - Hashes of files -------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/FileHash.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/xxhash.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

using namespace cleave::runtime;
using llvm::StringRef;

static constexpr size_t kBlock = size_t(1) << 20;

static llvm::XXH128_hash_t hash128(StringRef bytes) {
  return llvm::xxh3_128bits(llvm::arrayRefFromStringRef(bytes));
}

void FileHash::add(StringRef block) {
  llvm::XXH128_hash_t hash = hash128(block);
  char bytes[16];
  llvm::support::endian::write64le(bytes, hash.low64);
  llvm::support::endian::write64le(bytes + 8, hash.high64);
  blocks.append(bytes, sizeof bytes);
}

void FileHash::update(StringRef bytes) {
  count += bytes.size();
  if (!rest.empty()) {
    StringRef head = bytes.take_front(kBlock - rest.size());
    rest += head;
    bytes = bytes.drop_front(head.size());
    if (rest.size() < kBlock)
      return;
    add(rest);
    rest.clear();
  }
  // Whole blocks are not copied.
  for (; bytes.size() >= kBlock; bytes = bytes.drop_front(kBlock))
    add(bytes.take_front(kBlock));
  rest = bytes.str();
}

FileFacts FileHash::finish() {
  if (!rest.empty())
    add(rest);
  return {count, hashOf(blocks)};
}

std::string cleave::runtime::hashOf(StringRef text) {
  llvm::XXH128_hash_t hash = hash128(text);
  return llvm::utohexstr(hash.high64, /*LowerCase=*/true, /*Width=*/16) +
         llvm::utohexstr(hash.low64, /*LowerCase=*/true, /*Width=*/16);
}

llvm::Expected<FileFacts> cleave::runtime::hashFile(StringRef path) {
  auto fail = [&](int error) {
    return makeError(path + ": cannot read: " + std::strerror(error));
  };
  int file = ::open(path.str().c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return fail(errno);
  FileHash hash;
  std::vector<char> block(kBlock);
  while (true) {
    ssize_t size = ::read(file, block.data(), block.size());
    if (size < 0 && errno == EINTR)
      continue;
    int error = errno;
    if (size <= 0) {
      ::close(file);
      if (size < 0)
        return fail(error);
      return hash.finish();
    }
    hash.update(StringRef(block.data(), static_cast<size_t>(size)));
  }
}

void HashingStream::write_impl(const char *data, size_t size) {
  to.write(data, size);
  hash.update(StringRef(data, size));
  written += size;
}

FileFacts HashingStream::finish() {
  flush();
  return hash.finish();
}
