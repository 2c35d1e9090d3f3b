//===- WeightFiles.h - Tensors in one file or several -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FILES_WEIGHTFILES_H
#define CLEAVE_EXECUTABLE_FILES_WEIGHTFILES_H

#include "cleave/Executable/Files/Safetensors.h"

namespace cleave::runtime {

/// The tensors of a safetensors file, or of the files that an index names.
class WeightFiles {
public:
  /// A tensor and the file that holds it.
  struct Found {
    const SafetensorsFile *file = nullptr;
    const SafetensorsFile::Entry *entry = nullptr;
  };

  /// `path` is a safetensors file; an index, whose name ends in ".json":
  /// {"weight_map": {"name": "file beside it", ...}}; or a folder that holds
  /// `model.safetensors` or `model.safetensors.index.json`. Fails if a tensor
  /// of the index is not in its file, or one of a file not in the index.
  static llvm::Expected<WeightFiles> open(llvm::StringRef path);

  /// The tensor of a name; without an entry, if there is none.
  Found find(llvm::StringRef name) const;
  bool has(llvm::StringRef name) const { return find(name).entry; }
  /// Of all tensors, in the order of the names.
  std::vector<std::string> getNames() const;

private:
  static llvm::Expected<WeightFiles> openIndex(llvm::StringRef path);

  std::vector<SafetensorsFile> files;
};

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FILES_WEIGHTFILES_H
