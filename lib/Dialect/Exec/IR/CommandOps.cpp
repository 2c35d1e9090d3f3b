//===- CommandOps.cpp - Verifiers and interfaces of the commands ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "cleave/Support/CheckMessage.h"
#include "cleave/Support/OrthonormalScratch.h"
#include "cleave/Support/TopKScratch.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
using graph::tensorTypeOf;

#include "cleave/Dialect/Exec/IR/ExecInterfaces.cpp.inc"

/// True if `a` and `b` differ at most in their layout.
static bool sameValues(RankedTensorType a, RankedTensorType b) {
  return a.getShape() == b.getShape() &&
         a.getElementType() == b.getElementType();
}

/// Checks that `result` can take the memory of `operand`.
static LogicalResult verifyInPlace(Operation *op, Value operand, Value result) {
  if (operand && operand.getType() != result.getType())
    return op->emitOpError("result of type ")
           << result.getType()
           << " cannot take the memory of an operand of type "
           << operand.getType();
  return success();
}

/// Checks that each operand can be read in its layout.
static LogicalResult verifyOperandLayouts(CommandOpInterface command) {
  for (OpOperand &operand : command->getOpOperands())
    if (!command.canReadOperand(operand.getOperandNumber(),
                                tensorTypeOf(operand.get())))
      return command->emitOpError("cannot read ")
             << graph::nameOperand(operand) << " in its layout, "
             << operand.get().getType();
  return success();
}

