//===- FaultsTest.cpp - Spoiled schedules are refused ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Faults are put into valid schedules with transfers. Some leave them valid
/// (two actions that do not depend on each other change places): whether one
/// does is decided by running the lists, written out once more for F, I, W, B
/// and U alone. The verifier must agree, both ways.
///
//===----------------------------------------------------------------------===//

#include "Schedules.h"
#include "cleave/Scheduling/InsertTransfers.h"
#include "llvm/ADT/STLExtras.h"
#include <ctime>
#include <map>
#include <random>
#include <set>

using namespace cleave::scheduling;

namespace {

/// Runs the lists of a pipeline of `stages` with sends that wait for their
/// receives.
class Runner {
public:
  Runner(const Schedule &schedule, const Made &made, int64_t limit)
      : lists(schedule.devices), made(made), limit(limit), at(lists.size(), 0),
        has(lists.size()), saved(lists.size(), 0) {
    for (const PartInfo &part : made.parts)
      stages = std::max(stages, part.stage + 1);
  }

  bool isValid() {
    if (static_cast<int64_t>(lists.size()) != made.map.devices ||
        !hasEachOnce())
      return false;
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t d = 0; d < lists.size(); ++d)
        while (at[d] < lists[d].size() && advance(d))
          progress = true;
    }
    for (size_t d = 0; d < lists.size(); ++d)
      if (at[d] < lists[d].size())
        return false;
    return !overLimit;
  }

private:
  using Value = std::tuple<int64_t, std::string, int64_t>;

  /// Every F, I, W and U once, where it belongs, and every send and receive.
  bool hasEachOnce() {
    bool async = !made.parts.back().once;
    std::map<Value, int> runs;
    std::map<std::pair<Value, int64_t>, int> ends;
    for (size_t d = 0; d < lists.size(); ++d)
      for (const Action &action : lists[d]) {
        int64_t stage =
            action.kind == Action::Kind::Receive ? action.to : action.stage;
        if (made.map.device(stage, action.microBatch) !=
            static_cast<int64_t>(d))
          return false;
        bool once = action.part == "U" && !async;
        if (once != (action.microBatch < 0) ||
            action.microBatch >= made.microBatches)
          return false;
        if (action.kind != Action::Kind::Run) {
          int &seen =
              ends[{{action.stage, action.part, action.microBatch}, action.to}];
          int end = action.kind == Action::Kind::Send ? 1 : 2;
          if (seen & end)
            return false;
          seen |= end;
          continue;
        }
        for (const char *part : {"I", "W"})
          if (action.part == "B")
            ++runs[{action.stage, part, action.microBatch}];
        if (action.part != "B")
          ++runs[{action.stage, action.part, action.microBatch}];
      }
    for (auto &[key, seen] : ends)
      if (seen != 3)
        return false;
    for (auto &[value, count] : runs)
      if (count != 1)
        return false;
    size_t each = made.microBatches * (async ? 4 : 3) + (async ? 0 : 1);
    return runs.size() == stages * each;
  }

  bool knows(size_t d, int64_t stage, const char *part, int64_t k) const {
    return has[d].count({stage, part, k}) != 0;
  }

  bool canRun(size_t d, const Action &action) const {
    int64_t s = action.stage, k = action.microBatch;
    if (action.part == "F")
      return s == 0 || knows(d, s - 1, "F", k);
    if (action.part == "I" || action.part == "B")
      return knows(d, s, "F", k) &&
             (s + 1 == stages || knows(d, s + 1, "I", k));
    if (action.part == "W")
      return knows(d, s, "F", k) && knows(d, s, "I", k);
    if (k >= 0)
      return knows(d, s, "W", k);
    for (int64_t i = 0; i < made.microBatches; ++i)
      if (!knows(d, s, "W", i))
        return false;
    return true;
  }

  void learn(size_t d, const Action &action) {
    for (const char *part : {"I", "W"})
      if (action.part == "B")
        has[d].insert({action.stage, part, action.microBatch});
    if (action.part != "B")
      has[d].insert({action.stage, action.part, action.microBatch});
  }

  bool advance(size_t d) {
    const Action &action = lists[d][at[d]];
    if (action.kind == Action::Kind::Run) {
      if (!canRun(d, action))
        return false;
      learn(d, action);
      saved[d] += action.part == "F"                         ? 1
                  : action.part == "W" || action.part == "B" ? -1
                                                             : 0;
      overLimit |= saved[d] > limit;
      ++at[d];
      return true;
    }
    size_t other = action.kind == Action::Kind::Send
                       ? made.map.device(action.to, action.microBatch)
                       : made.map.device(action.stage, action.microBatch);
    if (other == d || at[other] == lists[other].size())
      return false;
    const Action &partner = lists[other][at[other]];
    bool sends = action.kind == Action::Kind::Send;
    if (partner != (sends ? action.run().receive(action.to)
                          : action.run().send(action.to)))
      return false;
    size_t from = sends ? d : other;
    const char *part = action.part == "B" ? "I" : action.part.c_str();
    if (!knows(from, action.stage, part, action.microBatch))
      return false;
    learn(sends ? other : d, action);
    ++at[d];
    ++at[other];
    return true;
  }

  std::vector<std::vector<Action>> lists;
  const Made &made;
  int64_t limit, stages = 0;
  std::vector<size_t> at;
  std::vector<std::set<Value>> has;
  std::vector<int64_t> saved;
  bool overLimit = false;
};

