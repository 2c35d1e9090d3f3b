//===- PySession.h - A running program for Python ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PYTHON_PYSESSION_H
#define CLEAVE_PYTHON_PYSESSION_H

#include "cleave/Runtime/Core/ProgramIO.h"
#include "cleave/Runtime/Session/Session.h"
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
  /// What the last step returned; None before the first.
  nb::object last = nb::none();
};

/// A running program, all its ranks seen as one.
///
/// What changes state is one call each, from which nothing returns to Python in
/// between: a signal's handler, which may raise, runs before it or after it.
class PySession {
public:
  explicit PySession(std::unique_ptr<runtime::Session> session)
      : session(std::move(session)) {}

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

  /// Gives a whole tensor to all ranks. What is wrong with an input's token
  /// ids, or nothing.
  std::string write(const std::string &name, const Source &bytes) {
    requireIdle();
    const runtime::Tensor &tensor = find(name);
    std::string wrong = check(name, tensor, bytes);
    if (wrong.empty())
      session->write(tensor, bytes.data());
    return wrong;
  }

  /// Runs an entry as step `number` of seed `seed`; returns what stopped it, or
  /// nothing.
  std::string run(const std::string &entry, int64_t seed, int64_t number) {
    requireIdle();
    session->setSeed(seed);
    session->setStep(entry == "train" ? number - 1 : number);
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

  /// Gives all `tensors`, (name, bytes) each, to all ranks, or none of them.
  /// With `position`, (seed, step, data position), the run is there afterwards.
  /// What is wrong with token ids, or nothing.
  std::string restore(const nb::list &tensors,
                      std::optional<std::vector<int64_t>> position) {
    requireIdle();
    if (position && position->size() != 3)
      throw nb::value_error("seed, step and data position expected");
    std::vector<std::pair<const runtime::Tensor *, Source>> sources;
    for (nb::handle item : tensors) {
      auto pair = nb::cast<nb::tuple>(item);
      std::string name = nb::cast<std::string>(pair[0]);
      sources.push_back({&find(name), nb::cast<Source>(pair[1])});
      std::string wrong =
          check(name, *sources.back().first, sources.back().second);
      if (!wrong.empty())
        return wrong;
    }
    for (const auto &[tensor, source] : sources)
      session->write(*tensor, source.data());
    if (position) {
      counts->seed = (*position)[0];
      counts->step = (*position)[1];
      counts->dataPosition = (*position)[2];
      counts->last = nb::none();
    }
    return "";
  }

  /// Runs an entry where the run is: writes `inputs`, (name, bytes) each, and
  /// `scalars`, and reads `outputs`. Returns what stopped it, or (outputs by
  /// name, step, seconds, updates made again, `note`), which is also the last
  /// result of "train".
  nb::object call(const std::string &entry, const nb::list &inputs,
                  const nb::dict &scalars,
                  const std::vector<std::string> &outputs, nb::object note) {
    auto start = std::chrono::steady_clock::now();
    if (std::string wrong = restore(inputs, std::nullopt); !wrong.empty())
      return nb::cast(wrong);
    for (auto [name, value] : scalars)
      if (llvm::Error error = session->setScalar(nb::cast<std::string>(name),
                                                 nb::cast<double>(value)))
        raise(std::move(error));
    for (const std::string &name : outputs)
      find(name);
    bool training = entry == "train";
    std::string stopped =
        run(entry, counts->seed, counts->step + (training ? 1 : 0));
    if (!stopped.empty())
      return nb::cast(stopped);
    if (training)
      counts->step = session->getStep();
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    nb::dict values;
    for (const std::string &name : outputs)
      values[name.c_str()] = read(name);
    nb::object result =
        nb::make_tuple(values, counts->step, seconds, last.updatedAgain, note);
    if (training)
      counts->last = result;
    return result;
  }

  /// Goes on where `other` is, and from then on wherever either of them is.
  void follow(const PySession &other) { counts = other.counts; }
  Counts &getCounts() { return *counts; }

  /// What the first rank of this process sent in the last run.
  nb::list communication() const {
    nb::list result;
    for (const runtime::Communication &c : last.communication) {
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
      result[runtime::timeClassName(static_cast<runtime::TimeClass>(i))
                 .str()
                 .c_str()] = last.breakdown.nanoseconds[i] * 1e-6;
    return result;
  }

  /// Reads parameters and buffers from a safetensors file.
  void loadWeights(const std::string &path) {
    requireIdle();
    if (llvm::Error error = session->loadWeights(path))
      raise(std::move(error));
  }

  /// What of parameters and state is not finite, or nothing.
  std::string checkFinite() const {
    requireIdle();
    llvm::Error error = session->checkFinite();
    return error ? llvm::toString(std::move(error)) : "";
  }

  /// Writes a checkpoint of where the run is; what went wrong, or nothing.
  std::string saveCheckpoint(const std::string &folder, bool nonFinite) {
    requireIdle();
    session->setSeed(counts->seed);
    session->setStep(counts->step);
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

  /// Reads a checkpoint, whole or not at all; what went wrong, or nothing.
  std::string loadCheckpoint(const std::string &folder) {
    requireIdle();
    auto state = session->loadCheckpoint(folder);
    if (!state)
      return llvm::toString(state.takeError());
    counts->seed = state->seed;
    counts->step = session->getStep();
    counts->dataPosition = state->dataPosition;
    counts->last = nb::none();
    return "";
  }

  nb::dict memory() const {
    runtime::MemoryReport report = session->getMemory();
    nb::dict result;
    result["ranks"] = report.ranks;
    result["arena"] = report.arena;
    for (const auto &[kind, bytes] : report.byKind)
      result[kind.c_str()] = bytes;
    result["library_workspace"] = report.workspace;
    return result;
  }

private:
  /// What is wrong with the token ids of a tensor to be written, or nothing.
  std::string check(const std::string &name, const runtime::Tensor &tensor,
                    const Source &bytes) const {
    if (static_cast<int64_t>(bytes.size()) != session->bytes(tensor))
      throw nb::value_error(
          (name + ": " + std::to_string(bytes.size()) + " bytes given, " +
           std::to_string(session->bytes(tensor)) + " expected")
              .c_str());
    if (tensor.role == runtime::Role::Input ||
        tensor.role == runtime::Role::Buffer)
      if (llvm::Error error = runtime::checkTokenIds(tensor, bytes.data()))
        return llvm::toString(std::move(error));
    return "";
  }

  const runtime::Tensor &find(const std::string &name) const {
    const runtime::Tensor *tensor = session->find(name);
    if (!tensor)
      throw nb::key_error(name.c_str());
    return *tensor;
  }

  /// While an entry runs, other threads of Python have their turn.
  void requireIdle() const {
    if (running)
      throw std::runtime_error("another thread runs this step: one call at a "
                               "time");
  }

  std::unique_ptr<runtime::Session> session;
  runtime::StepResult last;
  std::shared_ptr<Counts> counts = std::make_shared<Counts>();
  /// Guarded by the interpreter's lock.
  bool running = false;
};

/// Defines the class `Session` and what it raises in a module.
inline void bindSession(nb::module_ &m) {
  nb::exception<CompileFailure>(m, "CompileError", PyExc_RuntimeError);
  nb::class_<PySession>(m, "Session")
      .def("tensors", &PySession::tensors)
      .def("entries", &PySession::entries)
      .def("read", &PySession::read, nb::arg("name"))
      .def("write", &PySession::write, nb::arg("name"), nb::arg("bytes"))
      .def("ranks", &PySession::ranks)
      .def("leads", &PySession::leads)
      .def("updated_again", &PySession::updatedAgain)
      .def("updates_per_step", &PySession::updatesPerStep)
      .def("communication", &PySession::communication)
      .def("run", &PySession::run, nb::arg("entry"), nb::arg("seed"),
           nb::arg("number"))
      .def("call", &PySession::call, nb::arg("entry"), nb::arg("inputs"),
           nb::arg("scalars"), nb::arg("outputs"), nb::arg("note").none())
      .def("restore", &PySession::restore, nb::arg("tensors"),
           nb::arg("position").none() = nb::none())
      .def("follow", &PySession::follow, nb::arg("other"))
      .def_prop_ro("seed", [](PySession &s) { return s.getCounts().seed; })
      .def_prop_ro("step", [](PySession &s) { return s.getCounts().step; })
      .def_prop_ro("last", [](PySession &s) { return s.getCounts().last; })
      .def_prop_rw(
          "data_position",
          [](PySession &s) { return s.getCounts().dataPosition; },
          [](PySession &s, int64_t n) { s.getCounts().dataPosition = n; })
      .def("load_weights", &PySession::loadWeights, nb::arg("path"))
      .def("check_finite", &PySession::checkFinite)
      .def("save_checkpoint", &PySession::saveCheckpoint, nb::arg("folder"),
           nb::arg("non_finite") = false)
      .def("load_checkpoint", &PySession::loadCheckpoint, nb::arg("folder"))
      .def("timings", &PySession::timings)
      .def("memory", &PySession::memory);
}

} // namespace cleave::python

#endif // CLEAVE_PYTHON_PYSESSION_H
