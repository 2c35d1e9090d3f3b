//===- ResolvedSchedule.cpp - Schedules resolved to tasks -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Check/ResolvedSchedule.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::scheduling;

std::string ResolvedSchedule::place(int node) const {
  return deviceCount() == 1
             ? std::string()
             : " at pipeline position " + std::to_string(nodes[node].device);
}

int ResolvedSchedule::missingTask() const {
  auto it = llvm::find(runner, -1);
  return it == runner.end() ? -1 : it - runner.begin();
}

/// What to write in place of an action of an unknown part.
static std::string adviseForUnknown(const TaskTable &table,
                                    const Action &action) {
  if (action.stage >= table.stages)
    return "; the last stage is " + std::to_string(table.stages - 1);
  auto has = [&](llvm::StringRef part) {
    return table.find(action.stage, part) >= 0;
  };
  Action other = action.run();
  auto named = [&](llvm::StringRef part) {
    other.part = part.str();
    return other.str();
  };
  // Backward is whole (B) or split (I and W).
  if (action.part == "B" && (has("I") || has("W")))
    return ", because backward is split; write " +
           (has("I") ? named("I") : "") +
           (has("I") && has("W") ? " and " : "") + (has("W") ? named("W") : "");
  if ((action.part == "I" || action.part == "W") && has("B"))
    return ", because backward is not split; write " + named("B");
  std::string names;
  for (const PartInfo &part : table.parts)
    if (part.stage == action.stage)
      names += (names.empty() ? "" : ", ") + part.name;
  return "; the parts of stage " + std::to_string(action.stage) + " are " +
         (names.empty() ? "none" : names);
}

bool ResolvedSchedule::addAction(const Action &action, int64_t device,
                                 Violation &error) {
  ActionRef here{device, nodes.size() - begin[device]};
  auto fail = [&](std::string text, std::optional<int> other = std::nullopt) {
    error = {action.str() + std::move(text), {here}};
    if (other)
      error.actions.push_back(ref(*other));
    return false;
  };
  int p = table->find(action.stage, action.part);
  if (p < 0)
    return fail(": unknown part" + adviseForUnknown(*table, action));
  const PartInfo &part = table->parts[p];
  if (part.once != (action.microBatch < 0))
    return fail(part.once ? ": this part runs once and has no micro-batch"
                          : ": this part needs a micro-batch");
  if (!part.once && action.microBatch >= table->microBatches)
    return fail(": there are only " + std::to_string(table->microBatches) +
                " micro-batches");
  bool transfer = action.kind != Action::Kind::Run;
  if (transfer && (action.to < 0 || action.to >= table->stages))
    return fail(": there are only " + std::to_string(table->stages) +
                " stages");
  Node node;
  node.kind = action.kind;
  node.device = device;
  node.part = p;
  node.microBatch = action.microBatch;
  node.action = &action;
  const StageMap &map = table->map;
  int64_t stage =
      action.kind == Action::Kind::Receive ? action.to : action.stage;
  llvm::SmallVector<int64_t, 2> places = map.devicesOf(stage);
  if (transfer || !part.once)
    places = {map.device(stage, action.microBatch)};
  if (!llvm::is_contained(places, device))
    return fail(" is listed at pipeline position " + std::to_string(device) +
                "; move it to position " + std::to_string(places.front()) +
                ", which has stage " + std::to_string(stage));
  if (transfer && map.device(action.stage, action.microBatch) ==
                      map.device(action.to, action.microBatch))
    return fail(": both stages are at pipeline position " +
                std::to_string(device) + "; remove the transfer");
  node.tasks = table->tasksOf(p, action.microBatch, device);
  int number = nodes.size();
  if (transfer) {
    hasTransfers = true;
  } else {
    for (int task : node.tasks) {
      if (int before = runner[task]; before >= 0)
        return fail(str(before) == action.str()
                        ? " runs twice"
                        : " repeats the work of " + str(before) +
                              "; remove one of them",
                    before);
      runner[task] = number;
    }
    for (int task : node.tasks) {
      bool first = ran.insert({table->tasks[task].part, device}).second;
      table->forEachNeed(
          task,
          [&](int need) {
            if (!llvm::is_contained(node.tasks, need))
              node.needs.push_back(need);
          },
          first);
    }
  }
  nodes.push_back(std::move(node));
  return true;
}

void ResolvedSchedule::needLastOnly() {
  for (Node &node : nodes) {
    // By part and position, the dependency that runs last.
    std::map<std::pair<int, int64_t>, int> last;
    for (int need : node.needs) {
      const Task &task = table->tasks[need];
      auto [it, fresh] = last.try_emplace({task.part, task.device}, need);
      // A task that never runs stays, so that it is reported.
      if (!fresh && runner[it->second] >= 0 &&
          (runner[need] < 0 || runner[need] > runner[it->second]))
        it->second = need;
    }
    llvm::erase_if(node.needs, [&](int need) {
      const Task &task = table->tasks[need];
      return task.device != node.device &&
             last[{task.part, task.device}] != need;
    });
  }
}

