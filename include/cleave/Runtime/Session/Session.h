//===- Session.h - A program with its memory and state ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The part that `cleave-run` and the Python module share: a program with its
/// memory, its threads and the state of a training run.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_SESSION_SESSION_H
#define CLEAVE_RUNTIME_SESSION_SESSION_H

#include "cleave/Executable/Format/FileHash.h"
#include "cleave/Runtime/Core/ActionTrace.h"
#include "cleave/Runtime/Session/AllRanks.h"
#include "cleave/Runtime/Session/FolderLock.h"
#include "cleave/Runtime/Session/LossScale.h"
#include "cleave/Runtime/Session/Rank.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace cleave::runtime {

class RankThreads;
class ThreadWorld;

/// Where the ranks of a program run.
enum class Launch : uint8_t {
  Detect,   ///< chosen from the environment
  Threads,  ///< all of them are threads of this process
  Processes ///< each is a process that mpirun, torchrun or srun started
};

struct SessionOptions {
  /// The number of threads of this process, divided among its ranks (at least
  /// one each); 0: OMP_NUM_THREADS or all cores. A rank never has more than the
  /// program was planned for.
  int threads = 0;
  /// Whether to pin the calling thread too. Not for a process that starts other
  /// threads.
  bool pinCaller = false;
  /// Whether to measure each command, for `StepResult::breakdown`.
  bool timing = false;
  int64_t seed = 0;
  /// The implementations of contractions in the resumed run; see
  /// `TrainingState::contractions`.
  std::map<std::string, std::string> contractions;
  /// The folder for the files of what is offloaded, one for each rank; empty:
  /// that for temporary files.
  std::string offloadFolder;
  /// The number of neighbouring ranks of a host that share a device, if the
  /// program is for devices of a host.
  int ranksPerDevice = 1;
  /// The device of each rank; empty: that of the program's target, which for
  /// the processor is threads of this process.
  OpenDevice openDevice;
  /// How ranks communicate.
  Launch launch = Launch::Detect;
  /// What all processes must have in common besides what the session compares:
  /// names and values.
  std::vector<std::pair<std::string, std::string>> facts;
};

/// The content of a checkpoint besides tensors.
struct TrainingState {
  int64_t seed = 0;
  /// The number of completed training steps, and of updates in each; the
  /// optimizer counts updates.
  int64_t step = 0, updatesPerStep = 1;
  /// Of these steps, the number of those that were skipped.
  int64_t skipped = 0;
  /// The loss scale, if the program has one.
  std::optional<LossScaleState> lossScale;
  /// The number of sequences consumed since the start of training.
  int64_t dataPosition = 0;
  /// Threads of the run, and its choices of library implementations: a resumed
  /// run with the same ones computes the same bits.
  int threads = 0;
  std::map<std::string, std::string> contractions;
  /// Further facts about the run, as JSON; see `SaveOptions::run`.
  std::string run;
  /// Data of the caller in a checkpoint; see `SaveOptions::kept`.
  std::string kept;
  /// Of a checkpoint that was loaded: techniques of whose state it has none,
  /// which begins as zero (`Tensor::optional`).
  std::vector<std::string> absent;
};

/// Options for writing a checkpoint.
struct SaveOptions {
  /// Whether to write it even if parameters or optimizer state are not finite.
  bool nonFinite = false;
  /// Facts about the run for later resumption, as the text of a JSON object.
  std::string run;
  /// Data that the caller keeps with the checkpoint, as the text of a JSON
  /// object: nothing here reads it.
  std::string kept;
};

