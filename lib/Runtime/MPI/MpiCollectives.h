//===- MpiCollectives.h - Blocks as messages of MPI -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_MPI_MPICOLLECTIVES_H
#define CLEAVE_LIB_RUNTIME_MPI_MPICOLLECTIVES_H

#include "../Communicator/MessageTransfer.h"

#include <functional>
#include <mpi.h>
#include <string>
#include <vector>

namespace cleave::runtime {

/// The messages of one request. Reductions are not MPI's own, whose order is
/// unspecified: shares are exchanged, combined in order of the members, and
/// exchanged again, which sends no more than a ring does.
class MpiTransfer : public MessageTransfer {
public:
  /// Waits for messages; false if the communicator has failed.
  using Complete = std::function<bool(std::vector<MPI_Request> &)>;

  /// `tag` is the same at all members, and unique to this request. `limit` is
  /// the same too: larger messages are sent in pieces of at most that many
  /// bytes of all members, or of one element of each.
  MpiTransfer(const cleave_collective *blocks, int32_t count, MPI_Comm comm,
              int member, int members, int tag, int64_t limit,
              const cleave_team &team, Staging &staging);

  /// False if there is no memory for the messages.
  bool start();
  bool finish(const Complete &complete);

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
  bool completeAll(const Complete &complete);
  /// Sends the rows when the offsets of all members have come; false if members
  /// do not agree.
  bool startRows();

  MPI_Comm comm;
  MPI_Datatype type;
  int tag;
  std::vector<Piece> pieces;
  /// The rows for each member, and of each.
  std::vector<int> rowsSent, sendStarts, rowsReceived, receiveStarts;
  std::vector<MPI_Request> requests;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_MPI_MPICOLLECTIVES_H
