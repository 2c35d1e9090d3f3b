//===- PipeAttributes.cpp - The attributes of the pipe dialect ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/IR/PipeOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// "each" or "once", after which a reason may follow.
static bool isGather(const graph::AttributeUse &use) {
  StringRef choice = cast<StringAttr>(use.value).getValue().split(':').first;
  return choice == "each" || choice == "once";
}

/// Bounded, because schedules have a list for each.
static bool isStageCount(const graph::AttributeUse &use) {
  return graph::isPositive(use) &&
         cast<IntegerAttr>(use.value).getInt() <= 1 << 12;
}

static bool isFusion(const graph::AttributeUse &use) {
  StringRef choice = cast<StringAttr>(use.value).getValue();
  return choice == "forward" || choice == "backward" ||
         choice.starts_with("none");
}

ArrayRef<graph::AttributeRow> cleave::pipe::attributeTable() {
  using namespace graph;
  using enum AttributeForm;
  static constexpr StringLiteral unit = "a unit", string = "a string",
                                 count = "an i64 that is not negative",
                                 list = "an array of dictionaries";
  static const AttributeRow rows[] = {
      {kCopyAttr, Integer, OnResult, count,
       "the stage of a further holder of the updated value, whose update the "
       "result is",
       isNotNegative},
      {kStagesAttr, Integer, OnOp, "a number from 1 to 4096",
       "on a program: the number of stages, if it is not 1", isStageCount},
      {kCheckAttr, Integer, OnOp, count,
       "on a check: its number among those of the entry", isNotNegative},
      {kBeginsStageAttr, Integer, OnOp, count,
       "on an op of forward: the stage that begins with the first op that has "
       "it, until stages are split",
       isNotNegative},
      {kSlicedAttr, Unit, OnOp, unit,
       "on a gather: its operand is a slice that another stage sends"},
      {kScheduleNameAttr, String, OnOp, string,
       "on a program: the generator of its schedule, or the file"},
      {kRecomputedAttr, Array, OnOp, list,
       "on a program: the ops that backward recomputes", holdsDictionaries},
      {kUnsavedBytesAttr, Integer, OnOp, "an i64",
       "on a program: the bytes of a micro-batch that are therefore not saved"},
      {kRecomputeWorkAttr, Array, OnOp, list,
       "on a program: the work of recomputation for a micro-batch, by stage",
       holdsDictionaries},
      {kSavedAttr, Array, OnOp, list,
       "on a program: what forward saves for the backward of its stage",
       holdsDictionaries},
      {kNarrowedAttr, Unit, OnOp, unit,
       "on ops that bring their first operand to the form in which it is "
       "saved"},
      {kGatherAttr, String, OnOp, "each or once, and perhaps the reason",
       "on a program: when sharded parameters are gathered", isGather},
      {kOptimizerFusionAttr, String, OnOp,
       "forward or backward, or none and the reason",
       "on a program: the part in which updates are", isFusion},
      {kPostValidatedAttr, Unit, OnOp, unit,
       "on a program: its updates run before they are validated"},
      {kEarlyUpdateAttr, Unit, OnOp, unit,
       "on a program: some updates run before all checks have passed"},
  };
  return rows;
}

LogicalResult PipeDialect::verifyOperationAttribute(Operation *op,
                                                    NamedAttribute attribute) {
  return graph::verifyAttribute(attributeTable(), graph::OnOp,
                                attribute.getName(),
                                {op, attribute.getValue()});
}

LogicalResult PipeDialect::verifyRegionArgAttribute(Operation *op, unsigned,
                                                    unsigned index,
                                                    NamedAttribute attribute) {
  return graph::verifyEntryAttribute(attributeTable(), graph::OnArgument, op,
                                     index, attribute);
}

LogicalResult PipeDialect::verifyRegionResultAttribute(
    Operation *op, unsigned, unsigned index, NamedAttribute attribute) {
  return graph::verifyEntryAttribute(attributeTable(), graph::OnResult, op,
                                     index, attribute);
}
