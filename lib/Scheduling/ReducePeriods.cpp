//===- ReducePeriods.cpp - A regular schedule of fewer micro-batches ------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/ReducePeriods.h"
#include "cleave/Support/Repetition.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include <map>
#include <numeric>
#include <set>
#include <tuple>

using namespace cleave;
using namespace cleave::scheduling;

/// The longest period that is searched for, in actions.
static constexpr size_t kMaxBody = 256;
/// The number of micro-batches removed is divisible by this number.
static constexpr int64_t kRemovedUnit = 12;

/// An action without its micro-batch.
using Key = std::tuple<llvm::StringRef, int64_t, Action::Kind, int64_t>;

static Key keyOf(const Action &action) {
  return {action.part, action.stage, action.kind, action.to};
}

namespace {
/// The action list of one position, and its periodic regions.
class PositionList {
public:
  PositionList(llvm::ArrayRef<Action> actions, int64_t microBatches)
      : actions(actions), microBatches(microBatches) {
    std::map<Key, unsigned> known;
    for (const Action &action : actions)
      numbers.push_back(
          known.try_emplace(keyOf(action), known.size()).first->second);
    nextLike = nextWithSame(numbers);
  }

  /// The most micro-batches in flight at a time.
  int64_t inFlight(llvm::function_ref<bool(const Action &)> holds) const;
  bool findRegions(int64_t kept);
  /// The most micro-batches that can be removed if each region keeps `kept`
  /// periods, and a number that the number removed must be divisible by.
  int64_t mostRemoved(int64_t kept) const;
  int64_t unit() const;
  /// Appends the list without `removed` micro-batches to `reduced`; false if
  /// that is not a valid list.
  bool reducePeriods(int64_t removed, std::vector<Action> &reduced,
                     std::vector<ReducedSchedule::Place> &places) const;

private:
  bool isComplete(llvm::ArrayRef<Action> list, int64_t count) const;

  llvm::ArrayRef<Action> actions;
  int64_t microBatches;
  /// For each action a number, which those that differ in the micro-batch alone
  /// have in common.
  std::vector<unsigned> numbers;
  /// For each action, the next one with its number.
  std::vector<size_t> nextLike;
  std::vector<Repetition> regions;
};
} // namespace

int64_t
PositionList::inFlight(llvm::function_ref<bool(const Action &)> holds) const {
  std::vector<int64_t> left(microBatches, 0);
  std::vector<const Action *> holding;
  for (const Action &action : actions)
    if (action.microBatch >= 0 && holds(action)) {
      holding.push_back(&action);
      ++left[action.microBatch];
    }
  int64_t oldest = 0, newest = -1, most = 1;
  for (const Action *action : holding) {
    newest = std::max(newest, action->microBatch);
    most = std::max(most, newest - oldest + 1);
    --left[action->microBatch];
    while (oldest < microBatches && left[oldest] == 0)
      ++oldest;
  }
  return most;
}

/// Finds the periodic regions that are long enough to be shortened. False if
/// the list has actions of micro-batches but no such region.
bool PositionList::findRegions(int64_t kept) {
  auto step = [&](size_t i, size_t j) -> int64_t {
    if (numbers[i] != numbers[j] || actions[i].microBatch < 0 ||
        actions[j].microBatch < 0)
      return 0;
    return std::max<int64_t>(actions[j].microBatch - actions[i].microBatch, 0);
  };
  bool any = false;
  for (size_t i = 0; i < actions.size();) {
    any |= actions[i].microBatch >= 0;
    Repetition found = actions[i].microBatch < 0
                           ? Repetition()
                           : repetitionFrom(
                                 i, actions.size(), kMaxBody, step,
                                 [&](size_t j) { return nextLike[j]; });
    bool large = static_cast<int64_t>(found.times) >= kept + kRemovedUnit;
    if (large)
      regions.push_back(found);
    i = large ? found.end : i + 1;
  }
  return !any || !regions.empty();
}

