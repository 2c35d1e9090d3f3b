//===- UpdateDelay.cpp - How long updates lag behind gradients ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Transforms/UpdateDelay.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace cleave::graph;

template <typename... Args>
static llvm::Error makeError(const char *format, Args &&...args) {
  return llvm::createStringError(
      llvm::formatv(format, std::forward<Args>(args)...).str());
}

llvm::Expected<UpdateDelay> UpdateDelay::parse(StringRef text) {
  UpdateDelay delay;
  SmallVector<StringRef> parts;
  text.split(parts, ',');
  bool hasDefault = false;
  for (StringRef part : parts) {
    auto [pattern, number] = part.trim().rsplit('=');
    if (!part.contains('=')) {
      if (hasDefault)
        return makeError("'{0}' has two delays for all parameters", text);
      hasDefault = true;
      number = pattern;
      pattern = "*";
    }
    if (pattern == "reduce" && (number == "next" || number == "own")) {
      delay.next = number == "next";
      continue;
    }
    int64_t steps = 0;
    if (pattern.empty() || number.getAsInteger(10, steps))
      return makeError("'{0}' is not a number of steps, nor pattern=number",
                       part.trim());
    if (steps < 0 || steps > kMaxUpdateDelay)
      return makeError("a delay is 0 to {0} steps, not {1}: each takes the "
                       "memory of a gradient",
                       kMaxUpdateDelay, number);
    auto glob = llvm::GlobPattern::create(pattern);
    if (!glob) {
      std::string why = llvm::toString(glob.takeError());
      return makeError("'{0}' is not a pattern of names: {1}", pattern, why);
    }
    Entry entry{pattern.str(), std::move(*glob), steps, !part.contains('=')};
    // What is for all parameters stands behind what is for some.
    delay.entries.insert(entry.used ? delay.entries.begin()
                                    : delay.entries.end(),
                         std::move(entry));
  }
  if (delay.next && !delay.any())
    return makeError("'{0}' delays nothing whose sum could be in the next step",
                     text);
  return delay;
}

int64_t UpdateDelay::of(StringRef name, ArrayAttr aliases) {
  int64_t steps = 0;
  for (Entry &entry : entries) {
    bool matches =
        entry.glob.match(name) ||
        (aliases && llvm::any_of(aliases.getAsValueRange<StringAttr>(),
                                 [&](StringRef alias) {
                                   return entry.glob.match(alias);
                                 }));
    if (!matches)
      continue;
    entry.used = true;
    steps = entry.steps;
  }
  return steps;
}

std::string UpdateDelay::unusedPattern() const {
  auto found =
      llvm::find_if(entries, [](const Entry &entry) { return !entry.used; });
  return found == entries.end() ? "" : found->pattern;
}

bool UpdateDelay::any() const {
  return llvm::any_of(entries,
                      [](const Entry &entry) { return entry.steps > 0; });
}

std::string cleave::graph::updateDelayProblem(StringRef text) {
  llvm::Expected<UpdateDelay> delay = UpdateDelay::parse(text);
  return delay ? "" : llvm::toString(delay.takeError());
}
