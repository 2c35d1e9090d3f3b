//===- OpCost.h - The cost of an op -----------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_OPCOST_H
#define CLEAVE_DIALECT_GRAPH_IR_OPCOST_H

#include "llvm/ADT/SmallVector.h"
#include <cstdint>

namespace cleave::graph {

/// The kind of work, which determines the rate at which a device does it.
enum class WorkClass : uint8_t {
  View,        ///< no work when the layout permits
  ElementWise, ///< streams its operands
  RowWise,     ///< streams rows, with reductions along them
  Contraction, ///< matrix multiplication
  Attention,   ///< contractions and row-wise work, blockwise
  Gather       ///< indexed reads or writes
};

/// The cost, as exact integers computed from shapes.
struct OpCost {
  WorkClass work = WorkClass::ElementWise;
  /// Floating-point operations; a multiply-add counts two.
  int64_t flops = 0;
  /// Contraction: the bits of an element of the wider factor.
  unsigned factorBits = 32;
  /// Bytes of operands read and of results written, each once.
  int64_t bytesRead = 0, bytesWritten = 0;
  /// Operands and results that the op's gradient reads.
  llvm::SmallVector<unsigned, 4> savedOperands, savedResults;
};

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_OPCOST_H
