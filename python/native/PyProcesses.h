//===- PyProcesses.h - The processes of a launch, for Python ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PYTHON_NATIVE_PYPROCESSES_H
#define CLEAVE_PYTHON_NATIVE_PYPROCESSES_H

#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/Session/Launcher.h"
#include "cleave/Runtime/Session/Processes.h"
#include "cleave/Runtime/Session/Session.h"
#include "cleave/Support/Patience.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/xxhash.h"
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <map>
#include <optional>
#include <thread>
#include <type_traits>

namespace cleave::python {

namespace nb = nanobind;

/// What ends all processes of a launch; becomes `ProcessError`.
struct ProcessFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The processes of the launch: those of the whole interpreter, made by
/// the first step whose ranks they are.
///
/// All processes make the same calls of a step in one order. Each call begins
/// with `meet`, which compares them, so that no process waits for another one
/// that does something else. A signal's handler that raises in it raises in all
/// of them.
class PyProcesses {
public:
  /// The processes of this interpreter, or null before `connect`.
  static PyProcesses *get() { return *slot(); }

  /// Fails if they do not find each other, or a signal's handler raises
  /// meanwhile. `secret` is what the launcher has given to them, or "".
  static PyProcesses *connect(const std::string &secret) {
    if (!get()) {
      std::optional<nb::python_error> signal;
      auto made = waiting([&] {
        return runtime::Processes::connect(secret, [&] {
          nb::gil_scoped_acquire held;
          if (auto raised = pendingSignal())
            signal.emplace(std::move(*raised));
          return signal.has_value();
        });
      });
      if (!made) {
        std::string why = llvm::toString(made.takeError());
        if (signal)
          throw *signal;
        throw ProcessFailure(why);
      }
      // Kept to the end of the process, when their connections end.
      *slot() = new PyProcesses(std::move(*made));
    }
    return get();
  }

  int rank() const { return processes->rank(); }
  int size() const { return processes->size(); }
  void fail(const std::string &message) { processes->fail(message); }
  std::string error() const { return processes->error(); }
  void setBusy(bool on) { processes->setBusy(on); }
  bool isUnnoticed(int grace) const { return processes->isUnnoticed(grace); }

  /// Compares names and values with those of the other processes.
  void
  agree(const std::vector<std::pair<std::string, std::string>> &facts) const {
    requireOwnThread();
    std::string wrong = waiting([&] {
      llvm::Error error = processes->all().agree(facts);
      return error ? llvm::toString(std::move(error)) : std::string();
    });
    if (!wrong.empty())
      throw ProcessFailure(wrong);
  }

  /// The smallest value of all processes.
  int64_t smallest(int64_t value) const {
    requireOwnThread();
    return bounds(value).first;
  }

  /// The texts of all processes, in the order of ranks.
  std::vector<std::string> texts(const std::string &own) const {
    requireOwnThread();
    return gather(own);
  }

  /// Returns when all processes have made the call that `what` describes. If a
  /// signal's handler raises in one of them, it raises in all.
  void meet(const std::string &what) const {
    requireOwnThread();
    std::optional<nb::python_error> own = pendingSignal();
    for (bool patient = true;;) {
      std::string mine = (own ? "!" : " ") + what;
      auto [low, high] = bounds(
          static_cast<int64_t>(llvm::xxh3_64bits(llvm::StringRef(mine))));
      if (low == high && !own)
        return;
      std::vector<std::string> calls = gather(mine);
      if (own)
        throw *own;
      int interrupted = -1;
      bool same = true;
      for (size_t i = calls.size(); i-- > 0;) {
        if (calls[i][0] == '!')
          interrupted = static_cast<int>(i);
        same &= calls[i].substr(1) == what;
      }
      if (interrupted < 0 && !patient)
        differ(what, calls);
      // Usually the launcher sends a signal to all of them; that of this
      // process may come a little later.
      if (interrupted < 0 || same)
        if (std::optional<nb::python_error> late = awaitSignal())
          own.emplace(std::move(*late));
      if (interrupted >= 0 && same) {
        if (own)
          throw *own;
        PyErr_SetString(
            PyExc_KeyboardInterrupt,
            ("rank " + std::to_string(interrupted) + " was interrupted")
                .c_str());
        throw nb::python_error();
      }
      // A process that was interrupted between two calls, or has left one, may
      // come to the call of this one.
      patient = interrupted >= 0;
    }
  }

  /// After a call that changed state: a signal whose handler raises, and that
  /// came to one of the processes while the call ran, raises in all of them.
  void settle() const {
    std::optional<nb::python_error> own = pendingSignal();
    if (bounds(own ? 1 : 0).second == 0)
      return;
    // Usually the launcher sends a signal to all of them.
    if (!own)
      if (std::optional<nb::python_error> late = awaitSignal())
        own.emplace(std::move(*late));
    if (own)
      throw *own;
    PyErr_SetString(PyExc_KeyboardInterrupt, "another rank was interrupted");
    throw nb::python_error();
  }

