//===- PipeOps.cpp - The pipe dialect -------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/OpCost.h"
#include "cleave/Dialect/Pipe/IR/PartFunctions.h"
#include "mlir/Interfaces/FunctionImplementation.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave::pipe;

#include "cleave/Dialect/Pipe/IR/PipeDialect.cpp.inc"

//===----------------------------------------------------------------------===//
// pipe.program
//===----------------------------------------------------------------------===//

void ProgramOp::build(OpBuilder &builder, OperationState &state, StringRef name,
                      FunctionType type, int64_t microBatches) {
  state.addAttribute(getSymNameAttrName(state.name),
                     builder.getStringAttr(name));
  state.addAttribute(getFunctionTypeAttrName(state.name), TypeAttr::get(type));
  state.addAttribute(getMicroBatchesAttrName(state.name),
                     builder.getI64IntegerAttr(microBatches));
  Region *body = state.addRegion();
  SmallVector<Location> locs(type.getNumInputs(), state.location);
  body->emplaceBlock().addArguments(type.getInputs(), locs);
}

ParseResult ProgramOp::parse(OpAsmParser &parser, OperationState &result) {
  return function_interface_impl::parseFunctionOp(
      parser, result, /*allowVariadic=*/false,
      getFunctionTypeAttrName(result.name),
      [](Builder &builder, ArrayRef<Type> inputs, ArrayRef<Type> results,
         function_interface_impl::VariadicFlag,
         std::string &) { return builder.getFunctionType(inputs, results); },
      getArgAttrsAttrName(result.name), getResAttrsAttrName(result.name));
}

void ProgramOp::print(OpAsmPrinter &printer) {
  function_interface_impl::printFunctionOp(
      printer, *this, /*isVariadic=*/false, getFunctionTypeAttrName(),
      getArgAttrsAttrName(), getResAttrsAttrName());
}

/// More are a mistake, and too many to make lists of.
static constexpr int64_t kMostMicroBatches = 1 << 20;
static constexpr int64_t kMostStages = 1 << 12;

LogicalResult ProgramOp::verify() {
  if (getMicroBatches() < 1)
    return emitOpError("micro_batches must be positive");
  if (getMicroBatches() > kMostMicroBatches)
    return emitOpError("micro_batches must not be more than ")
           << kMostMicroBatches;
  if (Attribute stages = (*this)->getAttr(kStagesAttr)) {
    auto count = dyn_cast<IntegerAttr>(stages);
    if (!count || !count.getType().isSignlessInteger(64) ||
        count.getInt() < 1 || count.getInt() > kMostStages)
      return emitOpError(kStagesAttr) << " must be a number from 1 to "
                                      << kMostStages << ", not " << stages;
  }
  if (std::optional<StringRef> text = getSchedule()) {
    std::string error;
    if (!Schedule::parse(*text, error))
      return emitOpError("schedule: ") << error;
  }
  if (!isa<ReturnOp>(getBody().front().back()))
    return emitOpError("must end in pipe.return");
  for (Operation &op : getBody().front().without_terminator())
    if (!isa<InvokeOp>(op))
      return op.emitOpError("has no place in a pipe.program, which holds "
                            "pipe.invoke alone");
  return success();
}

llvm::MapVector<BlockArgument, OpResult>
cleave::pipe::versionedArguments(ProgramOp program) {
  llvm::MapVector<BlockArgument, OpResult> found;
  for (auto invoke : program.getBody().getOps<InvokeOp>())
    for (OpResult result : invoke->getOpResults())
      if (auto index = invoke.getVersioned(result.getResultNumber()))
        found[program.getArgument(*index)] = result;
  return found;
}

StringRef cleave::pipe::updatedArgument(OpResult result) {
  for (OpOperand &use : result.getUses())
    if (isa<ReturnOp>(use.getOwner()))
      if (auto name = use.getOwner()
                          ->getParentOfType<ProgramOp>()
                          .getResultAttrOfType<StringAttr>(
                              use.getOperandNumber(), graph::kUpdatesAttr))
        return name;
  return {};
}

