//===- CommandLine.h - What command lines have in common --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_COMMANDLINE_H
#define CLEAVE_SUPPORT_COMMANDLINE_H

#include "cleave/Support/Version.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Process.h"
#include "llvm/Support/raw_ostream.h"
#include <csignal>

namespace cleave {

/// The version of Cleave, and of what it is built on.
inline void printVersion(llvm::raw_ostream &os, llvm::StringRef tool) {
  os << tool << " (Cleave) " << CLEAVE_VERSION << "\n  LLVM "
     << LLVM_VERSION_STRING << "\n";
}

/// Lets `--version` say that.
inline void printVersionOf(llvm::StringRef tool) {
  llvm::cl::SetVersionPrinter(
      [tool](llvm::raw_ostream &os) { printVersion(os, tool); });
}

/// Lets system calls fail, which gives an error with its reason, where a signal
/// would end the process (a file that may not be so large), and lets it learn
/// how the processes that it starts end, whatever started it ignores. A
/// standard stream that is closed becomes /dev/null: the next file that is
/// opened would get its number, and what is printed. Called after `InitLLVM`,
/// which sets signals too.
inline void failWithoutSignals() {
  (void)llvm::sys::Process::FixupStandardFileDescriptors();
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);
}

/// Takes the options of LLVM's libraries from a program that has none of its
/// own yet, but for those of help.
inline void removeForeignOptions() {
  llvm::SmallVector<llvm::cl::Option *> foreign;
  for (auto &entry : llvm::cl::getRegisteredOptions())
    if (!entry.first.starts_with("help") && entry.first != "version")
      foreign.push_back(entry.second);
  for (llvm::cl::Option *option : foreign)
    option->removeArgument();
}

/// What is wrong with the first option of a command line that is not known:
/// `unknown option '--opimizer'; did you mean --optimizer?`. Empty when all are
/// known. The library's own message goes on to what stands behind it.
inline std::string findUnknownOption(int argc, const char *const *argv) {
  const auto &known = llvm::cl::getRegisteredOptions();
  for (llvm::StringRef word :
       llvm::ArrayRef(argv, argc).drop_front(argc > 0 ? 1 : 0)) {
    if (word == "--")
      break;
    llvm::StringRef name = word.ltrim('-').split('=').first;
    // `-` is a file, `-1` a number.
    if (!word.starts_with("-") || name.empty() || llvm::isDigit(name[0]) ||
        name[0] == '.' || known.contains(name))
      continue;
    std::string text = "unknown option '" + word.split('=').first.str() + "'";
    llvm::StringRef nearest;
    unsigned least = 1 + name.size() / 3;
    for (const auto &entry : known)
      if (unsigned distance = name.edit_distance(entry.first, true, least);
          distance <= least && !entry.first.empty() &&
          entry.second->getOptionHiddenFlag() == llvm::cl::NotHidden) {
        if (distance < least || nearest.empty() || entry.first < nearest)
          nearest = entry.first;
        least = distance;
      }
    return nearest.empty() ? text
                           : text + "; did you mean --" + nearest.str() + "?";
  }
  return "";
}

/// Parses a number. The library's own parser takes an empty text, as that of
/// `--lr=$RATE` without RATE, as 0.
struct NumberParser : llvm::cl::parser<double> {
  using llvm::cl::parser<double>::parser;
  bool parse(llvm::cl::Option &option, llvm::StringRef name,
             llvm::StringRef text, double &value) {
    if (text.trim().empty())
      return option.error("'" + text + "' is not a number");
    return llvm::cl::parser<double>::parse(option, name, text, value);
  }
};

/// An option whose value is a number.
using NumberOption = llvm::cl::opt<double, false, NumberParser>;

} // namespace cleave

#endif // CLEAVE_SUPPORT_COMMANDLINE_H
