//===- Emulation.cpp - CUDA kernels on one thread -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Emulation.h"
#include <map>
#include <memory>
#include <ucontext.h>
#include <vector>

Index threadIdx, blockIdx;
char shared[256 << 10];
char emulationSlots[1024][16];

namespace {
struct Barrier {
  int arrived = 0, generation = 0;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false;
};

std::vector<Fiber> fibers;
std::map<int, Barrier> barriers;
ucontext_t scheduler;
unsigned current;
void (*kernelBody)(void *);
void *kernelData;

void start() {
  kernelBody(kernelData);
  fibers[current].done = true;
}
} // namespace

void emulationWait(int id, int count) {
  Barrier &barrier = barriers[id];
  if (count < 0)
    count = fibers.size();
  int generation = barrier.generation;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  while (barrier.generation == generation)
    swapcontext(&fibers[current].context, &scheduler);
}

void emulate(int blocks, int threads, void (*body)(void *), void *data) {
  constexpr size_t stackBytes = 64 << 10;
  kernelBody = body;
  kernelData = data;
  for (int block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    barriers.clear();
    // What a block leaves in shared memory is nothing for the next to use.
    memset(shared, 0xff, sizeof shared);
    if (fibers.size() != size_t(threads))
      fibers = std::vector<Fiber>(threads);
    for (Fiber &fiber : fibers) {
      if (!fiber.stack)
        fiber.stack.reset(new char[stackBytes]);
      fiber.done = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = stackBytes;
      fiber.context.uc_link = &scheduler;
      makecontext(&fiber.context, start, 0);
    }
    for (bool alive = true; alive;) {
      alive = false;
      for (current = 0; current < fibers.size(); ++current) {
        if (fibers[current].done)
          continue;
        threadIdx.x = current;
        swapcontext(&scheduler, &fibers[current].context);
        alive |= !fibers[current].done;
      }
    }
  }
}