/// Puts a fault of a kind at a random place; false if there is none.
bool spoil(Schedule &schedule, int kind, std::mt19937 &random, int64_t stages) {
  std::vector<Action> &list =
      schedule.devices[random() % schedule.devices.size()];
  if (list.size() < 3)
    return false;
  size_t i = random() % list.size(), j = random() % list.size();
  switch (kind) {
  case 0: // Dropped.
    list.erase(list.begin() + i);
    return true;
  case 1: { // Doubled.
    Action action = list[i];
    list.insert(list.begin() + j, action);
    return true;
  }
  case 2: // Neighbours change places.
    if (i + 1 == list.size())
      return false;
    std::swap(list[i], list[i + 1]);
    return true;
  case 3: // Any two do.
    std::swap(list[i], list[j]);
    return i != j;
  case 4: { // A transfer goes elsewhere.
    if (list[i].kind == Action::Kind::Run)
      return false;
    list[i].to =
        (list[i].to + 1 + random() % std::max<int64_t>(stages - 1, 1)) % stages;
    return true;
  }
  case 5: { // Two positions change their lists.
    size_t a = random() % schedule.devices.size();
    size_t b = random() % schedule.devices.size();
    std::swap(schedule.devices[a], schedule.devices[b]);
    return a != b;
  }
  case 6: { // A weight gradient or backward comes late: more is saved.
    std::vector<size_t> places;
    for (auto [place, action] : llvm::enumerate(list))
      if (action.kind == Action::Kind::Run &&
          (action.part == "W" || action.part == "B"))
        places.push_back(place);
    i = places[i % places.size()];
    if (i + 1 == list.size())
      return false;
    j = i + 1 + j % (list.size() - i - 1);
    std::rotate(list.begin() + i, list.begin() + i + 1, list.begin() + j + 1);
    return true;
  }
  case 7: // A send and its receive trade roles.
    if (list[i].kind == Action::Kind::Run)
      return false;
    list[i].kind = list[i].kind == Action::Kind::Send ? Action::Kind::Receive
                                                      : Action::Kind::Send;
    return true;
  default: // The part, stage or micro-batch of an action is another one.
    if (random() % 2)
      list[i].microBatch += random() % 2 ? 1 : -1;
    else
      list[i].stage = random() % stages;
    return true;
  }
}
constexpr int kKinds = 9;

TEST(Faults, AreFoundUnlessNothingIsWrong) {
  std::mt19937 random(17);
  int rounds = testAll() ? 80 : 8;
  int refused[kKinds] = {}, harmless[kKinds] = {};
  for (const Generator &generator : generators())
    for (int64_t p : {2, 3, 4})
      for (int round = 0; round < rounds; ++round)
        for (int kind = 0; kind < kKinds; ++kind) {
          int64_t v = generator.chunks ? generator.chunks : 2;
          Made made(generator.name, p, v, 2 * p);
          std::string error;
          std::optional<Schedule> full = insertTransfers(
              made.schedule, made.parts, made.microBatches, made.map, error);
          ASSERT_TRUE(full) << error;
          VerifyOptions options;
          options.savedLimit = largest(made.simulate(1, 1, 1).peakSaved);
          ASSERT_TRUE(Runner(*full, made, *options.savedLimit).isValid());
          Schedule spoiled = *full;
          if (!spoil(spoiled, kind, random, p * v) || spoiled == *full)
            continue;
          bool valid = Runner(spoiled, made, *options.savedLimit).isValid();
          std::optional<std::string> why = verifySchedule(
              spoiled, made.parts, made.microBatches, made.map, options);
          EXPECT_EQ(!why, valid)
              << generator.name.str() << ": " << why.value_or("valid") << '\n'
              << spoiled.str("\n");
          ++(valid ? harmless : refused)[kind];
        }
  int total = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    EXPECT_GT(refused[kind], 0) << kind;
    total += refused[kind];
    RecordProperty("refused" + std::to_string(kind), refused[kind]);
    RecordProperty("harmless" + std::to_string(kind), harmless[kind]);
  }
  EXPECT_GE(total, 500);
  // Both answers occur, so agreement says something.
  EXPECT_GT(harmless[2], 0);
}

/// 64 replicas of 16 positions run 16 lists.
TEST(Faults, LargeSchedulesAreCheckedWithinASecond) {
  for (const char *name : {"1f1b", "interleaved", "zb-v"}) {
    int64_t v = name[0] == 'i' ? 4 : name[0] == 'z' ? 2 : 1;
    Made made(name, 16, v, 64);
    std::string error;
    std::optional<Schedule> full = insertTransfers(
        made.schedule, made.parts, made.microBatches, made.map, error);
    ASSERT_TRUE(full) << error;
    VerifyOptions options;
    options.savedLimit = 1000;
    std::clock_t start = std::clock();
    EXPECT_FALSE(verifySchedule(*full, made.parts, 64, made.map, options));
    EXPECT_LT(double(std::clock() - start) / CLOCKS_PER_SEC, timeLimit(1));
  }
}

} // namespace
