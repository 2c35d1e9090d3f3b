//===- NcclTransport.h - Collectives by NCCL ---------------------*- C++
//-*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_NCCLTRANSPORT_H
#define CLEAVE_LIB_RUNTIME_CUDA_NCCLTRANSPORT_H

#include "FoundLaunches.h"
#include "Gpu.h"
#include "Libraries/Nccl.h"
#include "WorkRecord.h"
#include "cleave/Executable/Cuda/CollectivePlan.h"
#include "cleave/Runtime/Communicator/Requests.h"
#include "cleave/Support/RowOffsets.h"
#include <chrono>
#include <deque>
#include <memory>
#include <optional>

namespace cleave::runtime::cuda {

/// The collectives of one rank by NCCL, on streams of their own: one of all
/// collectives, and one of each transfer between two ranks in one direction.
/// There is one communicator for each group of ranks.
///
/// Nothing of NCCL blocks the host: where the host waits, `watch` finds errors
/// of NCCL, the failure of another rank, and an exchange that does not end; it
/// then ends all communicators, so that nothing is left that waits.
class NcclTransport {
public:
  struct Collective;
  struct Rows;

  /// Creates the communicators of a program; all ranks call it. Null if not
  /// every rank has the library and a GPU of its own, or with
  /// $CLEAVE_NCCL=off; with CLEAVE_NCCL=on, an error.
  static llvm::Expected<std::unique_ptr<NcclTransport>>
  open(const Program &program, Gpu &gpu, Requests &requests,
       cleave_communicator *communicator);
  ~NcclTransport();
  NcclTransport(const NcclTransport &) = delete;
  NcclTransport &operator=(const NcclTransport &) = delete;

  /// Plans a collective. `name` is for messages.
  llvm::Expected<Collective *> make(const CollectiveCommand &command,
                                    llvm::function_ref<uint64_t(Ref)> at,
                                    std::string name);
  /// Enqueues it; the caller records its end.
  llvm::Error start(Collective &collective);
  /// Fails if what is under way cannot end.
  llvm::Error watch();
  /// Called when the host has enqueued so much more, a launch or an event each.
  /// Where much is behind an exchange that has not ended, waits for it, and
  /// fails like `watch`: a launch for which the queue of the device has no room
  /// would wait without looking.
  llvm::Error follow(int64_t calls);

private:
  struct Group {
    Nccl::Communicator communicator = nullptr;
    /// Of a transfer; null: that of all collectives.
    CUstream stream = nullptr;
    int32_t member = 0, members = 0;
    bool transfer = false, connected = false;
    /// Of messages.
    std::string name;
  };
  using Clock = std::chrono::steady_clock;

  NcclTransport(const Program &program, Gpu &gpu, const Nccl &library,
                Requests &requests, cleave_communicator *communicator);
  llvm::Error connect();
  llvm::Error create(const std::vector<int32_t> &ranks, bool transfer);
  llvm::Error tryOut(Group &group);
  /// Polls until `done` holds, and fails like `watch`, or when it takes too
  /// long.
  llvm::Error poll(llvm::function_ref<llvm::Expected<bool>()> done,
                   const llvm::Twine &what);
  llvm::Error settle(const Group &group, const llvm::Twine &what);
  llvm::Error call(const Group &group, const CollectiveCall &call,
                   CUstream stream) const;
  llvm::Error fail(llvm::Error error);
  /// Enqueues the calls as one group.
  llvm::Error callAll(const Collective &collective,
                      llvm::ArrayRef<CollectiveCall> calls);
  /// Gathers the offsets of all members and waits for them: the host makes the
  /// calls of rows.
  llvm::Error startRows(Collective &collective);
  /// Ends all communicators that are left, whatever is under way.
  void abort();
  CUstream streamOf(const Group &group) const {
    return group.stream ? group.stream : gpu.communication;
  }

  const Program &program;
  Gpu &gpu;
  const Nccl &library;
  Requests &requests;
  cleave_communicator *communicator;
  CollectiveStaging staging;
  CUdeviceptr memory = 0;
  /// In an order that is the same on all ranks.
  std::map<std::pair<std::vector<int32_t>, bool>, Group> groups;
  std::deque<Collective> collectives;
  /// Started and not known to have ended, in order.
  std::deque<Collective *> underWay;
  /// By `follow`.
  int64_t enqueued = 0;
  /// The longest time from when an exchange begins on this rank to its end.
  std::chrono::milliseconds patience;
  std::string failure;
};

/// Rows to all, as many as values say.
struct NcclTransport::Rows {
  uint64_t src = 0, dst = 0, sendOffsets = 0, receiveOffsets = 0;
  int64_t rowElements = 1, held = 0, bound = 0;
  DType dtype = DType::F32;
  /// Those of all members, on the host.
  std::vector<int64_t> all;
  RowOffsets offsets;
};

struct NcclTransport::Collective {
  /// For records.
  std::string streamName() const {
    return group->transfer ? "transfers of " + group->name : "communication";
  }

  const Group *group = nullptr;
  CUstream stream = nullptr;
  /// Staging memory that it uses.
  MemoryRange staging;
  FoundLaunches before, after;
  std::vector<CollectiveCall> calls;
  /// Null: all calls are known.
  std::unique_ptr<Rows> rows;
  /// On the host when it has started: where this member sends rows from.
  const char *sendOffsets() const {
    return rows ? reinterpret_cast<const char *>(
                      rows->all.data() +
                      group->member * RowOffsets::count(group->members))
                : nullptr;
  }
  /// When its turn has come, and when it has ended.
  CUevent ready = nullptr, ended = nullptr;
  /// When the host has seen it begin.
  std::optional<Clock::time_point> begun;
  /// Whether it is among those under way, and what was enqueued before it.
  bool listed = false;
  int64_t behind = 0;
  std::string name;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_NCCLTRANSPORT_H
