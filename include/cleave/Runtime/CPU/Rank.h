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
  /// The folder of the file of the second tier; empty: that for temporary
  /// files.
  std::string offloadFolder;
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
  /// Whether this rank has a shard of a tensor.
  bool holds(const Tensor &tensor) const { return find(tensor) != nullptr; }
  /// The address of this rank's shard of a tensor; null if it has none, or has
  /// it in the second tier.
  char *data(const Tensor &tensor) const {
    const Tensor *own = find(tensor);
    return own && !own->tier ? arena.data() + own->offset : nullptr;
  }
  /// Copies this rank's shard to `to`, or from `from`, wherever it is.
  llvm::Error read(const Tensor &tensor, char *to) const;
  llvm::Error write(const Tensor &tensor, const char *from) const;
  /// Lets `body` write the whole shard: at its address or, if it is in the
  /// second tier, in zeroed memory that is then copied there.
  llvm::Error change(const Tensor &tensor,
                     llvm::function_ref<void(char *)> body) const;

  /// Why the second tier can no longer be used; empty if it can.
  std::string offloadFailure() const { return tier ? tier->failure() : ""; }

  Rank(const Rank &) = delete;
  Rank &operator=(const Rank &) = delete;

private:
  Rank(const Artifact &artifact, const RankOptions &options);
  /// This rank's tensor of that name, or null.
  const Tensor *find(const Tensor &tensor) const {
    auto it = tensors.find(tensor.name);
    return it == tensors.end() ? nullptr : it->second;
  }

  const Artifact &artifact;
  ThreadTeam team;
  Arena arena;
  std::unique_ptr<FileTier> tier;
  cleave_communicator *communicator = nullptr;
  std::map<std::string, const Tensor *> tensors;
  std::optional<Executor> executor;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_RANK_H
