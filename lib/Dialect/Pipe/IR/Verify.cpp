//===- Verify.cpp - Whether a schedule can run ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Replay.h"
#include "Resolve.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace cleave::pipe;
using Found = std::optional<Violation>;

/// A violation that names these nodes; -1 is none.
static Violation aboutNodes(const ResolvedSchedule &schedule, std::string text,
                            std::initializer_list<int> nodes) {
  Violation found{std::move(text)};
  for (int node : nodes)
    if (node >= 0)
      found.actions.push_back(schedule.ref(node));
  return found;
}

/// Each action comes after what it reads or sends, as far as its own device
/// shows: what that ran and, where there are transfers, what it received.
static Found checkReads(const ResolvedSchedule &schedule) {
  auto about = [&](std::string text, std::initializer_list<int> nodes) {
    return aboutNodes(schedule, std::move(text), nodes);
  };
  const TaskTable &table = *schedule.table;
  std::vector<int64_t> seen(table.tasks.size(), -1); // By which device.
  for (int64_t d = 0; d < schedule.deviceCount(); ++d) {
    int n = schedule.begin[d];
    for (const Node &node : schedule.device(d)) {
      const int number = n++;
      const std::string name = schedule.str(number);
      if (node.kind == Action::Kind::Send)
        for (int task : node.tasks)
          if (seen[task] != d)
            return about(name + " sends results of " +
                             node.action->run().str() +
                             ", which has not run; move it behind that",
                         {number, schedule.runner[task]});
      for (int need : node.needs) {
        if (seen[need] == d)
          continue;
        Action wanted = table.action(need);
        if (schedule.runner[need] < 0)
          return Violation{wanted.str() + " never runs, and " + name +
                               " reads its results",
                           {{table.tasks[need].device,
                             schedule.device(table.tasks[need].device).size()},
                            schedule.ref(number)}};
        if (table.tasks[need].device == d)
          return about(name + " reads results of " + wanted.str() +
                           ", which has not run",
                       {number, schedule.runner[need]});
        if (!schedule.hasTransfers)
          continue;
        int64_t to = node.action->stage;
        if (int runner = schedule.runner[need]; runner >= 0)
          wanted = schedule.nodes[runner].action->run();
        return about(name + " reads results of " + wanted.str() +
                         ", which device " + std::to_string(d) +
                         " has not received; write " +
                         wanted.receive(to).str() + " before it and " +
                         wanted.send(to).str() + " behind " + wanted.str(),
                     {number, schedule.runner[need]});
      }
      if (node.kind != Action::Kind::Send)
        for (int task : node.tasks)
          seen[task] = d;
    }
  }
  return std::nullopt;
}

/// Both devices of each pair list their transfers in one order.
static Found checkTransferOrder(const ResolvedSchedule &schedule) {
  // For each pair of devices, the transfers as each of the two lists them.
  std::map<std::pair<int64_t, int64_t>, std::vector<int>> lists;
  for (auto [n, node] : llvm::enumerate(schedule.nodes))
    if (node.partner >= 0)
      lists[{node.device, schedule.nodes[node.partner].device}].push_back(n);
  for (auto &[pair, mine] : lists) {
    if (pair.first > pair.second)
      continue;
    const std::vector<int> &theirs = lists[{pair.second, pair.first}];
    for (auto [a, b] : llvm::zip_equal(mine, theirs))
      if (schedule.nodes[a].partner != b)
        return aboutNodes(schedule,
                          "devices " + std::to_string(pair.first) + " and " +
                              std::to_string(pair.second) +
                              " list their transfers in different orders: " +
                              schedule.str(a) + schedule.place(a) +
                              " stands where " + schedule.str(b) +
                              schedule.place(b) +
                              " does; put both in one order on both devices",
                          {a, b});
  }
  return std::nullopt;
}

/// All members of a group list its collectives in one order.
static Found checkCollectiveOrder(const ResolvedSchedule &schedule) {
  // By members, the nodes of each of them.
  std::map<std::vector<int64_t>, std::map<int64_t, std::vector<int>>> lists;
  for (auto [n, node] : llvm::enumerate(schedule.nodes)) {
    if (node.group < 0)
      continue;
    std::vector<int64_t> members;
    for (int other : schedule.groups[node.group])
      members.push_back(schedule.nodes[other].device);
    lists[members][node.device].push_back(n);
  }
  for (auto &[members, byDevice] : lists) {
    const std::vector<int> &mine = byDevice.begin()->second;
    for (auto &[device, theirs] : byDevice)
      for (auto [a, b] : llvm::zip_equal(mine, theirs))
        if (schedule.nodes[a].group != schedule.nodes[b].group)
          return aboutNodes(
              schedule,
              "the collectives of devices " + std::to_string(members.front()) +
                  " and " + std::to_string(device) +
                  " differ in order: " + schedule.str(a) + schedule.place(a) +
                  " stands where " + schedule.str(b) + schedule.place(b) +
                  " does; put both in one order on all members",
              {a, b});
  }
  return std::nullopt;
}

/// Whether `task` reads what one of `others` gives, itself or by what it reads.
static bool needsAny(const TaskTable &table, int task,
                     llvm::ArrayRef<int> others) {
  std::set<int> seen{task};
  std::vector<int> work{task};
  while (!work.empty()) {
    int next = work.back();
    work.pop_back();
    if (llvm::is_contained(others, next))
      return true;
    table.forEachNeed(next, [&](int need) {
      if (seen.insert(need).second)
        work.push_back(need);
    });
  }
  return false;
}

