//===- UpdateDelay.h - Updates by gradients of earlier steps ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_TRANSFORMS_UPDATEDELAY_H
#define CLEAVE_DIALECT_GRAPH_TRANSFORMS_UPDATEDELAY_H

#include "mlir/IR/BuiltinAttributes.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/GlobPattern.h"
#include <string>
#include <vector>

namespace cleave::graph {

/// The prefix of the names of state that holds gradients until they are used:
/// "pending_1" is the one of the step before.
inline constexpr llvm::StringLiteral kPendingSlot = "pending_";

/// The largest delay: each step of it takes the memory of a gradient.
inline constexpr int64_t kMaxUpdateDelay = 16;

/// How many steps each update lags behind its gradient.
class UpdateDelay {
public:
  /// Reads a list such as "1,embed*=0,*.bias=2": a number for all parameters,
  /// and numbers for those whose name a pattern matches. "reduce=next" is for
  /// all: ranks sum a gradient in the step behind its own ("reduce=own").
  static llvm::Expected<UpdateDelay> parse(llvm::StringRef text);

  /// The delay in steps of the parameter `name`, which has other names too if
  /// `aliases` is given: that of the last entry that matches, or 0.
  int64_t of(llvm::StringRef name, mlir::ArrayAttr aliases = {});
  /// A pattern that has matched no name given to `of`, or "".
  std::string unusedPattern() const;
  /// Whether some delay is above 0.
  bool any() const;
  /// Whether ranks sum a delayed gradient in the next step.
  bool reducesNext() const { return next; }

private:
  struct Entry {
    std::string pattern;
    llvm::GlobPattern glob;
    int64_t steps = 0;
    bool used = false;
  };
  std::vector<Entry> entries;
  bool next = false;
};

/// Why `text` describes no delay; empty if it does.
std::string updateDelayProblem(llvm::StringRef text);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_TRANSFORMS_UPDATEDELAY_H