bool ResolvedSchedule::pairTransfers(Violation &error) {
  using Key = std::tuple<int, int64_t, int64_t>;
  llvm::DenseMap<Key, int> ends[2];
  auto key = [&](int n) {
    return Key(nodes[n].part, nodes[n].microBatch, nodes[n].action->to);
  };
  // Values sent to a position are available to all its stages.
  llvm::DenseMap<Key, int> devices[2];
  for (int n = 0, e = nodes.size(); n < e; ++n) {
    if (nodes[n].kind == Action::Kind::Run)
      continue;
    auto [first, inserted] =
        ends[nodes[n].kind == Action::Kind::Receive].try_emplace(key(n), n);
    if (!inserted) {
      error = {str(n) + " is listed twice; remove one of them",
               {ref(n), ref(first->second)}};
      return false;
    }
    int64_t device =
        table->map.device(nodes[n].action->to, nodes[n].microBatch);
    auto [before, alone] =
        devices[nodes[n].kind == Action::Kind::Receive].try_emplace(
            Key(nodes[n].part, nodes[n].microBatch, device), n);
    if (!alone) {
      error = {str(n) + " transfers to pipeline position " +
                   std::to_string(device) + " the same values as " +
                   str(before->second) + "; remove one of them",
               {ref(n), ref(before->second)}};
      return false;
    }
  }
  for (int side = 0; side < 2; ++side) {
    // The first one without a partner by part, micro-batch and stage.
    std::map<Key, int> alone;
    for (auto [key, n] : ends[side]) {
      auto other = ends[!side].find(key);
      if (other != ends[!side].end())
        nodes[n].partner = other->second;
      else
        alone[key] = n;
    }
    if (!alone.empty()) {
      int n = alone.begin()->second;
      const Action &action = *nodes[n].action;
      Action wanted =
          side ? action.run().send(action.to) : action.run().receive(action.to);
      int64_t device =
          table->map.device(side ? action.stage : action.to, action.microBatch);
      error = {str(n) + place(n) + " has no matching " +
                   (side ? "send" : "receive") + "; write " + wanted.str() +
                   " at position " + std::to_string(device),
               {ref(n)}};
      return false;
    }
  }
  return true;
}

bool ResolvedSchedule::formGroups(llvm::ArrayRef<Collective> collectives,
                                  Violation &error) {
  auto add = [&](llvm::ArrayRef<int> members) {
    // For each position, the last of its nodes.
    std::map<int64_t, int> last;
    for (int n : members)
      if (n >= 0) {
        auto it = last.try_emplace(nodes[n].device, n).first;
        it->second = std::max(it->second, n);
      }
    if (last.size() < 2)
      return true;
    llvm::SmallVector<int, 4> group;
    for (auto [device, n] : last) {
      if (nodes[n].group >= 0) {
        error = {str(n) + " is a member of two collectives; name it in one",
                 {ref(n)}};
        return false;
      }
      nodes[n].group = groups.size();
      group.push_back(n);
    }
    groups.push_back(std::move(group));
    return true;
  };
  std::vector<bool> named(table->parts.size(), false);
  for (const Collective &collective : collectives) {
    llvm::SmallVector<int> members;
    for (int64_t stage : collective.stages) {
      int p = table->find(stage, collective.part);
      int first = members.empty() ? p : members.front();
      if (p < 0 || table->parts[p].once != table->parts[first].once) {
        error = {"collective " + collective.part + ": stage " +
                 std::to_string(stage) +
                 " does not have this part, or it runs once in some stages and "
                 "for each micro-batch in others"};
        return false;
      }
      named[p] = true;
      members.push_back(p);
    }
    bool once = !members.empty() && table->parts[members.front()].once;
    for (int64_t i = 0, e = once ? 1 : table->microBatches; i < e; ++i) {
      llvm::SmallVector<int> joined;
      for (int p : members)
        for (int64_t device : table->map.devicesOf(table->parts[p].stage))
          for (int task : table->tasksOf(p, once ? -1 : i, device))
            joined.push_back(runner[task]);
      if (!add(joined))
        return false;
    }
  }
  for (auto [p, part] : llvm::enumerate(table->parts)) {
    if (!part.once || named[p] || !part.fuses.empty())
      continue;
    llvm::SmallVector<int> joined;
    for (int64_t device : table->map.devicesOf(part.stage))
      joined.push_back(runner[table->task(p, -1, device)]);
    if (!add(joined))
      return false;
  }
  return true;
}

std::optional<ResolvedSchedule>
ResolvedSchedule::create(const Schedule &schedule, const TaskTable &table,
                         llvm::ArrayRef<Collective> collectives,
                         Violation &error) {
  int64_t devices = schedule.devices.size();
  if (devices != table.map.devices) {
    error = {"expected " + std::to_string(table.map.devices) +
             " lists of actions, one for each pipeline position, got " +
             std::to_string(devices) + "; separate lists by '|'"};
    // The first excess list, or the last one.
    int64_t device = std::min(table.map.devices, devices - 1);
    error.actions.push_back({device, schedule.devices[device].size()});
    return std::nullopt;
  }
  ResolvedSchedule result;
  result.table = &table;
  result.runner.resize(table.tasks.size(), -1);
  for (auto [d, actions] : llvm::enumerate(schedule.devices)) {
    result.begin.push_back(result.nodes.size());
    for (const Action &action : actions)
      if (!result.addAction(action, d, error))
        return std::nullopt;
  }
  result.begin.push_back(result.nodes.size());
  result.needLastOnly();
  if (!result.pairTransfers(error) || !result.formGroups(collectives, error))
    return std::nullopt;
  return result;
}
