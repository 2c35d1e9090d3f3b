//===- CollectivePlan.cpp - Collectives as calls of a library
//---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Cuda/CollectivePlan.h"
#include "cleave/Executable/Cuda/KernelArguments.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Support/RowOffsets.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;
using llvm::Expected;

int32_t cuda::collectiveMembers(const CollectiveCommand &c) {
  return c.isTransfer() ? 2 : static_cast<int32_t>(partCount(c.axes));
}

static bool reduces(const CollectiveCommand &c) {
  return c.collective == CollectiveKind::AllReduce ||
         c.collective == CollectiveKind::ReduceScatter ||
         c.collective == CollectiveKind::Reduce;
}

static bool isFloat(DType type) {
  return type == DType::F64 || type == DType::F32 || type == DType::F16 ||
         type == DType::BF16;
}

bool cuda::sendsRows(const CollectiveCommand &c) {
  return c.collective == CollectiveKind::AllToAllRows;
}

bool cuda::isPlannable(const CollectiveCommand &c) {
  if (sendsRows(c))
    return false;
  return !reduces(c) || (c.dtype != DType::F8E4M3 && c.dtype != DType::F8E5M2);
}

std::string cuda::reductionSymbol(const CollectiveCommand &c) {
  if (!reduces(c) || !isPlannable(c))
    return "";
  return "cleave_reduce_" + dtypeName(c.dtype).str() + "_" +
         (c.reduction == ReductionKind::Sum   ? "sum"
          : c.reduction == ReductionKind::Max ? "max"
                                              : "min");
}

namespace {

/// Plans one collective.
class Planner {
public:
  Planner(const CollectiveCommand &command, const CollectiveMember &where)
      : c(command), where(where), members(collectiveMembers(command)),
        elementBytes(byteSize(command.dtype)) {}

  Error add(CollectiveBlock block);

  CollectivePlan plan;
  /// Of staging memory.
  int64_t used = 0;

private:
  using List = std::vector<int64_t>;
  struct Received {
    uint64_t at = 0;
    std::vector<Launch> after;
  };

  uint64_t stage(int64_t bytes) {
    int64_t at = used;
    used += (bytes + 255) / 256 * 256;
    return where.staging + static_cast<uint64_t>(at);
  }
  uint64_t move(uint64_t at, int64_t elements) const {
    return at + static_cast<uint64_t>(elements * elementBytes);
  }
  uint64_t at(const Ref &ref) const {
    return ref.buffer < 0 ? 0 : where.at(ref);
  }
  bool isDense(const List &strides, const List &offsets) const;
  Error copy(std::vector<Launch> &to, uint64_t src, const List &srcStrides,
             uint64_t dst, const List &dstStrides) const;
  /// Where all blocks that this member sends are one after the other.
  Expected<uint64_t> pack(const CollectiveBlock &block);
  /// Where blocks arrive one after the other, and how they come to their place.
  /// `from` is memory that may be used, or 0.
  Expected<Received> unpack(const CollectiveBlock &block, uint64_t from);
  Error reduce(const CollectiveBlock &block);
  Error exchange(const CollectiveBlock &block);
  void order(std::vector<Launch> &to, const char *name, uint64_t src,
             uint64_t dst, int64_t count) const;
  void call(CollectiveCall::Kind kind, uint64_t src, uint64_t dst,
            int64_t count, int32_t peer = 0) {
    plan.calls.push_back({kind, src, dst, count, c.dtype, c.reduction, peer});
  }

  const CollectiveCommand &c;
  const CollectiveMember &where;
  int32_t members;
  int64_t elementBytes;
  /// Of the block.
  List sizes, dense;
  int64_t elements = 1;
};

} // namespace

//===----------------------------------------------------------------------===//
// Packing
//===----------------------------------------------------------------------===//

/// Whether blocks at these offsets, or the only one, are one piece in order.
bool Planner::isDense(const List &strides, const List &offsets) const {
  for (auto [i, size] : llvm::enumerate(sizes))
    if (size != 1 && strides[i] != dense[i])
      return false;
  for (size_t i = 1; i < offsets.size(); ++i)
    if (offsets[i] != offsets[i - 1] + elements)
      return false;
  return true;
}

Error Planner::copy(std::vector<Launch> &to, uint64_t src,
                    const List &srcStrides, uint64_t dst,
                    const List &dstStrides) const {
  Command command;
  command.kind = CommandKind::Copy;
  command.copy.src.buffer = 0;
  command.copy.dst.buffer = 1;
  command.copy.elementBytes = elementBytes;
  command.copy.sizes = sizes;
  command.copy.srcStrides = srcStrides;
  command.copy.dstStrides = dstStrides;
  auto find = [&](const Ref &ref) { return ref.buffer == 0 ? src : dst; };
  Expected<std::vector<Launch>> launches = planLaunches(command, {find});
  if (!launches)
    return launches.takeError();
  llvm::move(*launches, std::back_inserter(to));
  return Error::success();
}

