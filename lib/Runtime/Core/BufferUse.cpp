//===- BufferUse.cpp - Memory used by commands ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Core/BufferUse.h"
#include "cleave/Runtime/Core/ProgramFields.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::runtime;

namespace {
/// The buffers that a structure refers to.
struct BufferCollector {
  std::set<int32_t> buffers;

  void collect(const Ref &ref) {
    if (ref.buffer >= 0)
      buffers.insert(ref.buffer);
  }
  template <typename T> void collect(const std::vector<T> &list) {
    for (const T &element : list)
      collect(element);
  }
  template <typename T> void collect(const T &value) {
    if constexpr (requires(Fields<T> &f) { fields(f, &value); }) {
      Fields<T> walk{*this, value};
      fields(walk, &value);
    }
  }

private:
  template <typename T> struct Fields {
    BufferCollector &collector;
    const T &object;

    template <typename Member> void operator()(const char *, Member member) {
      collector.collect(object.*member);
    }
  };
};
} // namespace

std::set<int32_t> cleave::runtime::buffersOf(const Command &command) {
  BufferCollector collector;
  collector.collect(command);
  return std::move(collector.buffers);
}

std::set<int32_t> cleave::runtime::writtenBuffersOf(const Command &command) {
  BufferCollector written;
  switch (command.kind) {
  case CommandKind::Kernel:
    for (size_t i = 0; i < command.kernel.args.size(); ++i)
      if (i % command.kernel.argsOfUse() >=
          static_cast<size_t>(command.kernel.inputs))
        written.collect(command.kernel.args[i]);
    written.collect(command.kernel.scratch);
    break;
  case CommandKind::Contract:
    written.collect(command.contract.c);
    if (command.contract.epilogue == Epilogue::Gelu)
      written.collect(command.contract.beside);
    break;
  case CommandKind::AttentionForward:
    for (const Ref *ref : {&command.attention.o.ref, &command.attention.lse,
                           &command.attention.scratch})
      written.collect(*ref);
    break;
  case CommandKind::AttentionBackward:
    for (const Ref *ref :
         {&command.attention.dQ.ref, &command.attention.dK.ref,
          &command.attention.dV.ref, &command.attention.dBias,
          &command.attention.scratch})
      written.collect(*ref);
    break;
  case CommandKind::ScatterAdd:
    written.collect(command.scatterAdd.out);
    break;
  case CommandKind::Copy:
    written.collect(command.copy.dst);
    break;
  case CommandKind::Fill:
    written.collect(command.fill.dst);
    break;
  case CommandKind::Collective:
    written.collect(command.collective.dst);
    for (const ExchangeBlock &block : command.collective.more)
      written.collect(block.dst);
    break;
  case CommandKind::Fetch:
    written.collect(command.move.memory);
    break;
  case CommandKind::Evict:
    written.collect(command.move.tier);
    break;
  case CommandKind::Check:
  case CommandKind::Wait:
    break;
  }
  return std::move(written.buffers);
}

bool SharedMemory::meet(const std::set<int32_t> &a,
                        const std::set<int32_t> &b) const {
  auto isFixed = [](const Column &column) {
    return column.first.empty() && column.turn.size() == 1 &&
           column.step == 0 && column.last.empty();
  };
  auto overlap = [&](int32_t one, int32_t other) {
    if (part.buffers[one].tier != part.buffers[other].tier)
      return false;
    for (const auto &[rows, count] : runs) {
      const Column &here = rows->columns[one], &there = rows->columns[other];
      int64_t different = isFixed(here) && isFixed(there) ? 1 : count;
      for (int64_t run = 0; run < different; ++run) {
        int64_t x = here.at(run, count), y = there.at(run, count);
        if (x < y + part.buffers[other].bytes &&
            y < x + part.buffers[one].bytes)
          return true;
      }
    }
    return false;
  };
  return llvm::any_of(a, [&](int32_t one) {
    return llvm::any_of(
        b, [&](int32_t other) { return one == other || overlap(one, other); });
  });
}

std::vector<std::vector<PartRuns>>
cleave::runtime::runsOfParts(const Program &program) {
  std::vector<std::vector<PartRuns>> runs(program.parts.size());
  for (const auto &[name, entry] : program.entries) {
    std::vector<int64_t> counts(program.parts.size(), 0);
    for (const Action &action : entry.actions)
      ++counts[action.part];
    for (const Rows &rows : entry.rows)
      runs[rows.part].push_back({&rows, counts[rows.part]});
  }
  return runs;
}
