//===- ProgramOps.cpp - Programs of entries -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Support/FunctionLike.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

ParseResult ProgramOp::parse(OpAsmParser &parser, OperationState &result) {
  return parseFunctionLike<ProgramOp>(parser, result);
}

void ProgramOp::print(OpAsmPrinter &printer) {
  printFunctionLike(printer, *this);
}

static SmallVector<RepeatAttr> repeatsOf(ProgramOp program) {
  SmallVector<RepeatAttr> repeats;
  if (ArrayAttr attr = program.getRepeatsAttr())
    llvm::append_range(repeats, attr.getAsRange<RepeatAttr>());
  return repeats;
}

LogicalResult ProgramOp::verify() {
  if (getBody().front().empty() || !isa<ReturnOp>(getBody().front().back()))
    return emitOpError("must end in exec.return");
  int64_t end = 0, runs = llvm::range_size(getBody().getOps<RunOp>());
  for (RepeatAttr repeat : repeatsOf(*this)) {
    if (repeat.getFirst() < end || repeat.getLength() < 1 ||
        repeat.getTimes() < 2 || repeat.getMore() < 0)
      return emitOpError("repeats ")
             << repeat << ", which overlaps another one or is invalid";
    end = repeat.getFirst() + repeat.getLength() * repeat.getTimes();
    if (end > runs)
      return emitOpError("repeats ")
             << repeat << ", but has " << runs << " actions";
  }
  return success();
}

SmallVector<int64_t> ProgramOp::countActions() {
  SmallVector<int64_t> counts(llvm::range_size(getBody().getOps<RunOp>()), 1);
  for (RepeatAttr repeat : repeatsOf(*this)) {
    int64_t end = repeat.getFirst() + repeat.getLength() * repeat.getTimes();
    for (int64_t i = end - repeat.getLength(); i < end; ++i)
      counts[i] += repeat.getMore();
  }
  return counts;
}

void ProgramOp::forEachAction(function_ref<void(RunOp, int64_t)> visit) {
  SmallVector<RunOp> runs(getBody().getOps<RunOp>());
  size_t next = 0;
  auto writtenOut = [&](size_t end) {
    for (; next < end; ++next)
      visit(runs[next],
            static_cast<int64_t>(runs[next].getMicroBatch()) +
                static_cast<int64_t>(runs[next].getLater().value_or(0)));
  };
  for (RepeatAttr repeat : repeatsOf(*this)) {
    size_t end = repeat.getFirst() + repeat.getLength() * repeat.getTimes();
    writtenOut(end);
    for (int64_t more = 1; more <= repeat.getMore(); ++more)
      for (size_t i = end - repeat.getLength(); i < end; ++i)
        visit(runs[i], static_cast<int64_t>(runs[i].getMicroBatch()) +
                           more * repeat.getStep());
  }
  writtenOut(runs.size());
}

LogicalResult ReturnOp::verify() {
  auto program = cast<ProgramOp>((*this)->getParentOp());
  if (!llvm::equal(getOperandTypes(), program.getResultTypes()))
    return emitOpError("operand types (")
           << getOperandTypes() << ") are not the program's result types ("
           << program.getResultTypes() << ")";
  return success();
}

/// `type` moved to offset 0.
static RankedTensorType atStart(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  if (!tensor.getEncoding())
    return tensor;
  Strided layout = getLayout(tensor);
  layout.offset = 0;
  return withLayout(tensor, layout);
}

LogicalResult RunOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FailureOr<func::FuncOp> part = lookupCallee(*this, symbols);
  if (failed(part))
    return failure();
  FunctionType type = part->getFunctionType();
  for (auto [i, value] : llvm::enumerate(getInputs()))
    if (atStart(value.getType()) != type.getInput(i))
      return emitOpError() << graph::nameOperand((*this)->getOpOperand(i))
                           << " of type " << value.getType()
                           << ", but the part takes " << type.getInput(i);
  for (auto [i, value] : llvm::enumerate(getOutputs()))
    if (atStart(value.getType()) != type.getResult(i))
      return emitOpError("result ")
             << i << " of type " << value.getType() << ", but the part gives "
             << type.getResult(i);
  return success();
}
