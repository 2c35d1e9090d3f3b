//===- FoldedText.h - Lines that fold what layers repeat --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Lists of a report in so many lines as their kinds are, however many layers
/// there are: a line has the sums, and its items what they are of, the largest
/// first. Items that differ in the numbers of layers alone are one; those after
/// the largest ones are one too.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_REPORTS_FOLDEDTEXT_H
#define CLEAVE_LIB_REPORTS_FOLDEDTEXT_H

#include "llvm/Support/JSON.h"
#include <string>
#include <vector>

namespace cleave {

/// The collectives of an entry of `communicationReport`: a line for those that
/// have kind, axes and the form of their cause in common, such as
/// `17 all_gather over "dp", 1.0 MiB, because these are sharded over "dp":
/// 16 x "h.*.w" at m.py:7 (16, 0.9 MiB); "head.w" at m.py:9 (1, 64.0 KiB)`.
std::vector<std::string> foldCollectives(const llvm::json::Object &sent);

/// The `recomputed` of an entry: a line for each line of the model, or for
/// those of which the same ops are recomputed, such as
/// `recomputes in backward at m.py:7: 16 graph.mul (2.0 MiB), 16 graph.add;
/// 2.0 MiB not saved`.
std::vector<std::string> foldRecomputed(const llvm::json::Array &recomputed);

} // namespace cleave

#endif // CLEAVE_LIB_REPORTS_FOLDEDTEXT_H
