//===- SharedTransport.h - Collectives of ranks on one GPU -------*- C++
//-*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_SHAREDTRANSPORT_H
#define CLEAVE_LIB_RUNTIME_CUDA_SHAREDTRANSPORT_H

#include "FoundLaunches.h"
#include "Gpu.h"
#include "WorkRecord.h"
#include "cleave/Executable/Cuda/CollectivePlan.h"
#include "cleave/Runtime/Communicator/Requests.h"
#include <deque>
#include <map>

namespace cleave::runtime::cuda {

/// The collectives of one rank among ranks that are threads of one process and
/// share a GPU: copies and reductions on the device, which read and write the
/// memory of other ranks. Reductions are in the order of the processor's ranks,
/// and have their bits.
///
/// `start` packs what is sent and notes by an event that it is there. `finish`
/// waits on the host until all members have noted that, enqueues this member's
/// share, notes it, and waits on the host until all have noted theirs: a stream
/// can only wait for an event that has been recorded.
class SharedTransport {
public:
  struct Collective;

  /// All ranks call it. Null unless all are in this process and on one GPU, or
  /// with $CLEAVE_SHARED_GPU=off.
  static llvm::Expected<std::unique_ptr<SharedTransport>>
  open(Gpu &gpu, Requests &requests, cleave_communicator *communicator);

  /// Plans a collective; members plan those of a group in one order. What is
  /// packed stays until the end, so that each one that is under way has staging
  /// memory of its own, which others have when it is released.
  llvm::Expected<Collective *> make(const CollectiveCommand &command,
                                    llvm::function_ref<uint64_t(Ref)> at);
  void release(const Collective &own);
  llvm::Error start(Collective &own);
  llvm::Error finish(Collective &own);

private:
  struct World;
  struct Meeting;

  /// Staging memory: `offset` is for records.
  struct Staging {
    CUdeviceptr memory = 0;
    int64_t offset = 0, bytes = 0;
    bool used = false;
  };

  SharedTransport(Gpu &gpu, Requests &requests,
                  cleave_communicator *communicator,
                  std::shared_ptr<World> world)
      : gpu(gpu), requests(requests), communicator(communicator),
        world(std::move(world)) {}
  llvm::Expected<Staging> take(int64_t bytes);
  /// Waits until `done` holds, which is asked with the world locked; fails when
  /// a rank has failed.
  llvm::Error waitUntil(llvm::function_ref<bool()> done) const;
  llvm::Error enqueue(Collective &own, const CollectiveCall &call, size_t index,
                      std::map<int32_t, size_t> &received) const;
  llvm::Error copy(uint64_t from, uint64_t to,
                   const CollectiveCall &call) const;
  llvm::Error reduce(const Collective &own, size_t index) const;

  Gpu &gpu;
  Requests &requests;
  cleave_communicator *communicator;
  std::shared_ptr<World> world;
  std::vector<Staging> staging;
  /// The number of collectives of each group so far.
  std::map<std::pair<std::vector<int32_t>, bool>, size_t> counts;
  std::deque<Collective> collectives;
};

struct SharedTransport::Collective {
  Meeting *meeting = nullptr;
  size_t member = 0;
  /// How often it has been started.
  uint64_t times = 0;
  bool transfer = false;
  FoundLaunches before, after;
  /// Of its reductions, or null.
  CUfunction reduction = nullptr;
  /// Staging memory that it uses.
  MemoryRange staging;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_SHAREDTRANSPORT_H
