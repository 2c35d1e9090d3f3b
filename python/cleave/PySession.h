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

/// A running program and its arena.
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

  /// A tensor's memory in the arena as bytes; it lives as long as the session.
  nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> bytes(const std::string &name) {
    const runtime::Tensor *tensor = session->find(name);
    if (!tensor)
      throw nb::key_error(name.c_str());
    size_t size = session->bytes(*tensor);
    return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(session->data(*tensor),
                                                        {size}, nb::find(this));
  }

  /// Checks that an input, already copied in, holds token ids in range.
  std::string checkInput(const std::string &name) const {
    const runtime::Tensor *tensor = session->find(name);
    if (!tensor)
      return "";
    llvm::Error error = runtime::checkTokenIds(*tensor, session->data(*tensor));
    return error ? llvm::toString(std::move(error)) : "";
  }

  /// Runs an entry as step `number` of seed `seed`; returns what stopped it, or
  /// nothing.
  std::string run(const std::string &entry, int64_t seed, int64_t number) {
    session->setSeed(seed);
    session->setStep(entry == "train" ? number - 1 : number);
    nb::gil_scoped_release released;
    auto result = session->run(entry);
    if (!result)
      return llvm::toString(result.takeError());
    last = *result;
    return "";
  }

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
    if (llvm::Error error = session->loadWeights(path))
      raise(std::move(error));
  }

  nb::dict memory() const {
    runtime::MemoryReport report = session->getMemory();
    nb::dict result;
    result["arena"] = report.arena;
    for (const auto &[kind, bytes] : report.byKind)
      result[kind.c_str()] = bytes;
    result["library_workspace"] = report.workspace;
    return result;
  }

private:
  std::unique_ptr<runtime::Session> session;
  runtime::StepResult last;
};

/// Defines the class `Session` and what it raises in a module.
inline void bindSession(nb::module_ &m) {
  nb::exception<CompileFailure>(m, "CompileError", PyExc_RuntimeError);
  nb::class_<PySession>(m, "Session")
      .def("tensors", &PySession::tensors)
      .def("entries", &PySession::entries)
      .def("bytes", &PySession::bytes, nb::arg("name"))
      .def("check_input", &PySession::checkInput, nb::arg("name"))
      .def("run", &PySession::run, nb::arg("entry"), nb::arg("seed"),
           nb::arg("number"))
      .def("load_weights", &PySession::loadWeights, nb::arg("path"))
      .def("timings", &PySession::timings)
      .def("memory", &PySession::memory);
}

} // namespace cleave::python

#endif // CLEAVE_PYTHON_PYSESSION_H
