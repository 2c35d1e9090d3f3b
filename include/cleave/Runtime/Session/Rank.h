//===- Rank.h - One rank of a program ---------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_SESSION_RANK_H
#define CLEAVE_RUNTIME_SESSION_RANK_H

#include "cleave/Executable/Format/Artifact.h"
#include "cleave/Runtime/CPU/ThreadTeam.h"
#include "cleave/Runtime/Communicator/Communicator.h"
#include "cleave/Runtime/Core/RunRecord.h"
#include "llvm/ADT/ArrayRef.h"
#include <functional>
#include <map>
#include <memory>
#include <optional>

namespace cleave::runtime {

/// Opens the device of rank `rank`, with the host's threads for it and the
/// folder of its second tier. What it is given outlives it.
using OpenDevice = std::function<llvm::Expected<cleave_device *>(
    const Artifact &artifact, int64_t rank, const ThreadTeam &team,
    const std::string &tierFolder)>;

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
  /// Which device of the host it has, of those of its program's target.
  int ordinal = 0;
  /// Its device; empty: that of its program's target.
  OpenDevice openDevice;
};

/// Makes the communicator of a rank, once its team is known.
using Connect =
    std::function<llvm::Expected<cleave_communicator *>(const cleave_team &)>;

/// The device of one rank, the threads that serve it and its communicator. All
/// calls except reads are made by the thread that created it.
class Rank {
public:
  /// The artifact must outlive the rank.
  static llvm::Expected<std::unique_ptr<Rank>>
  create(const Artifact &artifact, const RankOptions &options,
         const Connect &connect);
  ~Rank();

  /// What its device is, before anything is allocated there.
  const cleave_capability &getCapability() const { return capability; }
  /// Which device of the host it is.
  int getOrdinal() const { return ordinal; }
  /// Makes the memory of the device, before all that follows.
  llvm::Error allocate();
  /// Chooses implementations by measurement: one rank does so for all, before
  /// they prepare. Takes the choices that are known, and returns all of this
  /// rank's, as "key<tab>name" lines.
  llvm::Expected<std::string> tune(const std::string &choices) const;
  /// Prepares the entries with these choices, together with all other ranks.
  llvm::Error prepare(const std::string &choices, bool timing);
  /// Finds ranks that have prepared different collectives. Collective: all
  /// ranks call it.
  llvm::Error compare() const;

  int number() const { return communicator->rank; }
  /// The program of this rank's pipeline position.
  const Program &getProgram() const { return artifact.programOf(number()); }
  cleave_communicator *getCommunicator() const { return communicator; }
  const ThreadTeam &getTeam() const { return team; }

  //===--------------------------------------------------------------------===//
  // Tensors
  //===--------------------------------------------------------------------===//

  /// Whether this rank has a shard of a tensor.
  bool holds(const Tensor &tensor) const { return find(tensor) != nullptr; }
  /// The address of this rank's shard of a tensor; null if it has none, or has
  /// it where the host cannot address it.
  char *data(const Tensor &tensor) const {
    const Tensor *own = find(tensor);
    return own && !own->tier && memory ? memory + own->offset : nullptr;
  }
  /// Copies this rank's shard to `to`, or from `from`, wherever it is.
  llvm::Error read(const Tensor &tensor, char *to) const;
  llvm::Error write(const Tensor &tensor, const char *from) const;
  /// The bytes of this rank's shard, wherever it is: at its address, or copied
  /// to `copy`.
  llvm::Expected<const char *> view(const Tensor &tensor,
                                    std::vector<char> &copy) const;
  /// Lets `body` write the whole shard: at its address or, if it has none, in
  /// zeroed memory that is then copied there.
  llvm::Error change(const Tensor &tensor,
                     llvm::function_ref<void(char *)> body) const {
    return put(tensor, /*keep=*/false, body);
  }
  /// Likewise, with the shard's content for `body`, which may keep some of it.
  llvm::Error edit(const Tensor &tensor,
                   llvm::function_ref<void(char *)> body) const {
    return put(tensor, /*keep=*/true, body);
  }
  llvm::Error zero(const Tensor &tensor) const;

  /// Why the second tier can no longer be used; empty if it can.
  std::string offloadFailure() const { return api().tier_failure(device); }

  //===--------------------------------------------------------------------===//
  // Runs
  //===--------------------------------------------------------------------===//

  /// Runs an entry; all ranks call it. See `cleave_device_api::run`.
  std::optional<Stop> run(const std::string &entry) const;
  /// What the last run has done.
  cleave_run_facts getFacts() const {
    cleave_run_facts facts;
    api().facts(device, &facts);
    return facts;
  }
  /// See `cleave_device_api::sent`.
  llvm::ArrayRef<cleave_sent> getSent(const std::string &entry) const;
  /// Records the commands of the next `runs` runs of an entry. Times count from
  /// `origin`.
  void startTrace(const std::string &entry, int64_t runs, int64_t origin);
  std::vector<TraceEvent> getTrace() const;
  /// Bytes of the library outside of the arena.
  int64_t libraryBytes() const { return api().library_bytes(device); }

  Rank(const Rank &) = delete;
  Rank &operator=(const Rank &) = delete;

private:
  Rank(const Artifact &artifact, const RankOptions &options);
  /// Opens the device.
  llvm::Error open(const RankOptions &options);
  const cleave_device_api &api() const { return *device->api; }
  llvm::Error put(const Tensor &tensor, bool keep,
                  llvm::function_ref<void(char *)> body) const;
  /// The error of a call of the device that has returned `failed`.
  llvm::Error check(int failed) const;
  /// This rank's tensor of that name, or null.
  const Tensor *find(const Tensor &tensor) const {
    auto it = tensors.find(tensor.name);
    return it == tensors.end() ? nullptr : it->second;
  }

  const Artifact &artifact;
  ThreadTeam team;
  cleave_communicator *communicator = nullptr;
  int ordinal;
  cleave_device *device = nullptr;
  cleave_capability capability{};
  /// The address of the arena; null if the host cannot address it.
  char *memory = nullptr;
  std::map<std::string, const Tensor *> tensors;
  std::string traced;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_SESSION_RANK_H
