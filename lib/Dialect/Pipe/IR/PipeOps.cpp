//===- PipeOps.cpp - The pipe dialect -------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Support/FunctionLike.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

#include "cleave/Dialect/Pipe/IR/PipeDialect.cpp.inc"

/// Parses `{part = "F", stage = 1, once, split = array<i64: -1, 0>, results =
/// ["saved", ...], unless = array<i64: 1, 0>}`.
static ParseResult parseInvokeConfig(OpAsmParser &parser, StringAttr &part,
                                     UnitAttr &once, DenseI64ArrayAttr &split,
                                     ArrayAttr &kinds, IntegerAttr &stage,
                                     DenseI64ArrayAttr &unless) {
  Builder &builder = parser.getBuilder();
  SMLoc loc = parser.getCurrentLocation();
  auto parseEntry = [&]() -> ParseResult {
    StringRef key;
    SMLoc keyLoc = parser.getCurrentLocation();
    if (parser.parseKeyword(&key))
      return failure();
    if (key == "once") {
      once = builder.getUnitAttr();
      return success();
    }
    if (parser.parseEqual())
      return failure();
    if (key == "part")
      return parser.parseAttribute(part);
    if (key == "results")
      return parser.parseAttribute(kinds);
    if (key == "stage")
      return parser.parseAttribute(stage, builder.getI64Type());
    if (key == "unless")
      return parser.parseAttribute(unless);
    if (key != "split")
      return parser.emitError(
          keyLoc, "expected part, stage, once, split, results or unless");
    return parser.parseAttribute(split);
  };
  if (parser.parseCommaSeparatedList(OpAsmParser::Delimiter::Braces,
                                     parseEntry))
    return failure();
  if (!part)
    return parser.emitError(loc, "expected `part = \"...\"`");
  if (!split)
    split = builder.getDenseI64ArrayAttr({});
  if (!kinds)
    kinds = builder.getArrayAttr({});
  if (!stage)
    stage = builder.getI64IntegerAttr(0);
  return success();
}

static void printInvokeConfig(OpAsmPrinter &printer, Operation *,
                              StringAttr part, UnitAttr once,
                              DenseI64ArrayAttr split, ArrayAttr kinds,
                              IntegerAttr stage, DenseI64ArrayAttr unless) {
  printer << "{part = " << part;
  if (stage.getInt())
    printer << ", stage = " << stage.getInt();
  if (once)
    printer << ", once";
  printer << ", split = " << split << ", results = " << kinds;
  if (unless)
    printer << ", unless = " << unless;
  printer << "}";
}

func::FuncOp InvokeOp::getPartFunction() {
  return SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(getOperation(),
                                                            getCalleeAttr());
}

StringRef cleave::pipe::accumulationOf(graph::ReductionKind kind) {
  switch (kind) {
  case graph::ReductionKind::Sum:
    return kAccumulate;
  case graph::ReductionKind::Max:
    return kAccumulateMax;
  case graph::ReductionKind::Min:
    return kAccumulateMin;
  }
  return kAccumulate;
}

std::optional<graph::ReductionKind> InvokeOp::getAccumulation(unsigned index) {
  for (graph::ReductionKind kind :
       {graph::ReductionKind::Sum, graph::ReductionKind::Max,
        graph::ReductionKind::Min})
    if (getKind(index) == accumulationOf(kind))
      return kind;
  return std::nullopt;
}

std::optional<int64_t> InvokeOp::getConcatDim(unsigned index) {
  StringRef kind = getKind(index);
  int64_t dim;
  if (!kind.consume_front(kConcatPrefix) || kind.getAsInteger(10, dim))
    return std::nullopt;
  return dim;
}

std::optional<int64_t> InvokeOp::getVersioned(unsigned index) {
  StringRef kind = getKind(index);
  int64_t argument;
  if (!kind.consume_front(kVersionPrefix) || kind.getAsInteger(10, argument))
    return std::nullopt;
  return argument;
}

/// Checks that `unless` names a flag, and a value of the right type for each
/// result.
static LogicalResult verifyUnless(InvokeOp invoke) {
  ArrayRef<int64_t> operands = *invoke.getUnless();
  if (!invoke.getOnce())
    return invoke.emitOpError("unless needs a part that runs once");
  if (operands.size() != invoke.getNumResults() + 1)
    return invoke.emitOpError("unless needs a flag and one operand for each of "
                              "the ")
           << invoke.getNumResults() << " results";
  for (auto [i, operand] : llvm::enumerate(operands)) {
    if (operand < 0 ||
        operand >= static_cast<int64_t>(invoke.getInputs().size()))
      return invoke.emitOpError("unless names operand ")
             << operand << ", but there are only " << invoke.getInputs().size();
    Type type = invoke.getInputs()[operand].getType();
    auto flag =
        RankedTensorType::get({}, IntegerType::get(invoke.getContext(), 1));
    Type wanted = i == 0 ? flag : invoke.getResult(i - 1).getType();
    if (type != wanted)
      return invoke.emitOpError("unless names ")
             << graph::nameOperand(invoke->getOpOperand(operand)) << " of type "
             << type << ", expected " << wanted;
  }
  return success();
}

