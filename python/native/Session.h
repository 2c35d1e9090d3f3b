//===- Session.h - A running program for Python -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PYTHON_NATIVE_SESSION_H
#define CLEAVE_PYTHON_NATIVE_SESSION_H

#include "PyProcesses.h"
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>

namespace cleave::python {

namespace nb = nanobind;

/// What the compiler or the runtime refused; becomes `CompileError`.
struct CompileFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
  /// Whether a part of the batch needs the samples of another one; in Python
  /// `couples_samples`.
  bool couplesSamples = false;
};

[[noreturn]] inline void raise(llvm::Error error) {
  throw CompileFailure(llvm::toString(std::move(error)));
}

/// Where a training run is. The programs of several shapes share it.
struct Counts {
  int64_t seed = 0, step = 0, dataPosition = 0;
  /// The number of skipped steps, and the loss scale, if programs have one.
  int64_t skipped = 0;
  std::optional<runtime::LossScaleState> lossScale;
  /// What the last step returned; None before the first.
  nb::object last = nb::none();
};

/// A running program, all its ranks seen as one. If they are processes, each of
/// them makes the same calls; what needs the others begins with `meet`.
///
/// What changes state is one call each, from which nothing returns to Python in
/// between: a signal's handler, which may raise, runs before it or after it.
class PySession {
public:
  explicit PySession(std::unique_ptr<runtime::Session> session,
                     PyProcesses *processes = nullptr, int64_t number = 0)
      : session(std::move(session)), processes(processes), number(number) {}
  ~PySession() {
    if (processes && session)
      processes->retire(number, std::move(session));
  }
  PySession(const PySession &) = delete;
  PySession &operator=(const PySession &) = delete;

  /// Frees the memory of the session, of which nothing else may be called then.
  void close();

  nb::list tensors() const;

  std::vector<std::string> entries() const;

  using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig>;
  using Source =
      nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

  /// A copy of a whole tensor, joined from all ranks, as bytes.
  Bytes read(const std::string &name) const;

  /// Gives a whole tensor to all ranks. What is wrong with an input's token
  /// ids, or nothing.
  std::string write(const std::string &name, const Source &bytes);

  /// Runs an entry as step `number` of seed `seed`; returns what stopped it, or
  /// nothing.
  std::string run(const std::string &entry, int64_t seed, int64_t number) {
    meet("run '" + entry + "'");
    return execute(entry, seed, number);
  }

  /// Gives all `tensors`, (name, bytes) each, to all ranks, or none of them.
  /// With `position`, (seed, step, data position, skipped steps), the run is
  /// there afterwards, at the loss scale `scale`, (scale, growth, hysteresis);
  /// without one, at the first. What is wrong with indices, or nothing.
  std::string restore(const nb::list &tensors,
                      std::optional<std::vector<int64_t>> position,
                      std::optional<std::vector<double>> scale);

  /// Runs an entry where the run is: writes `inputs`, (name, bytes) each, and
  /// `scalars`, and reads `outputs`. Returns what stopped it, or (outputs by
  /// name, step, seconds, updates made again, why it was skipped or "",
  /// `note`), which is also the last result of "train".
  nb::object call(const std::string &entry, const nb::list &inputs,
                  const nb::dict &scalars,
                  const std::vector<std::string> &outputs, nb::object note);

  /// Takes the state of `other`; the names of tensors that must be given whole.
  std::vector<std::string> takeState(PySession &other);

  /// Goes on where `other` is, and from then on wherever either of them is.
  void follow(const PySession &other) { counts = other.counts; }
  Counts &getCounts() { return *counts; }

  /// What the first rank of this process sent in the last run.
  nb::list communication() const;

  /// Where the run is with its loss scale, (scale, growth, hysteresis), or
  /// None: before the first step of a program that has one, its initial one.
  nb::object lossScale() const;

  /// The implementations of contractions by their keys.
  std::map<std::string, std::string> contractions() const {
    requireOpen();
    return session->getTrainingState(counts->dataPosition).contractions;
  }

  /// Whether the last run was stopped since a buffer had too few rows.
  bool lacksRoom() const { return session->lacksRoom(); }

  /// Updates of this process's ranks that the last run made again.
  int64_t updatedAgain() const { return last.updatedAgain; }
  int64_t updatesPerStep() const {
    return session->getProgram().updatesPerStep();
  }
  int ranks() const { return session->getRanks(); }
  bool leads() const { return session->isLeader(); }

  /// Milliseconds of the last run: in all, and by kind of work when the session
  /// measures.
  nb::dict timings() const;

  /// Reads parameters and buffers from a safetensors file.
  void loadWeights(const std::string &path);

  /// What of parameters and state is not finite, or nothing.
  std::string checkFinite() const;

  /// Writes a checkpoint of where the run is, with the JSON that the caller
  /// keeps in it; what went wrong, or nothing.
  std::string saveCheckpoint(const std::string &folder, bool nonFinite,
                             const std::string &kept);

  /// Reads a checkpoint, whole or not at all: what went wrong, or nothing, the
  /// techniques of whose state it has none, and what the caller kept in it.
  nb::tuple loadCheckpoint(const std::string &folder);

  nb::dict memory() const;

private:
  using Sources = std::vector<std::pair<const runtime::Tensor *, Source>>;

  /// The tensors of a list of (name, bytes).
  Sources sourcesOf(const nb::list &tensors) const;

  static std::string textOf(const Sources &sources);

  /// Gives all or none of them to the ranks; what is wrong with indices.
  std::string writeAll(const Sources &sources);

  Bytes copy(const std::string &name) const;

  std::string execute(const std::string &entry, int64_t seed, int64_t number);

  /// What is wrong with the indices of a tensor to be written, or nothing.
  std::string check(const std::string &name, const runtime::Tensor &tensor,
                    const Source &bytes) const;

  /// Waits for the other processes to make this call.
  void meet(const std::string &what) const;

  const runtime::Tensor &find(const std::string &name) const;

  void requireOpen() const {
    if (!session)
      throw std::runtime_error("the program is closed");
  }

  /// While an entry runs, other threads of Python have their turn.
  void requireIdle() const;

  std::unique_ptr<runtime::Session> session;
  /// Null if all ranks are threads of this process.
  PyProcesses *processes;
  /// Of this session among those of the processes.
  int64_t number;
  runtime::StepResult last;
  std::shared_ptr<Counts> counts = std::make_shared<Counts>();
  /// Guarded by the interpreter's lock.
  bool running = false;
};

} // namespace cleave::python

#endif // CLEAVE_PYTHON_NATIVE_SESSION_H
