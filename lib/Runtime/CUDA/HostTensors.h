//===- HostTensors.h - What the host gives and takes each run ---*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_HOSTTENSORS_H
#define CLEAVE_LIB_RUNTIME_CUDA_HOSTTENSORS_H

#include "Gpu.h"
#include "WorkRecord.h"
#include <deque>

namespace cleave::runtime::cuda {

/// The inputs, scalars and small results of a program, which pass through
/// pinned memory of the host, so that the host waits for none of them while the
/// device computes.
///
/// - An input is copied when it is given, on a stream of its own, behind the
///   last command of the run before that reads an input. The next run waits for
///   the copy.
/// - A scalar is changed on the host, where it is read too. The next run begins
///   with copies of those that have changed.
/// - A result is copied behind the last command that writes one.
///
/// There are two pinned memories for inputs and scalars, which runs have by
/// turns: one is filled while the device copies from the other.
class HostTensors {
public:
  /// The results of an entry that are copied to the host.
  struct Results {
    struct Copy {
      int64_t offset = 0, bytes = 0, at = 0;
    };
    std::vector<Copy> list;
    /// Ranges of the arena that have them all: neighbours are copied at once.
    std::vector<Copy> ranges;
    /// Behind the command of this index they are all there.
    int64_t last = -1;
    /// Where the status of checks is copied too; -1: it is not.
    int64_t status = -1;
  };

  /// Finds inputs and scalars that no command of `written` writes; these are
  /// ranges of the arena.
  static llvm::Expected<std::unique_ptr<HostTensors>>
  make(const Program &program, Gpu &gpu, CUdeviceptr arena,
       llvm::ArrayRef<MemoryRange> written, WorkRecord *record);
  /// Finds the results of an entry: `writer` gives the index of the last
  /// command that writes to a range, or -1 if it cannot be copied behind that.
  Results plan(const Program &program, const Entry &entry,
               llvm::function_ref<int64_t(const MemoryRange &)> writer);
  /// Finds room for results, and for the status of checks, of this range of the
  /// arena, if one copy can take them all; no bytes: it has another copy.
  void place(Results &results, MemoryRange status);
  llvm::Error allocate();

  static constexpr const char *kStreamName = "inputs";
  CUstream getStream() const { return stream; }
  /// What `write` takes.
  const MemoryUse &getGiven() const { return given; }
  /// Whether one of `ranges` has bytes of an input.
  bool readsInput(llvm::ArrayRef<MemoryRange> ranges) const;

  //===--------------------------------------------------------------------===//
  // The host
  //===--------------------------------------------------------------------===//

  /// Whether these are the bytes of an input, or of a scalar.
  bool takes(int64_t offset, int64_t bytes);
  /// Waits for the copies of inputs that were given since the last run: before
  /// something else uses the arena.
  llvm::Error finishInputs();
  /// Takes the bytes of an input or of a scalar; false if they are of neither.
  llvm::Expected<bool> write(int64_t offset, const char *from, int64_t bytes);
  /// Gives the bytes of a scalar, or of a result of the last run; false if they
  /// are of neither, or the result is not there.
  llvm::Expected<bool> read(int64_t offset, char *to, int64_t bytes);

  //===--------------------------------------------------------------------===//
  // Runs
  //===--------------------------------------------------------------------===//

  /// Before the first command of a run.
  llvm::Error begin();
  /// Behind the last command of a run that reads an input.
  llvm::Error noteRead();
  /// Behind the last one that writes a result.
  llvm::Error copyResults(const Results &own);
  /// The status that was copied with them, when the host has waited.
  const char *statusOf(const Results &own) const {
    return pinned + 2 * turnBytes + own.status;
  }
  /// The host has seen the end of what the stream of computation had to do.
  void finished();
  /// Results are not those of a run that has gone through.
  void forgetResults() { results = nullptr; }

private:
  struct Given {
    int64_t offset = 0, bytes = 0;
    /// In the pinned memory of a turn, where scalars are behind inputs.
    int64_t at = 0;
    /// An input: its copy may be under way. A scalar: it has changed
    /// since then.
    bool changed = false;
  };

  HostTensors(Gpu &gpu, CUdeviceptr arena, WorkRecord *record)
      : gpu(gpu), arena(arena), record(record) {}
  llvm::Error writeInput(Given &input, const char *from);
  /// Waits until the device has copied from the pinned memory of this turn.
  llvm::Error take();
  llvm::Error copy(const Given &own, CUstream on, llvm::StringRef name,
                   llvm::StringRef what);
  llvm::Error mark(CUevent event, CUstream on, llvm::StringRef name);
  llvm::Error await(CUevent event, CUstream on, llvm::StringRef name);
  /// The host waits for an event.
  llvm::Error reach(CUevent event);
  char *pinnedAt(const Given &own) const {
    return pinned + turn * turnBytes + own.at;
  }
  char *valueOf(const Given &scalar) {
    return values.data() + (scalar.at - inputBytes);
  }
  /// The scalar that has these bytes, or null.
  Given *findScalar(int64_t offset, int64_t bytes);

  Gpu &gpu;
  CUdeviceptr arena;
  WorkRecord *record;
  CUstream stream = nullptr;
  std::vector<Given> inputs, scalars;
  MemoryUse given;
  /// The values of scalars.
  std::vector<char> values;
  /// Two memories for what is given, then that of results.
  char *pinned = nullptr;
  int64_t inputBytes = 0, turnBytes = 0, resultBytes = 0;
  int turn = 0;
  /// Inputs are copied; those of a run have been read; the copies from a pinned
  /// memory have ended; results are there.
  CUevent copied = nullptr, hasRead = nullptr, taken[2] = {},
          hasResults = nullptr;
  /// Which of them the host has not seen yet.
  bool reading = false, taking[2] = {}, writing = false;
  /// Whether the last run read its inputs before its results were copied.
  bool readFirst = false;
  /// Of the last run.
  const Results *results = nullptr;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_HOSTTENSORS_H