LogicalResult InvokeOp::verify() {
  SmallVector<Type> types(getOperandTypes());
  llvm::append_range(types, getResultTypes());
  for (Type type : types) {
    auto tensor = cast<RankedTensorType>(type);
    if (!tensor.hasStaticShape() || !tensor.getElementType().isIntOrFloat())
      return emitOpError(
                 "operands and results must be tensors of static shapes, of "
                 "integers or floats, got ")
             << type;
  }
  if (isConditional() && failed(verifyUnless(*this)))
    return failure();
  if (getSplit().size() != getInputs().size())
    return emitOpError("split needs one value for each of the ")
           << getInputs().size() << " operands";
  if (getResultKinds().size() != getNumResults())
    return emitOpError("results needs one kind for each of the ")
           << getNumResults() << " results";
  if (static_cast<int64_t>(getStage()) < 0)
    return emitOpError("stage must not be negative");
  if (!Schedule::isPartName(getPart()))
    return emitOpError("part \"") << getPart() << "\" must consist of letters";
  for (unsigned i = 0; i < getNumResults(); ++i) {
    StringRef kind = getKind(i);
    std::optional<int64_t> versioned = getVersioned(i);
    bool perMicroBatch =
        kind == kSaved || isAccumulated(i) || getConcatDim(i) || versioned;
    if (!perMicroBatch && kind != kValue)
      return emitOpError("result kind \"")
             << kind
             << "\" must be saved, accumulate, accumulate:max, accumulate:min, "
                "concat:<dim>, value or version:<argument>";
    auto program = cast<ProgramOp>((*this)->getParentOp());
    if (versioned &&
        (*versioned < 0 || *versioned >= program.getNumArguments() ||
         program.getArgument(*versioned).getType() != getResult(i).getType()))
      return emitOpError("result ")
             << i << " is a version of argument " << *versioned << ", but '@"
             << program.getSymName() << "' has none of this number and type";
    if (perMicroBatch && getOnce())
      return emitOpError("result kind \"")
             << kind << "\" needs a part that runs for each micro-batch";
  }
  return success();
}

/// The type of one of `parts` slices along `dim` of a tensor of type `type`.
static RankedTensorType sliceType(RankedTensorType type, int64_t dim,
                                  int64_t parts) {
  SmallVector<int64_t> shape(type.getShape());
  shape[dim] /= parts;
  return RankedTensorType::get(shape, type.getElementType());
}

LogicalResult InvokeOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FailureOr<func::FuncOp> function = lookupCallee(*this, symbols);
  if (failed(function))
    return failure();
  FunctionType type = function->getFunctionType();
  int64_t parts = cast<ProgramOp>((*this)->getParentOp()).getMicroBatches();
  for (auto [i, value] : llvm::enumerate(getInputs())) {
    auto whole = cast<RankedTensorType>(value.getType());
    int64_t dim = getSplit()[i];
    if (dim >= 0) {
      if (getOnce())
        return emitOpError("a part that runs once cannot split ")
               << graph::nameOperand((*this)->getOpOperand(i));
      if (dim >= whole.getRank() || whole.getDimSize(dim) % parts != 0)
        return emitOpError()
               << graph::nameOperand((*this)->getOpOperand(i)) << " of type "
               << whole << " cannot be split into " << parts
               << " micro-batches along dimension " << dim;
    }
    Type local = dim < 0 ? whole : sliceType(whole, dim, parts);
    if (local != type.getInput(i))
      return emitOpError() << graph::nameOperand((*this)->getOpOperand(i))
                           << " passes " << local
                           << " to the part, which expects "
                           << type.getInput(i);
  }
  for (auto [i, value] : llvm::enumerate(getOutputs())) {
    auto whole = cast<RankedTensorType>(value.getType());
    Type local = whole;
    if (std::optional<int64_t> dim = getConcatDim(i)) {
      if (*dim < 0 || *dim >= whole.getRank() ||
          whole.getDimSize(*dim) % parts != 0)
        return emitOpError("result ")
               << i << " of type " << whole << " cannot be a concatenation of "
               << parts << " micro-batches along dimension " << *dim;
      local = sliceType(whole, *dim, parts);
    }
    if (local != type.getResult(i))
      return emitOpError("result ")
             << i << " of type " << whole << " needs a part that returns "
             << local << ", got " << type.getResult(i);
  }
  return success();
}

LogicalResult ReturnOp::verify() {
  auto program = cast<ProgramOp>((*this)->getParentOp());
  if (!llvm::equal(getOperandTypes(), program.getResultTypes()))
    return emitOpError("operand types (")
           << getOperandTypes() << ") must be the program's result types ("
           << program.getResultTypes() << ")";
  return success();
}

#define GET_OP_CLASSES
#include "cleave/Dialect/Pipe/IR/PipeOps.cpp.inc"

void PipeDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "cleave/Dialect/Pipe/IR/PipeOps.cpp.inc"
      >();
}
