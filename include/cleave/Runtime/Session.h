//===- Session.h - A program that runs --------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What `cleave-run` and the Python module share: a program with its memory,
/// its threads and the state of a training run.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_SESSION_H
#define CLEAVE_RUNTIME_SESSION_H

#include "cleave/Runtime/ActionTrace.h"
#include "cleave/Runtime/Rank.h"
#include "llvm/ADT/ArrayRef.h"
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace cleave::runtime {

class RankThreads;
class ThreadWorld;

/// Where the ranks of a program are.
enum class Launch : uint8_t {
  Detect,  ///< as the environment says
  Threads, ///< all of them are threads of this process
  Mpi      ///< each is a process that mpirun or srun started
};

struct SessionOptions {
  /// Threads of this process, shared out among its ranks (at least one each);
  /// 0: OMP_NUM_THREADS or all cores. A rank never has more than the program
  /// plans for.
  int threads = 0;
  /// Pin the calling thread too. Not for a process that starts other threads.
  bool pinCaller = false;
  /// Measure each command, for `StepResult::breakdown`.
  bool timing = false;
  int64_t seed = 0;
  /// How contractions were computed in the run that is resumed; see
  /// `TrainingState::contractions`.
  std::map<std::string, std::string> contractions;
  /// How the program's devices are reached.
  Launch launch = Launch::Detect;
};

/// What a checkpoint knows besides tensors.
struct TrainingState {
  int64_t seed = 0;
  /// Training steps completed, and how often each has updated: the number of
  /// updates is what the optimizer counts.
  int64_t step = 0, updatesPerStep = 1;
  /// Sequences consumed since the start of training.
  int64_t dataPosition = 0;
  /// Threads of the run, and its choices of library implementations: with the
  /// same of both, a resumed run computes the same bits.
  int threads = 0;
  std::map<std::string, std::string> contractions;
};

struct StepResult {
  double seconds = 0;
  /// Of the process, while the step ran.
  int64_t pageFaults = 0;
  /// Updates of the ranks of this process that were validated, found wrong and
  /// made again.
  int64_t updatedAgain = 0;
  /// Of the first rank of this process, with `timing` only.
  Breakdown breakdown;
  /// What that rank sent; its times with `timing` only. Valid until the next
  /// run.
  llvm::ArrayRef<Communication> communication;
};

/// Bytes, for reports.
struct MemoryReport {
  /// Ranks of this process.
  int64_t ranks = 1;
  /// Of each of them.
  int64_t arena = 0;
  /// Of the arena: persistent tensors by role, and the rest (activations,
  /// gradients, scratch).
  std::map<std::string, int64_t> byKind;
  /// The library's workspace beside the arena.
  int64_t workspace = 0;
  /// Of messages between processes; 0 where ranks are threads.
  int64_t messages = 0;
};

/// All ranks of a program, seen as one: inputs are given whole and cut for each
/// rank, and what is read is joined. Where ranks are processes, each has a
/// session of its own with one rank, and all of them make the same calls.
class Session {
public:
  /// Opens an artifact that `cleave-compile` wrote.
  static llvm::Expected<std::unique_ptr<Session>>
  open(llvm::StringRef path, const SessionOptions &options = {});

  /// Takes the programs of all positions of a pipeline (mostly one), whose
  /// kernels `resolver` finds in this process.
  static llvm::Expected<std::unique_ptr<Session>>
  create(std::vector<Program> positions, SymbolResolver resolver,
         const SessionOptions &options = {});

  const Program &getProgram() const { return artifact.getProgram(); }
  /// Threads of all ranks.
  int getThreads() const;
  /// Ranks in all, the first one of this process, and how many it has.
  int getRanks() const { return first().getCommunicator()->size; }
  int getRank() const { return first().number(); }
  int getLocalRanks() const { return static_cast<int>(ranks.size()); }
  /// Whether the first rank is one of this process: it speaks and writes.
  bool isLeader() const { return first().number() == 0; }
  bool hasEntry(llvm::StringRef entry) const {
    return getProgram().entries.count(entry.str()) != 0;
  }

  //===--------------------------------------------------------------------===//
  // Tensors
  //===--------------------------------------------------------------------===//

  /// The tensor of a name or alias, or null.
  const Tensor *find(llvm::StringRef name) const;
  /// The bytes of the whole tensor.
  int64_t bytes(const Tensor &tensor) const;
  /// Where a rank of this process has its part, valid as long as the session;
  /// null where it has none. Of parameters and state, after `finishUpdate`.
  char *data(const Tensor &tensor, int localRank = 0) const {
    return ranks[static_cast<size_t>(localRank)]->data(tensor);
  }
  /// Copies the whole tensor to `whole`, or, where ranks are processes, helps
  /// the others to do so when that is null.
  llvm::Error read(const Tensor &tensor, void *whole) const;
  /// Gives each rank its part of the whole tensor.
  void write(const Tensor &tensor, const void *whole);

  /// Copies a whole input in, after checks of type, shape and token ids.
  llvm::Error setInput(llvm::StringRef name, const void *data, DType dtype,
                       llvm::ArrayRef<int64_t> shape);

  /// Sets each element of a scalar, converted to its type. `step`, `seed` and
  /// `rng` are set by `run`.
  llvm::Error setScalar(llvm::StringRef name, double value);

  /// The first element of a tensor, as a number.
  llvm::Expected<double> getScalar(llvm::StringRef name) const;

  //===--------------------------------------------------------------------===//
  // Steps
  //===--------------------------------------------------------------------===//

  /// Runs an entry. Before, the scalars "seed" and "step" (the number of the
  /// training step from 1; for other entries that of the last one) are set, or
  /// "rng" ([seed, step]). After "train" the step counts as completed. When a
  /// check of the program fails, its message is the error, and parameters,
  /// state and step count are what they were.
  ///
  /// A program may leave its updates to the next step; whatever reads or
  /// replaces parameters or state makes up for them before, and so does every
  /// other entry.
  llvm::Expected<StepResult> run(llvm::StringRef entry);
  /// Makes up for updates that the last step has left, if any.
  llvm::Error finishUpdate() const;

  int64_t getStep() const { return step; }
  void setStep(int64_t completed) { step = completed; }
  int64_t getSeed() const { return seed; }
  void setSeed(int64_t value) { seed = value; }

  //===--------------------------------------------------------------------===//
  // Weights and checkpoints
  //===--------------------------------------------------------------------===//

  /// Parameters and buffers, by the framework's names and shapes. All that is
  /// missing, unknown or of another shape is reported at once, and then
  /// nothing is changed.
  llvm::Error loadWeights(llvm::StringRef path);
  llvm::Error saveWeights(llvm::StringRef path) const;
  /// Optimizer state, likewise.
  llvm::Error loadOptimizer(llvm::StringRef path);
  llvm::Error saveOptimizer(llvm::StringRef path) const;

  /// Zeroes optimizer state and the step count.
  void resetTraining();

  /// Matrices from normal(0, 0.02), vectors named "*bias" 0, others 1.
  llvm::Error initialiseRandomly(int64_t seed);

  /// Writes the folder `directory` in one piece: model.safetensors,
  /// optimizer.safetensors, training.json.
  llvm::Error saveCheckpoint(llvm::StringRef directory,
                             int64_t dataPosition) const;
  /// Reads it back, with seed and step count.
  llvm::Expected<TrainingState> loadCheckpoint(llvm::StringRef directory);

  TrainingState getTrainingState(int64_t dataPosition) const;

  //===--------------------------------------------------------------------===//
  // Reports
  //===--------------------------------------------------------------------===//

  MemoryReport getMemory() const;
  Executor &getExecutor(int localRank = 0) {
    return ranks[static_cast<size_t>(localRank)]->getExecutor();
  }
  const Executor &getExecutor(int localRank = 0) const {
    return ranks[static_cast<size_t>(localRank)]->getExecutor();
  }

  /// Records the commands of the next `runs` runs of an entry, on all ranks;
  /// all processes ask. Times count from when all of them have.
  llvm::Error startTrace(llvm::StringRef entry, int64_t runs);
  /// Nanoseconds since then.
  int64_t traceClock() const { return Executor::clock() - traceStart; }
  /// What a rank of this process did of the entry's schedule, as traced.
  std::vector<ActionEvent> getActions(llvm::StringRef entry,
                                      int localRank = 0) const;
  /// The number of a rank of this process, its position in the pipeline, and
  /// whether it is the first one there.
  int getNumber(int localRank) const {
    return ranks[static_cast<size_t>(localRank)]->number();
  }
  int64_t getPosition(int localRank) const;
  bool leadsPosition(int localRank) const;

  /// Whether `flag` is true in any process; all of them ask.
  llvm::Expected<bool> any(bool flag) const;
  /// What each process says, in the order of ranks; all of them ask.
  llvm::Expected<std::vector<std::string>> gather(llvm::StringRef text) const;

  /// Ends all ranks, because this process cannot go on.
  void fail(llvm::StringRef message);

  ~Session();
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;

private:
  Session(Artifact artifact, const SessionOptions &options);
  static llvm::Expected<std::unique_ptr<Session>>
  start(Artifact artifact, const SessionOptions &options);
  llvm::Error startRanks(const SessionOptions &options);
  llvm::Error tuneContractions();
  llvm::Error shareChoices(int root);
  /// Whether a rank of the position that runs `program`, of any process, has a
  /// part of `tensor`; of an output, of what was given last.
  bool holds(const Program &program, const Tensor &tensor) const;
  /// Whether each rank has the whole.
  bool isEverywhere(const Tensor &tensor) const;
  /// Runs `body` as each rank of this process, at the same time; the errors of
  /// all of them.
  llvm::Error onRanks(llvm::function_ref<llvm::Error(size_t)> body);
  const Rank &first() const { return *ranks.front(); }
  /// Where ranks are processes: the text of one of them, for all.
  llvm::Expected<std::string> share(int root, llvm::StringRef text) const;
  /// Where ranks are processes: gives bytes of one of them to all.
  llvm::Error broadcast(int root, const void *src, void *dst,
                        int64_t bytes) const;
  /// Where ranks are processes: one collective of all of them.
  llvm::Error exchange(const cleave_collective &what) const;
  /// Where ranks are processes: `dst` is the `src` of all, combined as
  /// Communicator.h says.
  llvm::Error allReduce(int32_t reduction, int32_t dtype, const void *src,
                        void *dst) const;
  llvm::Error load(llvm::StringRef path, bool optimizer);
  llvm::Error save(llvm::StringRef path, bool optimizer) const;
  void setCounters(int64_t number);
  void setPending(bool value) const;
  void keepScalars();
  llvm::Error execute(llvm::StringRef entry) const;
  /// What a step that was stopped says, the same in all processes: the message
  /// of the first rank that has found something.
  llvm::Error explain(const Stop &stop) const;
  void beforeWriting(const Tensor &tensor);
  void noteOutputs(llvm::StringRef entry);

  Artifact artifact;
  /// Of each output, the entry that gave it last.
  std::map<std::string, std::string> givenBy;
  ContractionTuner tuner;
  std::unique_ptr<ThreadWorld> world;
  std::unique_ptr<RankThreads> threads;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::map<std::string, const Tensor *, std::less<>> names;
  /// The group of all ranks, for `broadcast`.
  mutable cleave_group *everyone = nullptr;
  /// What ended the last run of each rank.
  mutable std::vector<std::optional<Stop>> stopped;
  /// Whether the last step has left its updates.
  mutable bool pending = false;
  int64_t seed = 0, step = 0;
  int64_t traceStart = 0;
};

/// Reads training.json of a checkpoint, without a session.
llvm::Expected<TrainingState> readTrainingState(llvm::StringRef directory);

/// Whether `tensor`, an input of integers, may hold `id`.
bool acceptsId(const Tensor &tensor, int64_t id);

/// Checks all ids of an input.
llvm::Error checkTokenIds(const Tensor &tensor, const void *data);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_SESSION_H
