//===- Requests.cpp - The collectives of a program ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Communicator/Requests.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"

#include <numeric>
#include <set>

using namespace cleave::runtime;

//===----------------------------------------------------------------------===//
// Requests
//===----------------------------------------------------------------------===//

// The communicator and the program number element types and kinds alike.
static_assert(
    static_cast<int>(DType::I1) == CLEAVE_I1 &&
    static_cast<int>(DType::BF16) == CLEAVE_BF16 &&
    static_cast<int>(DType::F8E5M2) == CLEAVE_F8E5M2 &&
    static_cast<int>(ReductionKind::Min) == CLEAVE_MIN &&
    static_cast<int>(ReductionKind::Sum) == CLEAVE_SUM &&
    static_cast<int>(CollectiveKind::AllReduce) == CLEAVE_ALL_REDUCE &&
    static_cast<int>(CollectiveKind::AllGather) == CLEAVE_ALL_GATHER &&
    static_cast<int>(CollectiveKind::ReduceScatter) == CLEAVE_REDUCE_SCATTER &&
    static_cast<int>(CollectiveKind::AllToAll) == CLEAVE_ALL_TO_ALL &&
    static_cast<int>(CollectiveKind::Broadcast) == CLEAVE_BROADCAST &&
    static_cast<int>(CollectiveKind::Reduce) == CLEAVE_REDUCE &&
    static_cast<int>(CollectiveKind::Send) == CLEAVE_SEND);

llvm::Expected<cleave_group *>
Requests::groupFor(const std::vector<int32_t> &ranks) {
  cleave_group *&group = groups[ranks];
  if (!group)
    group = communicator->api->group(communicator, ranks.data(),
                                     static_cast<int32_t>(ranks.size()));
  if (!group)
    return makeError(communicator->api->error(communicator));
  return group;
}

llvm::Expected<cleave_request *>
Requests::prepare(const std::vector<int32_t> &ranks,
                  llvm::ArrayRef<cleave_collective> blocks) {
  llvm::Expected<cleave_group *> group = groupFor(ranks);
  if (!group)
    return group.takeError();
  cleave_request *request = communicator->api->prepare(
      *group, blocks.data(), static_cast<int32_t>(blocks.size()));
  if (!request)
    return makeError(communicator->api->error(communicator));
  requests.emplace_back(request, communicator->api->release);
  return request;
}

llvm::Expected<cleave_request *>
Requests::prepare(const CollectiveCommand &c,
                  llvm::function_ref<char *(Ref)> at) {
  llvm::SmallVector<cleave_collective, 1> blocks;
  bool rows = c.collective == CollectiveKind::AllToAllRows;
  auto add = [&](const CollectiveBlock &block) {
    cleave_collective &what = blocks.emplace_back();
    what.kind = c.isTransfer() ? CLEAVE_SEND
                : rows         ? CLEAVE_ALL_TO_ALL_ROWS
                               : static_cast<int32_t>(c.collective);
    what.reduction = static_cast<int32_t>(c.reduction);
    what.dtype = static_cast<int32_t>(c.dtype);
    what.sources = c.sources.empty() ? nullptr : c.sources.data();
    what.root = c.root;
    what.dims = static_cast<int32_t>(block.sizes.size());
    llvm::copy(block.sizes, what.sizes);
    llvm::copy(block.srcStrides, what.src_strides);
    llvm::copy(block.dstStrides, what.dst_strides);
    what.src = at(block.src);
    what.dst = at(block.dst);
    if (!block.srcOffsets.empty())
      what.src_offsets = block.srcOffsets.data();
    if (!block.dstOffsets.empty())
      what.dst_offsets = block.dstOffsets.data();
  };
  add(c);
  llvm::for_each(c.more, add);
  if (c.isTransfer())
    for (cleave_collective &what : blocks)
      what.root = 0;
  if (rows) {
    blocks[0].send_offsets =
        reinterpret_cast<const int64_t *>(at(c.sendOffsets));
    blocks[0].receive_offsets =
        reinterpret_cast<const int64_t *>(at(c.receiveOffsets));
    blocks[0].bound = c.bound;
  }
  return prepare(membersOf(c), blocks);
}

std::vector<int32_t> Requests::membersOf(const CollectiveCommand &c) const {
  std::vector<int32_t> members =
      groupOf(program->mesh, c.axes, communicator->rank);
  if (!c.isTransfer())
    return members;
  int32_t other = members[static_cast<size_t>(c.root)];
  if (c.collective == CollectiveKind::Send)
    return {communicator->rank, other};
  return {other, communicator->rank};
}

