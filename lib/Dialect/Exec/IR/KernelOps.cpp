//===- KernelOps.cpp - The kernel form ------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/OpImplementation.h"

using namespace mlir;
using namespace cleave::exec;

//===----------------------------------------------------------------------===//
// KernelOp
//===----------------------------------------------------------------------===//

ArrayRef<BlockArgument> KernelOp::getInputs() {
  return getBody().front().getArguments().take_front(getNumInputs());
}

ArrayRef<BlockArgument> KernelOp::getOutputs() {
  return getBody().front().getArguments().drop_front(getNumInputs());
}

bool KernelOp::accumulates() { return getSkeleton() == Skeleton::Column; }

bool KernelOp::isTwoStage() { return accumulates() && getGroups() > 1; }

/// The prefix of a name, with the number of uses if there are several: so it is
/// not that of another kernel.
static std::string prefixFor(StringRef what, int64_t uses) {
  return ("cleave_" + what + (uses == 1 ? "" : std::to_string(uses)) + "_")
      .str();
}

std::string KernelOp::getFunctionName(int64_t uses) {
  return prefixFor("kernel", uses) + getSymName().str();
}

std::string KernelOp::getFinishName(int64_t uses) {
  return isTwoStage() ? prefixFor("finish", uses) + getSymName().str()
                      : std::string();
}

int64_t KernelOp::getItems() { return accumulates() ? getGroups() : getRows(); }

bool KernelOp::hasApartColumns() {
  Block &body = getBody().front();
  if (getSkeleton() != Skeleton::Column || getValid() ||
      llvm::range_size(body.getOps<PassOp>()) != 1)
    return false;
  return !getBody()
              .walk([&](Operation *op) {
                bool joins = isa<ReduceOp, ScanOp, KeepOp>(op) ||
                             (isa<AccumulateOp, StoreOp>(op) &&
                              !isa<PassOp>(op->getParentOp()));
                return joins ? WalkResult::interrupt() : WalkResult::advance();
              })
              .wasInterrupted();
}

int64_t KernelOp::getColumnTiles() {
  if (!hasApartColumns())
    return 1;
  int64_t tile = getThreads() * getVector();
  return (static_cast<int64_t>(getCols()) + tile - 1) / tile;
}

int64_t KernelOp::getGrain() {
  // A thread pays off from some tens of thousands of elements on.
  int64_t perItem = std::max<int64_t>(
      1, getCols() * (accumulates() ? getRows() / getGroups() : 1));
  return std::max<int64_t>(1, 32768 / perItem);
}

/// Elements of one group's partial result of `op`.
static int64_t accumulatorWidth(AccumulateOp op) {
  auto kernel = op->getParentOfType<KernelOp>();
  return isa<PassOp>(op->getParentOp()) ? (int64_t)kernel.getCols() : 1;
}

int64_t KernelOp::getFinishItems() {
  int64_t items = 0;
  getBody().walk(
      [&](AccumulateOp op) { items = std::max(items, accumulatorWidth(op)); });
  return items;
}

int64_t KernelOp::getGroupBytes() {
  int64_t bytes = 0;
  getBody().walk([&](AccumulateOp op) {
    int64_t size = elementBytes(op.getValue().getType());
    // Each group's row starts on its own cache line.
    bytes += (accumulatorWidth(op) * size + 63) / 64 * 64;
  });
  return bytes;
}

int64_t KernelOp::getScratchBytes() {
  return isTwoStage() ? getGroups() * getGroupBytes() : 0;
}

ParseResult KernelOp::parse(OpAsmParser &parser, OperationState &result) {
  Builder &b = parser.getBuilder();
  StringAttr name;
  StringRef skeleton;
  SMLoc skeletonLoc;
  int64_t rows, cols;
  SmallVector<OpAsmParser::Argument> inputs, outputs;
  if (parser.parseSymbolName(name, getSymNameAttrName(result.name),
                             result.attributes) ||
      parser.getCurrentLocation(&skeletonLoc) ||
      parser.parseKeyword(&skeleton) || parser.parseLSquare() ||
      parser.parseInteger(rows) || parser.parseComma() ||
      parser.parseInteger(cols) || parser.parseRSquare() ||
      parser.parseArgumentList(inputs, OpAsmParser::Delimiter::Paren,
                               /*allowType=*/true) ||
      parser.parseArrow() ||
      parser.parseArgumentList(outputs, OpAsmParser::Delimiter::Paren,
                               /*allowType=*/true) ||
      parser.parseOptionalAttrDictWithKeyword(result.attributes))
    return failure();
  auto kind = symbolizeSkeleton(skeleton);
  if (!kind)
    return parser.emitError(skeletonLoc)
           << "expected map, row, column or gather, found '" << skeleton << "'";
  result.addAttribute(getSkeletonAttrName(result.name),
                      SkeletonAttr::get(b.getContext(), *kind));
  result.addAttribute(getRowsAttrName(result.name), b.getI64IntegerAttr(rows));
  result.addAttribute(getColsAttrName(result.name), b.getI64IntegerAttr(cols));
  result.addAttribute(getNumInputsAttrName(result.name),
                      b.getI64IntegerAttr(inputs.size()));
  inputs.append(outputs);
  Region *body = result.addRegion();
  if (parser.parseRegion(*body, inputs))
    return failure();
  if (body->empty()) {
    Block &block = body->emplaceBlock();
    for (OpAsmParser::Argument &arg : inputs)
      block.addArgument(arg.type,
                        parser.getEncodedSourceLoc(arg.ssaName.location));
  }
  return success();
}

