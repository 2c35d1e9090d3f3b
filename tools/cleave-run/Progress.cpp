//===- Progress.cpp - Display of a run's progress -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "llvm/Support/Format.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>

using namespace cleave::run;

Progress::Progress(int64_t first, int64_t total, llvm::raw_ostream &out,
                   ProgressForm wanted, bool alone)
    : first(first), total(total), out(out), form(wanted) {
  if (&out != &llvm::outs())
    form = ProgressForm::None;
  else if (form == ProgressForm::Auto)
    form = alone && ::isatty(STDOUT_FILENO) ? ProgressForm::Bar
                                            : ProgressForm::None;
}

/// Columns of the terminal; 80 if there is none.
static size_t terminalWidth() {
  winsize size = {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return size.ws_col;
  return 80;
}

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
  // The first step includes warm-up and is not representative.
  smoothed = smoothed == 0 || step - first <= 2
                 ? seconds
                 : 0.9 * smoothed + 0.1 * seconds;
  if (form == ProgressForm::None)
    return;
  std::string count =
      ("step " + llvm::Twine(step) + "/" + llvm::Twine(total)).str();
  auto text = [](const auto &format) {
    std::string result;
    llvm::raw_string_ostream(result) << format;
    return result;
  };
  std::string parts[] = {
      text(llvm::format("  loss %.4f", loss)),
      text(llvm::format("  lr %.3g", rate)),
      text(llvm::format("  %.0f ms", seconds * 1e3)),
      text(llvm::format("  %.0f tokens/s", tokensPerSecond))};
  if (form == ProgressForm::Lines) {
    out << count;
    for (const std::string &part : parts)
      out << part;
    out << "\n";
    out.flush();
    return;
  }
  // A line that wraps could not be overwritten. The last column stays free:
  // some terminals wrap after it.
  size_t columns = terminalWidth() - 1;
  std::string eta =
      "  ETA " + duration(smoothed * static_cast<double>(total - step));
  std::string line = count;
  // The most important values first.
  for (const std::string *part :
       {&parts[0], &eta, &parts[3], &parts[1], &parts[2]})
    if (line.size() + part->size() <= columns)
      line += *part;
  line.resize(std::min(line.size(), columns));
  constexpr size_t width = 24;
  if (line.size() + width + 3 <= columns) {
    size_t done = static_cast<size_t>(int64_t(width) * step /
                                      std::max<int64_t>(1, total));
    line = "[" + std::string(done, '#') + std::string(width - done, '.') +
           "] " + line;
  }
  clear();
  out << line;
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
