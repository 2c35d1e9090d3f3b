//===- PhaseTimes.h - The time of each phase --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_PHASETIMES_H
#define CLEAVE_PIPELINES_PHASETIMES_H

#include "mlir/Support/Timing.h"
#include <string>
#include <vector>

namespace cleave {

struct CompileOptions;

/// The CPU and wall seconds of the phases of a compilation, as --time-phases
/// asks for. MLIR's passes report to it as to any timing manager; its own one
/// has no CPU seconds.
class PhaseTimes : public mlir::TimingManager {
public:
  /// With `passes`, those of each pass too.
  explicit PhaseTimes(bool passes) : passes(passes) { startTimer(&whole); }

  bool timesPasses() const { return passes; }
  /// Starts to measure `name` until the scope ends.
  mlir::TimingScope start(llvm::StringRef name);
  /// Prints a line for each phase and pass, in the order of their beginnings,
  /// and the whole since the construction.
  void print(llvm::raw_ostream &os);

protected:
  std::optional<void *> rootTimer() override { return &whole; }
  void startTimer(void *handle) override;
  void stopTimer(void *handle) override;
  void *nestTimer(void *handle, const void *id,
                  llvm::function_ref<std::string()> nameBuilder) override;
  void hideTimer(void *handle) override;

private:
  struct Seconds {
    double cpu = 0, wall = 0;
    static Seconds now();
  };
  /// What was measured under one name, in all of its runs.
  struct Span {
    std::string name;
    Seconds begin, sum;
    bool hidden = false;
    std::vector<std::unique_ptr<Span>> inner;
  };

  static void print(llvm::raw_ostream &os, const Span &span, unsigned depth);

  bool passes;
  Span whole{"whole", {}, {}, false, {}};
};

/// Measures `name` until the scope ends, if the options ask for it.
mlir::TimingScope timePhase(const CompileOptions &options,
                            llvm::StringRef name);
/// Prints what was measured, if the options ask for it.
void printTimes(const CompileOptions &options);

} // namespace cleave

#endif // CLEAVE_PIPELINES_PHASETIMES_H
