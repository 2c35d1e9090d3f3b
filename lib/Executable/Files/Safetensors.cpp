//===- Safetensors.cpp - Tensors in files ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// The format: the header's length as a little-endian u64, the header as JSON
// ({"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...}), the data.
// Files are untrusted: everything in them is checked.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Files/Safetensors.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <sys/mman.h>
#include <tuple>
#include <unistd.h>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Twine;

/// Longer headers are refused before they are read.
static constexpr uint64_t maxHeaderBytes = 100'000'000;

/// Bytes of an element, or 0 for an unknown name.
static int64_t elementBytes(llvm::StringRef dtype) {
  return llvm::StringSwitch<int64_t>(dtype)
      .Cases({"F64", "I64", "U64"}, 8)
      .Cases({"F32", "I32", "U32"}, 4)
      .Cases({"F16", "BF16", "I16", "U16"}, 2)
      .Cases({"I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"}, 1)
      .Default(0);
}

llvm::StringRef cleave::runtime::safetensorsName(DType type) {
  static constexpr llvm::StringLiteral names[] = {
      "F64", "F32", "F16",  "BF16",    "I64",
      "I32", "I8",  "BOOL", "F8_E4M3", "F8_E5M2"};
  return names[static_cast<size_t>(type)];
}

/// The first key that occurs twice in one object of `text`, which is valid
/// JSON. The JSON library silently keeps the last one.
static std::optional<std::string> findDuplicateKey(llvm::StringRef text) {
  std::vector<std::unique_ptr<llvm::StringSet<>>> stack;
  std::vector<bool> expectKey;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '{' || c == '[') {
      stack.push_back(c == '{' ? std::make_unique<llvm::StringSet<>>()
                               : nullptr);
      expectKey.push_back(c == '{');
    } else if (c == '}' || c == ']') {
      stack.pop_back();
      expectKey.pop_back();
    } else if (c == ',') {
      if (!stack.empty())
        expectKey.back() = stack.back() != nullptr;
    } else if (c == '"') {
      size_t begin = i++;
      while (text[i] != '"')
        i += text[i] == '\\' ? 2 : 1;
      if (stack.empty() || !expectKey.back())
        continue;
      expectKey.back() = false;
      // Keys may be spelled with escapes.
      llvm::Expected<llvm::json::Value> key =
          llvm::json::parse(text.slice(begin, i + 1));
      if (!key) {
        llvm::consumeError(key.takeError());
        continue;
      }
      std::string name = key->getAsString().value_or("").str();
      if (!stack.back()->insert(name).second)
        return name;
    }
  }
  return std::nullopt;
}

llvm::Expected<SafetensorsFile> SafetensorsFile::open(llvm::StringRef path) {
  SafetensorsFile file;
  llvm::Expected<InputFile> opened = InputFile::open(path);
  if (!opened)
    return opened.takeError();
  file.file = std::move(*opened);
  if (Error error = file.parse())
    return makeError(path + ": " + llvm::toString(std::move(error)));
  return file;
}

const SafetensorsFile::Entry *
SafetensorsFile::find(llvm::StringRef name) const {
  auto it = index.find(name);
  return it == index.end() ? nullptr : &entries[it->second];
}

/// Bytes that are read at once: they stay in a cache of the processor.
static constexpr int64_t kPiece = int64_t(1) << 20;

Error SafetensorsFile::read(const Entry &entry, int64_t at, int64_t bytes,
                            char *to) const {
  if (Error error = file.read(entry.offset + at, bytes, to))
    return makeError("tensor '" + entry.name +
                     "': " + llvm::toString(std::move(error)));
  return Error::success();
}

llvm::Expected<int64_t> SafetensorsFile::convert(const Entry &entry,
                                                 const Conversion &conversion,
                                                 void *destination) const {
  auto *to = static_cast<char *>(destination);
  if (to && conversion.copies) {
    if (Error error = read(entry, 0, entry.bytes, to))
      return std::move(error);
    return -1;
  }
  int64_t piece = kPiece / conversion.fromBytes;
  int64_t count = entry.bytes / conversion.fromBytes;
  std::vector<char> bytes(
      static_cast<size_t>(std::min(piece, count) * conversion.fromBytes));
  for (int64_t at = 0; at < count; at += piece) {
    int64_t size = std::min(piece, count - at);
    if (Error error = read(entry, at * conversion.fromBytes,
                           size * conversion.fromBytes, bytes.data()))
      return std::move(error);
    int64_t wrong = conversion.run(
        bytes.data(), to ? to + at * conversion.toBytes : nullptr, size);
    if (wrong >= 0)
      return at + wrong;
  }
  return -1;
}

