//===- NcclElements.h - Types of elements, and their sums -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_FAKE_CUDA_NCCLELEMENTS_H
#define CLEAVE_TEST_FAKE_CUDA_NCCLELEMENTS_H

#include <cstddef>
#include <vector>

namespace fake::nccl {

enum Type {
  I8 = 0,
  U8 = 1,
  I32 = 2,
  U32 = 3,
  I64 = 4,
  U64 = 5,
  F16 = 6,
  F32 = 7,
  F64 = 8,
  BF16 = 9,
  Types
};
inline const char *const typeNames[] = {"i8",  "u8",  "i32", "u32", "i64",
                                        "u64", "f16", "f32", "f64", "bf16"};
inline const size_t typeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
enum Operation { Sum = 0, Max = 2, Min = 3 };

/// Writes the elements [from, to) of `count`, combined from all of `srcs`, to
/// the beginning of each of `dsts`.
void reduce(int type, const std::vector<const char *> &srcs,
            const std::vector<char *> &dsts, size_t from, size_t to,
            size_t count, int operation);

} // namespace fake::nccl

#endif // CLEAVE_TEST_FAKE_CUDA_NCCLELEMENTS_H
