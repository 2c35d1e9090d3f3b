//===- ShardingRules.h - Testing sharding rules -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_SHARDINGRULES_H
#define CLEAVE_TESTING_SHARDINGRULES_H

#include "cleave/Testing/RandomGraph.h"

namespace cleave {

/// What was checked of the sharding rules of one kind of op.
struct RuleTally {
  /// Ops seen; factors sharded and executed; sets of jointly linear operands;
  /// factors padded.
  int64_t ops = 0, splits = 0, sums = 0, pads = 0;
  /// Factors that no sharding of the tensors can split alone, because they are
  /// minor to another one in a dimension.
  int64_t inner = 0;
  int64_t failures = 0;
  double worst = 0;
};

/// Executes `entry` on `inputs` and tests the sharding rule of each op with its
/// values: the op is executed on the shards given by its rule, factor by
/// factor, and the recombined results are compared with those of the whole op;
/// operands in which the rule says that it is linear are replaced by addends;
/// and the op is executed on operands that are padded factor by factor, with
/// the values that the rule requires, or with NaN if any value is allowed. Adds
/// to `tallies`, by the op's name.
llvm::LogicalResult
checkShardingRules(mlir::ModuleOp module, llvm::StringRef entry,
                   const NamedTensors &inputs,
                   std::map<std::string, RuleTally> &tallies);

} // namespace cleave

#endif // CLEAVE_TESTING_SHARDINGRULES_H
