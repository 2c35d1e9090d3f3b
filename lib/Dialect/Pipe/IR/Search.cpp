//===- Search.cpp - A schedule for given costs ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/IR/Search.h"
#include "Improve.h"
#include "Resolve.h"
#include "cleave/Dialect/Pipe/IR/Generators.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::pipe;

namespace {
struct Candidate {
  Words words;
  double time;
  std::string start;
  /// The order in which they were found, which decides between equals.
  size_t number = 0;

  bool operator<(const Candidate &other) const {
    return std::tie(time, number) < std::tie(other.time, other.number);
  }
};

/// One map.
class Searcher {
public:
  Searcher(const TaskTable &table, const Costs &costs,
           const SearchOptions &options)
      : table(table), costs(costs), options(options),
        chain(table.map, table.stages, table.microBatches) {}

  /// What the parts lack, or nothing.
  std::optional<std::string> describe();
  std::optional<SearchResult> run();

private:
  void offer(Words words, llvm::StringRef start);
  void offerGenerated();
  void offerGreedy();
  /// As a whole schedule; nothing, if it does not fit.
  std::optional<SearchResult> finish(const Candidate &candidate) const;

  const TaskTable &table;
  const Costs &costs;
  const SearchOptions &options;
  Chain chain;
  /// There is a part B.
  bool whole = true;
  std::vector<Candidate> candidates;
};
} // namespace

std::optional<std::string> Searcher::describe() {
  llvm::ArrayRef<PartInfo> parts = table.parts;
  for (int64_t s = 0; s < table.stages; ++s) {
    int f = table.find(s, "F"), i = table.find(s, "I"), w = table.find(s, "W"),
        b = table.find(s, "B");
    bool halves = i >= 0 && w >= 0;
    if (f < 0 || (!halves && b < 0) || (s > 0 && halves != chain.split))
      return "stage " + std::to_string(s) +
             " lacks F, or backward as B or as I and W as the other stages "
             "have it; write a schedule for these parts by hand";
    for (int p : {f, i, w, b})
      if (p >= 0 && parts[p].once)
        return "part " + parts[p].name + " of stage " + std::to_string(s) +
               " runs once; forward and backward run for each micro-batch";
    chain.split = halves;
    whole &= b >= 0;
    double first = costs.run[halves ? i : b],
           second = halves ? costs.run[w] : 0;
    chain.cost[s] = {costs.run[f], first, second,
                     b >= 0 ? costs.ofPart(parts, b) : first + second};
    chain.saved[s] = table.readers[f].empty() ? 0 : parts[f].saved;
    auto moving = [&](int part, int64_t other) {
      bool far = other >= 0 && other < table.stages &&
                 table.map.device(s) != table.map.device(other);
      return far && !costs.transfer.empty() ? costs.transfer[part] : 0;
    };
    chain.forwardMove[s] = moving(f, s + 1);
    chain.backwardMove[s] = moving(halves ? i : b, s - 1);
  }
  if (options.savedLimit)
    chain.limit.assign(table.map.devices, *options.savedLimit);
  return std::nullopt;
}

void Searcher::offer(Words words, llvm::StringRef start) {
  if (words.empty())
    return;
  if (!whole) // Both halves at once.
    for (Word &word : words) {
      Word halves;
      for (Letter letter : word) {
        if (letter.kind != B) {
          halves.push_back(letter);
          continue;
        }
        halves.push_back({I, letter.stage});
        halves.push_back({W, letter.stage});
      }
      word = std::move(halves);
    }
  double time = chain.evaluate(words);
  if (time < kNever)
    candidates.push_back(
        {std::move(words), time, start.str(), candidates.size()});
}

void Searcher::offerGenerated() {
  int64_t p = table.map.devices;
  for (const Generator &generator : generators()) {
    if (generator.map != table.map.kind || generator.asynchronous ||
        (generator.split && !chain.split) ||
        !generator.takesChunks(table.stages / p))
      continue;
    std::string why;
    std::optional<Schedule> schedule = generateSchedule(
        generator.name, {p, table.stages / p, table.microBatches}, why);
    if (!schedule)
      continue;
    std::optional<Words> words = chain.toWords(*schedule);
    if (!words)
      continue;
    offer(*words, generator.name);
    if (!chain.split)
      continue;
    // Its order of forwards and backwards, with W wherever there is a gap.
    Words order = *words;
    for (Word &word : order)
      for (Letter &letter : word)
        if (letter.kind == B)
          letter.kind = I;
    Policy policy;
    policy.order = &order;
    for (bool patient : {false, true}) {
      policy.patient = patient;
      offer(chooseGreedily(chain, policy), generator.name);
    }
  }
}

