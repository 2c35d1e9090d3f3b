//===- PrecisionPatterns.h - Precisions of ops by their names ---*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A policy has entries `pattern=f32` or `pattern=16bit`, separated by commas
/// or lines; `#` begins a comment. A pattern is a glob over
///   - names of ops, `softmax` or `graph.softmax`,
///   - names of the parameters that an op reads and of the modules that these
///     are in, `layers.*.gate`,
///   - places in the source, `model.py:12`, with any folders before them.
/// Of several that match an op, the last one counts. A malformed entry, and a
/// pattern that matches no op, is an error.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVE_COMPILE_PRECISIONPATTERNS_H
#define CLEAVE_TOOLS_CLEAVE_COMPILE_PRECISIONPATTERNS_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/GlobPattern.h"

/// What a person has chosen of the precision of single ops.
class PrecisionPatterns {
public:
  /// Reads `text`, or the file that it names where it has no `=`. Errors begin
  /// with the place of an entry.
  static llvm::Expected<PrecisionPatterns> read(llvm::StringRef text);

  /// Sets the precision of the ops of `module` that an entry matches.
  llvm::Error apply(mlir::ModuleOp module) const;

private:
  struct Entry {
    llvm::GlobPattern glob;
    std::string pattern, precision;
    /// The file and line, or the number of the entry.
    std::string place;
  };

  static llvm::Expected<Entry> parse(llvm::StringRef text,
                                     const std::string &place);

  std::vector<Entry> entries;
};

#endif // CLEAVE_TOOLS_CLEAVE_COMPILE_PRECISIONPATTERNS_H