int64_t PositionList::mostRemoved(int64_t kept) const {
  int64_t most = microBatches;
  for (const Repetition &region : regions)
    most = std::min(most,
                    (static_cast<int64_t>(region.times) - kept) * region.step);
  return most;
}

int64_t PositionList::unit() const {
  int64_t unit = kRemovedUnit;
  for (const Repetition &region : regions)
    unit = std::lcm(unit, region.step);
  return unit;
}

/// Whether each action occurs once for each of `count` micro-batches or, for a
/// transfer of accumulated sums, for the last one alone.
bool PositionList::isComplete(llvm::ArrayRef<Action> list,
                              int64_t count) const {
  std::map<Key, std::vector<bool>> seen;
  for (const Action &action : list) {
    if (action.microBatch < 0)
      continue;
    std::vector<bool> &present = seen[keyOf(action)];
    present.resize(count);
    if (action.microBatch >= count || present[action.microBatch])
      return false;
    present[action.microBatch] = true;
  }
  return llvm::all_of(seen, [](const auto &entry) {
    const std::vector<bool> &present = entry.second;
    bool transfer = std::get<Action::Kind>(entry.first) != Action::Kind::Run;
    return llvm::all_of(present, [](bool set) { return set; }) ||
           (transfer && llvm::count(present, true) == 1 && present.back());
  });
}

bool PositionList::reducePeriods(
    int64_t removed, std::vector<Action> &reduced,
    std::vector<ReducedSchedule::Place> &places) const {
  // After a region, the micro-batches of its actions are shifted; so are those
  // of actions that only the last micro-batch has.
  std::set<Key> repeated, moved;
  for (const Repetition &region : regions)
    for (size_t k = 0; k < region.length; ++k)
      repeated.insert(keyOf(actions[region.begin + k]));
  size_t next = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    const Repetition *region = next < regions.size() ? &regions[next] : nullptr;
    if (region && i >= region->begin) {
      size_t missing = removed / region->step * region->length;
      if (i + missing >= region->end) {
        for (size_t k = 0; k < region->length; ++k)
          moved.insert(keyOf(actions[region->begin + k]));
        i = region->end - 1;
        ++next;
        continue;
      }
    }
    reduced.push_back(actions[i]);
    ReducedSchedule::Place &place = places.emplace_back();
    if (region && i >= region->begin)
      place.region = static_cast<int32_t>(next);
    Key key = keyOf(actions[i]);
    bool last = actions[i].microBatch == microBatches - 1;
    if (actions[i].microBatch < 0 ||
        (!moved.count(key) && (!last || repeated.count(key))))
      continue;
    place.later = removed;
    reduced.back().microBatch -= removed;
    if (reduced.back().microBatch < 0)
      return false;
  }
  return isComplete(reduced, microBatches - removed);
}

ReducedSchedule cleave::scheduling::reducePeriods(
    const Schedule &schedule, int64_t microBatches,
    llvm::function_ref<bool(const Action &)> holds) {
  ReducedSchedule whole{schedule, {}, 0}, result;
  for (const std::vector<Action> &actions : schedule.devices)
    whole.places.emplace_back(actions.size());
  std::vector<PositionList> lists;
  int64_t unit = 1, most = microBatches;
  for (const std::vector<Action> &actions : schedule.devices) {
    PositionList &list = lists.emplace_back(actions, microBatches);
    int64_t kept = list.inFlight(holds) + 4;
    if (kept + kRemovedUnit > microBatches || !list.findRegions(kept))
      return whole;
    most = std::min(most, list.mostRemoved(kept));
    unit = std::lcm(unit, list.unit());
  }
  result.removed = most / unit * unit;
  if (result.removed <= 0)
    return whole;
  result.schedule.devices.clear();
  for (const PositionList &list : lists)
    if (!list.reducePeriods(result.removed,
                            result.schedule.devices.emplace_back(),
                            result.places.emplace_back()))
      return whole;
  return result;
}
