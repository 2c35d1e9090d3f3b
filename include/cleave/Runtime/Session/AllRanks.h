//===- AllRanks.h - Collectives of all processes ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_SESSION_ALLRANKS_H
#define CLEAVE_RUNTIME_SESSION_ALLRANKS_H

#include "cleave/Runtime/Communicator/Communicator.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/Error.h"
#include <string>
#include <utility>
#include <vector>

namespace cleave::runtime {

/// The group of all ranks of a communicator. Every call is collective: all
/// processes make the same ones, in one order.
class AllRanks {
public:
  /// The communicator must outlive it. The group is made by the first call.
  explicit AllRanks(cleave_communicator *communicator)
      : communicator(communicator) {}

  /// One collective of all of them.
  llvm::Error exchange(const cleave_collective &what);
  /// `dst` becomes the combination of `src` of all; see Communicator.h.
  llvm::Error allReduce(int32_t reduction, int32_t dtype, const void *src,
                        void *dst);
  /// Sends bytes of one of them to all.
  llvm::Error broadcast(int root, const void *src, void *dst, int64_t bytes);
  /// Sends the text of one of them to all.
  llvm::Expected<std::string> share(int root, llvm::StringRef text);
  /// The texts of all processes, in the order of ranks.
  llvm::Expected<std::vector<std::string>> gather(llvm::StringRef text);
  /// The smallest and the largest value.
  llvm::Expected<std::pair<int64_t, int64_t>> bounds(int64_t value);
  /// Fails in all processes if names and values differ between them, and says
  /// which ranks have which values.
  llvm::Error agree(llvm::ArrayRef<std::pair<std::string, std::string>> facts);

private:
  cleave_communicator *communicator;
  cleave_group *everyone = nullptr;
};

/// As long as it lives, this rank reads or writes what others wait for. Null
/// for none.
class Busy {
public:
  explicit Busy(cleave_communicator *communicator)
      : communicator(communicator) {
    if (communicator)
      communicator->api->busy(communicator, 1);
  }
  ~Busy() {
    if (communicator)
      communicator->api->busy(communicator, 0);
  }
  Busy(const Busy &) = delete;

private:
  cleave_communicator *communicator;
};

/// "rank 3", "ranks 0 to 2 and 5".
std::string ranksText(llvm::ArrayRef<int> ranks);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_SESSION_ALLRANKS_H