struct StepResult {
  /// Until the outcome is known, from when the run began or, if the device was
  /// still at work for the run before, from when that one has returned.
  double seconds = 0;
  /// Why the step was skipped: it changed nothing but the loss scale. Empty if
  /// it was not.
  std::string skipped;
  /// Page faults of the process during the step.
  int64_t pageFaults = 0;
  /// Updates of the ranks of this process that were validated, found wrong and
  /// repeated.
  int64_t updatedAgain = 0;
  /// What the ranks of this process have moved between memory and the second
  /// tier.
  Offloaded offloaded;
  /// Times of the first rank of this process, with `timing` only.
  Breakdown breakdown;
  /// What that rank sent; its times with `timing` only. Valid until the next
  /// run.
  llvm::ArrayRef<cleave_sent> communication;
};

/// Memory in bytes, for reports.
struct MemoryReport {
  /// The number of ranks of this process.
  int64_t ranks = 1;
  /// Bytes of each of them.
  int64_t arena = 0;
  /// Bytes of the arena: persistent tensors by role, and the rest (activations,
  /// gradients, scratch).
  std::map<std::string, int64_t> byKind;
  /// Bytes of the second tier.
  int64_t tier = 0;
  /// Bytes of the library's workspace outside of the arena.
  int64_t workspace = 0;
  /// Bytes of messages between processes; 0 if ranks are threads.
  int64_t messages = 0;
};

/// All ranks of a program: inputs are given whole and sliced for each rank, and
/// results are joined. If ranks are processes, each has its own session with
/// one rank, and all of them make the same calls.
class Session {
public:
  /// Opens an artifact written by `cleave-compile`.
  static llvm::Expected<std::unique_ptr<Session>>
  open(llvm::StringRef path, const SessionOptions &options = {});

  /// Takes the programs of all pipeline positions (usually one), whose kernels
  /// `resolver` finds in this process.
  static llvm::Expected<std::unique_ptr<Session>>
  create(std::vector<Program> positions, SymbolResolver resolver,
         const SessionOptions &options = {});

  const Program &getProgram() const { return artifact.getProgram(); }
  /// The number of threads of all ranks.
  int getThreads() const;
  /// The number of all ranks, the first one of this process, and the number of
  /// its ranks.
  int getRanks() const { return first().getCommunicator()->size; }
  int getRank() const { return first().number(); }
  int getLocalRanks() const { return static_cast<int>(ranks.size()); }
  /// Whether the first rank belongs to this process, which then prints and
  /// writes files.
  bool isLeader() const { return first().number() == 0; }
  bool hasEntry(llvm::StringRef entry) const {
    return getProgram().entries.count(entry.str()) != 0;
  }

  //===--------------------------------------------------------------------===//
  // Tensors
  //===--------------------------------------------------------------------===//

  /// The tensor with a name or alias, or null.
  const Tensor *find(llvm::StringRef name) const;
  /// The bytes of the whole tensor.
  int64_t bytes(const Tensor &tensor) const;
  /// The address of a rank's shard, valid as long as the session; null if the
  /// rank of this process has none, or the host cannot address it. For
  /// parameters and state, call it after `finishUpdate`.
  char *data(const Tensor &tensor, int localRank = 0) const {
    return ranks[static_cast<size_t>(localRank)]->data(tensor);
  }
  /// Copies the whole tensor to `whole`, or, if that is null and ranks are
  /// processes, only takes part in the communication.
  llvm::Error read(const Tensor &tensor, void *whole) const;
  /// Gives each rank its shard of the whole tensor.
  void write(const Tensor &tensor, const void *whole);

  /// Takes parameters, buffers and optimizer state of another program of the
  /// same model on the same mesh. Returns the names of those that its ranks
  /// hold otherwise or not at all, which are as before.
  llvm::Expected<std::vector<std::string>> takeState(Session &other);

  /// Copies a whole input in, after checking its type, shape and indices.
  llvm::Error setInput(llvm::StringRef name, const void *data, DType dtype,
                       llvm::ArrayRef<int64_t> shape);

  /// Sets each element of a scalar, converted to its type. `step`, `seed`,
  /// `rng` and `loss_scale` are set by `run`.
  llvm::Error setScalar(llvm::StringRef name, double value);

