//===- ReportText.cpp - Numbers and names in lines ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportText.h"
#include "llvm/Support/FormatVariadic.h"

using llvm::StringRef;

std::string cleave::formatBytes(double bytes) {
  if (bytes < 1024)
    return llvm::formatv("{0} B", static_cast<int64_t>(bytes));
  StringRef unit;
  for (StringRef larger : {"KiB", "MiB", "GiB"}) {
    if (bytes < 1024)
      break;
    bytes /= 1024;
    unit = larger;
  }
  return llvm::formatv("{0:F1} {1}", bytes, unit);
}

std::string cleave::formatShare(double share) {
  return llvm::formatv("{0:F1} %", share * 100);
}

std::string cleave::counted(int64_t count, StringRef noun) {
  return (llvm::Twine(count) + " " + noun +
          (count == 1             ? ""
           : noun.ends_with("ch") ? "es"
                                  : "s"))
      .str();
}

/// Calls `visit` for each component of a text that is a number between other
/// components of a name, as the 3 of `h.3.w`; not for those of `1.5` or of
/// `a.py:3`. `visit` gets the position and the length.
template <typename Visit>
static void visitNumbers(StringRef text, const Visit &visit) {
  auto isName = [&](size_t at) {
    return at < text.size() && (llvm::isAlnum(text[at]) || text[at] == '_');
  };
  for (size_t at = 0; at < text.size();) {
    if (!isName(at)) {
      ++at;
      continue;
    }
    size_t begin = at;
    bool number = true;
    for (; isName(at); ++at)
      number &= llvm::isDigit(text[at]);
    bool inside = begin >= 2 && text[begin - 1] == '.' && isName(begin - 2) &&
                  at < text.size() && text[at] == '.' && isName(at + 1);
    if (number && inside)
      visit(begin, at - begin);
  }
}

std::string cleave::foldLayers(StringRef text) {
  std::string folded;
  size_t done = 0;
  visitNumbers(text, [&](size_t at, size_t length) {
    folded += text.slice(done, at).str() + "*";
    done = at + length;
  });
  return folded + text.drop_front(done).str();
}

std::string cleave::layerOf(StringRef text) {
  std::string numbers;
  visitNumbers(text, [&](size_t at, size_t length) {
    numbers += (numbers.empty() ? "" : ".") + text.substr(at, length).str();
  });
  return numbers;
}
