//===- MpiCollectives.h - Blocks as messages of MPI -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_MPI_MPICOLLECTIVES_H
#define CLEAVE_LIB_RUNTIME_MPI_MPICOLLECTIVES_H

#include "../Communicator/MessageBuffers.h"
#include "cleave/Runtime/Communicator/ReduceBlocks.h"

#include <functional>
#include <mpi.h>
#include <string>
#include <vector>

namespace cleave::runtime {

/// The messages of one request. Reductions are not MPI's own, whose order is
/// unspecified: shares are exchanged, combined in order of the members, and
/// exchanged again, which sends no more than a ring does.
class Transfer {
public:
  /// Waits for messages; false if the communicator has failed.
  using Complete = std::function<bool(std::vector<MPI_Request> &)>;

  /// `tag` is the same at all members, and unique to this request. `limit` is
  /// the same too: larger messages are sent in pieces of at most that many
  /// bytes of all members, or of one element of each.
  Transfer(const cleave_collective *blocks, int32_t count, MPI_Comm comm,
           int member, int members, int tag, int64_t limit,
           const cleave_team &team, Staging &staging);

  /// Why the messages are invalid, or "".
  static std::string check(const cleave_collective *blocks, int32_t count,
                           int members);

  /// Bytes of the memory that `start` needs for messages.
  size_t staged() const { return outgoingBytes + incomingBytes; }
  /// False if there is no memory for the messages.
  bool start();
  bool finish(const Complete &complete);

  /// One block, and its offset in a message, after the blocks before it.
  struct Packed {
    const char *src;
    char *dst;
    std::vector<int64_t> srcOffsets, dstOffsets;
    /// Copies between the block in its layout and a dense one.
    Block gather, scatter;
  };

private:
  /// MPI's counts and displacements are int: a message is exchanged in pieces,
  /// each a range of its elements, by separate calls.
  struct Piece {
    int64_t begin, count;
    /// The offset of received elements.
    int64_t incoming;
    /// For a sum with shares: the share of each member, and what this one
    /// receives of its own share from each.
    std::vector<int> counts, starts, ownCounts, ownStarts;
  };

  void cutPieces(int64_t limit);
  void startPiece(const Piece &piece);
  void finishPiece(const Piece &piece) const;
  bool completeAll(const Complete &complete);
  /// A piece of the blocks that this member sends to `to`.
  void pack(int to, const Piece &piece, char *message) const;
  /// Copies the data from `from` to the places of its blocks.
  void unpack(const char *message, int from, const Piece &piece) const;
  void reduceParts(const char *from, int64_t count, char *to) const;

  int32_t kind, dtype, reduction, root;
  std::vector<Packed> blocks;
  std::vector<int32_t> sources;
  MPI_Comm comm;
  MPI_Datatype type;
  int member, members, tag;
  const cleave_team &team;
  /// Elements of a message, and bytes of an element.
  int64_t elements, bytes;
  /// Whether each member combines its share of the elements for all.
  bool shared;
  std::vector<Piece> pieces;
  Staging &staging;
  /// Bytes sent and received, and both while in flight.
  size_t outgoingBytes = 0, incomingBytes = 0;
  StagingBuffer outgoing, incoming;
  std::vector<MPI_Request> requests;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_MPI_MPICOLLECTIVES_H
