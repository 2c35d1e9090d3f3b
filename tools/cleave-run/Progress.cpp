//===- Progress.cpp - Showing how a run goes ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "llvm/Support/Format.h"

#include <algorithm>
#include <csignal>
#include <string>
#include <unistd.h>

using namespace cleave::run;

static volatile std::sig_atomic_t interruptSeen = 0;

bool cleave::run::interrupted() { return interruptSeen; }

void cleave::run::watchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interruptSeen = 1; };
  // A second interrupt ends the process at once.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
}

Progress::Progress(int64_t first, int64_t total, llvm::raw_ostream &out)
    : first(first), total(total), out(out),
      terminal(&out == &llvm::outs() && ::isatty(STDOUT_FILENO)) {}

static std::string duration(double seconds) {
  int64_t s = static_cast<int64_t>(seconds + 0.5);
  std::string text;
  llvm::raw_string_ostream os(text);
  if (s >= 3600)
    os << s / 3600 << "h" << llvm::format("%02d", int(s / 60 % 60)) << "m";
  else if (s >= 60)
    os << s / 60 << "m" << llvm::format("%02d", int(s % 60)) << "s";
  else
    os << s << "s";
  return text;
}

void Progress::step(int64_t step, double loss, double rate, double seconds,
                    double tokensPerSecond) {
  // The first step warms up and is no measure of the rest.
  smoothed = smoothed == 0 || step - first <= 2
                 ? seconds
                 : 0.9 * smoothed + 0.1 * seconds;
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "step " << step << "/" << total
     << llvm::format("  loss %.4f  lr %.3g  %.0f ms  %.0f tokens/s", loss, rate,
                     seconds * 1e3, tokensPerSecond);
  if (!terminal) {
    out << text << "\n";
    out.flush();
    return;
  }
  constexpr int width = 24;
  int done = static_cast<int>(width * step / std::max<int64_t>(1, total));
  clear();
  out << "[" << std::string(static_cast<size_t>(done), '#')
               << std::string(static_cast<size_t>(width - done), '.') << "] "
               << text << "  ETA "
               << duration(smoothed * static_cast<double>(total - step));
  out.flush();
  drawn = true;
}

void Progress::clear() {
  if (drawn)
    out << "\r\033[K";
  drawn = false;
}

void Progress::note(const llvm::Twine &text) {
  clear();
  out << text << "\n";
  out.flush();
}

void Progress::finish() {
  if (drawn)
    out << "\n";
  drawn = false;
}
