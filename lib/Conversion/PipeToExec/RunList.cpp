//===- RunList.cpp - Repetitions in a program -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "RunList.h"
#include "cleave/Support/Repetition.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// Longer bodies are not searched.
static constexpr size_t kMaxBody = 1024;

RunList::RunList(ProgramOp program, int64_t removed)
    : runs(program.getBody().getOps<RunOp>()), removed(removed) {
  llvm::DenseMap<Attribute, unsigned> known;
  for (RunOp run : runs) {
    numbers.push_back(
        known.try_emplace(run.getCalleeAttr(), known.size()).first->second);
    microBatches.push_back(static_cast<int64_t>(run.getMicroBatch()));
  }
  nextLike = nextWithSame(numbers);
}

int64_t RunList::stepBetween(size_t i, size_t j) const {
  if (numbers[i] != numbers[j])
    return 0;
  return std::max<int64_t>(microBatches[j] - microBatches[i], 0);
}

/// The largest repetition of the runs `first` to `last`.
std::optional<RepeatAttr> RunList::repeatBetween(size_t first, size_t last) {
  Repetition best;
  for (size_t i = first; i <= last; ++i) {
    Repetition found = repetitionFrom(
        i, last + 1, kMaxBody,
        [&](size_t a, size_t b) { return stepBetween(a, b); },
        [&](size_t a) { return nextLike[a]; });
    if (found.times * found.length > best.times * best.length)
      best = found;
  }
  if (best.times < 3 || removed % best.step)
    return std::nullopt;
  int64_t more = removed / best.step;
  for (size_t i = best.begin; i < best.begin + best.length; ++i) {
    auto &[end, times] = repeated[runs[i].getCallee()];
    end = best.begin + best.length * best.times;
    times += more;
  }
  return RepeatAttr::get(runs.front().getContext(), best.begin, best.length,
                         best.times, more, best.step);
}

/// False if a part of a repetition is not in all its iterations, or if a run
/// that belongs after it comes before its end. `ends` are those of repetitions,
/// by region: what a region has after it is later, such as the last run of a
/// part if that has another form.
bool RunList::setLater(const RunPlaces &places,
                       const std::map<int32_t, size_t> &ends) {
  // The first and the last run of a part may have another form.
  llvm::StringMap<int64_t> others;
  for (auto [i, run] : llvm::enumerate(runs)) {
    const scheduling::ReducedSchedule::Place &place = places.find(run)->second;
    auto region = ends.find(place.region);
    bool behind =
        place.later > 0 || (region != ends.end() && i >= region->second);
    if (auto known = repeated.find(run.getCallee()); known != repeated.end()) {
      behind = i >= known->second.first;
      if (known->second.second != removed || (place.later > 0 && !behind))
        return false;
    } else if (place.region >= 0 && ++others[run.getCallee()] > 2) {
      return false;
    }
    if (behind)
      run.setLater(removed);
  }
  return true;
}

std::optional<SmallVector<Attribute>> RunList::repeat(const RunPlaces &places) {
  std::map<int32_t, std::pair<size_t, size_t>> ranges;
  int32_t open = -1;
  for (auto [i, run] : llvm::enumerate(runs)) {
    const scheduling::ReducedSchedule::Place &place = places.find(run)->second;
    // It ends before the first run that belongs after it.
    if (place.later > 0)
      open = -1;
    if (place.region < 0 ||
        (place.region != open && ranges.count(place.region)))
      continue;
    open = place.region;
    auto [it, fresh] = ranges.try_emplace(open, std::pair(i, i));
    it->second.second = i;
  }
  SmallVector<Attribute> repeats;
  std::map<int32_t, size_t> ends;
  size_t end = 0;
  for (auto &[region, range] : ranges) {
    std::optional<RepeatAttr> found =
        repeatBetween(std::max(range.first, end), range.second);
    if (!found)
      return std::nullopt;
    end = found->getFirst() + found->getLength() * found->getTimes();
    ends[region] = end;
    repeats.push_back(*found);
  }
  if (!setLater(places, ends))
    return std::nullopt;
  return repeats;
}
