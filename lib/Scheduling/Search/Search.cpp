//===- Search.cpp - Search for a fast schedule ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Search/Search.h"
#include "BranchAndBound.h"
#include "LocalSearch.h"
#include "cleave/Scheduling/Check/ResolvedSchedule.h"
#include "cleave/Scheduling/Generators/Generators.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::scheduling;

namespace {
/// A starting point or result of the search.
struct Candidate {
  TaskOrders orders;
  /// The makespan.
  double time;
  /// See `SearchResult::start`.
  std::string start;
  /// The number of candidates found before, which breaks ties.
  size_t number = 0;

  bool operator<(const Candidate &other) const {
    return std::tie(time, number) < std::tie(other.time, other.number);
  }
};

/// The search with one stage map.
class Searcher {
public:
  Searcher(const TaskTable &table, const Costs &costs,
           const SearchOptions &options)
      : table(table), costs(costs), options(options),
        problem(table.map, table.stages, table.microBatches) {}

  /// Sets `problem`. Returns why the parts cannot be searched, or nothing.
  std::optional<std::string> describe();
  std::optional<SearchResult> run();

private:
  void offer(TaskOrders orders, llvm::StringRef start);
  void offerGenerated();
  void offerGreedy();
  /// Completes and simulates the schedule; nothing if it is not valid.
  std::optional<SearchResult> finish(const Candidate &candidate) const;

  const TaskTable &table;
  const Costs &costs;
  const SearchOptions &options;
  SchedulingProblem problem;
  /// Whether every stage has a part B.
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
    if (f < 0 || (!halves && b < 0) || (s > 0 && halves != problem.split))
      return "stage " + std::to_string(s) +
             " has no F, or no backward in the form of the other stages (B, "
             "or I and W); write a schedule for these parts by hand";
    for (int p : {f, i, w, b})
      if (p >= 0 && parts[p].once)
        return "part " + parts[p].name + " of stage " + std::to_string(s) +
               " runs once; forward and backward must run for each "
               "micro-batch";
    problem.split = halves;
    whole &= b >= 0;
    double first = costs.run[halves ? i : b],
           second = halves ? costs.run[w] : 0;
    problem.cost[s] = {costs.run[f], first, second,
                       b >= 0 ? costs.ofPart(parts, b) : first + second};
    problem.saved[s] = table.readers[f].empty() ? 0 : parts[f].saved;
    auto transferCost = [&](int part, int64_t other) {
      bool remote = other >= 0 && other < table.stages &&
                    table.map.device(s) != table.map.device(other);
      return remote && !costs.transfer.empty() ? costs.transfer[part] : 0;
    };
    problem.forwardTransfer[s] = transferCost(f, s + 1);
    problem.backwardTransfer[s] = transferCost(halves ? i : b, s - 1);
  }
  if (options.savedLimit)
    problem.limit.assign(table.map.devices, *options.savedLimit);
  return std::nullopt;
}

void Searcher::offer(TaskOrders orders, llvm::StringRef start) {
  if (orders.empty())
    return;
  if (!whole) // Without a part B, I and W take its place.
    for (TaskOrder &order : orders) {
      TaskOrder halves;
      for (StageTask task : order) {
        if (task.kind != B) {
          halves.push_back(task);
          continue;
        }
        halves.push_back({I, task.stage});
        halves.push_back({W, task.stage});
      }
      order = std::move(halves);
    }
  double time = problem.evaluate(orders);
  if (time < kNever)
    candidates.push_back(
        {std::move(orders), time, start.str(), candidates.size()});
}

void Searcher::offerGenerated() {
  int64_t p = table.map.devices;
  for (const Generator &generator : generators()) {
    if (generator.map != table.map.kind || generator.asynchronous ||
        (generator.split && !problem.split) ||
        !generator.takesChunks(table.stages / p))
      continue;
    std::string why;
    std::optional<Schedule> schedule = generateSchedule(
        generator.name, {p, table.stages / p, table.microBatches}, why);
    if (!schedule)
      continue;
    std::optional<TaskOrders> orders = problem.toTaskOrders(*schedule);
    if (!orders)
      continue;
    offer(*orders, generator.name);
    if (!problem.split)
      continue;
    // The same order of forwards and backwards, with W in its gaps.
    TaskOrders order = *orders;
    for (TaskOrder &order : order)
      for (StageTask &task : order)
        if (task.kind == B)
          task.kind = I;
    Policy policy;
    policy.fixedOrder = &order;
    for (bool delayWeights : {false, true}) {
      policy.delayWeights = delayWeights;
      offer(chooseGreedily(problem, policy), generator.name);
    }
  }
}

