//===- JsonDepth.h - How deep JSON is nested --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// LLVM's parser recurses into what is nested, without a limit: what comes from
/// a file is looked at first.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_JSONDEPTH_H
#define CLEAVE_SUPPORT_JSONDEPTH_H

#include "llvm/ADT/StringRef.h"

namespace cleave {

/// What Cleave writes nests about ten deep.
inline constexpr int kMostJsonDepth = 64;

/// Whether arrays and objects in `text` are nested deeper than that.
inline bool isJsonTooDeep(llvm::StringRef text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '{' || c == '[') {
      if (++depth > kMostJsonDepth)
        return true;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i)
        i += text[i] == '\\';
    }
  }
  return false;
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_JSONDEPTH_H
