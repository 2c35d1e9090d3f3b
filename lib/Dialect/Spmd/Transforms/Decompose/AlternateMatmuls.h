//===- AlternateMatmuls.h - Products whose steps alternate -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_ALTERNATEMATMULS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_ALTERNATEMATMULS_H

#include "ContractionSteps.h"

namespace cleave::spmd {

/// Products whose steps alternate, in their order.
using AlternatingProducts = llvm::SmallVector<ContractionSteps *, 3>;

/// Decides which products of a block have steps that alternate: those that
/// receive the same parts, where no product has to be moved past other work.
/// `products` are in the order of the block. Moves the products of a group next
/// to each other. Products that receive the same parts but are in no group
/// receive them separately, except for held operands.
std::vector<AlternatingProducts>
findAlternatingProducts(llvm::MutableArrayRef<ContractionSteps> products);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_ALTERNATEMATMULS_H
