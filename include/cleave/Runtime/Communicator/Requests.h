//===- Requests.h - The collectives of a program ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_COMMUNICATOR_REQUESTS_H
#define CLEAVE_RUNTIME_COMMUNICATOR_REQUESTS_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Runtime/Communicator/Communicator.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/Support/Error.h"
#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace cleave::runtime {

/// Creates the requests of one rank's program, and owns them. All ranks of a
/// group prepare its collectives in the same order, as communicators require.
class Requests {
public:
  /// The program and the communicator must outlive it.
  Requests(const Program &program, cleave_communicator *communicator)
      : program(&program), communicator(communicator) {}

  /// Creates all groups: ranks that share a group create it in the same order
  /// relative to the other groups that they share. To be called first.
  llvm::Error makeGroups();
  /// The request of a collective whose buffers are where `at` says.
  llvm::Expected<cleave_request *> prepare(const CollectiveCommand &command,
                                           llvm::function_ref<char *(Ref)> at);
  /// The request that sets `agreed` to the minimum of all ranks' flags.
  llvm::Expected<cleave_request *> prepareAgreement(const char *flag,
                                                    char *agreed);
  /// Finds members of a group that have prepared different collectives.
  /// Collective: all ranks call it.
  llvm::Error compare() const;

  /// The group of a collective; for a transfer, the sender and the receiver.
  std::vector<int32_t> membersOf(const CollectiveCommand &command) const;
  /// At once: the bytes of all ranks, which give the same number, in the order
  /// of ranks. Before the first call of `prepare`.
  llvm::Expected<std::string> gather(llvm::StringRef own);
  /// At once: the bytes of the first rank of a group.
  llvm::Error broadcast(const std::vector<int32_t> &ranks,
                        llvm::MutableArrayRef<char> bytes);

private:
  llvm::Error runOnce(const std::vector<int32_t> &ranks,
                      const cleave_collective &what);
  std::vector<int32_t> everyone() const;
  llvm::Expected<cleave_group *> groupFor(const std::vector<int32_t> &ranks);
  llvm::Expected<cleave_request *>
  prepare(const std::vector<int32_t> &ranks,
          llvm::ArrayRef<cleave_collective> blocks);

  const Program *program;
  cleave_communicator *communicator;
  /// In an order that is the same on all ranks.
  std::map<std::vector<int32_t>, cleave_group *> groups;
  /// Released before the communicator is closed.
  std::vector<std::unique_ptr<cleave_request, void (*)(cleave_request *)>>
      requests;
};

/// What one rank sends, counted as in a ring: an all-reduce of n elements by N
/// ranks sends 2 (N - 1) n / N of them (possibly a fraction), for every
/// communicator.
struct Sent {
  /// The number of tensors, and of exchanges: small tensors share one.
  int64_t count = 0, exchanges = 0;
  double elements = 0, bytes = 0;

  void add(const Sent &other) {
    count += other.count;
    exchanges += other.exchanges;
    elements += other.elements;
    bytes += other.bytes;
  }
};

/// What it sends in an entry, of one kind over the same axes.
struct Communication : Sent {
  std::string kind, axes;
  /// Of the last run, with timing.
  int64_t nanoseconds = 0;
};

/// The sums of what one rank sends in the runs of an entry.
class SentSums {
public:
  /// Rows to all: how many are sent is known when it runs.
  struct Rows {
    const int64_t *offsets;
    int64_t member, members;
    /// Of a row.
    double elements, bytes;
  };
  /// Where a collective is counted.
  struct Counter {
    size_t index = 0;
    /// What it sends, if it may be skipped: it is then counted when it runs.
    const Sent *optional = nullptr;
    const Rows *rows = nullptr;
  };

  /// Adds a collective of rank `rank`, which may be skipped or not. Of rows to
  /// all, `sendOffsets` are there when it runs.
  Counter add(const Program &program, int rank,
              const CollectiveCommand &command, bool optional,
              const char *sendOffsets = nullptr);
  /// Starts a run, with what every run sends.
  void begin();
  void ran(const Counter &counter);
  void took(const Counter &counter, int64_t nanoseconds) {
    sums[counter.index].nanoseconds += nanoseconds;
  }
  /// Of the last run; before the first one, what every run sends.
  llvm::ArrayRef<Communication> list() const { return sums; }

private:
  std::vector<Communication> sums, always;
  std::deque<Sent> optional;
  std::deque<Rows> rows;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_COMMUNICATOR_REQUESTS_H
