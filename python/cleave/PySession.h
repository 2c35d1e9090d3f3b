//===- PySession.h - A running program for Python ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PYTHON_PYSESSION_H
#define CLEAVE_PYTHON_PYSESSION_H

#include "cleave/Runtime/ProgramIO.h"
#include "cleave/Runtime/Session.h"
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace cleave::python {

namespace nb = nanobind;

/// What the compiler or the runtime refused; becomes `CompileError`.
struct CompileFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void raise(llvm::Error error) {
  throw CompileFailure(llvm::toString(std::move(error)));
}

/// A running program, all its ranks seen as one.
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
  std::string
  write(const std::string &name,
        nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>
            bytes) {
    requireIdle();
    const runtime::Tensor &tensor = find(name);
    if (static_cast<int64_t>(bytes.size()) != session->bytes(tensor))
      throw nb::value_error(
          (name + ": " + std::to_string(bytes.size()) + " bytes given, " +
           std::to_string(session->bytes(tensor)) + " expected")
              .c_str());
    if (tensor.role == runtime::Role::Input ||
        tensor.role == runtime::Role::Buffer)
      if (llvm::Error error = runtime::checkTokenIds(tensor, bytes.data()))
        return llvm::toString(std::move(error));
    session->write(tensor, bytes.data());
    return "";
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
      .def("load_weights", &PySession::loadWeights, nb::arg("path"))
      .def("timings", &PySession::timings)
      .def("memory", &PySession::memory);
}

} // namespace cleave::python

#endif // CLEAVE_PYTHON_PYSESSION_H
