//===- BufferUse.cpp - Which memory commands touch ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "BufferUse.h"
#include "cleave/Runtime/ProgramFields.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave;
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

std::set<int32_t> cleave::buffersOf(const Command &command) {
  BufferCollector collector;
  collector.collect(command);
  return std::move(collector.buffers);
}

bool SharedMemory::meet(const std::set<int32_t> &a,
                        const std::set<int32_t> &b) const {
  auto overlap = [&](int32_t one, int32_t other) {
    return llvm::any_of(actions, [&](const Action *action) {
      int64_t x = action->offsets[one], y = action->offsets[other];
      return x < y + part.buffers[other].bytes &&
             y < x + part.buffers[one].bytes;
    });
  };
  return llvm::any_of(a, [&](int32_t one) {
    return llvm::any_of(
        b, [&](int32_t other) { return one == other || overlap(one, other); });
  });
}

std::vector<std::vector<const Action *>>
cleave::actionsOfParts(const Program &program) {
  std::vector<std::vector<const Action *>> actions(program.parts.size());
  for (const auto &[name, entry] : program.entries)
    for (const Action &action : entry.actions)
      actions[action.part].push_back(&action);
  return actions;
}