/// Checks that an operand or result can be read or written in its layout.
static LogicalResult verifyLayouts(CommandOpInterface command) {
  if (failed(verifyOperandLayouts(command)))
    return failure();
  for (OpResult result : command->getResults())
    if (!command.canWriteResult(result.getResultNumber(), tensorTypeOf(result)))
      return command->emitOpError("cannot write result ")
             << result.getResultNumber() << " in its layout, "
             << result.getType();
  return success();
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

LogicalResult ViewOp::verify() {
  RankedTensorType from = tensorTypeOf(getInput()), to = getOutput().getType();
  if (from.getElementType() != to.getElementType())
    return emitOpError("changes the element type");
  // A function's argument may be part of a larger buffer, which only the
  // planner knows; within one function the operand's own extent is the minimum.
  if (getInput().getDefiningOp<ViewOp>())
    return success();
  if (extentBytes(to) > extentBytes(from))
    return emitOpError("reaches beyond the operand: ")
           << extentBytes(to) << " bytes of " << extentBytes(from);
  return success();
}

/// A view refers to the buffer: a view of a view becomes a view of the operand.
OpFoldResult ViewOp::fold(FoldAdaptor) {
  if (getInput().getType() == getType())
    return getInput();
  if (auto before = getInput().getDefiningOp<ViewOp>()) {
    getInputMutable().assign(before.getInput());
    return getOutput();
  }
  return {};
}

LogicalResult JoinOp::verify() {
  SmallVector<Box> boxes;
  int64_t elements = 0;
  for (Value input : getInputs()) {
    RankedTensorType type = tensorTypeOf(input);
    if (type.getElementType() != getType().getElementType())
      return emitOpError("joins different element types");
    std::optional<Box> box = boxWithin(getType(), type);
    if (!box)
      return emitOpError("operand of type ")
             << type << " is not a box of the result " << getType();
    for (const Box &other : boxes)
      if (box->overlaps(other))
        return emitOpError("operand of type ")
               << type << " overlaps another operand";
    boxes.push_back(*box);
    elements += type.getNumElements();
  }
  // The operands of a shortened program cover only part of the result.
  auto program = dyn_cast<ProgramOp>((*this)->getParentOp());
  if (elements != getType().getNumElements() &&
      !(program && program.getRepeats()))
    return emitOpError("operands hold ")
           << elements << " elements of " << getType().getNumElements();
  return success();
}

LogicalResult CopyOp::verify() {
  if (!sameValues(tensorTypeOf(getInput()), getType()))
    return emitOpError("changes shape or element type");
  return verifyInPlace(*this, getInto(), getOutput());
}

SmallVector<Share> CopyOp::getShares() {
  if (getInto())
    return {{0, 1, /*must=*/true}};
  return {};
}

bool CopyOp::canReadOperand(unsigned, RankedTensorType) { return true; }
bool CopyOp::canWriteResult(unsigned, RankedTensorType) { return true; }

LogicalResult FillOp::verify() {
  if (getValue().getType() != getType().getElementType())
    return emitOpError("value of type ")
           << getValue().getType() << " fills " << getType();
  if (!isDense(getType()))
    return emitOpError("fills dense memory only");
  return success();
}

/// True if the elements of `type` fill the bytes from its buffer's start on.
static bool isCompact(RankedTensorType type) {
  return getLayout(type).offset == 0 &&
         extentBytes(type) == extentBytes(denseType(type));
}

LogicalResult FetchOp::verify() {
  if (!isCompact(getType()))
    return emitOpError("needs a value without gaps in memory, not ")
           << getType();
  return success();
}

LogicalResult EvictOp::verify() {
  if (!isCompact(getType()))
    return emitOpError("needs a value without gaps in memory, not ")
           << getType();
  return verifyInPlace(*this, getInto(), getOutput());
}

SmallVector<Share> EvictOp::getShares() {
  if (getInto())
    return {{0, 1, /*must=*/true}};
  return {};
}

LogicalResult ConstantOp::verify() {
  if (auto values = dyn_cast<DeviceValuesAttr>(getValue())) {
    int64_t count = values.getBase().size(),
            row = values.getAxes().getDims().size();
    auto type = RankedTensorType::get(row, IntegerType::get(getContext(), 64));
    if (count != row)
      type = RankedTensorType::get({count / row, row}, type.getElementType());
    if (getType() != type)
      return emitOpError("of device values must have type ")
             << type << ", not " << getType();
    // Only the axes matter.
    SmallVector<int64_t> ones(row, 1);
    return spmd::verifySharding(
        [&] { return emitOpError(); }, *this, values.getAxes(),
        RankedTensorType::get(ones, getType().getElementType()));
  }
  ShapedType type = cast<ElementsAttr>(getValue()).getShapedType();
  if (type != getType())
    return emitOpError("value of type ") << type << " is not " << getType();
  return success();
}

//===----------------------------------------------------------------------===//
// Contraction
//===----------------------------------------------------------------------===//

void ContractOp::build(OpBuilder &builder, OperationState &state,
                       RankedTensorType type, Value lhs, Value rhs) {
  build(builder, state, type, Type(), lhs, rhs, Value(), Value(), Value(),
        UnitAttr());
}

/// Whether a library writes or reads `type` beside a product: rows that begin
/// at multiples of 16 bytes.
static bool isBeside(RankedTensorType type) {
  if (type.getRank() != 2 || !isMatrix(type, /*rowsOnly=*/true))
    return false;
  Strided layout = getLayout(type);
  int64_t units =
      16 / std::max<int64_t>(1, elementBytes(type.getElementType()));
  return layout.offset % units == 0 && layout.strides[0] % units == 0;
}

bool ContractOp::canReadOperand(unsigned index, RankedTensorType type) {
  if (index < 2)
    return elementBytes(type.getElementType()) == 1
               ? isLines8(type, /*columns=*/index == 1)
               : isMatrix(type);
  Value operand = getOperand(index);
  if (operand == getAccumulator() && type == getType(0))
    return true;
  if (operand == getBias())
    return isDense(type);
  return operand == getSlopeOf() && isBeside(type);
}

bool ContractOp::canWriteResult(unsigned index, RankedTensorType type) {
  bool beside = getGelu() || getSlopeOf();
  return beside ? isBeside(type) : isMatrix(type, /*rowsOnly=*/true);
}

SmallVector<Share> ContractOp::getShares() {
  if (getAccumulator())
    return {{0, getNumOperands() - 1, /*must=*/true}};
  return {};
}

int64_t ContractOp::getFlops() {
  return 2 * tensorTypeOf(getOutput()).getNumElements() *
         tensorTypeOf(getLhs()).getShape().back();
}

LogicalResult ContractOp::verify() {
  RankedTensorType a = tensorTypeOf(getLhs()), b = tensorTypeOf(getRhs());
  RankedTensorType c = tensorTypeOf(getOutput());
  int64_t rank = c.getRank();
  if (rank < 2 || rank > 3 || a.getRank() != rank || b.getRank() != rank)
    return emitOpError("needs matrices, or equal batches of them");
  ArrayRef<int64_t> as = a.getShape(), bs = b.getShape(), cs = c.getShape();
  if (as.drop_back(2) != cs.drop_back(2) ||
      bs.drop_back(2) != cs.drop_back(2) || as[rank - 2] != cs[rank - 2] ||
      as[rank - 1] != bs[rank - 2] || bs[rank - 1] != cs[rank - 1])
    return emitOpError("shapes ") << a << " and " << b << " do not give " << c;
  Type factor = a.getElementType(), element = c.getElementType();
  auto isEight = [](Type type) {
    return isa<Float8E4M3FNType, Float8E5M2Type>(type);
  };
  if (isEight(factor) || isEight(b.getElementType())) {
    if (!isEight(factor) || !isEight(b.getElementType()) || !element.isF32() ||
        (isa<Float8E5M2Type>(factor) && b.getElementType() == factor) ||
        rank != 2 || as[1] % 16 != 0 || bs[1] % 16 != 0)
      return emitOpError("needs operands of 8 bits that are not both f8E5M2, "
                         "of multiples of 16 rows and columns, and an f32 "
                         "result");
  } else if (b.getElementType() != factor ||
             !(factor.isF32() || factor.isBF16() || factor.isF16()) ||
             !(element.isF32() || element == factor)) {
    return emitOpError("needs operands that are both f32, both bf16 or both "
                       "f16, and a result that is f32 or of their type");
  }
  if (getBias() &&
      (rank != 2 || tensorTypeOf(getBias()).getShape() != cs.take_back() ||
       tensorTypeOf(getBias()).getElementType() != element))
    return emitOpError("bias ")
           << getBias().getType() << " is not a vector of a row of " << c;
  if ((getBefore() && !getGelu()) || (getGelu() && getSlopeOf()) ||
      ((getGelu() || getSlopeOf()) && (getAccumulator() || element.isF32())))
    return emitOpError("has gelu, perhaps with a second result, or gelu_grad, "
                       "of a 16-bit product that is not accumulated");
  for (Value beside : {getBefore(), getSlopeOf()})
    if (beside && (tensorTypeOf(beside).getShape() != cs ||
                   tensorTypeOf(beside).getElementType() != element))
      return emitOpError("has ") << beside.getType() << " beside " << c;
  if (failed(verifyInPlace(*this, getAccumulator(), getOutput())))
    return failure();
  return verifyLayouts(cast<CommandOpInterface>(getOperation()));
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

/// Rows of queries that the attention commands process at once.
static constexpr int64_t kQueryBlock = 64;

/// Floating-point operations of one pass over the visible scores, two for each
/// multiply-add; a shard has its share of those of the whole.
template <typename OpTy> static int64_t scoreFlops(OpTy op, int64_t channels) {
  RankedTensorType q = tensorTypeOf(op.getQuery()),
                   k = tensorTypeOf(op.getKey());
  int64_t queries = q.getDimSize(2), keys = k.getDimSize(2);
  int64_t scores = q.getDimSize(0) * q.getDimSize(1) * queries * keys;
  int64_t all = queries, seen = keys;
  if (auto global = op.getGlobalShape()) {
    all = (*global)[2];
    seen = (*global)[3];
  }
  if (op.getCausal() && all == seen)
    scores = scores / 2 + scores / (2 * seen);
  scores /= static_cast<int64_t>(op.getBlocks());
  return 2 * scores * channels;
}

/// Scratch of one thread: blocks of scores of `blocks` kinds, and `vectors`
/// rows of channels for each query of a block.
template <typename OpTy>
static int64_t blockBytes(OpTy op, int64_t blocks, int64_t vectors) {
  int64_t keys = llvm::alignTo(tensorTypeOf(op.getKey()).getDimSize(2), 64);
  int64_t channels =
      llvm::alignTo(std::max(tensorTypeOf(op.getQuery()).getDimSize(3),
                             tensorTypeOf(op.getValue()).getDimSize(3)),
                    16);
  return llvm::alignTo(
      4 * kQueryBlock * (blocks * keys + vectors * channels + 16), 64);
}

/// The shape of the log-sum-exp: with a bias it is two numbers.
template <typename OpTy> static SmallVector<int64_t> lseShape(OpTy op) {
  SmallVector<int64_t> shape(
      tensorTypeOf(op.getQuery()).getShape().drop_back());
  if (op.getBias())
    shape.push_back(2);
  return shape;
}

/// Whether a result of attention has the shape of `operand`, and its type or
/// f32, in which it is summed.
static bool isSumOf(Value result, RankedTensorType operand) {
  RankedTensorType type = tensorTypeOf(result);
  return type.getShape() == operand.getShape() &&
         (type.getElementType().isF32() ||
          type.getElementType() == operand.getElementType());
}

/// Checks that both attention commands share, after the common ones.
template <typename OpTy> static LogicalResult verifyExtras(OpTy op) {
  RankedTensorType q = tensorTypeOf(op.getQuery()),
                   k = tensorTypeOf(op.getKey()),
                   v = tensorTypeOf(op.getValue());
  if (q.getRank() != 4 || k.getRank() != 4 || v.getRank() != 4 ||
      k.getShape().take_front(3) != v.getShape().take_front(3) ||
      q.getDimSize(0) != k.getDimSize(0) ||
      q.getDimSize(3) != k.getDimSize(3) || k.getDimSize(1) == 0 ||
      q.getDimSize(1) % k.getDimSize(1) != 0)
    return op.emitOpError("query ")
           << q << ", key " << k << " and value " << v
           << " need shapes [b, a, q, d], [b, g, k, d] and [b, g, k, e]";
  Type element = q.getElementType();
  if (!element.isF32() && !element.isBF16() && !element.isF16())
    return op.emitOpError("is of f32, bf16 or f16, not ") << element;
  if (k.getElementType() != element || v.getElementType() != element)
    return op.emitOpError("query, key and value are not of one type");
  if (op.getDropout().convertToDouble() > 0 && !op.getRng())
    return op.emitOpError("dropout needs an rng operand");
  if (op.getOrigin() && !op.getGlobalShape())
    return op.emitOpError("origin needs a global_shape");
  if (op.getGlobalShape() && op.getGlobalShape()->size() != 4)
    return op.emitOpError("global_shape needs four values");
  auto verifyNumbers = [&](Value value, StringRef name,
                           int64_t count) -> LogicalResult {
    auto wanted =
        RankedTensorType::get(count, IntegerType::get(op.getContext(), 64));
    if (value && !sameValues(tensorTypeOf(value), wanted))
      return op.emitOpError(name)
             << " must be " << wanted << ", not " << value.getType();
    return success();
  };
  int64_t blocks = op.getBlocks();
  if (blocks < 1 || q.getDimSize(2) % blocks != 0 ||
      k.getDimSize(2) % blocks != 0)
    return op.emitOpError("queries and keys are not divisible into ")
           << blocks << " blocks";
  if (failed(verifyNumbers(op.getRng(), "rng", 2)) ||
      failed(verifyNumbers(op.getOrigin(), "origin", 4)))
    return failure();
  for (auto [starts, places] :
       {std::pair<Value, int64_t>(op.getQueryStarts(), q.getDimSize(2)),
        {op.getKeyStarts(), k.getDimSize(2)}})
    if (starts && (tensorTypeOf(starts).getRank() != 1 ||
                   !tensorTypeOf(starts).getElementType().isInteger(64) ||
                   tensorTypeOf(starts).getDimSize(0) == 0 ||
                   places % tensorTypeOf(starts).getDimSize(0) != 0))
      return op.emitOpError("starts ")
             << starts.getType() << " do not divide " << places << " positions";
  return verifyLayouts(cast<CommandOpInterface>(op.getOperation()));
}

SmallVector<Share> AttentionOp::getShares() {
  if (!getOnto())
    return {};
  unsigned last = getNumOperands() - 1;
  return {{0, last - 1, /*must=*/true}, {1, last, /*must=*/true}};
}

bool AttentionOp::canReadOperand(unsigned index, RankedTensorType type) {
  Value operand = getOperand(index);
  if (getOnto() && index == getNumOperands() - 2)
    return type == getOutput().getType();
  if (operand == getBias() || operand == getMask())
    return type.getRank() <= 4;
  return index < 3 ? isHeadView(type) : isDense(type);
}

bool AttentionOp::canWriteResult(unsigned index, RankedTensorType type) {
  return index == 0 ? isHeadView(type) : isDense(type);
}

int64_t AttentionOp::getScratchBytes(int64_t threads) {
  return threads * blockBytes(*this, 1, 1);
}

int64_t AttentionOp::getFlops() {
  return scoreFlops(*this, tensorTypeOf(getQuery()).getDimSize(3)) +
         scoreFlops(*this, tensorTypeOf(getValue()).getDimSize(3));
}

LogicalResult AttentionOp::verify() {
  RankedTensorType q = tensorTypeOf(getQuery()), v = tensorTypeOf(getValue());
  if (failed(verifyExtras(*this)))
    return failure();
  SmallVector<int64_t> shape(q.getShape());
  shape.back() = v.getShape().back();
  if (!isSumOf(getOutput(), RankedTensorType::get(shape, q.getElementType())) ||
      tensorTypeOf(getLse()).getShape() != ArrayRef(lseShape(*this)))
    return emitOpError("results do not have the shapes of query and value");
  if (static_cast<bool>(getOnto()) != static_cast<bool>(getOntoLse()))
    return emitOpError("onto needs both results");
  if (failed(verifyInPlace(*this, getOnto(), getOutput())) ||
      failed(verifyInPlace(*this, getOntoLse(), getLse())))
    return failure();
  return success();
}

bool AttentionGradOp::canReadOperand(unsigned index, RankedTensorType type) {
  Value operand = getOperand(index);
  if (operand == getBias() || operand == getMask())
    return type.getRank() <= 4;
  return index < 5 ? isHeadView(type) : isDense(type);
}

bool AttentionGradOp::canWriteResult(unsigned index, RankedTensorType type) {
  return index < 3 ? isHeadView(type) : isDense(type);
}

int64_t AttentionGradOp::getScratchBytes(int64_t threads) {
  return threads * blockBytes(*this, 2, 4);
}

int64_t AttentionGradOp::getFlops() {
  return 3 * scoreFlops(*this, tensorTypeOf(getQuery()).getDimSize(3)) +
         2 * scoreFlops(*this, tensorTypeOf(getValue()).getDimSize(3));
}

LogicalResult AttentionGradOp::verify() {
  if (failed(verifyExtras(*this)))
    return failure();
  RankedTensorType q = tensorTypeOf(getQuery()), v = tensorTypeOf(getValue());
  SmallVector<int64_t> shape(q.getShape());
  shape.back() = v.getShape().back();
  if (tensorTypeOf(getOutput()).getShape() != ArrayRef(shape) ||
      tensorTypeOf(getGradient()).getShape() != ArrayRef(shape) ||
      tensorTypeOf(getLse()).getShape() != ArrayRef(lseShape(*this)))
    return emitOpError("gradient, output and lse do not match the query");
  for (Value operand : {getGradient(), getOutput()})
    if (tensorTypeOf(operand).getElementType() != q.getElementType())
      return emitOpError("gradient and output are not of the query's type");
  if (!isSumOf(getQueryGradient(), q) ||
      !isSumOf(getKeyGradient(), tensorTypeOf(getKey())) ||
      !isSumOf(getValueGradient(), v) ||
      tensorTypeOf(getKeyGradient()).getElementType() !=
          tensorTypeOf(getQueryGradient()).getElementType() ||
      tensorTypeOf(getValueGradient()).getElementType() !=
          tensorTypeOf(getQueryGradient()).getElementType())
    return emitOpError("results do not match query, key and value");
  if (getBiasGradient() &&
      (!getBias() ||
       !sameValues(tensorTypeOf(getBiasGradient()), tensorTypeOf(getBias()))))
    return emitOpError("the gradient for the bias does not match the bias");
  return success();
}

//===----------------------------------------------------------------------===//
// Scatter
//===----------------------------------------------------------------------===//

bool ScatterAddOp::canReadOperand(unsigned index, RankedTensorType type) {
  return index < 2 ? isDense(type) : type == getType();
}

SmallVector<Share> ScatterAddOp::getShares() {
  if (getAccumulator())
    return {{0, 2, /*must=*/true}};
  return {};
}

int64_t ScatterAddOp::getFlops() {
  return tensorTypeOf(getRows()).getNumElements();
}

LogicalResult ScatterAddOp::verify() {
  RankedTensorType rows = tensorTypeOf(getRows()), ids = tensorTypeOf(getIds());
  if (rows.getRank() != 2 || ids.getRank() != 1 || getType().getRank() != 2 ||
      rows.getDimSize(0) != ids.getDimSize(0) ||
      rows.getDimSize(1) != getType().getDimSize(1) ||
      !rows.getElementType().isF32() || !getType().getElementType().isF32() ||
      !ids.getElementType().isInteger())
    return emitOpError("needs f32 rows [i, c], integer ids [i] and an f32 "
                       "result [j, c], but has ")
           << rows << ", " << ids << " and " << getType();
  if (!isDense(getType()) || !isDense(rows) || !isDense(ids))
    return emitOpError("needs dense operands and a dense result");
  return verifyInPlace(*this, getAccumulator(), getOutput());
}

//===----------------------------------------------------------------------===//
// The largest elements
//===----------------------------------------------------------------------===//

bool TopKOp::canReadOperand(unsigned, RankedTensorType type) {
  return isDense(type);
}

int64_t TopKOp::getScratchBytes(int64_t) {
  RankedTensorType rows = tensorTypeOf(getInput());
  return TopKScratch(rows.getDimSize(0), rows.getDimSize(1),
                     tensorTypeOf(getValues()).getDimSize(1))
      .bytes;
}

LogicalResult TopKOp::verify() {
  RankedTensorType rows = tensorTypeOf(getInput()),
                   values = tensorTypeOf(getValues()),
                   indices = tensorTypeOf(getIndices());
  if (rows.getRank() != 2 || values.getRank() != 2 ||
      values.getShape() != indices.getShape() ||
      values.getDimSize(0) != rows.getDimSize(0) || values.getDimSize(1) < 1 ||
      values.getDimSize(1) > rows.getDimSize(1) ||
      !rows.getElementType().isF32() || !values.getElementType().isF32() ||
      !indices.getElementType().isInteger(64))
    return emitOpError("needs f32 rows [b, n], f32 values and i64 indices "
                       "[b, k], 1 <= k <= n, but has ")
           << rows << ", " << values << " and " << indices;
  if (!isDense(rows) || !isDense(values) || !isDense(indices))
    return emitOpError("needs a dense operand and dense results");
  return success();
}

//===----------------------------------------------------------------------===//
// Orthonormal columns
//===----------------------------------------------------------------------===//

bool OrthonormalizeOp::canReadOperand(unsigned, RankedTensorType type) {
  return isDense(type);
}

/// All of a matrix is read before any of it is written.
SmallVector<Share> OrthonormalizeOp::getShares() { return {{0, 0}}; }

static OrthonormalScratch scratchOf(OrthonormalizeOp op) {
  RankedTensorType type = op.getType();
  return {type.getDimSize(1), type.getDimSize(2)};
}

int64_t OrthonormalizeOp::getScratchBytes(int64_t) {
  return scratchOf(*this).bytes(getType().getDimSize(0));
}

int64_t OrthonormalizeOp::getFlops() {
  // What is computed: all columns in each step, and the product of the
  // reflections.
  int64_t columns = getType().getDimSize(2);
  return 6 * getType().getNumElements() * columns;
}

LogicalResult OrthonormalizeOp::verify() {
  RankedTensorType type = getType();
  if (!sameValues(tensorTypeOf(getInput()), type) || type.getRank() != 3 ||
      !type.getElementType().isF32() || type.getDimSize(2) > type.getDimSize(1))
    return emitOpError("needs f32 matrices [b, n, r], r <= n, and a result of "
                       "the same type, but has ")
           << getInput().getType() << " and " << type;
  if (!isDense(type) || !isDense(tensorTypeOf(getInput())))
    return emitOpError("needs a dense operand and a dense result");
  return success();
}

//===----------------------------------------------------------------------===//
// Rows sorted by group
//===----------------------------------------------------------------------===//

bool SortRowsOp::canReadOperand(unsigned, RankedTensorType type) {
  return isDense(type);
}

LogicalResult SortRowsOp::verify() {
  RankedTensorType groups = tensorTypeOf(getGroups()),
                   offsets = tensorTypeOf(getOffsets());
  Type wide = IntegerType::get(getContext(), 64);
  auto rows = RankedTensorType::get(groups.getShape(), wide);
  if (groups.getRank() != 1 || !groups.getElementType().isInteger() ||
      getOrder().getType() != rows || getInverse().getType() != rows ||
      offsets.getRank() != 2 || offsets.getDimSize(0) != 1 ||
      offsets.getDimSize(1) < 2 || offsets.getElementType() != wide ||
      (getOrigin() &&
       tensorTypeOf(getOrigin()) != RankedTensorType::get({1}, wide)))
    return emitOpError("needs groups [n], an i64 origin [1] and i64 results "
                       "[n], [n] and [1, size + 1], but has ")
           << groups << " and " << offsets;
  if (!isDense(groups) || !isDense(offsets))
    return emitOpError("needs dense operands and dense results");
  return success();
}

/// Matrices of rows whose elements are contiguous.
static bool hasRows(RankedTensorType type, int64_t rank) {
  return type.getRank() == rank && isMatrix(type, /*rowsOnly=*/true);
}

bool GroupedContractOp::canReadOperand(unsigned index, RankedTensorType type) {
  return index == 2 ? isDense(type) : hasRows(type, index == 1 ? 3 : 2);
}
bool GroupedContractWeightGradOp::canReadOperand(unsigned index,
                                                 RankedTensorType type) {
  return index == 2 ? isDense(type) : hasRows(type, 2);
}

int64_t GroupedContractOp::getFlops() {
  return 2 * getOutput().getType().getNumElements() *
         tensorTypeOf(getRows()).getDimSize(1);
}
int64_t GroupedContractWeightGradOp::getFlops() {
  return 2 * tensorTypeOf(getRows()).getNumElements() *
         tensorTypeOf(getGrads()).getDimSize(1);
}

template <typename OpTy> static int64_t groupedScratch(OpTy op) {
  RankedTensorType offsets = tensorTypeOf(op.getOffsets());
  return (offsets.getDimSize(0) * (offsets.getDimSize(1) - 1) + 1) * 8;
}
int64_t GroupedContractOp::getScratchBytes(int64_t) {
  return groupedScratch(*this);
}
int64_t GroupedContractWeightGradOp::getScratchBytes(int64_t) {
  return groupedScratch(*this);
}

/// Checks the types of a matmul of sorted rows, whose result has `shape`.
template <typename OpTy>
static LogicalResult verifyGrouped(OpTy op, RankedTensorType other, bool fits,
                                   ArrayRef<int64_t> shape) {
  RankedTensorType rows = tensorTypeOf(op.getRows()),
                   offsets = tensorTypeOf(op.getOffsets()),
                   output = tensorTypeOf(op.getOutput());
  Type factor = rows.getElementType();
  if (!fits || output.getShape() != shape ||
      !offsets.getElementType().isInteger(64))
    return op.emitOpError("has rows ")
           << rows << ", " << other << " and " << offsets
           << ", which do not give " << output;
  if (factor != other.getElementType() ||
      !(factor.isF32() || factor.isBF16() || factor.isF64()) ||
      !(factor.isF64() ? output.getElementType().isF64()
                       : output.getElementType().isF32()))
    return op.emitOpError("needs operands that are both f32, both bf16 or both "
                          "f64, and a result that is f32, of f64 f64");
  if (!isDense(output))
    return op.emitOpError("needs a dense result");
  return verifyOperandLayouts(cast<CommandOpInterface>(op.getOperation()));
}

LogicalResult GroupedContractOp::verify() {
  RankedTensorType rows = tensorTypeOf(getRows()),
                   weight = tensorTypeOf(getWeight()),
                   offsets = tensorTypeOf(getOffsets());
  if (rows.getRank() != 2 || weight.getRank() != 3 || offsets.getRank() != 2)
    return emitOpError("needs rows [r, k], a weight of three dimensions and "
                       "offsets [p, e + 1]");
  int64_t k = getTranspose() ? 2 : 1;
  return verifyGrouped(*this, weight,
                       weight.getDimSize(0) + 1 == offsets.getDimSize(1) &&
                           weight.getDimSize(k) == rows.getDimSize(1),
                       {rows.getDimSize(0), weight.getDimSize(3 - k)});
}

LogicalResult GroupedContractWeightGradOp::verify() {
  RankedTensorType rows = tensorTypeOf(getRows()),
                   grads = tensorTypeOf(getGrads()),
                   offsets = tensorTypeOf(getOffsets());
  if (rows.getRank() != 2 || grads.getRank() != 2 || offsets.getRank() != 2)
    return emitOpError("needs rows [r, k], gradients [r, m] and offsets [p, e "
                       "+ 1]");
  int64_t k = rows.getDimSize(1), m = grads.getDimSize(1);
  if (getTranspose())
    std::swap(k, m);
  return verifyGrouped(*this, grads, rows.getDimSize(0) == grads.getDimSize(0),
                       {offsets.getDimSize(1) - 1, k, m});
}

//===----------------------------------------------------------------------===//
// Check
//===----------------------------------------------------------------------===//

bool CheckOp::canReadOperand(unsigned index, RankedTensorType type) {
  return index == 0 || getOperand(index).getType() == type;
}

LogicalResult CheckOp::verify() {
  if (!tensorTypeOf(getFlag()).getElementType().isInteger(1) ||
      tensorTypeOf(getFlag()).getNumElements() != 1)
    return emitOpError("needs one i1, not ") << getFlag().getType();
  if (getValues() &&
      (!tensorTypeOf(getValues()).getElementType().isInteger(64) ||
       tensorTypeOf(getValues()).getNumElements() < 1 ||
       tensorTypeOf(getValues()).getNumElements() > kCheckValues))
    return emitOpError("needs one to four i64 values, not ")
           << getValues().getType();
  return success();
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

/// A kernel's code depends on the layouts that it has.
bool LaunchOp::canReadOperand(unsigned index, RankedTensorType type) {
  return getOperand(index).getType() == type;
}
bool LaunchOp::canWriteResult(unsigned index, RankedTensorType type) {
  return getResult(index).getType() == type;
}

SmallVector<Share> LaunchOp::getShares() {
  SmallVector<Share> shares;
  auto uses = static_cast<unsigned>(getUses());
  unsigned inputs = getOperands().size() / uses,
           outputs = getNumResults() / uses;
  for (unsigned use = 0; use < uses; ++use)
    for (auto [result, operand] : getInplacePairs())
      shares.push_back({use * outputs + result, use * inputs + operand});
  return shares;
}

int64_t LaunchOp::getScratchBytes(int64_t) {
  auto kernel =
      SymbolTable::lookupNearestSymbolFrom<KernelOp>(*this, getKernelAttr());
  return kernel ? static_cast<int64_t>(getUses()) * kernel.getScratchBytes()
                : 0;
}