Expected<uint64_t> Planner::pack(const CollectiveBlock &block) {
  List offsets = block.srcOffsets.empty() ? List{0} : block.srcOffsets;
  uint64_t src = at(block.src);
  if (isDense(block.srcStrides, offsets))
    return move(src, offsets[0]);
  auto count = static_cast<int64_t>(offsets.size());
  uint64_t packed = stage(count * elements * elementBytes);
  for (auto [i, offset] : llvm::enumerate(offsets))
    if (Error error =
            copy(plan.before, move(src, offset), block.srcStrides,
                 move(packed, static_cast<int64_t>(i) * elements), dense))
      return error;
  return packed;
}

Expected<Planner::Received> Planner::unpack(const CollectiveBlock &block,
                                            uint64_t from) {
  List offsets = block.dstOffsets.empty() ? List{0} : block.dstOffsets;
  uint64_t dst = at(block.dst);
  if (isDense(block.dstStrides, offsets))
    return Received{move(dst, offsets[0]), {}};
  auto count = static_cast<int64_t>(offsets.size());
  Received received{from ? from : stage(count * elements * elementBytes), {}};
  for (auto [i, offset] : llvm::enumerate(offsets))
    if (Error error =
            copy(received.after,
                 move(received.at, static_cast<int64_t>(i) * elements), dense,
                 move(dst, offset), block.dstStrides))
      return error;
  return received;
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

/// Between floats and integers of the same order, in which NaN is first or
/// last.
void Planner::order(std::vector<Launch> &to, const char *name, uint64_t src,
                    uint64_t dst, int64_t count) const {
  OrderArguments a{};
  a.src = reinterpret_cast<const void *>(src);
  a.dst = reinterpret_cast<void *>(dst);
  a.count = count;
  a.least = c.reduction == ReductionKind::Min;
  a.infinity = c.dtype == DType::F64    ? 0x7ff0000000000000
               : c.dtype == DType::F32  ? 0x7f800000
               : c.dtype == DType::BF16 ? 0x7f80
                                        : 0x7c00;
  Launch &launch = to.emplace_back();
  launch.symbol =
      std::string("cleave_") + name + "_order_" + std::to_string(elementBytes);
  launch.grid[0] = static_cast<uint32_t>((count + 1023) / 1024);
  launch.block = 256;
  launch.add(a);
}

Error Planner::reduce(const CollectiveBlock &block) {
  bool scatters = c.collective == CollectiveKind::ReduceScatter;
  bool receives =
      c.collective != CollectiveKind::Reduce || where.member == c.root;
  CollectiveCall::Kind kind = scatters ? CollectiveCall::ReduceScatter
                              : c.collective == CollectiveKind::Reduce
                                  ? CollectiveCall::Reduce
                                  : CollectiveCall::AllReduce;
  int64_t before = used;
  Expected<uint64_t> src = pack(block);
  if (!src)
    return src.takeError();
  // What is combined may replace what is sent, in staging memory.
  bool staged = used > before;
  Expected<Received> dst = unpack(block, staged && !scatters ? *src : 0);
  if (!dst)
    return dst.takeError();
  int64_t sent = scatters ? members * elements : elements;
  if (c.reduction == ReductionKind::Sum || !isFloat(c.dtype) ||
      where.reducesFloats) {
    call(kind, *src, receives ? dst->at : 0, elements, c.root);
  } else {
    // The library does not say what a maximum with NaN is.
    int64_t wide = std::max<int64_t>(elementBytes, 4);
    uint64_t ordered = stage(sent * wide);
    uint64_t result = scatters ? stage(elements * wide) : ordered;
    order(plan.before, "to", *src, ordered, sent);
    call(kind, ordered, receives ? result : 0, elements, c.root);
    plan.calls.back().dtype = wide == 8 ? DType::I64 : DType::I32;
    if (receives)
      order(plan.after, "from", result, dst->at, elements);
  }
  if (receives)
    llvm::move(dst->after, std::back_inserter(plan.after));
  return Error::success();
}

//===----------------------------------------------------------------------===//
// Exchanges
//===----------------------------------------------------------------------===//

Error Planner::exchange(const CollectiveBlock &block) {
  int32_t me = where.member;
  bool sends = c.collective != CollectiveKind::Receive,
       receives = c.collective != CollectiveKind::Send;
  uint64_t src = 0;
  Received dst;
  if (sends) {
    Expected<uint64_t> packed = pack(block);
    if (!packed)
      return packed.takeError();
    src = *packed;
  }
  if (receives) {
    Expected<Received> unpacked = unpack(block, 0);
    if (!unpacked)
      return unpacked.takeError();
    dst = std::move(*unpacked);
  }
  switch (c.collective) {
  case CollectiveKind::AllGather:
    call(CollectiveCall::AllGather, src, dst.at, elements);
    break;
  case CollectiveKind::Broadcast:
    call(CollectiveCall::Broadcast, src, dst.at, elements, c.root);
    break;
  case CollectiveKind::AllToAll:
    for (int32_t other = 0; other < members; ++other) {
      call(CollectiveCall::Send, move(src, other * elements), 0, elements,
           other);
      call(CollectiveCall::Receive, 0, move(dst.at, other * elements), elements,
           other);
    }
    break;
  case CollectiveKind::Permute:
    for (int32_t other = 0; other < members; ++other)
      if (c.sources[static_cast<size_t>(other)] == me)
        call(CollectiveCall::Send, src, 0, elements, other);
    call(CollectiveCall::Receive, 0, dst.at, elements,
         c.sources[static_cast<size_t>(me)]);
    break;
  case CollectiveKind::Send:
    call(CollectiveCall::Send, src, 0, elements, 1);
    break;
  case CollectiveKind::Receive:
    call(CollectiveCall::Receive, 0, dst.at, elements, 0);
    break;
  default:
    return makeError("unknown collective");
  }
  llvm::move(dst.after, std::back_inserter(plan.after));
  return Error::success();
}

Error Planner::add(CollectiveBlock block) {
  // Members agree on the strides, except of transfers: then any order of the
  // dimensions is one order of the elements.
  if (!c.isTransfer() && block.srcStrides == block.dstStrides) {
    llvm::SmallVector<size_t, 8> by(block.sizes.size());
    std::iota(by.begin(), by.end(), 0);
    llvm::sort(by, [&](size_t a, size_t b) {
      return block.srcStrides[a] != block.srcStrides[b]
                 ? block.srcStrides[a] > block.srcStrides[b]
                 : a < b;
    });
    List ordered, strides;
    for (size_t i : by) {
      ordered.push_back(block.sizes[i]);
      strides.push_back(block.srcStrides[i]);
    }
    block.sizes = ordered;
    block.srcStrides = block.dstStrides = strides;
  }
  sizes = block.sizes;
  dense.assign(sizes.size(), 1);
  elements = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    dense[i] = elements;
    elements *= sizes[i];
  }
  if (elements == 0)
    return Error::success();
  return reduces(c) ? reduce(block) : exchange(block);
}

