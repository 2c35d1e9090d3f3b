//===- Bigram.h - A small model by hand -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A program as the code generator would write it, for tests of what runs
/// programs: logits = dropout(E[ids]) * W^T, cross entropy, SGD, two
/// micro-batches. Kernels are in BigramKernels.cpp.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_RUNTIME_BIGRAM_H
#define CLEAVE_TEST_UNIT_RUNTIME_BIGRAM_H

#include "cleave/Executable/Format/Program.h"

namespace cleave::test {

struct BigramShape {
  int64_t batch = 4, length = 32, vocabulary = 64, hidden = 16;
  /// Devices among which the samples of each micro-batch are split, as are the
  /// columns of "out.weight" and of its momentum; 0 for a program without a
  /// mesh.
  int64_t devices = 0;
};

runtime::Program makeBigram(const BigramShape &shape);

} // namespace cleave::test

#endif // CLEAVE_TEST_UNIT_RUNTIME_BIGRAM_H