void KernelOp::print(OpAsmPrinter &p) {
  p << ' ';
  p.printSymbolName(getSymName());
  p << ' ' << stringifySkeleton(getSkeleton()) << " [" << getRows() << ", "
    << getCols() << "] ";
  auto list = [&](ArrayRef<BlockArgument> args) {
    p << '(';
    llvm::interleaveComma(args, p,
                          [&](BlockArgument a) { p.printRegionArgument(a); });
    p << ')';
  };
  list(getInputs());
  p << " -> ";
  list(getOutputs());
  SmallVector<StringRef> elided = {"sym_name", "skeleton", "rows", "cols",
                                   "num_inputs"};
  if (getVector() == 1)
    elided.push_back("vector");
  if (getThreads() == 256)
    elided.push_back("threads");
  if (getGroups() == 1)
    elided.push_back("groups");
  if (getTeams() == 1)
    elided.push_back("teams");
  p.printOptionalAttrDictWithKeyword((*this)->getAttrs(), elided);
  p << ' ';
  p.printRegion(getBody(), /*printEntryBlockArgs=*/false,
                /*printBlockTerminators=*/true);
}

LogicalResult KernelOp::verifyRegions() {
  if ((int64_t)getRows() < 1 || (int64_t)getCols() < 1)
    return emitOpError("needs at least one row and one column");
  if ((int64_t)getVector() < 1 || (int64_t)getThreads() < 1 ||
      (int64_t)getGroups() < 1 || (int64_t)getTeams() < 1)
    return emitOpError("vector, threads, groups and teams must be positive");
  if (getGroups() > getRows())
    return emitOpError("has more groups than rows");
  Block &block = getBody().front();
  if ((int64_t)getNumInputs() < 0 || getNumInputs() > block.getNumArguments())
    return emitOpError("has more inputs than arguments");
  if (auto valid = getValid())
    if ((int64_t)*valid > (int64_t)(getRows() * getCols()) ||
        (int64_t)*valid <= (int64_t)((getRows() - 1) * getCols()))
      return emitOpError("valid elements must end in the last row");
  if (auto alignment = getAlignment())
    if (alignment->size() != block.getNumArguments())
      return emitOpError("alignment must be given for each argument");
  for (BlockArgument arg : block.getArguments()) {
    auto type = dyn_cast<RankedTensorType>(arg.getType());
    if (!type || !type.hasStaticShape())
      return emitOpError("arguments must be tensors of static shape");
    if (getLayout(type).offset != 0)
      return emitOpError("arguments must have layout offset 0");
  }
  bool accumulates = false, reduces = false;
  auto check = [&](Operation &op, bool inPass) -> LogicalResult {
    StringRef dialect = op.getName().getDialectNamespace();
    if (dialect != "arith" && dialect != "math" &&
        !isa<LoadOp, StoreOp, AccumulateOp, ReduceOp, ScanOp, KeepOp, IndexOp,
             PhiloxOp, PassOp, YieldOp>(op))
      return op.emitOpError("cannot be part of a kernel");
    if (inPass && isa<PassOp, KeepOp>(op))
      return op.emitOpError("is outside of a pass");
    if (!inPass && isa<ReduceOp, ScanOp>(op))
      return op.emitOpError("is inside a pass");
    accumulates |= isa<AccumulateOp>(op);
    reduces |= isa<ReduceOp, ScanOp>(op);
    return success();
  };
  for (Operation &op : block) {
    if (failed(check(op, false)))
      return failure();
    if (auto pass = dyn_cast<PassOp>(op))
      for (Operation &inner : pass.getBody().front())
        if (failed(check(inner, true)))
          return failure();
  }
  if (accumulates != this->accumulates())
    return emitOpError("accumulates over rows if and only if its skeleton is "
                       "column");
  if (reduces && (getSkeleton() == Skeleton::Map))
    return emitOpError("of skeleton map has reductions");
  return success();
}

//===----------------------------------------------------------------------===//
// LaunchOp
//===----------------------------------------------------------------------===//

SmallVector<std::pair<unsigned, unsigned>> LaunchOp::getInplacePairs() {
  SmallVector<std::pair<unsigned, unsigned>> pairs;
  if (ArrayAttr all = getInplaceAttr())
    for (Attribute attr : all)
      if (auto pair = dyn_cast<DenseI64ArrayAttr>(attr);
          pair && pair.size() == 2)
        pairs.push_back({(unsigned)pair[0], (unsigned)pair[1]});
  return pairs;
}

