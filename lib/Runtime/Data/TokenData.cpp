//===- TokenData.cpp - Token data -----------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Data/TokenData.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Support/Philox.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/SHA1.h"
#include "llvm/Support/xxhash.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::StringRef;
using llvm::Twine;

//===----------------------------------------------------------------------===//
// Text
//===----------------------------------------------------------------------===//

/// Encodes with the library of the tokenizer, whose rules it defines. Text is
/// read in lines, so that it is never in memory as a whole, and as it is: a
/// carriage return stays one.
static constexpr llvm::StringLiteral encoder = R"py(
import array, os, sys
try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit(3)
source, rules, target = sys.argv[1:4]
try:
    tokenizer = Tokenizer.from_file(rules)
except Exception as error:
    sys.exit("cannot read the tokenizer %s: %s" % (rules, error))
try:
    with open(source, encoding="utf-8", newline="") as text, open(target, "wb") as out:
        while True:
            lines = text.readlines(1 << 20)
            if not lines:
                break
            ids = tokenizer.encode("".join(lines), add_special_tokens=False).ids
            array.array("I", ids).tofile(out)
except UnicodeDecodeError as error:
    sys.exit("the text is not UTF-8: %s" % error)
)py";

Expected<std::string> TokenData::encode(StringRef path, StringRef tokenizer) {
  llvm::sys::fs::file_status status;
  std::error_code failure = llvm::sys::fs::status(path, status);
  if (!failure && llvm::sys::fs::is_directory(status))
    failure = std::make_error_code(std::errc::is_a_directory);
  if (failure)
    return makeError(path + ": cannot read: " + failure.message());
  if (!llvm::sys::fs::is_regular_file(status))
    return makeError(path + ": cannot read: it is a device or a pipe, which "
                            "may have no end; give a file, or --data-command");
  if (tokenizer.empty())
    return makeError(path + ": text needs --tokenizer; files of tokens end in "
                            ".bin or .npy");
  auto rules = readFile(tokenizer);
  if (!rules)
    return rules.takeError();
  llvm::SmallString<128> absolute(path);
  llvm::sys::fs::make_absolute(absolute);

  // The key is the text (by name, size and time), the tokenizer and how text
  // is read.
  llvm::SHA1 hash;
  hash.update(encoder);
  hash.update(absolute.str());
  hash.update(llvm::utostr(status.getSize()));
  hash.update(llvm::itostr(
      status.getLastModificationTime().time_since_epoch().count()));
  hash.update((*rules)->getBuffer());
  llvm::SmallString<128> cache;
  if (!llvm::sys::path::cache_directory(cache))
    llvm::sys::path::system_temp_directory(/*ErasedOnReboot=*/false, cache);
  llvm::sys::path::append(cache, "cleave", "tokens");
  if (Error error = createFolders(cache))
    return std::move(error);
  llvm::sys::path::append(cache, llvm::toHex(hash.final(), true) + ".bin");
  if (llvm::sys::fs::exists(cache))
    return cache.str().str();

  const char *wanted = std::getenv("CLEAVE_PYTHON");
  auto python = llvm::sys::findProgramByName(wanted ? wanted : "python3");
  if (!python)
    return makeError(path + ": encoding text needs python3 with the package "
                            "'tokenizers' (CLEAVE_PYTHON names another "
                            "interpreter); token files (.bin, .npy) do not");
  // Processes of several machines may share the folder.
  llvm::SmallString<128> temporary;
  if (std::error_code error =
          llvm::sys::fs::createUniqueFile(cache + ".%%%%%%%%", temporary))
    return makeError(cache + ": cannot write: " + error.message());
  llvm::SmallString<128> errors;
  if (llvm::sys::fs::createTemporaryFile("cleave-tokens", "txt", errors))
    return makeError("cannot create a temporary file");
  std::string message;
  std::optional<StringRef> redirects[] = {StringRef(""), std::nullopt,
                                          StringRef(errors)};
  std::string source = path.str();
  int code = llvm::sys::ExecuteAndWait(
      *python, {*python, "-c", encoder, source, tokenizer, temporary},
      std::nullopt, redirects, 0, 0, &message);
  if (code != 0) {
    if (auto text = llvm::MemoryBuffer::getFile(errors))
      message = (*text)->getBuffer().rtrim().str();
    // The last line is the message; the lines before it are the traceback.
    message = StringRef(message).rsplit('\n').second.empty()
                  ? message
                  : StringRef(message).rsplit('\n').second.str();
  }
  llvm::sys::fs::remove(errors);
  if (code == 3)
    message = *python + " lacks the package 'tokenizers' (pip install "
                        "tokenizers; CLEAVE_PYTHON names another interpreter)";
  if (code == 0)
    if (std::error_code error = llvm::sys::fs::rename(temporary, cache)) {
      code = 1;
      message = error.message();
    }
  if (code != 0) {
    llvm::sys::fs::remove(temporary);
    return makeError(path + ": cannot encode the text: " + message);
  }
  return cache.str().str();
}

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

