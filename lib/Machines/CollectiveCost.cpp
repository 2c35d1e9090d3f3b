//===- CollectiveCost.cpp - Communication volume of collectives -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Machines/CollectiveCost.h"

using namespace cleave::machines;

double cleave::machines::elementsSent(Exchange exchange, int64_t ranks,
                                      double elements) {
  switch (exchange) {
  case Exchange::AllReduce:
    return 2 * (ranks - 1) * elements / ranks;
  case Exchange::ReduceScatter:
  case Exchange::AllGather:
  case Exchange::AllToAll:
  case Exchange::Broadcast:
  case Exchange::Reduce:
    return (ranks - 1) * elements / ranks;
  case Exchange::Permute:
    return elements;
  }
  return 0;
}
