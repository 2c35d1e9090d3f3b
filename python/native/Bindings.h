//===- Bindings.h - What both modules define --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PYTHON_NATIVE_BINDINGS_H
#define CLEAVE_PYTHON_NATIVE_BINDINGS_H

#include "Session.h"

namespace cleave::python {

/// Defines the class `Session` and what it raises in a module.
inline void bindSession(nb::module_ &m) {
  nb::exception<CompileFailure> failure(m, "CompileError", PyExc_RuntimeError);
  nb::register_exception_translator(
      [](const std::exception_ptr &thrown, void *type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const CompileFailure &failed) {
          nb::object error =
              nb::handle(static_cast<PyObject *>(type))(nb::str(failed.what()));
          error.attr("couples_samples") = failed.couplesSamples;
          PyErr_SetObject(static_cast<PyObject *>(type), error.ptr());
        }
      },
      failure.ptr());
  nb::class_<PySession>(m, "Session")
      .def("tensors", &PySession::tensors)
      .def("close", &PySession::close)
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
           nb::arg("position").none() = nb::none(),
           nb::arg("loss_scale").none() = nb::none())
      .def("take_state", &PySession::takeState, nb::arg("other"))
      .def("follow", &PySession::follow, nb::arg("other"))
      .def_prop_ro("seed", [](PySession &s) { return s.getCounts().seed; })
      .def_prop_ro("step", [](PySession &s) { return s.getCounts().step; })
      .def_prop_ro("skipped",
                   [](PySession &s) { return s.getCounts().skipped; })
      .def_prop_ro("loss_scale", &PySession::lossScale)
      .def_prop_ro("last", [](PySession &s) { return s.getCounts().last; })
      .def_prop_ro("lacks_room", &PySession::lacksRoom)
      .def_prop_rw(
          "data_position",
          [](PySession &s) { return s.getCounts().dataPosition; },
          [](PySession &s, int64_t n) { s.getCounts().dataPosition = n; })
      .def("load_weights", &PySession::loadWeights, nb::arg("path"))
      .def("check_finite", &PySession::checkFinite)
      .def("save_checkpoint", &PySession::saveCheckpoint, nb::arg("folder"),
           nb::arg("non_finite") = false, nb::arg("kept") = "")
      .def("load_checkpoint", &PySession::loadCheckpoint, nb::arg("folder"))
      .def("timings", &PySession::timings)
      .def("memory", &PySession::memory);
}

/// Defines the class `Processes` and what it raises in a module.
inline void bindProcesses(nb::module_ &m) {
  nb::exception<ProcessFailure>(m, "ProcessError", PyExc_RuntimeError);
  nb::class_<PyProcesses>(m, "Processes")
      .def_prop_ro("rank", &PyProcesses::rank)
      .def_prop_ro("size", &PyProcesses::size)
      .def("error", &PyProcesses::error)
      .def("fail", &PyProcesses::fail, nb::arg("message"))
      .def("meet", &PyProcesses::meet, nb::arg("what"))
      .def("smallest", &PyProcesses::smallest, nb::arg("value"))
      .def("set_busy", &PyProcesses::setBusy, nb::arg("on"))
      .def("is_unnoticed", &PyProcesses::isUnnoticed, nb::arg("grace"))
      .def("texts", &PyProcesses::texts, nb::arg("own"))
      .def("agree", &PyProcesses::agree, nb::arg("facts"));
  m.def("connect_processes", &PyProcesses::connect, nb::rv_policy::reference);
  m.def("processes", &PyProcesses::get, nb::rv_policy::reference);
  // Of the launch, as far as the launcher says: 1 without one, 0 if unknown.
  m.def("launched_processes", [] {
    return runtime::startedAsRank() ? runtime::processesInAll() : 1;
  });
  m.def("processes_here", &runtime::processesHere);
  m.def("patience", &runtime::patienceSeconds);
  m.def("set_patience", &runtime::setPatience);
}

} // namespace cleave::python

#endif // CLEAVE_PYTHON_NATIVE_BINDINGS_H