void Searcher::offerGreedy() {
  std::vector<std::array<double, 2>> ranks = {{1, 0}, {0, 1}, {0.5, 0.5}};
  for (auto rank : ranks)
    for (double lateForward : {-1.0, 1.0})
      for (double lateBackward : {-1.0, 1.0})
        for (bool patient : {false, true})
          for (int64_t ahead : {0, 1, 2, 3})
            for (bool whole : {false, true}) {
              if ((!chain.split && !whole) || (whole && patient))
                continue;
              Policy policy;
              policy.rank = rank;
              policy.lateForward = lateForward;
              policy.lateBackward = lateBackward;
              policy.patient = patient;
              policy.whole = whole;
              // In proportion to the stages behind.
              if (ahead)
                for (int64_t s = 0; s < table.stages; ++s)
                  policy.ahead.push_back(ahead * (table.stages - s));
              offer(chooseGreedily(chain, policy), "greedy");
            }
}

std::optional<SearchResult> Searcher::finish(const Candidate &candidate) const {
  SearchResult result;
  result.map = table.map;
  result.start = candidate.start;
  result.schedule = addOtherParts(chain.toSchedule(candidate.words, false),
                                  table.parts, table.microBatches, table.map);
  VerifyOptions verify;
  verify.savedLimit = options.savedLimit;
  std::string error;
  std::optional<Simulation> simulation =
      simulate(result.schedule, table.parts, table.microBatches, table.map,
               costs, error, verify);
  if (!simulation)
    return std::nullopt;
  result.makespan = simulation->makespan;
  return result;
}

std::optional<SearchResult> Searcher::run() {
  offerGenerated();
  size_t generated = candidates.size();
  offerGreedy();
  if (candidates.empty())
    return std::nullopt;
  // All that was generated stays in the race to the end, since what skips
  // stages counts only in the whole schedule.
  std::vector<Candidate> last(candidates.begin(),
                              candidates.begin() + generated);
  llvm::sort(candidates);
  int64_t letters = 0;
  for (const Word &word : candidates.front().words)
    letters += word.size();
  double bound = chain.lowerBound();
  size_t starts = 0;
  double before = -1;
  for (size_t c = 0; c < candidates.size() && starts < 3; ++c) {
    Candidate &candidate = candidates[c];
    if (candidate.time == before)
      continue;
    before = candidate.time;
    ++starts;
    int64_t tries =
        std::min<int64_t>(3000, 8'000'000 / std::max<int64_t>(letters, 1));
    if (candidate.time <= bound) {
      last.push_back(candidate);
      break;
    }
    candidate.words =
        improve(chain, std::move(candidate.words), tries * options.effort);
    candidate.time = chain.evaluate(candidate.words);
    last.push_back(candidate);
  }
  llvm::sort(last);
  bool proved = last.front().time <= bound;
  if (!proved && letters <= 48)
    if (std::optional<Words> words = findOptimum(
            chain, last.front().time, 400'000 * options.effort, proved)) {
      std::string start = last.front().start;
      double time = chain.evaluate(*words);
      last.insert(last.begin(), {std::move(*words), time, start, 0});
    }
  std::optional<SearchResult> best;
  for (const Candidate &candidate : last)
    if (std::optional<SearchResult> result = finish(candidate))
      if (!best || result->makespan < best->makespan)
        best = std::move(result);
  if (best)
    best->optimal = proved && best->makespan == last.front().time;
  return best;
}

std::optional<SearchResult> cleave::pipe::searchSchedule(
    llvm::ArrayRef<PartInfo> parts, int64_t microBatches, int64_t devices,
    const Costs &costs, const SearchOptions &options, std::string &error) {
  if (std::optional<std::string> why = costs.check(parts)) {
    error = *why;
    return std::nullopt;
  }
  if (devices < 1 || microBatches < 1) {
    error = "give at least 1 device and 1 micro-batch";
    return std::nullopt;
  }
  std::vector<StageMap::Kind> kinds = {StageMap::Kind::Modular,
                                       StageMap::Kind::V};
  if (options.map)
    kinds = {*options.map};
  std::optional<SearchResult> best;
  for (StageMap::Kind kind : kinds) {
    if (kind == StageMap::Kind::Bidirectional) {
      error = "auto does not place stages both ways; choose modular or v";
      return std::nullopt;
    }
    int64_t stages = 1;
    for (const PartInfo &part : parts)
      stages = std::max(stages, part.stage + 1);
    if (std::optional<std::string> why = StageMap{kind, devices}.check(stages)) {
      error = *why;
      return std::nullopt;
    }
    StageMap map{kind, devices};
    std::optional<TaskTable> table =
        TaskTable::create(parts, microBatches, map, error);
    if (!table)
      return std::nullopt;
    // With one stage on each device, or one device, both maps are one.
    if (!options.map && kind == StageMap::Kind::V &&
        (table->stages == devices || devices == 1))
      continue;
    Searcher searcher(*table, costs, options);
    if (std::optional<std::string> why = searcher.describe()) {
      error = *why;
      return std::nullopt;
    }
    std::optional<SearchResult> result = searcher.run();
    if (result && (!best || result->makespan < best->makespan))
      best = std::move(result);
  }
  if (!best)
    error = "no order was found that runs and keeps the limit; raise it, or "
            "write one by hand";
  return best;
}