static constexpr int64_t kTokenBytes[] = {1, 2, 4, 4, 8};

Error TokenData::readBytes(int64_t from, int64_t bytes, char *to) const {
  if (Error error = file.read(start + from, bytes, to))
    return makeError(path + ": " + llvm::toString(std::move(error)));
  return Error::success();
}

Error TokenData::openNpy(StringRef path) {
  auto fail = [&](const Twine &message) {
    return makeError(path + ": " + message);
  };
  int64_t size = file.size();
  // Headers are short; a longer one is not of tokens.
  std::string head(static_cast<size_t>(std::min<int64_t>(size, 1 << 16)), 0);
  if (Error error =
          readBytes(0, static_cast<int64_t>(head.size()), head.data()))
    return error;
  StringRef bytes = head;
  if (!bytes.starts_with("\x93NUMPY") || bytes.size() < 12)
    return fail("not a NumPy file");
  size_t lengthBytes = bytes[6] == 1 ? 2 : 4;
  size_t length = lengthBytes == 2
                      ? llvm::support::endian::read16le(bytes.data() + 8)
                      : llvm::support::endian::read32le(bytes.data() + 8);
  if (length > bytes.size() - 8 - lengthBytes)
    return fail("the file is truncated");
  StringRef header = bytes.substr(8 + lengthBytes, length);
  int64_t begin = static_cast<int64_t>(8 + lengthBytes + length),
          body = size - begin;

  auto field = [&](StringRef name) {
    size_t at = header.find(("'" + name + "':").str());
    return at == StringRef::npos ? StringRef()
                                 : header.substr(at + name.size() + 3).ltrim();
  };
  StringRef descr = field("descr");
  descr = descr.consume_front("'") ? descr.split('\'').first : StringRef();
  int known = llvm::StringSwitch<int>(descr)
                  .Cases({"|u1", "u1"}, int(Type::U8))
                  .Case("<u2", int(Type::U16))
                  .Case("<u4", int(Type::U32))
                  .Case("<i4", int(Type::I32))
                  .Case("<i8", int(Type::I64))
                  .Default(-1);
  if (known < 0)
    return fail("its elements are '" + descr +
                "'; tokens are u1, u2, u4, i4 or i8, little-endian");
  type = static_cast<Type>(known);
  if (!field("fortran_order").starts_with("False"))
    return fail("its order is that of Fortran; store a C-ordered array");
  StringRef shape = field("shape");
  if (!shape.consume_front("("))
    return fail("its header has no shape");
  count = 1;
  shape = shape.split(')').first;
  for (StringRef item : llvm::split(shape, ',')) {
    int64_t n;
    item = item.trim();
    if (item.empty())
      continue;
    if (item.getAsInteger(10, n) || n < 0 ||
        __builtin_mul_overflow(count, n, &count))
      return fail("its shape is invalid");
  }
  int64_t each = kTokenBytes[known];
  if (count > INT64_MAX / each || count * each > body)
    return fail("the file is truncated: " + Twine(count) +
                " tokens do not fit " + Twine(body) + " bytes");
  start = begin;
  return Error::success();
}

