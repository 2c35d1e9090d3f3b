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
/// pattern that matches no op, is an error. A front end that knows the modules
/// of ops matches their paths itself (`match`).
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_TRANSFORMS_PRECISIONPATTERNS_H
#define CLEAVE_DIALECT_GRAPH_TRANSFORMS_PRECISIONPATTERNS_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/GlobPattern.h"
#include <memory>

namespace cleave::graph {

/// What a person has chosen of the precision of single ops.
class PrecisionPatterns {
public:
  /// Reads `text`, or the file that it names where it has no `=`. Errors begin
  /// with the place of an entry.
  static llvm::Expected<PrecisionPatterns> read(llvm::StringRef text);

  /// Of pairs of a pattern and a precision.
  static llvm::Expected<PrecisionPatterns>
  of(llvm::ArrayRef<std::pair<std::string, std::string>> pairs);

  /// The precision of an op that has these names; empty if no entry matches.
  std::string match(const std::vector<std::string> &names);
  /// The patterns that have matched nothing.
  std::vector<std::string> unmatched() const;

  /// Sets the precision of the ops of `module` that an entry matches.
  llvm::Error apply(mlir::ModuleOp module);

private:
  struct Entry {
    /// The pattern, which the glob refers to, and copies of it too.
    std::shared_ptr<const std::string> pattern;
    llvm::GlobPattern glob;
    std::string precision;
    /// The file and line, or the number of the entry.
    std::string place;
    bool matched = false;
  };

  static llvm::Expected<Entry> parse(llvm::StringRef text,
                                     const std::string &place);
  static llvm::Expected<Entry> makeEntry(llvm::StringRef pattern,
                                         llvm::StringRef precision,
                                         const std::string &place);

  std::vector<Entry> entries;
};

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_TRANSFORMS_PRECISIONPATTERNS_H
