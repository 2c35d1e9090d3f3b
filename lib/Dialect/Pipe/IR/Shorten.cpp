//===- Shorten.cpp - A regular schedule of fewer micro-batches ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/IR/Shorten.h"
#include "ActionStep.h"
#include "cleave/Support/Repetition.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include <map>
#include <numeric>
#include <set>
#include <tuple>

using namespace cleave;
using namespace cleave::pipe;

/// Longer bodies are not looked for.
static constexpr size_t kMaxBody = 256;
/// What is removed is a multiple of it.
static constexpr int64_t kTurns = 12;

/// What an action is but for its micro-batch.
using Key = std::tuple<llvm::StringRef, int64_t, Action::Kind, int64_t>;

static Key keyOf(const Action &action) {
  return {action.part, action.stage, action.kind, action.to};
}

namespace {
/// The list of one device.
class Device {
public:
  Device(llvm::ArrayRef<Action> actions, int64_t microBatches)
      : actions(actions), microBatches(microBatches) {}

  int64_t underWay(llvm::function_ref<bool(const Action &)> holds) const;
  bool findRegions(int64_t kept);
  /// How many micro-batches each of the regions can lack, and of what that
  /// number must be a multiple.
  int64_t mostRemoved(int64_t kept) const;
  int64_t unit() const;
  bool shorten(int64_t removed, std::vector<Action> &own,
               std::vector<ShortSchedule::Place> &places) const;

private:
  bool isComplete(llvm::ArrayRef<Action> list, int64_t count) const;

  llvm::ArrayRef<Action> actions;
  int64_t microBatches;
  std::vector<Repetition> regions;
};
} // namespace

int64_t Device::underWay(llvm::function_ref<bool(const Action &)> holds) const {
  std::vector<int64_t> left(microBatches, 0);
  std::vector<const Action *> own;
  for (const Action &action : actions)
    if (action.microBatch >= 0 && holds(action)) {
      own.push_back(&action);
      ++left[action.microBatch];
    }
  int64_t oldest = 0, newest = -1, most = 1;
  for (const Action *action : own) {
    newest = std::max(newest, action->microBatch);
    most = std::max(most, newest - oldest + 1);
    --left[action->microBatch];
    while (oldest < microBatches && left[oldest] == 0)
      ++oldest;
  }
  return most;
}

/// Repetitions long enough to be shortened; false where there are actions of
/// micro-batches, and no such repetition.
bool Device::findRegions(int64_t kept) {
  auto step = [&](size_t i, size_t j) {
    return stepBetween(actions[i], actions[j]);
  };
  bool any = false;
  for (size_t i = 0; i < actions.size();) {
    any |= actions[i].microBatch >= 0;
    Repetition found = actions[i].microBatch < 0
                           ? Repetition()
                           : repetitionFrom(i, actions.size(), kMaxBody, step);
    bool large = static_cast<int64_t>(found.times) >= kept + kTurns;
    if (large)
      regions.push_back(found);
    i = large ? found.end : i + 1;
  }
  return !any || !regions.empty();
}

int64_t Device::mostRemoved(int64_t kept) const {
  int64_t most = microBatches;
  for (const Repetition &region : regions)
    most = std::min(most,
                    (static_cast<int64_t>(region.times) - kept) * region.step);
  return most;
}

int64_t Device::unit() const {
  int64_t unit = kTurns;
  for (const Repetition &region : regions)
    unit = std::lcm(unit, region.step);
  return unit;
}

/// Each action of a micro-batch is there for all of them or, as a transfer of
/// sums, for the last one.
bool Device::isComplete(llvm::ArrayRef<Action> list, int64_t count) const {
  std::map<Key, std::vector<bool>> seen;
  for (const Action &action : list) {
    if (action.microBatch < 0)
      continue;
    std::vector<bool> &own = seen[keyOf(action)];
    own.resize(count);
    if (action.microBatch >= count || own[action.microBatch])
      return false;
    own[action.microBatch] = true;
  }
  return llvm::all_of(seen, [](const auto &entry) {
    const std::vector<bool> &own = entry.second;
    bool transfer = std::get<Action::Kind>(entry.first) != Action::Kind::Run;
    return llvm::all_of(own, [](bool there) { return there; }) ||
           (transfer && llvm::count(own, true) == 1 && own.back());
  });
}

bool Device::shorten(int64_t removed, std::vector<Action> &own,
                     std::vector<ShortSchedule::Place> &places) const {
  // What a repetition has, behind it, is of a later micro-batch; so is what
  // only the last one has.
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
    own.push_back(actions[i]);
    ShortSchedule::Place &place = places.emplace_back();
    if (region && i >= region->begin)
      place.region = static_cast<int32_t>(next);
    Key key = keyOf(actions[i]);
    bool last = actions[i].microBatch == microBatches - 1;
    if (actions[i].microBatch < 0 ||
        (!moved.count(key) && (!last || repeated.count(key))))
      continue;
    place.later = removed;
    own.back().microBatch -= removed;
    if (own.back().microBatch < 0)
      return false;
  }
  return isComplete(own, microBatches - removed);
}

ShortSchedule
cleave::pipe::shorten(const Schedule &schedule, int64_t microBatches,
                      llvm::function_ref<bool(const Action &)> holds) {
  ShortSchedule whole{schedule, {}, 0}, result;
  for (const std::vector<Action> &actions : schedule.devices)
    whole.places.emplace_back(actions.size());
  std::vector<Device> devices;
  int64_t unit = 1, most = microBatches;
  for (const std::vector<Action> &actions : schedule.devices) {
    Device &device = devices.emplace_back(actions, microBatches);
    int64_t kept = device.underWay(holds) + 4;
    if (kept + kTurns > microBatches || !device.findRegions(kept))
      return whole;
    most = std::min(most, device.mostRemoved(kept));
    unit = std::lcm(unit, device.unit());
  }
  result.removed = most / unit * unit;
  if (result.removed <= 0)
    return whole;
  result.schedule.devices.clear();
  for (const Device &device : devices)
    if (!device.shorten(result.removed, result.schedule.devices.emplace_back(),
                        result.places.emplace_back()))
      return whole;
  return result;
}