  //===--------------------------------------------------------------------===//
  // Sessions
  //===--------------------------------------------------------------------===//

  /// A number for a session that all processes open now; those that none of
  /// them uses any more are closed.
  int64_t open() {
    close("open a program");
    return ++opened;
  }

  /// Takes a session that this process uses no more. Closing it needs all
  /// processes, and they may drop it at different times.
  void retire(int64_t number, std::unique_ptr<runtime::Session> session) {
    retired[number] = std::move(session);
  }

  /// Closes the sessions that all processes have retired.
  void close(const std::string &what) {
    meet(what);
    std::string own;
    for (const auto &[number, session] : retired)
      own += std::to_string(number) + ",";
    std::map<int64_t, int> count;
    for (const std::string &text : gather(own)) {
      llvm::SmallVector<llvm::StringRef> numbers;
      llvm::StringRef(text).split(numbers, ',', -1, /*KeepEmpty=*/false);
      for (llvm::StringRef one : numbers) {
        int64_t number = 0;
        if (!one.getAsInteger(10, number))
          ++count[number];
      }
    }
    for (auto [number, users] : count)
      if (users == size())
        retired.erase(number);
  }

private:
  explicit PyProcesses(std::unique_ptr<runtime::Processes> processes)
      : processes(std::move(processes)), thread(std::this_thread::get_id()) {}

  static PyProcesses **slot() {
    static PyProcesses *one = nullptr;
    return &one;
  }

  void requireOwnThread() const {
    if (std::this_thread::get_id() != thread)
      throw std::runtime_error(
          "the ranks of this step are processes of MPI: only the thread that "
          "compiled the first step may call it");
  }

  /// Runs `body` while other threads of Python have their turn.
  template <typename F> static std::invoke_result_t<F> waiting(const F &body) {
    nb::gil_scoped_release released;
    return body();
  }

  /// The launch has failed. What this process was told by a signal comes first.
  [[noreturn]] void stop(const std::string &message) const {
    if (std::optional<nb::python_error> own = pendingSignal())
      throw *own;
    throw ProcessFailure(message);
  }

  std::pair<int64_t, int64_t> bounds(int64_t value) const {
    auto found = waiting([&] { return processes->all().bounds(value); });
    if (!found)
      stop(llvm::toString(found.takeError()));
    return *found;
  }

  std::vector<std::string> gather(const std::string &text) const {
    auto all = waiting([&] { return processes->all().gather(text); });
    if (!all)
      stop(llvm::toString(all.takeError()));
    return std::move(*all);
  }

  /// Runs the handlers of signals that have come; what one of them raised.
  static std::optional<nb::python_error> pendingSignal() {
    if (PyErr_CheckSignals() == 0)
      return std::nullopt;
    return nb::python_error();
  }

  static std::optional<nb::python_error> awaitSignal() {
    using namespace std::chrono;
    auto begin = steady_clock::now();
    while (steady_clock::now() - begin < milliseconds(500)) {
      if (std::optional<nb::python_error> own = pendingSignal())
        return own;
      waiting([] { std::this_thread::sleep_for(milliseconds(5)); });
    }
    return std::nullopt;
  }

  /// Ends all processes, because they make different calls.
  [[noreturn]] void differ(const std::string &what,
                           llvm::ArrayRef<std::string> calls) const {
    std::map<std::string, std::vector<int>> ranks;
    for (size_t i = 0; i < calls.size(); ++i)
      ranks[calls[i].substr(1)].push_back(static_cast<int>(i));
    std::string text;
    for (const auto &[call, which] : ranks)
      text += (text.empty() ? "" : ", ") + call + " (" +
              runtime::ranksText(which) + ")";
    throw ProcessFailure("the ranks make different calls: " + text +
                         ": every process makes the same calls of a step, with "
                         "the same arguments, in one order");
  }

  std::unique_ptr<runtime::Processes> processes;
  std::thread::id thread;
  int64_t opened = 0;
  std::map<int64_t, std::unique_ptr<runtime::Session>> retired;
};

/// A short text that differs where bytes differ.
inline std::string digest(const void *data, size_t size) {
  return llvm::utohexstr(llvm::xxh3_64bits(llvm::ArrayRef(
                             static_cast<const uint8_t *>(data), size)),
                         /*LowerCase=*/true);
}

} // namespace cleave::python

#endif // CLEAVE_PYTHON_NATIVE_PYPROCESSES_H
