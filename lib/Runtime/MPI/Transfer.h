//===- Transfer.h - Blocks as messages of MPI -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_MPI_TRANSFER_H
#define CLEAVE_LIB_RUNTIME_MPI_TRANSFER_H

#include "../Communicator/Blocks.h"
#include "Staging.h"

#include <functional>
#include <mpi.h>
#include <string>
#include <vector>

namespace cleave::runtime {

/// The messages of one request. Reductions are not MPI's own, whose order is
/// its affair: parts are exchanged, combined in order of the members, and
/// exchanged again, which sends no more than a ring does.
class Transfer {
public:
  /// Waits for messages; false when the communicator has failed.
  using Complete = std::function<bool(std::vector<MPI_Request> &)>;

  /// `tag` is the same at all members, and of this request alone.
  Transfer(const cleave_collective *blocks, int32_t count, MPI_Comm comm,
           int member, int members, int tag, const cleave_team &team,
           Staging &staging);

  /// Why the messages would be too large for MPI, or "".
  static std::string check(const cleave_collective *blocks, int32_t count,
                           int members);

  void start();
  bool finish(const Complete &complete);

private:
  bool finishMessages(const Complete &complete);
  /// One block, and how it lies in a message, behind those before it.
  struct Packed {
    const char *src;
    char *dst;
    std::vector<int64_t> srcOffsets, dstOffsets;
    /// Between the block where it lies and a dense one.
    Block gather, scatter;
  };

  /// The blocks of this member that are for `to`, as one message.
  void pack(int to, char *message) const;
  /// What `from` sent goes to where its blocks belong.
  void unpack(const char *message, int from) const;
  void reducePieces(int64_t count, char *to) const;

  int32_t kind, dtype, reduction, root;
  std::vector<Packed> blocks;
  std::vector<int32_t> sources;
  MPI_Comm comm;
  MPI_Datatype type;
  int member, members, tag;
  const cleave_team &team;
  /// Of a message, and bytes of one.
  int64_t elements, bytes;
  /// Combining dense pieces.
  std::vector<int> counts, starts, pieceCounts, pieceStarts;
  Staging &staging;
  /// Bytes of what is sent and received, and both while under way.
  size_t outgoingBytes = 0, incomingBytes = 0;
  StagingBuffer outgoing, incoming;
  std::vector<MPI_Request> requests;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_MPI_TRANSFER_H
