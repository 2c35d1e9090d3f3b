//===- ExecAttributes.cpp - The attributes of the exec dialect ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecDialect.h"
#include "cleave/Dialect/Exec/IR/MemoryKind.h"
#include "cleave/Dialect/Exec/IR/OrderedReduce.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// The bytes and the kind of each buffer of a part.
static bool holdsBuffers(const graph::AttributeUse &use) {
  return llvm::all_of(cast<ArrayAttr>(use.value), [](Attribute own) {
    auto buffer = dyn_cast<DictionaryAttr>(own);
    auto bytes = buffer ? buffer.getAs<IntegerAttr>("bytes") : IntegerAttr();
    return bytes && bytes.getInt() >= 0 && buffer.getAs<StringAttr>("kind");
  });
}

static bool areNumbers(const graph::AttributeUse &use) {
  return llvm::all_of(cast<DenseI64ArrayAttr>(use.value).asArrayRef(),
                      [](int64_t number) { return number >= 0; });
}

static bool hasName(const graph::AttributeUse &use) {
  auto action = cast<DictionaryAttr>(use.value);
  return action.getAs<StringAttr>("name") && action.getAs<StringAttr>("kind");
}

ArrayRef<graph::AttributeRow> cleave::exec::attributeTable() {
  using namespace graph;
  using enum AttributeForm;
  static constexpr StringLiteral unit = "a unit",
                                 count = "an i64 that is not negative",
                                 dictionary = "a dictionary";
  static const AttributeRow rows[] = {
      {kDiesAttr, Unit, OnArgument, unit,
       "of a part: its content is not read after the part"},
      {kAliasAttr, Integer, OnResult, count,
       "of a part: the argument whose memory the result takes", isNotNegative},
      {kUpdateAttr, Unit, OnResult, unit,
       "of a part: it replaces an argument of the entry"},
      {kGradientAttr, Unit, OnResult, unit,
       "of a part: it is kept for the update in the next step"},
      {kUpperBoundAttr, Integer, OnArgument, count,
       "of indices: the bound of their values", isNotNegative},
      {kIgnoreIndexAttr, Integer, OnArgument, "an i64",
       "of indices: the one other value that is allowed"},
      {kUnlessAttr, Unit, OnArgument, unit,
       "of a part: a flag; if it is set, the part is skipped"},
      {kKeptAttr, Unit, OnEntry, unit,
       "of a part: a value that an update overwrites, saved until the update "
       "has been validated"},
      {kKeptBytesAttr, Integer, OnOp, count,
       "on a program: the bytes of all these", isNotNegative},
      {kWhenStoppedAttr, Unit, OnOp, unit,
       "on a part: it runs only if an earlier check has stopped the step"},
      {kApartAttr, Unit, OnOp, unit,
       "on an addition: its addends are first summed separately"},
      {kDeferredAttr, Unit, OnOp, unit, "on a check that is deferred"},
      {kActionAttr, Dictionary, OnOp, "a dictionary with a name and a kind",
       "on a part: the action of the schedule that runs it", hasName},
      {kTierAttr, Unit, OnEntry, unit, "the tensor is in the second tier"},
      {kTierBytesAttr, Integer, OnOp, count,
       "on a module and on programs: the bytes of the second tier",
       isNotNegative},
      {kArenaBytesAttr, Integer, OnOp, count,
       "on a module, and on the programs of a pipeline: the bytes of the arena",
       isNotNegative},
      {kThreadsAttr, Integer, OnOp, "a positive i64",
       "on a module: the threads that scratch memory is planned for",
       isPositive},
      {kOffsetAttr, Integer, OnEntry | OnOp, count,
       "of an entry and on constants: bytes from the start of the arena",
       isNotNegative},
      {kMemoryAttr, Array, OnOp, "an array of buffers with bytes and a kind",
       "on a part: its buffers", holdsBuffers},
      {kBufferAttr, Integer, OnArgument, count, "of a part: its buffer",
       isNotNegative},
      {kBuffersAttr, Integers, OnOp, "numbers of buffers",
       "on ops of a part: the buffers of the results", areNumbers},
      {kScratchAttr, Integer, OnOp, count,
       "on ops of a part: the buffer of scratch memory", isNotNegative},
      {kPeakAttr, Integer, OnOp, count,
       "on a program: bytes in use after the fixed offsets", isNotNegative},
      {kLowerBoundAttr, Integer, OnOp, count,
       "on a program: the least bytes that any packing needs", isNotNegative},
      {kLiveAttr, Array, OnOp, "an array of dictionaries",
       "on a program: what is in use at the peak", holdsDictionaries},
      {kGradientPeakAttr, Integer, OnOp, count,
       "on a program: the peak bytes of gradients", isNotNegative},
      {kPeakTimeAttr, Dictionary, OnOp, dictionary,
       "on a program: the action and the command of the peak"},
      {kMemoryProfileAttr, Dictionary, OnOp, dictionary,
       "on a program: the bytes in use over its actions"},
      {kOrderedAttr, Unit, OnOp, unit,
       "on an `exec.reduce`: the order depends on the target and the number of "
       "columns alone"},
  };
  return rows;
}

LogicalResult ExecDialect::verifyOperationAttribute(Operation *op,
                                                    NamedAttribute attribute) {
  return graph::verifyAttribute(attributeTable(), graph::OnOp,
                                attribute.getName(),
                                {op, attribute.getValue()});
}

LogicalResult ExecDialect::verifyRegionArgAttribute(Operation *op, unsigned,
                                                    unsigned index,
                                                    NamedAttribute attribute) {
  return graph::verifyEntryAttribute(attributeTable(), graph::OnArgument, op,
                                     index, attribute);
}

LogicalResult ExecDialect::verifyRegionResultAttribute(
    Operation *op, unsigned, unsigned index, NamedAttribute attribute) {
  return graph::verifyEntryAttribute(attributeTable(), graph::OnResult, op,
                                     index, attribute);
}
