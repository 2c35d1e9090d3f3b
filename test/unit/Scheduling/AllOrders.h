//===- AllOrders.h - Every order of a small pipeline ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The least makespan over all orders of F, I and W at p positions of one stage
/// each, by trying them. Nothing is shared with what it checks.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_SCHEDULING_ALLORDERS_H
#define CLEAVE_TEST_UNIT_SCHEDULING_ALLORDERS_H

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace cleave::scheduling {

class AllOrders {
public:
  /// `cost[s]` are those of F, I and W of a stage; without `split`, W follows I
  /// at once. A position may hold `limit` micro-batches between F and W.
  AllOrders(int m, std::vector<std::array<int, 3>> cost, int limit, bool split)
      : m(m), p(cost.size()), cost(std::move(cost)), words(p) {
    if (!split)
      for (auto &stage : this->cost) {
        stage[1] += stage[2];
        stage[2] = 0;
      }
    std::string word;
    extend(word, 0, 0, 0, limit, split);
  }

  /// The least makespan that is less than `best`; otherwise `best`.
  int least(int best) {
    descend(0, best);
    return best;
  }

private:
  void extend(std::string &word, int f, int i, int w, int limit, bool split) {
    if (w == m) {
      all.push_back(word);
      return;
    }
    auto with = [&](const char *letters, int f, int i, int w) {
      size_t before = word.size();
      word += letters;
      extend(word, f, i, w, limit, split);
      word.resize(before);
    };
    if (f < m && f - w < limit)
      with("F", f + 1, i, w);
    if (i < f && split)
      with("I", f, i + 1, w);
    if (i < f && !split)
      with("IW", f, i + 1, w + 1);
    if (w < i)
      with("W", f, i, w + 1);
  }

  /// Gives position `d` each order in turn. Positions without one do all at
  /// once as soon as they can, so that the length found is never too large.
  void descend(int d, int &best) {
    if (d == p) {
      best = time();
      return;
    }
    for (const std::string &word : all) {
      words[d] = &word;
      if (time() < best)
        descend(d + 1, best);
    }
    words[d] = nullptr;
  }

  int time() {
    end[0].assign(p * m, -1);
    end[1].assign(p * m, -1);
    // Of each position: the place in its word, the time, and how many letters.
    std::vector<std::array<int, 5>> state(p, {0, 0, 0, 0, 0});
    int last = 0;
    auto ready = [&](int kind, int s, int k) {
      if (kind == 0)
        return s == 0 ? 0 : end[0][(s - 1) * m + k];
      int own = end[0][s * m + k];
      int next = s + 1 == p ? 0 : end[1][(s + 1) * m + k];
      return own < 0 || next < 0 ? -1 : std::max(own, next);
    };
    for (bool progress = true; progress;) {
      progress = false;
      for (int s = 0; s < p; ++s) {
        if (!words[s]) {
          for (int kind = 0; kind < 2; ++kind)
            for (int k = 0; k < m; ++k) {
              int &value = end[kind][s * m + k];
              if (int from = ready(kind, s, k); value < 0 && from >= 0) {
                value = from + cost[s][kind];
                last = std::max(last, value);
                progress = true;
              }
            }
          continue;
        }
        auto &[at, now, f, i, w] = state[s];
        while (at < static_cast<int>(words[s]->size())) {
          char letter = (*words[s])[at];
          if (letter == 'W') {
            now += cost[s][2];
          } else {
            int kind = letter == 'I';
            int &k = kind ? i : f;
            int from = ready(kind, s, k);
            if (from < 0)
              break;
            now = std::max(now, from) + cost[s][kind];
            end[kind][s * m + k++] = now;
          }
          last = std::max(last, now);
          ++at;
          progress = true;
        }
      }
    }
    for (int s = 0; s < p; ++s)
      if (words[s] && state[s][0] < static_cast<int>(words[s]->size()))
        return 1 << 30; // A deadlock.
    return last;
  }

  int m, p;
  std::vector<std::array<int, 3>> cost;
  std::vector<std::string> all;
  std::vector<const std::string *> words;
  std::vector<int> end[2];
};

} // namespace cleave::scheduling

#endif // CLEAVE_TEST_UNIT_SCHEDULING_ALLORDERS_H