  /// The first element of a tensor, as a number.
  llvm::Expected<double> getScalar(llvm::StringRef name) const;

  //===--------------------------------------------------------------------===//
  // Steps
  //===--------------------------------------------------------------------===//

  /// Runs an entry. Before, the scalars are set: "step", the number of the
  /// update from 1 (for other entries that of the last one); "seed", and "rng"
  /// ([seed, number of the step]); and "loss_scale". After "train" the step
  /// counts as completed. If a check of the program fails, its message is the
  /// error, and parameters, state and step count are unchanged. Only if all
  /// that fail skip the step, and the loss scale can fall, it is skipped
  /// instead: it counts as a step, not as an update.
  ///
  /// A program may defer its updates to the next step; they are run before
  /// parameters or state are read or replaced, and before every other entry.
  llvm::Expected<StepResult> run(llvm::StringRef entry);
  /// Whether the last run was stopped since a buffer had too few rows: a
  /// program whose buffers have more can repeat it. The same in all processes.
  bool lacksRoom() const { return noRoom; }
  /// Runs the updates that the last step has deferred, if any.
  llvm::Error finishUpdate() const;

  int64_t getStep() const { return step; }
  void setStep(int64_t completed) { step = completed; }
  /// The number of steps that were skipped. Learning rates and the optimizer
  /// count updates: `getStep() - getSkipped()`.
  int64_t getSkipped() const { return skipped; }
  void setSkipped(int64_t number) { skipped = number; }
  /// The loss scale of the next step; not if the program has none.
  std::optional<LossScaleState> getLossScale() const { return lossScale; }
  /// Goes on with that scale, if the program has one; without one, with the
  /// first.
  void setLossScale(const std::optional<LossScaleState> &state);
  int64_t getSeed() const { return seed; }
  void setSeed(int64_t value) { seed = value; }

  //===--------------------------------------------------------------------===//
  // Weights and checkpoints
  //===--------------------------------------------------------------------===//

  /// Loads parameters and buffers, by the framework's names and shapes, from
  /// what `WeightFiles::open` takes. Other element types are converted (see
  /// Conversion.h). A buffer that the framework does not save may be missing
  /// if it has a value. Reports all tensors that are missing, unknown, of
  /// another shape or out of range together; then nothing is changed.
  llvm::Error loadWeights(llvm::StringRef path);
  llvm::Error saveWeights(llvm::StringRef path) const;
  /// Loads optimizer state, likewise.
  llvm::Error loadOptimizer(llvm::StringRef path);
  llvm::Error saveOptimizer(llvm::StringRef path) const;

  /// Zeroes optimizer state and the step count.
  void resetTraining();

  /// Initialises matrices from normal(0, 0.02), vectors that the model adds to
  /// 0, others to 1; buffers keep their values.
  llvm::Error initialiseRandomly(int64_t seed);

  /// Writes the folder `directory` atomically, so that a power cut leaves it or
  /// what was there before: model.safetensors, optimizer.safetensors,
  /// training.json. Fails if parameters or state are not finite, if something
  /// else is there, or if another process has locked the folder around it.
  llvm::Error saveCheckpoint(llvm::StringRef directory, int64_t dataPosition,
                             const SaveOptions &options = {}) const;
  /// Locks the folder of checkpoints against other runs, as long as the session
  /// lives, and removes what killed ones have left there.
  llvm::Error lockFolder(llvm::StringRef folder);
  /// Fails with the names of parameters, state and buffers that a step writes
  /// that are NaN or infinite in any process. Collective: all processes call
  /// it.
  llvm::Error checkFinite() const;
  /// Reads a checkpoint, with seed and step count. On an error nothing is
  /// changed.
  llvm::Expected<TrainingState> loadCheckpoint(llvm::StringRef directory);

  TrainingState getTrainingState(int64_t dataPosition) const;

  //===--------------------------------------------------------------------===//
  // Reports
  //===--------------------------------------------------------------------===//

