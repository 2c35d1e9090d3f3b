//===- PySession.h - A running program for Python ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PYTHON_NATIVE_PYSESSION_H
#define CLEAVE_PYTHON_NATIVE_PYSESSION_H

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
  void close() {
    requireIdle();
    if (!session)
      return;
    if (!processes)
      return session.reset();
    processes->retire(number, std::move(session));
    processes->close("close a program");
  }

  nb::list tensors() const {
    nb::list result;
    for (const runtime::Tensor &tensor : session->getProgram().tensors) {
      nb::dict facts;
      facts["name"] = tensor.name;
      facts["role"] = runtime::roleName(tensor.role).str();
      facts["dtype"] = runtime::dtypeName(tensor.dtype).str();
      facts["shape"] = nb::cast(tensor.shape);
      facts["framework_shape"] = nb::cast(tensor.frameworkShape);
      facts["aliases"] = nb::cast(tensor.aliases);
      facts["frozen"] = tensor.frozen;
      facts["of"] = tensor.of;
      facts["slot"] = tensor.slot;
      if (tensor.hasIgnoreIndex)
        facts["ignore_index"] = tensor.ignoreIndex;
      if (tensor.upperBound > 0)
        facts["bound"] = tensor.upperBound;
      result.append(facts);
    }
    return result;
  }

  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto &[name, entry] : session->getProgram().entries)
      names.push_back(name);
    return names;
  }

  using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig>;
  using Source =
      nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

  /// A copy of a whole tensor, joined from all ranks, as bytes.
  Bytes read(const std::string &name) const {
    meet("read '" + name + "'");
    return copy(name);
  }

  /// Gives a whole tensor to all ranks. What is wrong with an input's token
  /// ids, or nothing.
  std::string write(const std::string &name, const Source &bytes) {
    requireIdle();
    const runtime::Tensor &tensor = find(name);
    meet("write '" + name + "' (hash " + digest(bytes.data(), bytes.size()) +
         ")");
    std::string wrong = check(name, tensor, bytes);
    if (wrong.empty())
      session->write(tensor, bytes.data());
    return wrong;
  }

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
                      std::optional<std::vector<double>> scale) {
    requireIdle();
    if (position && position->size() != 4)
      throw nb::value_error(
          "seed, step, data position and skipped steps expected");
    std::optional<runtime::LossScaleState> lossScale;
    if (scale) {
      if (scale->size() == 3)
        lossScale = {(*scale)[0], static_cast<int64_t>((*scale)[1]),
                     static_cast<int64_t>((*scale)[2])};
      if (!lossScale || !lossScale->isValid())
        throw nb::value_error("a loss scale is out of range");
    }
    Sources sources = sourcesOf(tensors);
    if (processes) {
      std::string at;
      for (int64_t one : position.value_or(std::vector<int64_t>()))
        at += (at.empty() ? " at seed, step, data position and skipped steps "
                          : ", ") +
              std::to_string(one);
      meet("write " + textOf(sources) + at);
    }
    std::string wrong = writeAll(sources);
    if (wrong.empty() && position) {
      counts->seed = (*position)[0];
      counts->step = (*position)[1];
      counts->dataPosition = (*position)[2];
      counts->skipped = (*position)[3];
      session->setLossScale(lossScale);
      counts->lossScale = session->getLossScale();
      counts->last = nb::none();
    }
    return wrong;
  }

  /// Runs an entry where the run is: writes `inputs`, (name, bytes) each, and
  /// `scalars`, and reads `outputs`. Returns what stopped it, or (outputs by
  /// name, step, seconds, updates made again, why it was skipped or "",
  /// `note`), which is also the last result of "train".
  nb::object call(const std::string &entry, const nb::list &inputs,
                  const nb::dict &scalars,
                  const std::vector<std::string> &outputs, nb::object note) {
    requireIdle();
    auto start = std::chrono::steady_clock::now();
    Sources sources = sourcesOf(inputs);
    for (const std::string &name : outputs)
      find(name);
    if (processes) {
      std::string given;
      for (auto [name, value] : scalars)
        given += " with " + nb::cast<std::string>(name) + " " +
                 nb::cast<std::string>(nb::str(value));
      meet("'" + entry + "' after step " + std::to_string(counts->step) +
           " of " + textOf(sources) + given);
    }
    if (std::string wrong = writeAll(sources); !wrong.empty())
      return nb::cast(wrong);
    for (auto [name, value] : scalars)
      if (llvm::Error error = session->setScalar(nb::cast<std::string>(name),
                                                 nb::cast<double>(value)))
        raise(std::move(error));
    bool training = entry == "train";
    std::string stopped =
        execute(entry, counts->seed, counts->step + (training ? 1 : 0));
    if (!stopped.empty())
      return nb::cast(stopped);
    if (training) {
      counts->step = session->getStep();
      counts->skipped = session->getSkipped();
      counts->lossScale = session->getLossScale();
    }
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    nb::dict values;
    for (const std::string &name : outputs)
      values[name.c_str()] = copy(name);
    nb::object result = nb::make_tuple(values, counts->step, seconds,
                                       last.updatedAgain, last.skipped, note);
    if (training)
      counts->last = result;
    if (training && processes)
      processes->settle();
    return result;
  }

  /// Takes the state of `other`; the names of tensors that must be given whole.
  std::vector<std::string> takeState(PySession &other) {
    other.requireIdle();
    other.requireOpen();
    meet("move the state to another program");
    auto rest = session->takeState(*other.session);
    if (!rest)
      raise(rest.takeError());
    return *rest;
  }

  /// Goes on where `other` is, and from then on wherever either of them is.
  void follow(const PySession &other) { counts = other.counts; }
  Counts &getCounts() { return *counts; }

  /// What the first rank of this process sent in the last run.
  nb::list communication() const {
    nb::list result;
    for (const cleave_sent &c : last.communication) {
      nb::dict facts;
      facts["kind"] = c.kind;
      facts["axes"] = c.axes;
      facts["count"] = c.count;
      facts["exchanges"] = c.exchanges;
      facts["elements"] = c.elements;
      facts["bytes"] = c.bytes;
      facts["ms"] = c.nanoseconds * 1e-6;
      result.append(facts);
    }
    return result;
  }

  /// Where the run is with its loss scale, (scale, growth, hysteresis), or
  /// None: before the first step of a program that has one, its initial one.
  nb::object lossScale() const {
    std::optional<runtime::LossScaleState> state =
        counts->lossScale ? counts->lossScale : session->getLossScale();
    if (!state)
      return nb::none();
    return nb::make_tuple(state->scale, state->growth, state->hysteresis);
  }

  /// Updates of this process's ranks that the last run made again.
  int64_t updatedAgain() const { return last.updatedAgain; }
  int64_t updatesPerStep() const {
    return session->getProgram().updatesPerStep();
  }
  int ranks() const { return session->getRanks(); }
  bool leads() const { return session->isLeader(); }

  /// Milliseconds of the last run: in all, and by kind of work when the session
  /// measures.
  nb::dict timings() const {
    nb::dict result;
    result["total"] = last.seconds * 1e3;
    for (size_t i = 0; i < last.breakdown.nanoseconds.size(); ++i)
      if (i != static_cast<size_t>(runtime::TimeClass::Offload) ||
          session->getProgram().tierBytes > 0)
        result[runtime::timeClassName(static_cast<runtime::TimeClass>(i))
                   .str()
                   .c_str()] = last.breakdown.nanoseconds[i] * 1e-6;
    return result;
  }

  /// Reads parameters and buffers from a safetensors file.
  void loadWeights(const std::string &path) {
    meet("load weights");
    if (llvm::Error error = session->loadWeights(path))
      raise(std::move(error));
  }

  /// What of parameters and state is not finite, or nothing.
  std::string checkFinite() const {
    meet("check whether the state is finite");
    llvm::Error error = session->checkFinite();
    return error ? llvm::toString(std::move(error)) : "";
  }

  /// Writes a checkpoint of where the run is; what went wrong, or nothing.
  std::string saveCheckpoint(const std::string &folder, bool nonFinite) {
    meet("save a checkpoint");
    session->setSeed(counts->seed);
    session->setStep(counts->step);
    session->setSkipped(counts->skipped);
    session->setLossScale(counts->lossScale);
    runtime::SaveOptions how;
    how.nonFinite = nonFinite;
    running = true;
    llvm::Error error = [&] {
      nb::gil_scoped_release released;
      return session->saveCheckpoint(folder, counts->dataPosition, how);
    }();
    running = false;
    return error ? llvm::toString(std::move(error)) : "";
  }

  /// Reads a checkpoint, whole or not at all: what went wrong, or nothing, and
  /// the techniques of whose state it has none.
  nb::tuple loadCheckpoint(const std::string &folder) {
    meet("load a checkpoint");
    auto state = session->loadCheckpoint(folder);
    nb::list absent;
    if (!state)
      return nb::make_tuple(llvm::toString(state.takeError()), absent);
    for (const std::string &technique : state->absent)
      absent.append(technique);
    counts->seed = state->seed;
    counts->step = session->getStep();
    counts->dataPosition = state->dataPosition;
    counts->skipped = state->skipped;
    counts->lossScale = session->getLossScale();
    counts->last = nb::none();
    return nb::make_tuple("", absent);
  }

  nb::dict memory() const {
    runtime::MemoryReport report = session->getMemory();
    nb::dict result;
    result["ranks"] = report.ranks;
    result["arena"] = report.arena;
    for (const auto &[kind, bytes] : report.byKind)
      result[kind.c_str()] = bytes;
    result["library_workspace"] = report.workspace;
    if (report.tier)
      result["tier"] = report.tier;
    return result;
  }

