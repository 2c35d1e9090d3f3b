//===- CommunicationOrder.h - One order of what is sent ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_SCHEDULING_CHECK_COMMUNICATIONORDER_H
#define CLEAVE_LIB_SCHEDULING_CHECK_COMMUNICATIONORDER_H

#include "cleave/Scheduling/Check/ResolvedSchedule.h"

namespace cleave::scheduling {

/// Returns a violation that names these nodes; -1 stands for no node.
Violation aboutNodes(const ResolvedSchedule &schedule, std::string text,
                     std::initializer_list<int> nodes);

/// Checks that both positions of each pair list their transfers in one order.
std::optional<Violation> checkTransferOrder(const ResolvedSchedule &schedule);

/// Checks that all members of a group list its collectives in one order.
std::optional<Violation> checkCollectiveOrder(const ResolvedSchedule &schedule);

} // namespace cleave::scheduling

#endif // CLEAVE_LIB_SCHEDULING_CHECK_COMMUNICATIONORDER_H