llvm::Expected<std::string> SafetensorsFile::hash(const Entry &entry) const {
  FileHash hash;
  std::vector<char> bytes(static_cast<size_t>(std::min(kPiece, entry.bytes)));
  for (int64_t at = 0; at < entry.bytes; at += kPiece) {
    int64_t size = std::min(kPiece, entry.bytes - at);
    if (Error error = read(entry, at, size, bytes.data()))
      return std::move(error);
    hash.update(llvm::StringRef(bytes.data(), static_cast<size_t>(size)));
  }
  return hash.finish().hash;
}

/// Reads the texts of a file's `__metadata__`.
static Error readMetadata(const llvm::json::Value &item,
                          std::map<std::string, std::string> &metadata) {
  const llvm::json::Object *facts = item.getAsObject();
  if (!facts)
    return makeError("__metadata__ is not a JSON object");
  for (const auto &[fact, value] : *facts) {
    auto text = value.getAsString();
    if (!text)
      return makeError("__metadata__ holds something other than strings");
    metadata[llvm::StringRef(fact).str()] = text->str();
  }
  return Error::success();
}

Error SafetensorsFile::parse() {
  if (file.size() < 8)
    return makeError("not a safetensors file: it has " + Twine(file.size()) +
                     " bytes, and the length of the header takes 8");
  char length[8];
  if (Error error = file.read(0, 8, length))
    return error;
  uint64_t headerBytes = llvm::support::endian::read64le(length);
  if (headerBytes > maxHeaderBytes)
    return makeError("not a safetensors file: a header of " +
                     Twine(headerBytes) + " bytes is above the limit of " +
                     Twine(maxHeaderBytes));
  uint64_t follow = static_cast<uint64_t>(file.size()) - 8;
  if (headerBytes > follow)
    return makeError("the file is truncated: the header has " +
                     Twine(headerBytes) + " bytes, but " + Twine(follow) +
                     " follow");
  std::string header(static_cast<size_t>(headerBytes), 0);
  if (Error error =
          file.read(8, static_cast<int64_t>(headerBytes), header.data()))
    return error;
  uint64_t dataBytes = follow - headerBytes;

  llvm::Expected<llvm::json::Value> value = parseJson(header);
  if (!value)
    return makeError("the header is not valid JSON: " +
                     llvm::toString(value.takeError()));
  const llvm::json::Object *object = value->getAsObject();
  if (!object)
    return makeError("the header is not a JSON object");
  if (auto key = findDuplicateKey(header))
    return makeError("the header has the key '" + *key + "' twice");

  struct Span {
    int64_t begin, end;
    size_t entry;
  };
  std::vector<Span> spans;
  for (const auto &[key, item] : *object) {
    llvm::StringRef name = key;
    if (name == "__metadata__") {
      if (Error error = readMetadata(item, metadata))
        return error;
      continue;
    }
    auto fail = [&](const Twine &message) {
      return makeError("tensor '" + name + "': " + message);
    };
    const llvm::json::Object *fields = item.getAsObject();
    if (!fields)
      return fail("its entry is not a JSON object");
    Entry entry;
    entry.name = name.str();
    auto dtype = fields->getString("dtype");
    const llvm::json::Array *shape = fields->getArray("shape");
    const llvm::json::Array *offsets = fields->getArray("data_offsets");
    if (!dtype || !shape || !offsets || offsets->size() != 2)
      return fail("its entry needs dtype, shape and data_offsets");
    entry.dtype = dtype->str();
    int64_t bytes = elementBytes(*dtype);
    if (!bytes)
      return fail("unknown dtype '" + *dtype + "'");
    for (const llvm::json::Value &size : *shape) {
      auto n = size.getAsInteger();
      if (!n || *n < 0)
        return fail("its shape holds something other than sizes");
      entry.shape.push_back(*n);
    }
    // A zero anywhere makes the tensor empty, so that it is multiplied last.
    bool empty = llvm::is_contained(entry.shape, 0);
    for (int64_t n : entry.shape)
      if (!empty && __builtin_mul_overflow(bytes, n, &bytes))
        return fail("shape " + shapeText(entry.shape) +
                    " has more bytes than 64 bits count");
    entry.bytes = empty ? 0 : bytes;
    auto begin = (*offsets)[0].getAsInteger();
    auto end = (*offsets)[1].getAsInteger();
    if (!begin || !end || *begin < 0 || *end < *begin)
      return fail("its data_offsets are not a range");
    if (static_cast<uint64_t>(*end) > dataBytes)
      return fail("the file is truncated: its data ends at byte " +
                  Twine(*end) + " of " + Twine(dataBytes));
    if (*end - *begin != entry.bytes)
      return fail("shape " + shapeText(entry.shape) + " of " + entry.dtype +
                  " takes " + Twine(entry.bytes) +
                  " bytes, but data_offsets span " + Twine(*end - *begin));
    entry.offset = 8 + static_cast<int64_t>(headerBytes) + *begin;
    spans.push_back({*begin, *end, entries.size()});
    entries.push_back(std::move(entry));
  }

  llvm::sort(spans, [](const Span &a, const Span &b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  int64_t at = 0;
  for (const Span &span : spans) {
    const std::string &name = entries[span.entry].name;
    if (span.begin < at)
      return makeError("the data of tensor '" + name +
                       "' overlaps that of another");
    if (span.begin > at)
      return makeError("there is a hole of " + Twine(span.begin - at) +
                       " bytes before the data of tensor '" + name + "'");
    at = span.end;
  }
  if (static_cast<uint64_t>(at) != dataBytes)
    return makeError(Twine(dataBytes - static_cast<uint64_t>(at)) +
                     " bytes at the end belong to no tensor");
  llvm::sort(entries,
             [](const Entry &a, const Entry &b) { return a.name < b.name; });
  for (auto [i, entry] : llvm::enumerate(entries))
    index[entry.name] = i;
  return Error::success();
}

Error cleave::runtime::writeSafetensors(
    llvm::StringRef path, const std::vector<SafetensorsItem> &items,
    const std::map<std::string, std::string> &metadata, FileFacts *facts) {
  std::string header;
  llvm::raw_string_ostream os(header);
  std::vector<int64_t> sizes;
  {
    llvm::json::OStream json(os);
    json.object([&] {
      if (!metadata.empty())
        json.attributeObject("__metadata__", [&] {
          for (const auto &[key, text] : metadata)
            json.attribute(key, llvm::json::fixUTF8(text));
        });
      int64_t at = 0;
      for (const SafetensorsItem &item : items) {
        int64_t bytes = byteSize(item.dtype);
        for (int64_t size : item.shape)
          bytes *= size;
        sizes.push_back(bytes);
        json.attributeObject(item.name, [&] {
          json.attribute("dtype", safetensorsName(item.dtype));
          json.attributeArray("shape", [&] {
            for (int64_t size : item.shape)
              json.value(size);
          });
          json.attributeArray("data_offsets", [&] {
            json.value(at);
            json.value(at + bytes);
          });
        });
        at += bytes;
      }
    });
  }
  // Data starts at a multiple of 64 bytes of the file.
  while ((header.size() + 8) % 64)
    header += ' ';
  return writeFileAtomically(
      path,
      [&](llvm::raw_ostream &out) -> Error {
        char length[8];
        llvm::support::endian::write64le(length, header.size());
        out.write(length, 8);
        out << header;
        std::vector<char> made;
        for (auto [item, bytes] : llvm::zip_equal(items, sizes)) {
          auto *data = static_cast<const char *>(item.data);
          if (!data && item.make) {
            made.resize(static_cast<size_t>(bytes));
            if (Error error = item.make(made.data()))
              return error;
            data = made.data();
          }
          out.write(data, static_cast<size_t>(bytes));
        }
        return Error::success();
      },
      facts);
}