  MemoryReport getMemory() const;
  /// The bytes that the plan has for this process: the arenas of its ranks, the
  /// workspace of their library calls at most, and messages to others.
  int64_t getPlannedBytes() const;
  /// What a rank of this process has sent in the last run of an entry; before
  /// the first run, what every run sends.
  llvm::ArrayRef<cleave_sent> getSent(const std::string &entry,
                                      int localRank = 0) const {
    return ranks[static_cast<size_t>(localRank)]->getSent(entry);
  }

  /// Records the commands of the next `runs` runs of an entry, on all ranks.
  /// Collective: all processes call it. Times count from when all of them have
  /// called it.
  llvm::Error startTrace(llvm::StringRef entry, int64_t runs);
  /// Nanoseconds since then.
  int64_t traceClock() const { return monotonicNanoseconds() - traceStart; }
  /// The traced commands of a rank of this process.
  std::vector<TraceEvent> getTrace(int localRank = 0) const {
    return ranks[static_cast<size_t>(localRank)]->getTrace();
  }
  /// The traced actions of a rank of this process, in an entry's schedule.
  std::vector<ActionEvent> getActions(llvm::StringRef entry,
                                      int localRank = 0) const;
  /// The number of a rank of this process, its pipeline position, and whether
  /// it is the first one there.
  int getNumber(int localRank) const {
    return ranks[static_cast<size_t>(localRank)]->number();
  }
  int64_t getPosition(int localRank) const;
  bool leadsPosition(int localRank) const;

  /// Whether `flag` is true in any process. Collective: all processes call it.
  llvm::Expected<bool> any(bool flag) const;
  /// The maximum over processes. Collective: all processes call it.
  llvm::Expected<int64_t> largest(int64_t value) const;
  /// Fails in all processes if names and values differ between them, and says
  /// which ranks have which values. Collective: all processes call it.
  llvm::Error
  agree(llvm::ArrayRef<std::pair<std::string, std::string>> facts) const;
  /// The texts of all processes, in the order of ranks. Collective: all
  /// processes call it.
  llvm::Expected<std::vector<std::string>> gather(llvm::StringRef text) const;

  /// As long as the result lives, other processes wait longer for this one,
  /// which reads or writes.
  Busy busy() const {
    return Busy(alone() ? nullptr : first().getCommunicator());
  }

  /// Ends all ranks, because this process cannot continue.
  void fail(llvm::StringRef message);

  ~Session();
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;

