//===- Hooks.h - What other fakes ask of the fake driver --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_FAKE_CUDA_HOOKS_H
#define CLEAVE_TEST_FAKE_CUDA_HOOKS_H

#include <cstdint>

extern "C" {
/// Where an address of the device is in the host's memory; null if nowhere.
void *cleave_fake_host(uint64_t device);

/// The bytes from an address of the device to the end of its allocation.
uint64_t cleave_fake_room(uint64_t device);

/// Appends `run(data)` to a stream; `drop(data)` follows the last run, which in
/// a graph may be none. The driver is not locked meanwhile. `text` is for the
/// record, as "gemm m=8", and for the message of a fault. `ready(data)`, where
/// given, keeps the op from its turn until it holds; it is called with the
/// driver locked. Returns an error of the driver's.
int cleave_fake_enqueue_op(void *stream, const char *text,
                           bool (*ready)(void *), void (*run)(void *),
                           void *data, void (*drop)(void *));

int cleave_fake_enqueue(void *stream, void (*run)(void *), void *data,
                        void (*drop)(void *));
}

#endif // CLEAVE_TEST_FAKE_CUDA_HOOKS_H