/// True if values of type `a` can be passed for an argument of type `b`.
static bool sameMemory(Type a, Type b) {
  auto ta = cast<RankedTensorType>(a), tb = cast<RankedTensorType>(b);
  return ta.getShape() == tb.getShape() &&
         ta.getElementType() == tb.getElementType() &&
         getLayout(ta).strides == getLayout(tb).strides;
}

LogicalResult LaunchOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto kernel =
      symbols.lookupNearestSymbolFrom<KernelOp>(*this, getKernelAttr());
  if (!kernel)
    return emitOpError("unknown kernel '") << getKernel() << "'";
  ArrayRef<BlockArgument> inputs = kernel.getInputs(),
                          outputs = kernel.getOutputs();
  size_t uses = getUses();
  if (inputs.size() * uses != getOperands().size() ||
      outputs.size() * uses != getNumResults()) {
    InFlightDiagnostic error = emitOpError("kernel takes ")
                               << inputs.size() << " inputs and gives "
                               << outputs.size() << " outputs";
    if (uses > 1)
      error << " in each of " << uses << " uses";
    return error;
  }
  for (auto [i, operand] : llvm::enumerate(getOperands()))
    if (Type type = inputs[i % inputs.size()].getType();
        !sameMemory(operand.getType(), type))
      return emitOpError("operand of type ")
             << operand.getType() << " for an argument of " << type;
  for (auto [i, result] : llvm::enumerate(getResults()))
    if (Type type = outputs[i % outputs.size()].getType();
        !sameMemory(result.getType(), type))
      return emitOpError("result of type ")
             << result.getType() << " for an argument of " << type;
  if (ArrayAttr all = getInplaceAttr()) {
    auto pairs = getInplacePairs();
    if (pairs.size() != all.size())
      return emitOpError("inplace must be a list of [result, operand] pairs");
    for (auto [result, operand] : pairs)
      if (result >= outputs.size() || operand >= inputs.size() ||
          !sameMemory(getResult(result).getType(),
                      getOperands()[operand].getType()))
        return emitOpError("inplace pair has different types");
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Ops of the body
//===----------------------------------------------------------------------===//

LogicalResult PassOp::verifyRegions() {
  auto yield = dyn_cast<YieldOp>(getBody().front().getTerminator());
  if (!yield)
    return emitOpError("must end in exec.yield");
  if (yield.getValues().getTypes() != getResultTypes())
    return emitOpError("yields other types than its results");
  for (Value value : yield.getValues())
    if (!value.getDefiningOp<ReduceOp>())
      return yield.emitOpError("gives a value that no exec.reduce makes");
  for (ReduceOp reduce : getBody().front().getOps<ReduceOp>())
    for (Operation *user : reduce->getUsers())
      if (user != yield)
        return user->emitOpError("uses a reduction within its own pass");
  return success();
}

/// Checks what loads and stores share; with `written`, that memory is an
/// output.
static LogicalResult verifyAccess(Operation *op, Value memory, AffineMap map,
                                  size_t numSymbols, Type element,
                                  bool written) {
  if (map.getNumDims() != 2 || map.getNumResults() != 1)
    return op->emitOpError("map must give one offset from (row, column)");
  if (map.getNumSymbols() != numSymbols)
    return op->emitOpError("map must have one symbol for each index");
  if (cast<RankedTensorType>(memory.getType()).getElementType() != element)
    return op->emitOpError("value must have the memory's element type");
  if (memory.getDefiningOp<KeepOp>())
    return success();
  auto arg = dyn_cast<BlockArgument>(memory);
  auto kernel = op->getParentOfType<KernelOp>();
  if (!arg || !kernel || arg.getOwner() != &kernel.getBody().front())
    return op->emitOpError("memory must be an argument of the kernel or an "
                           "exec.keep");
  if (written && arg.getArgNumber() < kernel.getNumInputs())
    return op->emitOpError("writes an input");
  return success();
}

LogicalResult LoadOp::verify() {
  return verifyAccess(*this, getMemory(), getMap(), getIndices().size(),
                      getValue().getType(), /*written=*/false);
}

LogicalResult StoreOp::verify() {
  return verifyAccess(*this, getMemory(), getMap(), 0, getValue().getType(),
                      /*written=*/true);
}

LogicalResult AccumulateOp::verify() {
  if (getMap().isFunctionOfDim(0))
    return emitOpError("map must not depend on the row");
  if (!isa<PassOp>((*this)->getParentOp()) && getMap().isFunctionOfDim(1))
    return emitOpError("outside a pass gives one element");
  if (getMemory().getDefiningOp<KeepOp>())
    return emitOpError("memory must be an output");
  return verifyAccess(*this, getMemory(), getMap(), 0, getValue().getType(),
                      /*written=*/true);
}
