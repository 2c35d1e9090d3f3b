//===- Weights.h - Files of weights that were checked -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_SESSION_WEIGHTS_H
#define CLEAVE_LIB_RUNTIME_SESSION_WEIGHTS_H

#include "cleave/Executable/Files/WeightFiles.h"
#include "cleave/Runtime/Session/Session.h"

namespace cleave::runtime {

/// A tensor as a file holds it, and how it becomes that of the program.
struct WeightSource {
  const SafetensorsFile *file = nullptr;
  const SafetensorsFile::Entry *entry = nullptr;
  Conversion conversion = {};
  /// Memory of its own, in the program's element type: the tensor, or one of
  /// the slices of its first dimension, which are all equal.
  struct Slice {
    SafetensorsFile::Entry entry;
    std::vector<char> bytes;
  };
  /// What `entry` belongs to, if not to the file.
  std::shared_ptr<const Slice> slice;

  /// Whether both have the same value for the program.
  llvm::Expected<bool> equals(const WeightSource &other) const;
};

struct Session::Loaded {
  WeightFiles files;
  std::string path;
  bool optimizer;
  std::vector<std::pair<const Tensor *, WeightSource>> found;
  /// Optional state that the file lacks.
  std::vector<const Tensor *> absent;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_SESSION_WEIGHTS_H
