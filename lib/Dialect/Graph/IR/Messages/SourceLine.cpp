//===- SourceLine.cpp - Source lines of a model ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "llvm/Support/Path.h"

using namespace mlir;

std::string cleave::sourceLine(Location loc) {
  if (auto file = dyn_cast<FileLineColLoc>(loc))
    return (llvm::sys::path::filename(file.getFilename().getValue()) + ":" +
            Twine(file.getLine()))
        .str();
  if (auto name = dyn_cast<NameLoc>(loc)) {
    std::string child = sourceLine(name.getChildLoc());
    return child.empty() ? name.getName().str() : child;
  }
  if (auto call = dyn_cast<CallSiteLoc>(loc))
    return sourceLine(call.getCallee());
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (Location part : fused.getLocations())
      if (std::string text = sourceLine(part); !text.empty())
        return text;
  return "";
}

std::optional<int64_t> cleave::checkpointRegion(Location loc) {
  std::optional<int64_t> region;
  loc->walk([&](Location part) {
    int64_t number;
    auto name = dyn_cast<NameLoc>(part);
    StringRef text = name ? name.getName().getValue() : StringRef();
    if (!text.consume_front("graph.checkpoint ") ||
        text.getAsInteger(10, number))
      return WalkResult::advance();
    region = number;
    return WalkResult::interrupt();
  });
  return region;
}
