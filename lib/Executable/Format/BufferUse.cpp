//===- BufferUse.cpp - Memory used by commands ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/BufferUse.h"
#include "cleave/Executable/Format/ProgramFields.h"
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
    for (const Ref *ref : {&command.attention.dQ.ref, &command.attention.dK.ref,
                           &command.attention.dV.ref, &command.attention.dBias,
                           &command.attention.scratch})
      written.collect(*ref);
    break;
  case CommandKind::ScatterAdd:
    written.collect(command.scatterAdd.out);
    break;
  case CommandKind::TopK:
    for (const Ref *ref :
         {&command.topK.values, &command.topK.indices, &command.topK.scratch})
      written.collect(*ref);
    break;
  case CommandKind::Orthonormalize:
    written.collect(command.orthonormalize.out);
    written.collect(command.orthonormalize.scratch);
    break;
  case CommandKind::SortRows:
    for (const Ref *ref : {&command.sortRows.order, &command.sortRows.inverse,
                           &command.sortRows.offsets})
      written.collect(*ref);
    break;
  case CommandKind::GroupedContract:
    written.collect(command.groupedContract.out);
    written.collect(command.groupedContract.scratch);
    break;
  case CommandKind::Copy:
    written.collect(command.copy.dst);
    break;
  case CommandKind::Fill:
    written.collect(command.fill.dst);
    break;
  case CommandKind::Collective:
    written.collect(command.collective.dst);
    for (const CollectiveBlock &block : command.collective.more)
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

/// The bytes from the first to the last of `elements` elements of a reference.
static BufferRange bytesAt(const Ref &ref, int64_t first, int64_t elements,
                           DType type, bool written) {
  int64_t begin = ref.offset + first * byteSize(type);
  return {ref.buffer, begin, begin + elements * byteSize(type), written};
}

static BufferRange wholeBuffer(const Part &part, int32_t buffer, bool written) {
  return {buffer, 0, part.buffers[static_cast<size_t>(buffer)].bytes, written};
}

std::vector<BufferRange>
cleave::runtime::rangesOf(const Part &part, const CollectiveCommand &command,
                          Ref CollectiveBlock::*end) {
  bool sends = end == &CollectiveBlock::src;
  bool isPlain = command.collective == CollectiveKind::AllReduce ||
                 command.collective == CollectiveKind::AllGather ||
                 command.collective == CollectiveKind::ReduceScatter;
  std::vector<BufferRange> ranges;
  auto add = [&](const CollectiveBlock &block) {
    const Ref &ref = block.*end;
    if (ref.buffer < 0)
      return;
    if (!isPlain) {
      ranges.push_back(wholeBuffer(part, ref.buffer, !sends));
      return;
    }
    const std::vector<int64_t> &strides =
        sends ? block.srcStrides : block.dstStrides;
    const std::vector<int64_t> &offsets =
        sends ? block.srcOffsets : block.dstOffsets;
    int64_t elements = 1, first = 0, last = 0;
    for (auto [size, stride] : llvm::zip(block.sizes, strides)) {
      if (size == 0)
        return;
      elements += (size - 1) * stride;
    }
    if (!offsets.empty()) {
      first = *std::min_element(offsets.begin(), offsets.end());
      last = *std::max_element(offsets.begin(), offsets.end());
    }
    ranges.push_back(
        bytesAt(ref, first, last - first + elements, command.dtype, !sends));
  };
  add(command);
  for (const CollectiveBlock &block : command.more)
    add(block);
  if (sends)
    for (const Ref *ref : {&command.sendOffsets, &command.receiveOffsets})
      if (ref->buffer >= 0)
        ranges.push_back(wholeBuffer(part, ref->buffer, /*written=*/false));
  return ranges;
}

/// What a product uses.
static std::vector<BufferRange> rangesOf(const ContractCommand &c) {
  std::vector<BufferRange> ranges;
  auto add = [&](const Ref &ref, int64_t rows, int64_t columns, int64_t stride,
                 int64_t batchStride, DType type, bool written) {
    if (ref.buffer >= 0 && rows > 0 && columns > 0 && c.batch > 0)
      ranges.push_back(bytesAt(
          ref, 0, (c.batch - 1) * batchStride + (rows - 1) * stride + columns,
          type, written));
  };
  add(c.a, c.transA ? c.k : c.m, c.transA ? c.m : c.k, c.lda, c.batchStrideA,
      c.type, false);
  add(c.b, c.transB ? c.n : c.k, c.transB ? c.k : c.n, c.ldb, c.batchStrideB,
      c.typeB, false);
  add(c.c, c.m, c.n, c.ldc, c.batchStrideC, c.resultType, true);
  add(c.bias, 1, c.n, c.n, 0, c.resultType, false);
  add(c.beside, c.m, c.n, c.ldBeside, 0, c.resultType,
      c.epilogue == Epilogue::Gelu);
  return ranges;
}

std::vector<BufferRange> cleave::runtime::rangesOf(const Part &part,
                                                   const Command &command) {
  if (command.kind == CommandKind::Contract)
    return ::rangesOf(command.contract);
  if (command.kind == CommandKind::Collective) {
    std::vector<BufferRange> ranges =
        rangesOf(part, command.collective, &CollectiveBlock::src);
    llvm::append_range(
        ranges, rangesOf(part, command.collective, &CollectiveBlock::dst));
    return ranges;
  }
  std::vector<BufferRange> ranges;
  std::set<int32_t> written = writtenBuffersOf(command);
  for (int32_t buffer : buffersOf(command))
    ranges.push_back(wholeBuffer(part, buffer, written.count(buffer) > 0));
  return ranges;
}

bool SharedMemory::overlap(const BufferRange &one,
                           const BufferRange &other) const {
  if (one.buffer == other.buffer)
    return one.begin < other.end && other.begin < one.end;
  if (part.buffers[one.buffer].tier != part.buffers[other.buffer].tier)
    return false;
  auto isFixed = [](const Column &column) {
    return column.first.empty() && column.turn.size() == 1 &&
           column.step == 0 && column.last.empty();
  };
  for (const auto &[rows, count] : runs) {
    const Column &here = rows->columns[one.buffer],
                 &there = rows->columns[other.buffer];
    int64_t different = isFixed(here) && isFixed(there) ? 1 : count;
    for (int64_t run = 0; run < different; ++run) {
      int64_t x = here.at(run, count), y = there.at(run, count);
      if (x + one.begin < y + other.end && y + other.begin < x + one.end)
        return true;
    }
  }
  return false;
}

bool SharedMemory::meet(const std::vector<BufferRange> &a,
                        const std::vector<BufferRange> &b) const {
  return llvm::any_of(a, [&](const BufferRange &one) {
    return llvm::any_of(
        b, [&](const BufferRange &other) { return overlap(one, other); });
  });
}

bool SharedMemory::meet(const std::set<int32_t> &a,
                        const std::set<int32_t> &b) const {
  return llvm::any_of(a, [&](int32_t one) {
    return llvm::any_of(b, [&](int32_t other) {
      return one == other || overlap(wholeBuffer(part, one, false),
                                     wholeBuffer(part, other, false));
    });
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
