//===- CollectiveCost.cpp - Communication volume of collectives -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Machines/CollectiveCost.h"

using namespace cleave;
using namespace cleave::machines;

double cleave::machines::elementsSent(CollectiveKind kind, int64_t ranks,
                                      double elements) {
  switch (kind) {
  case CollectiveKind::AllReduce:
    return 2 * (ranks - 1) * elements / ranks;
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::AllGather:
  case CollectiveKind::AllToAll:
  case CollectiveKind::AllToAllRows:
  case CollectiveKind::Broadcast:
  case CollectiveKind::Reduce:
    return (ranks - 1) * elements / ranks;
  case CollectiveKind::Permute:
  case CollectiveKind::Rotate:
  case CollectiveKind::Send:
    return elements;
  case CollectiveKind::Receive:
  case CollectiveKind::Slice:
    return 0;
  }
  return 0;
}
