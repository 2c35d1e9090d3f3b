//===- PhaseTimes.cpp - The time of each phase ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/PhaseTimes.h"
#include "cleave/Pipelines/Compile.h"
#include "llvm/Support/Format.h"
#include <ctime>

using namespace mlir;
using namespace cleave;

static double secondsOf(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

PhaseTimes::Seconds PhaseTimes::Seconds::now() {
  return {secondsOf(CLOCK_PROCESS_CPUTIME_ID), secondsOf(CLOCK_MONOTONIC)};
}

TimingScope PhaseTimes::start(StringRef name) {
  return TimingScope(getRootTimer().nest(name));
}

void PhaseTimes::startTimer(void *handle) {
  static_cast<Span *>(handle)->begin = Seconds::now();
}

void PhaseTimes::stopTimer(void *handle) {
  auto *span = static_cast<Span *>(handle);
  Seconds now = Seconds::now();
  span->sum.cpu += now.cpu - span->begin.cpu;
  span->sum.wall += now.wall - span->begin.wall;
}

void *PhaseTimes::nestTimer(void *handle, const void *id,
                            function_ref<std::string()> nameBuilder) {
  auto *span = static_cast<Span *>(handle);
  // A phase may be run again by other pass managers: ids are not the same.
  std::string name = nameBuilder();
  for (std::unique_ptr<Span> &own : span->inner)
    if (own->name == name)
      return own.get();
  span->inner.push_back(std::make_unique<Span>());
  span->inner.back()->name = std::move(name);
  return span->inner.back().get();
}

void PhaseTimes::hideTimer(void *handle) {
  static_cast<Span *>(handle)->hidden = true;
}

void PhaseTimes::print(raw_ostream &os, const Span &span, unsigned depth) {
  if (!span.hidden) {
    os << llvm::format("%9.3f %9.3f  ", span.sum.cpu, span.sum.wall);
    os.indent(2 * depth) << span.name << "\n";
  }
  for (const std::unique_ptr<Span> &own : span.inner)
    print(os, *own, depth + (span.hidden ? 0 : 1));
}

void PhaseTimes::print(raw_ostream &os) {
  stopTimer(&whole);
  startTimer(&whole);
  os << "    CPU s    wall s\n";
  for (const std::unique_ptr<Span> &own : whole.inner)
    print(os, *own, 0);
  os << llvm::format("%9.3f %9.3f  in all\n", whole.sum.cpu, whole.sum.wall);
}

TimingScope cleave::timePhase(const CompileOptions &options, StringRef name) {
  return options.times ? options.times->start(name) : TimingScope();
}

void cleave::printTimes(const CompileOptions &options) {
  if (options.times)
    options.times->print(llvm::errs());
}