double cleave::pipe::countedFlops(InvokeOp invoke) {
  func::FuncOp part = invoke.getPartFunction();
  if (invoke.getOnce() || !isForwardOrBackward(invoke.getPart()) || !part ||
      part.isExternal())
    return 0;
  double flops = 0;
  for (Operation &op : part.getBody().front().without_terminator())
    if (auto costed = dyn_cast<graph::CostOpInterface>(op))
      flops += costed.getCost().flops;
  return flops;
}

/// A part of the stage of `invoke` that runs for each micro-batch, reads
/// `value` and stands where `where` says; null if there is none.
static InvokeOp findReader(Value value, InvokeOp invoke,
                           llvm::function_ref<bool(InvokeOp)> where) {
  for (Operation *user : value.getUsers())
    if (auto reader = dyn_cast<InvokeOp>(user);
        reader && !reader.getOnce() && reader.getStage() == invoke.getStage() &&
        where(reader))
      return reader;
  return nullptr;
}

/// What `invoke` receives of a micro-batch, each value once.
static llvm::SetVector<Value> receivedBy(InvokeOp invoke) {
  llvm::SetVector<Value> received;
  for (Value input : invoke.getInputs()) {
    auto result = dyn_cast<OpResult>(input);
    if (!result || invoke.getOnce())
      continue;
    auto from = cast<InvokeOp>(result.getOwner());
    if (from.getStage() != invoke.getStage() && !from.getOnce() &&
        from.isSaved(result.getResultNumber()))
      received.insert(input);
  }
  return received;
}

/// What a run of a part leaves in memory for later parts of its stage and
/// micro-batch: of what it gives, what they read, and of what it receives, what
/// they read as well. What is given to other stages alone is sent and gone.
static int64_t savedBytes(InvokeOp invoke) {
  if (invoke.getOnce())
    return 0;
  int64_t bytes = 0;
  auto add = [&](Value value) {
    auto type = cast<RankedTensorType>(value.getType());
    int64_t bits = type.getElementType().getIntOrFloatBitWidth();
    bytes += type.getNumElements() * ((bits + 7) / 8);
  };
  auto behind = [&](InvokeOp other) { return invoke->isBeforeInBlock(other); };
  auto before = [&](InvokeOp other) { return other->isBeforeInBlock(invoke); };
  for (auto [i, result] : llvm::enumerate(invoke.getOutputs()))
    if (invoke.isSaved(i) && findReader(result, invoke, behind))
      add(result);
  // The first part that reads it counts it.
  for (Value value : receivedBy(invoke))
    if (findReader(value, invoke, behind) && !findReader(value, invoke, before))
      add(value);
  return bytes;
}

LogicalResult cleave::pipe::verifyPartFunctions(ProgramOp program) {
  auto module = program->getParentOfType<ModuleOp>();
  for (auto invoke : program.getBody().getOps<InvokeOp>()) {
    func::FuncOp function = invoke.getPartFunction();
    if (!function || !function.getBody().hasOneBlock())
      return invoke.emitOpError("'")
             << invoke.getCallee() << "' has no body of one block";
  }
  llvm::DenseMap<StringAttr, Operation *> first;
  WalkResult result = module.walk([&](Operation *op) {
    StringAttr callee;
    if (auto invoke = dyn_cast<InvokeOp>(op))
      callee = invoke.getCalleeAttr().getAttr();
    else if (auto call = dyn_cast<func::CallOp>(op))
      callee = call.getCalleeAttr().getAttr();
    else
      return WalkResult::advance();
    auto [it, fresh] = first.try_emplace(callee, op);
    if (fresh ||
        (op->getParentOp() != program && it->second->getParentOp() != program))
      return WalkResult::advance();
    InFlightDiagnostic error = op->emitOpError("'")
                               << callee.getValue()
                               << "' is a part elsewhere too: let each part "
                                  "have a function of its own";
    error.attachNote(it->second->getLoc()) << "it is called here first";
    return WalkResult::interrupt();
  });
  return failure(result.wasInterrupted());
}

