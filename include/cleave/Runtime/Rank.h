//===- Rank.h - One device of a program -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_RANK_H
#define CLEAVE_RUNTIME_RANK_H

#include "cleave/Runtime/Executor.h"
#include <functional>

namespace cleave::runtime {

/// What a rank runs on.
struct RankOptions {
  int threads = 1;
  /// Pin the threads to cores: from this one of those that the process may
  /// use, or -1 where threads are not one to a core.
  int firstCore = -1;
  /// Pin the calling thread too.
  bool pinCaller = false;
};

/// Makes the communicator of a rank, once its team is known.
using Connect =
    std::function<llvm::Expected<cleave_communicator *>(const cleave_team &)>;

/// The memory, the threads and the executor of one device. All calls but those
/// that read are made by the thread that created it.
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
  /// That of this rank's position.
  const Program &getProgram() const { return artifact.programOf(number()); }
  cleave_communicator *getCommunicator() const { return communicator; }
  const ThreadTeam &getTeam() const { return team; }
  Executor &getExecutor() { return *executor; }
  const Executor &getExecutor() const { return *executor; }
  const Arena &getArena() const { return arena; }
  /// Where this rank's part of a tensor lies; null where it has none.
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
  /// Of tensors in the arena.
  std::map<std::string, int64_t> offsets;
  std::optional<Executor> executor;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_RANK_H
