//===- CollectivePlan.h - Collectives as calls of a library -------*- C++
//-*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// How a CUDA device runs a collective by a library that exchanges memory
/// without gaps (NCCL): launches that pack blocks with strides into staging
/// memory, calls of the library, and launches that unpack. Only plans, without
/// a device.
///
/// All collectives of a rank are on one stream, in the order of the table. A
/// transfer is on a stream of its receiver and sender: a receive begins long
/// before its send, and on one stream what comes after it would wait.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_CUDA_COLLECTIVEPLAN_H
#define CLEAVE_EXECUTABLE_CUDA_COLLECTIVEPLAN_H

#include "cleave/Executable/Cuda/CommandLaunches.h"
#include <map>
#include <tuple>

namespace cleave::runtime::cuda {

/// One call of the library, on memory without gaps.
struct CollectiveCall {
  enum Kind : uint8_t {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    Send,
    Receive
  };
  Kind kind = AllReduce;
  uint64_t src = 0, dst = 0;
  /// Of one member's block.
  int64_t elements = 0;
  DType dtype = DType::F32;
  ReductionKind reduction = ReductionKind::Sum;
  /// The root, or the other end.
  int32_t peer = 0;
};

/// All on one stream; the calls are made as one group.
struct CollectivePlan {
  std::vector<Launch> before;
  std::vector<CollectiveCall> calls;
  std::vector<Launch> after;
};

/// Where one member finds its memory.
struct CollectiveMember {
  int32_t member = 0;
  llvm::function_ref<uint64_t(const Ref &)> at;
  /// Memory of `collectiveStagingBytes`, aligned to 256 bytes.
  uint64_t staging = 0;
  /// Whether maxima and minima of floats are those of this project; else they
  /// are of integers of the same order.
  bool reducesFloats = false;
};

/// The number of members; of a transfer, two: the sender and the receiver.
int32_t collectiveMembers(const CollectiveCommand &command);

/// Whether calls of the library are known before they are made: it reduces no
/// floats of 8 bits, and values say how many rows go to whom.
bool isPlannable(const CollectiveCommand &command);

/// Whether values say how many rows go to whom.
bool sendsRows(const CollectiveCommand &command);

llvm::Expected<CollectivePlan> planCollective(const CollectiveCommand &command,
                                              const CollectiveMember &where);

/// The kernel that reduces for ranks that share a device; "" if none does.
std::string reductionSymbol(const CollectiveCommand &command);

/// Bytes of staging memory of any member.
int64_t collectiveStagingBytes(const CollectiveCommand &command);

/// Staging memory of a program: of all collectives together, since they are on
/// one stream, and of each kind of transfer by itself.
class CollectiveStaging {
public:
  explicit CollectiveStaging(const Program &program);
  /// Zero without collectives.
  int64_t getBytes() const { return bytes; }
  int64_t offsetOf(const CollectiveCommand &command) const;

private:
  using Key = std::tuple<CollectiveKind, int32_t, std::vector<int64_t>>;
  static Key keyOf(const CollectiveCommand &command);

  std::map<Key, int64_t> offsets;
  int64_t bytes = 0;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_EXECUTABLE_CUDA_COLLECTIVEPLAN_H