void Searcher::offerGreedy() {
  std::vector<std::array<double, 2>> ranks = {{1, 0}, {0, 1}, {0.5, 0.5}};
  for (auto rank : ranks)
    for (double lateForward : {-1.0, 1.0})
      for (double lateBackward : {-1.0, 1.0})
        for (bool delayWeights : {false, true})
          for (int64_t inFlight : {0, 1, 2, 3})
            for (bool wholeBackward : {false, true}) {
              if ((!problem.split && !wholeBackward) ||
                  (wholeBackward && delayWeights))
                continue;
              Policy policy;
              policy.rank = rank;
              policy.lateForward = lateForward;
              policy.lateBackward = lateBackward;
              policy.delayWeights = delayWeights;
              policy.wholeBackward = wholeBackward;
              // In proportion to the number of later stages.
              if (inFlight)
                for (int64_t s = 0; s < table.stages; ++s)
                  policy.maxInFlight.push_back(inFlight * (table.stages - s));
              offer(chooseGreedily(problem, policy), "greedy");
            }
}

std::optional<SearchResult> Searcher::finish(const Candidate &candidate) const {
  SearchResult result;
  result.map = table.map;
  result.start = candidate.start;
  result.schedule =
      insertMissingParts(problem.toSchedule(candidate.orders, false),
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
  // All generated schedules stay candidates to the end, because transfers that
  // skip stages count only in the complete schedule.
  std::vector<Candidate> last(candidates.begin(),
                              candidates.begin() + generated);
  llvm::sort(candidates);
  int64_t tasks = 0;
  for (const TaskOrder &order : candidates.front().orders)
    tasks += order.size();
  double bound = problem.lowerBound();
  size_t starts = 0;
  double before = -1;
  for (size_t c = 0; c < candidates.size() && starts < 3; ++c) {
    Candidate &candidate = candidates[c];
    if (candidate.time == before)
      continue;
    before = candidate.time;
    ++starts;
    int64_t tries =
        std::min<int64_t>(3000, 8'000'000 / std::max<int64_t>(tasks, 1));
    if (candidate.time <= bound) {
      last.push_back(candidate);
      break;
    }
    candidate.orders =
        improve(problem, std::move(candidate.orders), tries * options.effort);
    candidate.time = problem.evaluate(candidate.orders);
    last.push_back(candidate);
  }
  llvm::sort(last);
  bool proved = last.front().time <= bound;
  if (!proved && tasks <= 48)
    if (std::optional<TaskOrders> orders = findOptimum(
            problem, last.front().time, 400'000 * options.effort, proved)) {
      std::string start = last.front().start;
      double time = problem.evaluate(*orders);
      last.insert(last.begin(), {std::move(*orders), time, start, 0});
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

std::optional<SearchResult> cleave::scheduling::searchSchedule(
    llvm::ArrayRef<PartInfo> parts, int64_t microBatches, int64_t devices,
    const Costs &costs, const SearchOptions &options, std::string &error) {
  if (std::optional<std::string> why = costs.check(parts)) {
    error = *why;
    return std::nullopt;
  }
  if (devices < 1 || microBatches < 1) {
    error = "the numbers of pipeline positions and micro-batches must be "
            "positive";
    return std::nullopt;
  }
  std::vector<StageMap::Kind> kinds = {StageMap::Kind::Modular,
                                       StageMap::Kind::V};
  if (options.map)
    kinds = {*options.map};
  std::optional<SearchResult> best;
  for (StageMap::Kind kind : kinds) {
    if (kind == StageMap::Kind::Bidirectional) {
      error = "auto does not support the stage map bidirectional; choose "
              "modular or v";
      return std::nullopt;
    }
    int64_t stages = 1;
    for (const PartInfo &part : parts)
      stages = std::max(stages, part.stage + 1);
    if (std::optional<std::string> why =
            StageMap{kind, devices}.check(stages)) {
      error = *why;
      return std::nullopt;
    }
    StageMap map{kind, devices};
    std::optional<TaskTable> table =
        TaskTable::create(parts, microBatches, map, error);
    if (!table)
      return std::nullopt;
    // With one stage at each position, or one position, both maps are equal.
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
    error = "no order was found that keeps the limit; raise the limit, or "
            "write an order by hand";
  return best;
}