std::vector<int32_t> Requests::everyone() const {
  std::vector<int32_t> ranks(static_cast<size_t>(communicator->size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

llvm::Error Requests::makeGroups() {
  std::set<std::vector<int32_t>> all;
  for (const Part &part : program->parts)
    for (const Command &command : part.commands) {
      if (command.kind == CommandKind::Collective)
        all.insert(membersOf(command.collective));
      if (command.kind == CommandKind::Check && !command.check.deferred)
        all.insert(everyone());
    }
  for (const std::vector<int32_t> &ranks : all) {
    llvm::Expected<cleave_group *> group = groupFor(ranks);
    if (!group)
      return group.takeError();
  }
  return llvm::Error::success();
}

llvm::Expected<cleave_request *> Requests::prepareAgreement(const char *flag,
                                                            char *agreed) {
  cleave_collective what{};
  what.kind = CLEAVE_ALL_REDUCE;
  what.reduction = CLEAVE_MIN;
  what.dtype = CLEAVE_I1;
  what.src = flag;
  what.dst = agreed;
  return prepare(everyone(), what);
}

llvm::Error Requests::runOnce(const std::vector<int32_t> &ranks,
                              const cleave_collective &what) {
  llvm::Expected<cleave_group *> group = groupFor(ranks);
  if (!group)
    return group.takeError();
  const cleave_communicator_api &api = *communicator->api;
  cleave_request *request = api.prepare(*group, &what, 1);
  // The barrier ends what it compares.
  bool failed = !request || api.start(request) || api.wait(request) ||
                api.barrier(*group);
  if (request)
    api.release(request);
  return failed ? makeError(api.error(communicator)) : llvm::Error::success();
}

llvm::Expected<std::string> Requests::gather(llvm::StringRef own) {
  std::vector<int32_t> ranks = everyone();
  std::string all(own.size() * ranks.size(), '\0');
  std::vector<int64_t> offsets;
  for (size_t i = 0; i < ranks.size(); ++i)
    offsets.push_back(static_cast<int64_t>(i * own.size()));
  cleave_collective what{};
  what.kind = CLEAVE_ALL_GATHER;
  what.dtype = CLEAVE_I8;
  what.dims = 1;
  what.sizes[0] = static_cast<int64_t>(own.size());
  what.src_strides[0] = what.dst_strides[0] = 1;
  what.src = own.data();
  what.dst = all.data();
  what.dst_offsets = offsets.data();
  if (llvm::Error error = runOnce(ranks, what))
    return error;
  return all;
}

llvm::Error Requests::broadcast(const std::vector<int32_t> &ranks,
                                llvm::MutableArrayRef<char> bytes) {
  std::string own(bytes.begin(), bytes.end());
  cleave_collective what{};
  what.kind = CLEAVE_BROADCAST;
  what.dtype = CLEAVE_I8;
  what.dims = 1;
  what.sizes[0] = static_cast<int64_t>(bytes.size());
  what.src_strides[0] = what.dst_strides[0] = 1;
  what.src = own.data();
  what.dst = bytes.data();
  return runOnce(ranks, what);
}

llvm::Error Requests::compare() const {
  // All ranks create the groups that they share in one order.
  for (const auto &[ranks, group] : groups)
    if (communicator->api->barrier(group) != 0)
      return makeError(communicator->api->error(communicator));
  return llvm::Error::success();
}

//===----------------------------------------------------------------------===//
// What is sent
//===----------------------------------------------------------------------===//

/// The elements that a rank sends.
static double elementsSent(const Program &program, int rank,
                           const CollectiveCommand &c) {
  int64_t members = partCount(c.axes);
  double block = static_cast<double>(c.elements()), sent = 0;
  switch (c.collective) {
  case CollectiveKind::AllReduce:
    sent = static_cast<double>(2 * (members - 1)) * block /
           static_cast<double>(members);
    break;
  case CollectiveKind::AllGather:
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::AllToAll:
    sent = static_cast<double>(members - 1) * block;
    break;
  case CollectiveKind::Permute: {
    int64_t me = partIndex(program.mesh, c.axes, rank);
    sent = c.sources[static_cast<size_t>(me)] == me ? 0 : block;
    break;
  }
  case CollectiveKind::Send:
    sent = block;
    break;
  case CollectiveKind::AllToAllRows: // Values say how many.
  case CollectiveKind::Receive:
  case CollectiveKind::Slice:
  case CollectiveKind::Rotate:
    break;
  case CollectiveKind::Broadcast:
  case CollectiveKind::Reduce:
    sent =
        static_cast<double>(members - 1) * block / static_cast<double>(members);
    break;
  }
  return sent;
}

SentSums::Counter SentSums::add(const Program &program, int rank,
                                const CollectiveCommand &c, bool mayBeSkipped,
                                const char *sendOffsets) {
  double sent = elementsSent(program, rank, c);
  std::string kind = collectiveName(c.collective).str(),
              axes = axesText(program.mesh, c.axes);
  size_t index = 0;
  while (index < sums.size() &&
         (sums[index].kind != kind || sums[index].axes != axes))
    ++index;
  if (index == sums.size()) {
    sums.push_back({{}, kind, axes});
    always.push_back(sums.back());
  }
  Sent own{1 + static_cast<int64_t>(c.more.size()), 1, sent,
           sent * static_cast<double>(byteSize(c.dtype))};
  Counter counter{index};
  if (c.collective == CollectiveKind::AllToAllRows) {
    int64_t row = 1;
    for (int64_t size : llvm::ArrayRef(c.sizes).drop_front())
      row *= size;
    counter.rows =
        &rows.emplace_back(Rows{reinterpret_cast<const int64_t *>(sendOffsets),
                                partIndex(program.mesh, c.axes, rank),
                                partCount(c.axes), static_cast<double>(row),
                                static_cast<double>(row * byteSize(c.dtype))});
  }
  if (mayBeSkipped) {
    counter.optional = &optional.emplace_back(own);
    return counter;
  }
  sums[index].add(own);
  always[index].add(own);
  return counter;
}

void SentSums::ran(const Counter &counter) {
  if (counter.optional)
    sums[counter.index].add(*counter.optional);
  if (const Rows *r = counter.rows) {
    auto sent = static_cast<double>(
        r->offsets[r->members] -
        (r->offsets[r->member + 1] - r->offsets[r->member]));
    sums[counter.index].elements += sent * r->elements;
    sums[counter.index].bytes += sent * r->bytes;
  }
}

void SentSums::begin() { sums = always; }