private:
  using Sources = std::vector<std::pair<const runtime::Tensor *, Source>>;

  /// The tensors of a list of (name, bytes).
  Sources sourcesOf(const nb::list &tensors) const {
    Sources sources;
    for (nb::handle item : tensors) {
      auto pair = nb::cast<nb::tuple>(item);
      sources.push_back(
          {&find(nb::cast<std::string>(pair[0])), nb::cast<Source>(pair[1])});
    }
    return sources;
  }

  static std::string textOf(const Sources &sources) {
    std::string text;
    for (const auto &[tensor, bytes] : sources)
      text += (text.empty() ? "'" : ", '") + tensor->name + "' (hash " +
              digest(bytes.data(), bytes.size()) + ")";
    return text;
  }

  /// Gives all or none of them to the ranks; what is wrong with indices.
  std::string writeAll(const Sources &sources) {
    for (const auto &[tensor, bytes] : sources)
      if (std::string wrong = check(tensor->name, *tensor, bytes);
          !wrong.empty())
        return wrong;
    for (const auto &[tensor, bytes] : sources)
      session->write(*tensor, bytes.data());
    return "";
  }

  Bytes copy(const std::string &name) const {
    requireIdle();
    const runtime::Tensor &tensor = find(name);
    size_t size = static_cast<size_t>(session->bytes(tensor));
    auto *copy = new uint8_t[size];
    nb::capsule owner(
        copy, [](void *p) noexcept { delete[] static_cast<uint8_t *>(p); });
    if (llvm::Error error = session->read(tensor, copy))
      raise(std::move(error));
    return Bytes(copy, {size}, owner);
  }

  std::string execute(const std::string &entry, int64_t seed, int64_t number) {
    session->setSeed(seed);
    session->setStep(entry == "train" ? number - 1 : number);
    session->setSkipped(counts->skipped);
    session->setLossScale(counts->lossScale);
    running = true;
    auto result = [&] {
      nb::gil_scoped_release released;
      return session->run(entry);
    }();
    running = false;
    if (!result)
      return llvm::toString(result.takeError());
    last = *result;
    return "";
  }

  /// What is wrong with the indices of a tensor to be written, or nothing.
  std::string check(const std::string &name, const runtime::Tensor &tensor,
                    const Source &bytes) const {
    if (static_cast<int64_t>(bytes.size()) != session->bytes(tensor))
      throw nb::value_error(
          (name + ": " + std::to_string(bytes.size()) + " bytes given, " +
           std::to_string(session->bytes(tensor)) + " expected")
              .c_str());
    if (tensor.role == runtime::Role::Input ||
        tensor.role == runtime::Role::Buffer)
      if (llvm::Error error = runtime::checkIndexRange(tensor, bytes.data()))
        return llvm::toString(std::move(error));
    return "";
  }

  /// Waits for the other processes to make this call.
  void meet(const std::string &what) const {
    requireIdle();
    if (processes)
      processes->meet(what);
  }

  const runtime::Tensor &find(const std::string &name) const {
    requireOpen();
    const runtime::Tensor *tensor = session->find(name);
    if (!tensor)
      throw nb::key_error(name.c_str());
    return *tensor;
  }

  void requireOpen() const {
    if (!session)
      throw std::runtime_error("the program is closed");
  }

  /// While an entry runs, other threads of Python have their turn.
  void requireIdle() const {
    if (running)
      throw std::runtime_error("another thread runs this step: one call at a "
                               "time");
  }

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

#endif // CLEAVE_PYTHON_NATIVE_PYSESSION_H
