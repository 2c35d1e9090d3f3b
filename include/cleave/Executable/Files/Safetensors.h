//===- Safetensors.h - Tensors in files -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FILES_SAFETENSORS_H
#define CLEAVE_EXECUTABLE_FILES_SAFETENSORS_H

#include "cleave/Executable/Files/Conversion.h"
#include "cleave/Executable/Format/FileHash.h"
#include "cleave/Executable/Format/InputFile.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <functional>
#include <map>
#include <memory>

namespace cleave::runtime {

/// A safetensors file; every entry has been checked to be inside it. Data are
/// read when they are asked for, and not mapped (see InputFile.h).
class SafetensorsFile {
public:
  struct Entry {
    std::string name;
    /// The dtype as spelled in the file: "F32", "I64", "BOOL", ...
    std::string dtype;
    std::vector<int64_t> shape;
    /// Where its data are in the file.
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  static llvm::Expected<SafetensorsFile> open(llvm::StringRef path);

  const std::vector<Entry> &getEntries() const { return entries; }
  /// Reads bytes of the data of an entry, from its byte `at` on.
  llvm::Error read(const Entry &entry, int64_t at, int64_t bytes,
                   char *to) const;
  /// Reads the data of an entry and converts them, in pieces, so that a file
  /// does not take its size in memory twice. Returns the index of the first
  /// element that does not convert, or -1. Without a destination it only looks
  /// for that.
  llvm::Expected<int64_t> convert(const Entry &entry,
                                  const Conversion &conversion,
                                  void *destination) const;
  /// A hash of the data of an entry.
  llvm::Expected<std::string> hash(const Entry &entry) const;
  /// Null if there is none.
  const Entry *find(llvm::StringRef name) const;
  const std::map<std::string, std::string> &getMetadata() const {
    return metadata;
  }

private:
  llvm::Error parse();

  InputFile file;
  std::vector<Entry> entries;
  llvm::StringMap<size_t> index;
  std::map<std::string, std::string> metadata;
};

/// The dtype name of an element type.
llvm::StringRef safetensorsName(DType type);

/// One tensor to write: its data, or, if that is null, a function that provides
/// it when it is written.
struct SafetensorsItem {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  const void *data;
  std::function<llvm::Error(void *)> make = nullptr;
};

/// Writes a file atomically: the complete file appears under its name, or none.
/// `facts` gets its size and its hash.
llvm::Error
writeSafetensors(llvm::StringRef path,
                 const std::vector<SafetensorsItem> &items,
                 const std::map<std::string, std::string> &metadata = {},
                 FileFacts *facts = nullptr);

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FILES_SAFETENSORS_H
