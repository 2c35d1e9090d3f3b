//===- SpmdAttributes.cpp - The attributes of the spmd dialect ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/Chunks.h"
#include "cleave/Dialect/Spmd/IR/OfDevice.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Their values depend on the op that has them, and on each other: the
/// dialect's verifier has a message for each mistake (SpmdOps.cpp).
ArrayRef<graph::AttributeRow> cleave::spmd::attributeTable() {
  using namespace graph;
  using enum AttributeForm;
  static constexpr StringLiteral axis = "the name of an axis";
  static const AttributeRow rows[] = {
      {kShardingAttr, Other, OnEntry, "a sharding of the tensor",
       "its sharding"},
      {kGlobalTypeAttr, Type, OnEntry, "a tensor type",
       "its type before partitioning"},
      {kShardingsAttr, Array, OnOp, "a sharding of each result",
       "the shardings of the results"},
      {kGlobalTypesAttr, Array, OnOp, "a tensor type for each result",
       "the types of the results before partitioning"},
      {kSamplesAttr, Integer, OnOp, "a dimension of the one result",
       "the dimension that holds samples in another order, until recipes are "
       "applied"},
      {kRingAttr, String, OnOp, axis,
       "on an attention: the axis of its ring, along which keys and values "
       "rotate"},
      {kTwoRingAttr, String, OnOp, axis,
       "on an attention: the axis of its two rings, of keys and of values"},
      {kRingShiftAttr, Dictionary, OnOp,
       "an operand or a result, its dimension and steps",
       "an operand or a result that is rotated around a ring"},
      {kStepsAttr, Array, OnOp, "shardings of two operands and of the result",
       "on a contraction that is computed in steps"},
      {kHeldAttr, Integers, OnOp, "numbers of operands",
       "operands whose parts are kept in memory for later products"},
      {kChunkAttr, Integers, OnOp, "the numbers of a collective and a chunk",
       "on a collective that is one chunk of a larger one"},
      {kOfDeviceAttr, Unit, OnOp, "a unit",
       "on an op on the shards of each device, which is no op on global "
       "tensors"},
  };
  return rows;
}