  /// Whether a rank has a second tier.
  bool offloads() const {
    return llvm::any_of(artifact.getPositions(), [](const Program &program) {
      return program.tierBytes > 0;
    });
  }

private:
  Session(Artifact artifact, const SessionOptions &options);
  static llvm::Expected<std::unique_ptr<Session>>
  start(Artifact artifact, const SessionOptions &options);
  llvm::Error startRanks(const SessionOptions &options);
  /// Fails if a device has less memory than its ranks need, which are those of
  /// several processes if devices are `shared`.
  llvm::Error checkMemory(bool shared) const;
  llvm::Error chooseImplementations();
  /// Whether a rank of the position that runs `program`, of any process, has a
  /// shard of `tensor`; for an output, of the one given last.
  bool holds(const Program &program, const Tensor &tensor) const;
  /// Whether each rank has the whole tensor.
  bool isEverywhere(const Tensor &tensor) const;
  /// Runs `body` on each rank of this process, in parallel; returns the errors
  /// of all of them.
  llvm::Error onRanks(llvm::function_ref<llvm::Error(size_t)> body);
  /// Sets the elements of a scalar on each rank that has it, by `body`.
  llvm::Error editScalar(const Tensor &tensor,
                         llvm::function_ref<void(char *)> body) const;
  const Rank &first() const { return *ranks.front(); }
  /// Whether no other process has ranks of this program.
  bool alone() const { return world || getRanks() == 1; }
  /// The other processes; not if there are none.
  AllRanks &all() const;
  llvm::Error load(llvm::StringRef path, bool optimizer);
  /// Files that were checked, and the tensors of them that will be loaded.
  struct Loaded;
  llvm::Expected<Loaded> check(llvm::StringRef path, bool optimizer) const;
  /// Loads files that were checked.
  llvm::Error take(llvm::MutableArrayRef<Loaded> files);
  /// Adds hashes of what it reads, for other processes to compare.
  llvm::Error take(Loaded &loaded, std::string &hashes);
  /// Reads and checks the `files` of a checkpoint in this process: those of the
  /// model and of the optimizer.
  llvm::Expected<TrainingState>
  readCheckpoint(llvm::StringRef directory, std::vector<Loaded> &files) const;
  /// Gives buffers the values that the program has for them.
  void writeValues();
  /// All processes take part, also where the first one cannot write, and that
  /// of "" only takes part. The first one's error is its own.
  llvm::Error save(llvm::StringRef path, bool optimizer,
                   FileFacts *facts = nullptr) const;
  /// What the first rank alone does; counts the calls of `save`.
  llvm::Error writeCheckpoint(llvm::StringRef directory, int64_t dataPosition,
                              const SaveOptions &options, int &files) const;
  /// The error of the first rank, in all processes. Collective.
  llvm::Error ofLeader(llvm::Error own) const;
  /// Sets what counts in an entry: steps, and updates.
  llvm::Error setCounters(int64_t number, int64_t updates);
  llvm::Error setPending(bool value) const;
  llvm::Error keepScalars();
  /// What stopped a run: the message of the first rank of which a check has
  /// failed, one that ends the run before one that skips the step; the same in
  /// all processes. Nothing if the run has not stopped.
  struct Outcome {
    std::string message;
    bool skips = false;
    /// Whether a buffer had too few rows.
    bool room = false;
  };
  llvm::Expected<std::optional<Outcome>> execute(llvm::StringRef entry) const;
  llvm::Expected<Outcome> explain(const Stop &stop) const;
  /// Counts a training step, and moves the loss scale. Fails if a step was
  /// stopped that cannot be skipped.
  llvm::Error settle(const std::optional<Outcome> &stop);
  void beforeWriting(const Tensor &tensor);
  void noteOutputs(llvm::StringRef entry);

  Artifact artifact;
  /// Names of the buffers that have a value.
  std::set<std::string, std::less<>> valued;
  /// For each output, the entry that gave it last.
  std::map<std::string, std::string> givenBy;
  /// The implementations of contractions by their keys, the same for all ranks:
  /// replicas must round alike.
  std::map<std::string, std::string> choices;
  std::unique_ptr<ThreadWorld> world;
  std::unique_ptr<RankThreads> threads;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::map<std::string, const Tensor *, std::less<>> names;
  /// Made by `all`.
  mutable std::optional<AllRanks> everyone;
  /// The error that ended the last run of each rank.
  mutable std::vector<std::optional<Stop>> stopped;
  bool noRoom = false;
  /// Whether the last step has deferred its updates.
  mutable bool pending = false;
  /// When the last run has returned.
  std::chrono::steady_clock::time_point returned;
  int64_t seed = 0, step = 0, skipped = 0;
  std::optional<LossScaleState> lossScale;
  int64_t traceStart = 0;
  FolderLock lock;
};

/// Reads training.json of a checkpoint, without a session.
llvm::Expected<TrainingState> readTrainingState(llvm::StringRef directory);

/// Whether `id` is valid for `tensor`, an input of integers.
bool acceptsId(const Tensor &tensor, int64_t id);

/// The coordinates of element number `at` of a tensor.
std::vector<int64_t> indexOf(const std::vector<int64_t> &shape, int64_t at);

/// Checks all ids of an input.
llvm::Error checkIndexRange(const Tensor &tensor, const void *data);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_SESSION_SESSION_H
