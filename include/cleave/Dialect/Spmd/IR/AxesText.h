//===- AxesText.h - Axes in messages ----------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_AXESTEXT_H
#define CLEAVE_DIALECT_SPMD_IR_AXESTEXT_H

#include "cleave/Dialect/Spmd/IR/Axes.h"

namespace cleave::spmd {

/// `"dp", "tp"`
inline std::string listAxes(llvm::ArrayRef<AxisRef> axes) {
  std::string text;
  for (const AxisRef &axis : axes)
    text += (text.empty() ? "" : ", ") + axis.str();
  return text;
}

/// `{"dp", "tp"}`
inline std::string setOfAxes(llvm::ArrayRef<AxisRef> axes) {
  return "{" + listAxes(axes) + "}";
}

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_AXESTEXT_H