static Found checkSaved(const ResolvedSchedule &schedule,
                        const VerifyOptions &options) {
  int64_t limit = *options.savedLimit;
  auto amount = [&](int64_t saved) {
    std::string text = std::to_string(saved);
    if (options.savedInBytes)
      text += llvm::formatv(" bytes ({0:F4} MiB)",
                            static_cast<double>(saved) / (1 << 20));
    return text;
  };
  for (int64_t d = 0; d < schedule.deviceCount(); ++d) {
    SavedReplay replay(*schedule.table);
    int n = schedule.begin[d] - 1;
    for (const Node &node : schedule.device(d)) {
      ++n;
      replay.run(node);
      if (replay.saved() <= limit)
        continue;
      std::string text = schedule.str(n) + " of device " + std::to_string(d) +
                         " brings what is saved to " + amount(replay.saved()) +
                         ", over the limit of " + amount(limit);
      if (options.generated)
        return aboutNodes(schedule, std::move(text), {n});
      // What must come behind the run frees nothing before it.
      auto known = replay.oldest([&](int reader) {
        return !needsAny(*schedule.table, reader, node.tasks);
      });
      if (!known)
        return aboutNodes(schedule,
                          text + ", and nothing that could run before it frees "
                                 "any; raise the limit",
                          {n});
      auto [task, reader] = *known;
      return aboutNodes(
          schedule,
          text + "; move " + schedule.str(schedule.runner[reader]) +
              ", which frees what " + schedule.str(schedule.runner[task]) +
              " saved, before it",
          {n, schedule.runner[reader]});
    }
  }
  return std::nullopt;
}

/// What reads parameters for a micro-batch comes before its update, so that all
/// read one version; and not too many updates come between.
static Found checkVersions(const ResolvedSchedule &schedule,
                           std::optional<int64_t> limit) {
  for (int64_t d = 0; d < schedule.deviceCount(); ++d) {
    UpdateReplay replay(*schedule.table);
    int n = schedule.begin[d];
    for (const Node &node : schedule.device(d)) {
      int number = n++;
      if (int own = replay.letGo(node); own >= 0)
        return aboutNodes(
            schedule,
            schedule.str(number) + " of device " + std::to_string(d) +
                " reads parameters of which " + schedule.str(own) +
                " let go the version that the micro-batch began with; move it "
                "before that",
            {number, own});
      std::optional<UpdateReplay::Update> update = replay.run(node, number);
      if (!update || !limit || update->staleness <= *limit)
        continue;
      return aboutNodes(
          schedule,
          schedule.str(number) + " of device " + std::to_string(d) + " comes " +
              std::to_string(update->staleness) + " updates after " +
              schedule.str(update->firstNode) +
              " read the parameters, over the bound of " +
              std::to_string(*limit) + "; move " +
              schedule.str(update->firstNode) + " behind more of them",
          {number, update->firstNode});
    }
  }
  return std::nullopt;
}

static Found check(const ResolvedSchedule &schedule,
                   const VerifyOptions &options) {
  if (Found why = checkReads(schedule))
    return why;
  if (int missing = schedule.missingTask(); missing >= 0) {
    // It belongs in the list of its device.
    int64_t device = schedule.table->tasks[missing].device;
    return Violation{schedule.table->action(missing).str() + " never runs",
                     {{device, schedule.device(device).size()}}};
  }
  if (Found why = checkTransferOrder(schedule))
    return why;
  if (Found why = checkCollectiveOrder(schedule))
    return why;
  Machine machine(schedule);
  machine.run([](llvm::ArrayRef<int>) {});
  if (!machine.finished())
    return machine.describeCycle();
  if (options.savedLimit)
    if (Found why = checkSaved(schedule, options))
      return why;
  return checkVersions(schedule, options.staleness);
}

std::unique_ptr<VerifiedSchedule>
VerifiedSchedule::create(const Schedule &schedule,
                         llvm::ArrayRef<PartInfo> parts, int64_t microBatches,
                         const StageMap &map, const VerifyOptions &options,
                         Violation &error) {
  auto result = std::make_unique<VerifiedSchedule>();
  std::optional<TaskTable> table =
      TaskTable::create(parts, microBatches, map, error.text);
  if (!table)
    return nullptr;
  result->table = std::move(*table);
  std::optional<ResolvedSchedule> resolved = ResolvedSchedule::create(
      schedule, result->table, options.collectives, error);
  if (!resolved)
    return nullptr;
  result->resolved = std::move(*resolved);
  if (Found why = check(result->resolved, options)) {
    error = std::move(*why);
    return nullptr;
  }
  return result;
}

std::optional<Violation> cleave::pipe::findViolation(
    const Schedule &schedule, llvm::ArrayRef<PartInfo> parts,
    int64_t microBatches, const StageMap &map, const VerifyOptions &options) {
  Violation error;
  if (VerifiedSchedule::create(schedule, parts, microBatches, map, options,
                               error))
    return std::nullopt;
  return error;
}

std::optional<std::string> cleave::pipe::verifySchedule(
    const Schedule &schedule, llvm::ArrayRef<PartInfo> parts,
    int64_t microBatches, const StageMap &map, const VerifyOptions &options) {
  if (Found why = findViolation(schedule, parts, microBatches, map, options))
    return why->text;
  return std::nullopt;
}

std::optional<std::string> Schedule::verify(llvm::ArrayRef<PartInfo> parts,
                                            int64_t microBatches) const {
  return verifySchedule(*this, parts, microBatches, StageMap());
}
