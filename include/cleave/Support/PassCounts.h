//===- PassCounts.h - What passes count -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Numbers of what a pass has done, which `cleave-opt --pass-counts` prints. In
/// the place of the statistics of LLVM, whose packages count nothing.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_PASSCOUNTS_H
#define CLEAVE_SUPPORT_PASSCOUNTS_H

#include "llvm/Support/raw_ostream.h"
#include <algorithm>
#include <atomic>
#include <tuple>
#include <vector>

namespace cleave {

/// One number, in the file of its pass.
class PassCount {
public:
  /// The pass by its argument, and what is counted. Both are kept.
  PassCount(llvm::StringLiteral pass, llvm::StringLiteral text)
      : pass(pass), text(text) {
    all().push_back(this);
  }
  PassCount(const PassCount &) = delete;

  void operator++() { value += 1; }
  void operator+=(int64_t more) { value += more; }
  void updateMax(int64_t other) {
    int64_t known = value;
    while (other > known && !value.compare_exchange_weak(known, other)) {
    }
  }

  /// Prints the numbers that are not zero, by pass.
  static void print(llvm::raw_ostream &os) {
    std::vector<const PassCount *> counts = all();
    std::sort(counts.begin(), counts.end(),
              [](const PassCount *a, const PassCount *b) {
                return std::tie(a->pass, a->text) < std::tie(b->pass, b->text);
              });
    for (const PassCount *count : counts)
      if (int64_t value = count->value)
        os << value << " " << count->pass << " - " << count->text << "\n";
  }

private:
  /// Filled before main.
  static std::vector<const PassCount *> &all() {
    static std::vector<const PassCount *> counts;
    return counts;
  }

  llvm::StringRef pass, text;
  std::atomic<int64_t> value{0};
};

} // namespace cleave

#endif // CLEAVE_SUPPORT_PASSCOUNTS_H
