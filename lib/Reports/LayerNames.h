//===- LayerNames.h - Names that differ in a layer's number -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_REPORTS_LAYERNAMES_H
#define CLEAVE_LIB_REPORTS_LAYERNAMES_H

#include "llvm/ADT/StringRef.h"
#include <string>

namespace cleave {

/// Replaces the numbered components of names in a text: `h.3.mlp.w` becomes
/// `h.*.mlp.w`. A text without such a name stays.
std::string foldLayers(llvm::StringRef text);

/// The numbered components of names in a text, as one key: `3` of `h.3.mlp.w`;
/// empty if there is none.
std::string layerOf(llvm::StringRef text);

} // namespace cleave

#endif // CLEAVE_LIB_REPORTS_LAYERNAMES_H