std::vector<PartInfo> cleave::pipe::describeParts(ProgramOp program) {
  llvm::MapVector<BlockArgument, OpResult> versioned =
      versionedArguments(program);
  std::vector<PartInfo> parts;
  llvm::DenseMap<Operation *, unsigned> index;
  for (auto invoke : program.getBody().getOps<InvokeOp>()) {
    PartInfo info;
    info.name = invoke.getPart().str();
    info.once = invoke.getOnce();
    info.stage = invoke.getStage();
    info.reads = info.updates = false;
    info.late = program->hasAttr(kPostValidatedAttr) &&
                (info.name == "V" || info.name == "A");
    for (unsigned i = 0; i < invoke.getNumResults(); ++i)
      info.updates |= invoke.getVersioned(i).has_value();
    auto addUse = [&](PartInfo::Use use) {
      if (llvm::none_of(info.uses, [&](const PartInfo::Use &other) {
            return other.part == use.part &&
                   other.sameMicroBatch == use.sameMicroBatch;
          }))
        info.uses.push_back(use);
    };
    for (Value input : invoke.getInputs()) {
      if (auto argument = dyn_cast<BlockArgument>(input))
        info.reads |= versioned.contains(argument);
      auto result = dyn_cast<OpResult>(input);
      if (!result)
        continue;
      auto from = cast<InvokeOp>(result.getOwner());
      addUse({index.lookup(from), from.isSaved(result.getResultNumber())});
    }
    info.saved = savedBytes(invoke);
    // Forward keeps what it receives until those that read it too have run.
    for (Value value : receivedBy(invoke))
      if (InvokeOp forward = findReader(value, invoke, [&](InvokeOp other) {
            return other.getPart() == "F" && other->isBeforeInBlock(invoke);
          }))
        addUse({index.lookup(forward), /*sameMicroBatch=*/true});
    index[invoke] = parts.size();
    parts.push_back(std::move(info));
  }
  return parts;
}

FailureOr<StageMap> cleave::pipe::stageMapOf(ProgramOp program,
                                             int64_t devices) {
  std::string error;
  auto map = StageMap::parse(program.getStageMap().value_or("modular"), devices,
                             error);
  if (!map)
    return program.emitOpError("stage_map: ") << error;
  return *map;
}

FailureOr<Schedule> cleave::pipe::readSchedule(ProgramOp program) {
  if (!program.getSchedule())
    return program.emitOpError("has no schedule; run --pipe-schedule first");
  std::string error;
  std::optional<Schedule> schedule =
      Schedule::parse(*program.getSchedule(), error);
  if (!schedule)
    return program.emitOpError("schedule: ") << error;
  int64_t devices = schedule->devices.size();
  FailureOr<StageMap> map = stageMapOf(program, devices);
  if (failed(map))
    return failure();
  std::vector<PartInfo> parts = describeParts(program);
  if (std::optional<std::string> why =
          devices == 1 ? schedule->verify(parts, program.getMicroBatches())
                       : verifySchedule(*schedule, parts,
                                        program.getMicroBatches(), *map))
    return program.emitOpError("schedule: ") << *why;
  return *schedule;
}

LogicalResult ReturnOp::verify() {
  auto program = cast<ProgramOp>((*this)->getParentOp());
  if (!llvm::equal(getOperandTypes(), program.getResultTypes()))
    return emitOpError("operand types (")
           << getOperandTypes() << ") are not the program's result types ("
           << program.getResultTypes() << ")";
  return success();
}

//===----------------------------------------------------------------------===//
// pipe.invoke
//===----------------------------------------------------------------------===//

/// `{part = "F", stage = 1, once, split = array<i64: -1, 0>, results =
/// ["saved", ...], unless = array<i64: 1, 0>}`
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

