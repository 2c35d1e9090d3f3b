//===- CommunicationOrder.cpp - One order of what is sent -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CommunicationOrder.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::scheduling;

Violation cleave::scheduling::aboutNodes(const ResolvedSchedule &schedule,
                                         std::string text,
                                         std::initializer_list<int> nodes) {
  Violation found{std::move(text)};
  for (int node : nodes)
    if (node >= 0)
      found.actions.push_back(schedule.ref(node));
  return found;
}

std::optional<Violation>
cleave::scheduling::checkTransferOrder(const ResolvedSchedule &schedule) {
  // For each ordered pair of positions, the transfers between them in the order
  // of the first one's list.
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
                          "pipeline positions " + std::to_string(pair.first) +
                              " and " + std::to_string(pair.second) +
                              " list their transfers in different orders: " +
                              schedule.str(a) + schedule.place(a) +
                              " does not match " + schedule.str(b) +
                              schedule.place(b) +
                              "; use the same order at both positions",
                          {a, b});
  }
  return std::nullopt;
}

std::optional<Violation>
cleave::scheduling::checkCollectiveOrder(const ResolvedSchedule &schedule) {
  // By group, the nodes of each member.
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
              "pipeline positions " + std::to_string(members.front()) +
                  " and " + std::to_string(device) +
                  " list their collectives in different orders: " +
                  schedule.str(a) + schedule.place(a) + " does not match " +
                  schedule.str(b) + schedule.place(b) +
                  "; use the same order at all members",
              {a, b});
  }
  return std::nullopt;
}