Expected<CollectivePlan> cuda::planCollective(const CollectiveCommand &command,
                                              const CollectiveMember &where) {
  if (sendsRows(command))
    return makeError("values say how many rows go to whom");
  if (!isPlannable(command))
    return makeError("the library reduces no floats of 8 bits");
  Planner planner(command, where);
  if (Error error = planner.add(command))
    return error;
  for (const CollectiveBlock &block : command.more)
    if (Error error = planner.add(block))
      return error;
  return std::move(planner.plan);
}

//===----------------------------------------------------------------------===//
// Staging memory
//===----------------------------------------------------------------------===//

int64_t cuda::collectiveStagingBytes(const CollectiveCommand &command) {
  // The offsets of one member and of all.
  if (sendsRows(command)) {
    int32_t members = collectiveMembers(command);
    return 8 * RowOffsets::count(members) * (members + 1);
  }
  if (!isPlannable(command))
    return 0;
  // It depends neither on the member nor on addresses.
  auto at = [](const Ref &) { return uint64_t(1) << 20; };
  CollectiveMember where{0, at, uint64_t(1) << 20};
  Planner planner(command, where);
  llvm::consumeError(planner.add(command));
  for (const CollectiveBlock &block : command.more)
    llvm::consumeError(planner.add(block));
  return planner.used;
}

CollectiveStaging::Key CollectiveStaging::keyOf(const CollectiveCommand &c) {
  if (!c.isTransfer())
    return {CollectiveKind::AllReduce, 0, {}};
  std::vector<int64_t> axes;
  for (const Digit &digit : c.axes)
    axes.insert(axes.end(), {digit.axis, digit.pre, digit.size});
  return {c.collective, c.root, std::move(axes)};
}

CollectiveStaging::CollectiveStaging(const Program &program) {
  std::map<Key, int64_t> largest;
  for (const Part &part : program.parts)
    for (const Command &command : part.commands)
      if (command.kind == CommandKind::Collective) {
        // The library's first use of a group needs a few bytes.
        int64_t &own = largest[keyOf(command.collective)];
        own = std::max(
            {own, int64_t(256), collectiveStagingBytes(command.collective)});
      }
  for (const auto &[key, size] : largest) {
    offsets[key] = bytes;
    bytes += size;
  }
}

int64_t CollectiveStaging::offsetOf(const CollectiveCommand &command) const {
  auto it = offsets.find(keyOf(command));
  return it == offsets.end() ? 0 : it->second;
}
