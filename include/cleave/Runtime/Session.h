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

#include "cleave/Runtime/Executor.h"
#include "llvm/ADT/ArrayRef.h"
#include <map>
#include <memory>
#include <string>

namespace cleave::runtime {

struct SessionOptions {
  /// 0: OMP_NUM_THREADS or all cores; never more than the program plans for.
  int threads = 0;
  /// Pin the calling thread too. Not for a process that starts other threads.
  bool pinCaller = false;
  /// Measure each command, for `StepResult::breakdown`.
  bool timing = false;
  int64_t seed = 0;
  /// How contractions were computed in the run that is resumed; see
  /// `TrainingState::contractions`.
  std::map<std::string, std::string> contractions;
};

/// What a checkpoint knows besides tensors.
struct TrainingState {
  int64_t seed = 0;
  /// Training steps completed.
  int64_t step = 0;
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
  /// With `timing` only.
  Breakdown breakdown;
};

/// Bytes, for reports.
struct MemoryReport {
  int64_t arena = 0;
  /// Of the arena: persistent tensors by role, and the rest (activations,
  /// gradients, scratch).
  std::map<std::string, int64_t> byKind;
  /// The library's workspace beside the arena.
  int64_t workspace = 0;
};

class Session {
public:
  /// Opens an artifact that `cleave-compile` wrote.
  static llvm::Expected<std::unique_ptr<Session>>
  open(llvm::StringRef path, const SessionOptions &options = {});

  /// Takes a program whose kernels `resolver` finds in this process.
  static llvm::Expected<std::unique_ptr<Session>>
  create(Program program, SymbolResolver resolver,
         const SessionOptions &options = {});

  const Program &getProgram() const { return artifact.getProgram(); }
  int getThreads() const { return team.size(); }
  bool hasEntry(llvm::StringRef entry) const {
    return executor->hasEntry(entry);
  }

  //===--------------------------------------------------------------------===//
  // Tensors
  //===--------------------------------------------------------------------===//

  /// The tensor of a name or alias, or null.
  const Tensor *find(llvm::StringRef name) const;
  /// Where it lies; valid as long as the session.
  char *data(const Tensor &tensor) const {
    return arena.data() + tensor.offset;
  }
  int64_t bytes(const Tensor &tensor) const;

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
  llvm::Expected<StepResult> run(llvm::StringRef entry);

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
  Executor &getExecutor() { return *executor; }

  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;

private:
  Session(Artifact artifact, int threads, const SessionOptions &options);
  llvm::Error start(const SessionOptions &options);
  llvm::Error load(llvm::StringRef path, bool optimizer);
  llvm::Error save(llvm::StringRef path, bool optimizer) const;
  void setCounters(int64_t number);

  Artifact artifact;
  ThreadTeam team;
  Arena arena;
  ContractionTuner tuner;
  std::optional<Executor> executor;
  std::map<std::string, const Tensor *, std::less<>> names;
  int64_t seed = 0, step = 0;
};

/// Reads training.json of a checkpoint, without a session.
llvm::Expected<TrainingState> readTrainingState(llvm::StringRef directory);

/// Whether `tensor`, an input of integers, may hold `id`.
bool acceptsId(const Tensor &tensor, int64_t id);

/// Checks all ids of an input.
llvm::Error checkTokenIds(const Tensor &tensor, const void *data);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_SESSION_H
