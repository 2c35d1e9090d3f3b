//===- Extension.cpp - The compiler and the runtime for Python ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/Compile.h"
#include "cleave/Pipelines/Diagnostics.h"
#include "cleave/Pipelines/Register.h"
#include "cleave/Runtime/ProgramIO.h"
#include "mlir/Parser/Parser.h"
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace cleave;

namespace {

/// What the compiler or the runtime refused; becomes `cleave.CompileError`.
struct CompileFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void raise(llvm::Error error) {
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

/// A compiled program, with its IR after each phase.
class PyCompiled {
public:
  PyCompiled(const std::string &text, const std::string &optionsJson) {
    auto parsed = parseCompileOptions(optionsJson);
    if (!parsed)
      raise(parsed.takeError());
    options = *parsed;
    mlir::DialectRegistry registry;
    registerAllDialects(registry);
    context = std::make_unique<mlir::MLIRContext>(registry);
    std::string messages;
    mlir::ScopedDiagnosticHandler handler(
        context.get(),
        [&](mlir::Diagnostic &diagnostic) { collect(diagnostic, messages); });
    OneErrorPerPlace onlyFirst(context.get());
    context->printOpOnDiagnostic(false);
    module = mlir::parseSourceString<mlir::ModuleOp>(text, context.get());
    if (!module ||
        mlir::failed(annotateParameters(*module, options.parameters)) ||
        mlir::failed(runPhases(*module, Phase::Executable, options,
                               [&](Phase phase, mlir::ModuleOp reached) {
                                 keep(phase, reached);
                               })))
      throw CompileFailure(messages);
    auto result = generateCode(*module, options);
    if (mlir::failed(result))
      throw CompileFailure(messages);
    compiled = std::move(*result);
  }

  std::string ir(const std::string &phase) const {
    if (phase == "llvm" || phase == "cuda") {
      auto text = printKernels(
          *module, phase == "cuda" ? KernelText::Cuda : KernelText::LLVM,
          options);
      if (mlir::failed(text))
        throw CompileFailure("kernels cannot be printed as " + phase);
      return *text;
    }
    auto known = parsePhase(phase);
    if (!known)
      throw nb::value_error(("unknown phase '" + phase +
                             "'; phases: model, step, placed, local, "
                             "scheduled, executable, llvm, cuda")
                                .c_str());
    std::string text;
    llvm::raw_string_ostream os(text);
    mlir::ModuleOp(*snapshots.at(*known)).print(os);
    return text;
  }

  std::string report() const {
    std::string text;
    llvm::raw_string_ostream(text)
        << llvm::json::Value(llvm::json::Object(compiled.report));
    return text;
  }

  void save(const std::string &path) const {
    if (llvm::Error error = writeArtifact(compiled, path))
      raise(std::move(error));
  }

  std::shared_ptr<PySession> session(int threads, bool timing) const {
    runtime::SessionOptions sessionOptions;
    sessionOptions.threads = threads;
    sessionOptions.timing = timing;
    auto opened = openSession(compiled, sessionOptions);
    if (!opened)
      raise(opened.takeError());
    return std::make_shared<PySession>(std::move(*opened));
  }

private:
  static void collect(mlir::Diagnostic &diagnostic, std::string &messages) {
    llvm::raw_string_ostream os(messages);
    if (diagnostic.getSeverity() == mlir::DiagnosticSeverity::Remark)
      return;
    if (!messages.empty())
      os << "\n";
    os << diagnostic.getLocation() << ": " << diagnostic;
    for (mlir::Diagnostic &note : diagnostic.getNotes())
      os << "\n  note: " << note.getLocation() << ": " << note;
  }

  /// Clones are cheap beside text: constants and types are shared.
  void keep(Phase phase, mlir::ModuleOp reached) {
    snapshots[phase] = mlir::OwningOpRef<mlir::ModuleOp>(reached.clone());
  }

  CompileOptions options;
  std::unique_ptr<mlir::MLIRContext> context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::map<Phase, mlir::OwningOpRef<mlir::ModuleOp>> snapshots;
  CompiledProgram compiled;
};

} // namespace

NB_MODULE(_cleave, m) {
  m.doc() = "The compiler and the runtime; use the package `cleave` instead.";
  m.attr("MAX_THREADS") = int64_t(runtime::Program::kMaxThreads);
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
  nb::class_<PyCompiled>(m, "Compiled")
      .def("ir", &PyCompiled::ir, nb::arg("phase"))
      .def("report", &PyCompiled::report)
      .def("save", &PyCompiled::save, nb::arg("path"))
      .def("session", &PyCompiled::session, nb::arg("threads") = 0,
           nb::arg("timing") = false);
  m.def(
      "open",
      [](const std::string &path, int threads, bool timing) {
        runtime::SessionOptions options;
        options.threads = threads;
        options.timing = timing;
        auto session = runtime::Session::open(path, options);
        if (!session)
          raise(session.takeError());
        return std::make_shared<PySession>(std::move(*session));
      },
      nb::arg("path"), nb::arg("threads") = 0, nb::arg("timing") = false);
  m.def(
      "compile",
      [](const std::string &text, const std::string &options) {
        return new PyCompiled(text, options);
      },
      nb::arg("text"), nb::arg("options"), nb::rv_policy::take_ownership);
}