/// A flag, and a value of its type for each result.
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
             << operand << ", which it has not";
    Type type = invoke.getInputs()[operand].getType();
    auto flag =
        RankedTensorType::get({}, IntegerType::get(invoke.getContext(), 1));
    Type wanted = i == 0 ? flag : invoke.getResult(i - 1).getType();
    if (type != wanted)
      return invoke.emitOpError("unless names operand ")
             << operand << " of type " << type << " in the place of " << wanted;
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
                 "takes and gives tensors of static shapes, of integers "
                 "or floats, not ")
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
    return emitOpError("part \"")
           << getPart() << "\" must be made of letters alone";
  for (unsigned i = 0; i < getNumResults(); ++i) {
    StringRef kind = getKind(i);
    std::optional<int64_t> versioned = getVersioned(i);
    bool perMicroBatch =
        kind == kSaved || kind == kAccumulate || getConcatDim(i) || versioned;
    if (!perMicroBatch && kind != kValue)
      return emitOpError("result kind \"")
             << kind
             << "\" is none of saved, accumulate, concat:<dim>, value, "
                "version:<argument>";
    auto program = cast<ProgramOp>((*this)->getParentOp());
    if (versioned &&
        (*versioned < 0 || *versioned >= program.getNumArguments() ||
         program.getArgument(*versioned).getType() != getResult(i).getType()))
      return emitOpError("result ")
             << i << " is to be a version of argument " << *versioned
             << ", which the program has not, or of another type";
    if (perMicroBatch && getOnce())
      return emitOpError("result kind \"")
             << kind << "\" needs a part that runs for each micro-batch";
  }
  return success();
}

/// The type a part sees of a whole tensor of type `type` split along `dim`.
static RankedTensorType sliceType(RankedTensorType type, int64_t dim,
                                  int64_t parts) {
  SmallVector<int64_t> shape(type.getShape());
  shape[dim] /= parts;
  return RankedTensorType::get(shape, type.getElementType());
}

LogicalResult InvokeOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto function =
      symbols.lookupNearestSymbolFrom<func::FuncOp>(*this, getCalleeAttr());
  if (!function)
    return emitOpError("'") << getCallee() << "' is not a function";
  FunctionType type = function.getFunctionType();
  if (type.getNumInputs() != getInputs().size() ||
      type.getNumResults() != getNumResults())
    return emitOpError("'")
           << getCallee() << "' takes " << type.getNumInputs()
           << " operands and gives " << type.getNumResults() << " results";
  int64_t parts = cast<ProgramOp>((*this)->getParentOp()).getMicroBatches();
  for (auto [i, value] : llvm::enumerate(getInputs())) {
    auto whole = cast<RankedTensorType>(value.getType());
    int64_t dim = getSplit()[i];
    if (dim >= 0) {
      if (getOnce())
        return emitOpError("a part that runs once cannot split operand ") << i;
      if (dim >= whole.getRank() || whole.getDimSize(dim) % parts != 0)
        return emitOpError("operand ")
               << i << " of type " << whole << " cannot be split in " << parts
               << " along dimension " << dim;
    }
    Type local = dim < 0 ? whole : sliceType(whole, dim, parts);
    if (local != type.getInput(i))
      return emitOpError("operand ") << i << " gives the part " << local
                                     << ", which takes " << type.getInput(i);
  }
  for (auto [i, value] : llvm::enumerate(getOutputs())) {
    auto whole = cast<RankedTensorType>(value.getType());
    Type local = whole;
    if (std::optional<int64_t> dim = getConcatDim(i)) {
      if (*dim < 0 || *dim >= whole.getRank() ||
          whole.getDimSize(*dim) % parts != 0)
        return emitOpError("result ")
               << i << " of type " << whole << " cannot be made of " << parts
               << " along dimension " << *dim;
      local = sliceType(whole, *dim, parts);
    }
    if (local != type.getResult(i))
      return emitOpError("result ")
             << i << " of type " << whole << " needs a part that gives "
             << local << ", not " << type.getResult(i);
  }
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