Expected<TokenData> TokenData::open(StringRef path, StringRef tokenizer,
                                    StringRef binType) {
  TokenData tokens;
  tokens.path = path.str();
  std::string file = path.str();
  StringRef extension = llvm::sys::path::extension(path);
  bool text = extension != ".bin" && extension != ".npy";
  if (text) {
    Expected<std::string> encoded = encode(path, tokenizer);
    if (!encoded)
      return encoded.takeError();
    file = *encoded;
    binType = "u32";
  }
  Expected<InputFile> opened = InputFile::open(file);
  if (!opened) {
    std::string why = llvm::toString(opened.takeError());
    return makeError(text ? path + ": " + why : Twine(why));
  }
  tokens.file = std::move(*opened);
  int64_t bytes = tokens.file.size();
  if (extension == ".npy") {
    if (Error error = tokens.openNpy(path))
      return error;
    return tokens;
  }
  int known = llvm::StringSwitch<int>(binType)
                  .Case("u8", int(Type::U8))
                  .Case("u16", int(Type::U16))
                  .Case("u32", int(Type::U32))
                  .Case("i32", int(Type::I32))
                  .Case("i64", int(Type::I64))
                  .Default(-1);
  if (known < 0)
    return makeError("unknown token type '" + binType +
                     "': u8, u16, u32, i32 or i64");
  tokens.type = static_cast<Type>(known);
  if (bytes % kTokenBytes[known])
    return makeError(path + ": " + Twine(bytes) +
                     " bytes are not a multiple of "
                     "the " +
                     Twine(kTokenBytes[known]) + " of a token (" + binType +
                     ")");
  tokens.count = bytes / kTokenBytes[known];
  return tokens;
}

Error TokenData::read(int64_t first, int64_t number, int64_t *to) const {
  namespace endian = llvm::support::endian;
  int64_t each = kTokenBytes[static_cast<size_t>(type)];
  std::vector<char> bytes(static_cast<size_t>(number * each));
  if (Error error = readBytes(first * each, number * each, bytes.data()))
    return error;
  for (const char *at = bytes.data(), *end = at + bytes.size(); at != end;
       at += each)
    switch (type) {
    case Type::U8:
      *to++ = static_cast<uint8_t>(*at);
      break;
    case Type::U16:
      *to++ = endian::read16le(at);
      break;
    case Type::U32:
      *to++ = endian::read32le(at);
      break;
    case Type::I32:
      *to++ = static_cast<int32_t>(endian::read32le(at));
      break;
    case Type::I64:
      *to++ = static_cast<int64_t>(endian::read64le(at));
      break;
    }
  return Error::success();
}

Expected<std::string> TokenData::hash() const {
  int64_t bytes = count * kTokenBytes[static_cast<size_t>(type)];
  constexpr int64_t piece = int64_t(1) << 16, pieces = 1024;
  bool all = bytes <= piece * pieces;
  std::vector<char> part(static_cast<size_t>(all ? bytes : piece));
  uint64_t hash =
      static_cast<uint64_t>(count) * 8 + static_cast<uint64_t>(type);
  for (int64_t i = 0; i < (all ? 1 : pieces); ++i) {
    if (Error error = readBytes(all ? 0 : (bytes - piece) / (pieces - 1) * i,
                                static_cast<int64_t>(part.size()), part.data()))
      return std::move(error);
    hash = hash * 0x9e3779b97f4a7c15u +
           llvm::xxh3_64bits(StringRef(part.data(), part.size()));
  }
  return llvm::utohexstr(hash, /*LowerCase=*/true);
}

//===----------------------------------------------------------------------===//
// Order
//===----------------------------------------------------------------------===//

WindowOrder::WindowOrder(int64_t tokens, int64_t length, int64_t overlap,
                         bool shuffle, uint64_t seed)
    : length(length), overlap(overlap), shuffle(shuffle), seed(seed) {
  int64_t step = length - overlap;
  if (tokens >= length)
    windows = std::min<int64_t>((tokens - length) / step + 1, UINT32_MAX);
  rest = windows ? tokens - ((windows - 1) * step + length) : tokens;
}

void WindowOrder::shuffleEpoch(int64_t wanted) {
  epoch = wanted;
  order.resize(static_cast<size_t>(windows));
  std::iota(order.begin(), order.end(), 0u);
  // Fisher-Yates; a draw is scaled, which is uniform enough for 2^32.
  philox::Stream stream{seed, 0x64617461u, static_cast<uint32_t>(epoch)};
  for (size_t i = order.size(); i > 1; --i) {
    uint64_t draw = philox::draw(stream, i);
    std::swap(order[i - 1], order[draw * i >> 32]);
  }
}

int64_t WindowOrder::start(int64_t position) {
  int64_t index = position % windows;
  if (shuffle) {
    if (position / windows != epoch)
      shuffleEpoch(position / windows);
    index = order[static_cast<size_t>(index)];
  }
  return index * (length - overlap);
}
