//===- RowOffsets.h - Rows that each sends to each --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Where the members of a group send rows from, and where they receive them:
/// for each member two lists of one number more than there are members. All
/// who use them check them alike, so that all find the same.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_ROWOFFSETS_H
#define CLEAVE_SUPPORT_ROWOFFSETS_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cleave {

class RowOffsets {
public:
  explicit RowOffsets(int members = 0)
      : sends(static_cast<size_t>(members)),
        receives(static_cast<size_t>(members)) {}

  /// The numbers of one member, in both lists.
  static int64_t count(int members) { return 2 * (int64_t(members) + 1); }

  /// The lists of a member, which outlive this.
  void set(int member, const int64_t *from, const int64_t *to) {
    sends[static_cast<size_t>(member)] = from;
    receives[static_cast<size_t>(member)] = to;
  }
  /// Those of all members, each `count` numbers.
  void setAll(const int64_t *all) {
    for (int i = 0, n = members(); i < n; ++i, all += count(n))
      set(i, all, all + n + 1);
  }

  int members() const { return static_cast<int>(sends.size()); }
  int64_t sendBegin(int from, int to) const { return of(sends, from)[to]; }
  int64_t receiveBegin(int at, int from) const {
    return of(receives, at)[from];
  }
  int64_t rows(int from, int to) const {
    return of(sends, from)[to + 1] - of(sends, from)[to];
  }
  /// The rows that a member receives.
  int64_t received(int at) const { return of(receives, at)[members()]; }

  /// Why rows cannot be sent so between members that hold `given` rows and have
  /// room for `bound`; "" if they can.
  std::string problem(int64_t given, int64_t bound) const {
    for (int i = 0; i < members(); ++i)
      for (bool sending : {true, false})
        if (std::string why = problemOf(i, sending, sending ? given : bound);
            !why.empty())
          return why;
    for (int i = 0; i < members(); ++i)
      for (int j = 0; j < members(); ++j) {
        const int64_t *to = of(receives, j);
        if (to[i + 1] - to[i] != rows(i, j))
          return "member " + std::to_string(i) + " sends " +
                 rowsText(rows(i, j)) + " to member " + std::to_string(j) +
                 ", which expects " + std::to_string(to[i + 1] - to[i]);
      }
    return "";
  }

private:
  using Lists = std::vector<const int64_t *>;

  static const int64_t *of(const Lists &lists, int member) {
    return lists[static_cast<size_t>(member)];
  }
  static std::string rowsText(int64_t rows) {
    return std::to_string(rows) + (rows == 1 ? " row" : " rows");
  }

  std::string problemOf(int member, bool sending, int64_t most) const {
    const int64_t *list = of(sending ? sends : receives, member);
    std::string who = "member " + std::to_string(member);
    if (list[0] != 0)
      return who + (sending ? " sends" : " receives") + " rows from row " +
             std::to_string(list[0]) + " on, not from row 0";
    for (int i = 0; i < members(); ++i)
      if (list[i + 1] < list[i])
        return who + (sending ? " sends" : " receives") +
               " a negative number of rows";
    int64_t all = list[members()];
    if (all <= most)
      return "";
    return who + (sending ? " sends " : " receives ") + rowsText(all) + ", " +
           std::to_string(all - most) + " more than " +
           (sending ? "it holds" : "it has room for");
  }

  Lists sends, receives;
};

} // namespace cleave

#endif // CLEAVE_SUPPORT_ROWOFFSETS_H
