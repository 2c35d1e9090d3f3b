//===- Rank.h - One rank of a program ---------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_RANK_H
#define CLEAVE_RUNTIME_CPU_RANK_H

#include "cleave/Runtime/CPU/Executor.h"
#include <functional>

namespace cleave::runtime {

/// The resources of a rank.
struct RankOptions {
  int threads = 1;
  /// The first core, of those that the process may use, to which threads are
  /// pinned, or -1 if threads are not pinned.
  int firstCore = -1;
  /// Whether to pin the calling thread too.
  bool pinCaller = false;
};

/// Makes the communicator of a rank, once its team is known.
using Connect =
    std::function<llvm::Expected<cleave_communicator *>(const cleave_team &)>;

/// The memory, the threads and the executor of one rank. All calls except reads
/// are made by the thread that created it.
class Rank {
public:
  /// The artifact and the tuner must outlive the rank.
  static llvm::Expected<std::unique_ptr<Rank>>
  create(const Artifact &artifact, const RankOptions &options,
         const Connect &connect);
  ~Rank();

  /// Measures contractions: one rank does so for all, before they prepare.
  void tune(ContractionTuner &tuner) const {
    Executor::tune(getProgram(), arena, team, tuner);
  }
  /// Prepares the entries, together with all other ranks.
  llvm::Error prepare(ContractionTuner &tuner);

  int number() const { return communicator->rank; }
  /// The program of this rank's pipeline position.
  const Program &getProgram() const { return artifact.programOf(number()); }
  cleave_communicator *getCommunicator() const { return communicator; }
  const ThreadTeam &getTeam() const { return team; }
  Executor &getExecutor() { return *executor; }
  const Executor &getExecutor() const { return *executor; }
  const Arena &getArena() const { return arena; }
  /// The address of this rank's shard of a tensor; null if it has none.
  char *data(const Tensor &tensor) const {
    auto it = offsets.find(tensor.name);
    return it == offsets.end() ? nullptr : arena.data() + it->second;
  }

  Rank(const Rank &) = delete;
  Rank &operator=(const Rank &) = delete;

private:
  Rank(const Artifact &artifact, const RankOptions &options);

  const Artifact &artifact;
  ThreadTeam team;
  Arena arena;
  cleave_communicator *communicator = nullptr;
  /// Bytes of tensors in the arena.
  std::map<std::string, int64_t> offsets;
  std::optional<Executor> executor;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_RANK_H
