//===- WorkOrder.cpp - Which work waits for which -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "WorkOrder.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;

static bool overlap(const std::vector<MemoryRange> &one,
                    const std::vector<MemoryRange> &other) {
  return llvm::any_of(
      other, [&](const MemoryRange &range) { return overlaps(one, range); });
}

static bool conflict(const MemoryUse &one, const MemoryUse &other) {
  return overlap(one.writes, other.writes) ||
         overlap(one.writes, other.reads) || overlap(one.reads, other.writes);
}

namespace {
/// How many works of each stream have surely ended.
using Clock = llvm::SmallVector<int32_t, 4>;

class Planner {
public:
  Planner(llvm::ArrayRef<Work> list, int32_t streams)
      : list(list), waits(list.size()), clocks(streams, Clock(streams, 0)),
        host(streams, 0), done(streams), numbers(list.size(), 0),
        after(list.size()) {}

  std::vector<std::vector<WorkWait>> run();

private:
  struct Need {
    int32_t stream, number;
  };

  static void merge(Clock &clock, const Clock &other) {
    for (auto [own, theirs] : llvm::zip_equal(clock, other))
      own = std::max(own, theirs);
  }
  /// The latest work of each other stream that has to end before `index`.
  llvm::SmallVector<Need, 4> needsOf(size_t index) const;
  /// What is known when a need is met.
  const Clock &knownBy(const Need &need) const {
    return need.stream == 0 ? clocks[0]
                            : after[static_cast<size_t>(workOf(need))];
  }
  int32_t workOf(const Need &need) const {
    return done[static_cast<size_t>(need.stream)]
               [static_cast<size_t>(need.number - 1)];
  }
  void meet(size_t index, const Need &need);
  /// A work becomes the last of its stream.
  void add(size_t index);
  /// Before another pass.
  void restart();

  llvm::ArrayRef<Work> list;
  std::vector<std::vector<WorkWait>> waits;
  /// Of the next work of each stream, and of the host.
  std::vector<Clock> clocks;
  Clock host;
  /// The works of each stream so far.
  std::vector<std::vector<int32_t>> done;
  /// Of each work: which one of its stream it is, from 1, and what has ended
  /// when it has.
  std::vector<int32_t> numbers;
  std::vector<Clock> after;
  /// Where the table awaits works: indices of both, in order.
  std::vector<std::pair<size_t, int32_t>> ends;
};
} // namespace

llvm::SmallVector<Planner::Need, 4> Planner::needsOf(size_t index) const {
  const Work &work = list[index];
  const Clock &clock = clocks[static_cast<size_t>(work.stream)];
  llvm::SmallVector<Need, 4> needs;
  for (int32_t other = 0; other < static_cast<int32_t>(done.size()); ++other) {
    if (other == work.stream)
      continue;
    const std::vector<int32_t> &theirs = done[static_cast<size_t>(other)];
    for (auto number = static_cast<int32_t>(theirs.size());
         number > clock[static_cast<size_t>(other)]; --number)
      if (conflict(*work.use,
                   *list[static_cast<size_t>(
                             theirs[static_cast<size_t>(number - 1)])]
                        .use)) {
        needs.push_back({other, number});
        break;
      }
  }
  // One need may be met with another.
  for (size_t i = 0; i < needs.size();) {
    bool met = llvm::any_of(needs, [&](const Need &other) {
      return other.stream != needs[i].stream &&
             knownBy(other)[static_cast<size_t>(needs[i].stream)] >=
                 needs[i].number;
    });
    if (met)
      needs.erase(needs.begin() + static_cast<ptrdiff_t>(i));
    else
      ++i;
  }
  return needs;
}

void Planner::meet(size_t index, const Need &need) {
  int32_t stream = list[index].stream;
  Clock &clock = clocks[static_cast<size_t>(stream)];
  if (need.stream == 0) {
    waits[index].push_back({stream, -1});
    return merge(clock, clocks[0]);
  }
  int32_t work = workOf(need);
  size_t at = index;
  // The last place of the table that suffices: earlier ones suffice for what
  // they were needed for.
  if (stream == 0)
    for (auto [where, ended] : llvm::reverse(ends))
      if (list[static_cast<size_t>(ended)].stream == need.stream &&
          numbers[static_cast<size_t>(ended)] >= need.number) {
        at = where;
        work = ended;
        break;
      }
  // It may be one before those for less.
  for (size_t i = at; stream == 0 && i < index; ++i)
    llvm::erase_if(waits[i], [&](const WorkWait &other) {
      return other.stream == 0 &&
             list[static_cast<size_t>(other.work)].stream == need.stream &&
             numbers[static_cast<size_t>(other.work)] <=
                 numbers[static_cast<size_t>(work)];
    });
  waits[at].push_back({stream, work});
  merge(clock, after[static_cast<size_t>(work)]);
}

void Planner::add(size_t index) {
  auto stream = static_cast<size_t>(list[index].stream);
  done[stream].push_back(static_cast<int32_t>(index));
  numbers[index] = static_cast<int32_t>(done[stream].size());
  clocks[stream][stream] = numbers[index];
  after[index] = clocks[stream];
  if (list[index].finishes)
    merge(host, clocks[0]);
}

void Planner::restart() {
  for (Clock &clock : clocks)
    clock.assign(clocks.size(), 0);
  host.assign(clocks.size(), 0);
  for (std::vector<int32_t> &works : done)
    works.clear();
}

std::vector<std::vector<WorkWait>> Planner::run() {
  // 1. Waits for what each work needs.
  for (auto [index, work] : llvm::enumerate(list)) {
    if (work.ends >= 0)
      ends.push_back({index, work.ends});
    if (work.stream < 0)
      continue;
    merge(clocks[static_cast<size_t>(work.stream)], host);
    for (const Need &need : needsOf(index))
      meet(index, need);
    add(index);
  }
  // 2. A wait that was put in an earlier place can meet a need of a stream that
  // has waited for that one since.
  restart();
  for (auto [index, work] : llvm::enumerate(list)) {
    llvm::erase_if(waits[index], [&](const WorkWait &wait) {
      Clock &clock = clocks[static_cast<size_t>(wait.stream)];
      merge(clock, host);
      const Clock &known =
          wait.work < 0 ? clocks[0] : after[static_cast<size_t>(wait.work)];
      Clock before = clock;
      merge(clock, known);
      return clock == before;
    });
    if (work.stream < 0)
      continue;
    merge(clocks[static_cast<size_t>(work.stream)], host);
    add(index);
  }
  return std::move(waits);
}

std::vector<std::vector<WorkWait>> cuda::orderWork(llvm::ArrayRef<Work> list,
                                                   int32_t streams) {
  return Planner(list, streams).run();
}
