//===- Placement.h - Which rank holds what ----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A program is the same for every device; what a rank holds of each tensor
/// follows from its number, that of its device.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_PLACEMENT_H
#define CLEAVE_RUNTIME_PLACEMENT_H

#include "cleave/Runtime/Program.h"

namespace cleave::runtime {

/// The number of devices: positions on the axes that are not sequential.
int64_t deviceCount(const std::vector<MeshAxis> &mesh);

/// The position of the pipeline of which a rank is one.
int64_t positionOf(const Program &program, int64_t rank);

/// What the digits say, major to minor, for a rank.
int64_t partIndex(const std::vector<MeshAxis> &mesh,
                  const std::vector<Digit> &digits, int64_t rank);

/// The product of the sizes of digits.
int64_t partCount(const std::vector<Digit> &digits);

/// The ranks that differ from `rank` in nothing but `digits`, itself included,
/// in the order of what the digits say.
std::vector<int32_t> groupOf(const std::vector<MeshAxis> &mesh,
                             const std::vector<Digit> &digits, int64_t rank);

int64_t evaluate(const std::vector<MeshAxis> &mesh, const DeviceValue &value,
                 int64_t rank);

/// "dp", "dp,tp:(1)2": digits for people.
std::string axesText(const std::vector<MeshAxis> &mesh,
                     const std::vector<Digit> &digits);

/// The shape of the part of `tensor` that each rank holds, padding included.
std::vector<int64_t> localShape(const std::vector<MeshAxis> &mesh,
                                const Tensor &tensor);
/// Its bytes; those of the whole tensor when it is not split.
int64_t localBytes(const std::vector<MeshAxis> &mesh, const Tensor &tensor);

/// Whether each rank holds just the whole tensor.
bool isWhole(const std::vector<MeshAxis> &mesh, const Tensor &tensor);

/// Which of the distinct parts of `tensor` a rank holds; ranks with the same
/// number hold the same.
int64_t partOf(const std::vector<MeshAxis> &mesh, const Tensor &tensor,
               int64_t rank);

/// Copies the part of a rank out of the whole tensor, or back into it. Padding
/// is in parts alone: it is zero in what is cut, and left out of what is
/// joined.
void cutPart(const std::vector<MeshAxis> &mesh, const Tensor &tensor,
             int64_t rank, const void *whole, void *part);
void joinPart(const std::vector<MeshAxis> &mesh, const Tensor &tensor,
              int64_t rank, const void *part, void *whole);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_PLACEMENT_H
