//===- SelectContract.cpp - Contractions as matrix products ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SelectKernels.h"
#include "cleave/Dialect/Graph/IR/Attributes/Clones.h"
#include "cleave/Dialect/Graph/IR/Einsum.h"
#include "cleave/Dialect/Graph/IR/Formula.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

//===----------------------------------------------------------------------===//
// Equations
//===----------------------------------------------------------------------===//

namespace {

/// The letters of an equation by their role in the product.
struct Letters {
  std::string batch, rows, columns, summed;
  llvm::StringMap<int64_t> sizes;

  int64_t size(StringRef letters) const {
    int64_t product = 1;
    for (char letter : letters)
      product *= sizes.lookup(StringRef(&letter, 1));
    return product;
  }
};

/// An operand with its dimensions in the order [batch, outer, inner], each
/// group one dimension.
struct Matrix {
  /// Its type as a view; null if it must be copied.
  RankedTensorType view;
  /// The order of dimensions.
  SmallVector<int64_t> permutation;
  SmallVector<int64_t> shape;
};

} // namespace

static SmallVector<int64_t> positions(StringRef letters, StringRef in) {
  SmallVector<int64_t> result;
  for (char letter : letters)
    result.push_back(in.find(letter));
  return result;
}

/// The letters of `letters` that are (or are not) in all of `others`.
static std::string filter(StringRef letters, StringRef in, StringRef notIn) {
  std::string result;
  for (char letter : letters)
    if (in.contains(letter) && !notIn.contains(letter))
      result += letter;
  return result;
}

/// `type` in the matrix's shape, with its dimensions permuted as in `matrix`:
/// the layout, if strides can express it.
static void foldGroups(Matrix &matrix, RankedTensorType type) {
  Strided old = getLayout(type), permuted;
  permuted.offset = old.offset;
  SmallVector<int64_t> shape;
  for (int64_t dim : matrix.permutation) {
    shape.push_back(type.getDimSize(dim));
    permuted.strides.push_back(old.strides[dim]);
  }
  Type element = type.getElementType();
  auto from = RankedTensorType::get(shape, element),
       to = RankedTensorType::get(matrix.shape, element);
  if (std::optional<Strided> layout = rebase(from, to, permuted))
    matrix.view = withLayout(to, *layout);
}

static Matrix makeMatrix(RankedTensorType type, StringRef names,
                         const Letters &letters, StringRef batch,
                         StringRef outer, StringRef inner) {
  Matrix matrix;
  llvm::append_range(matrix.permutation, positions(batch, names));
  llvm::append_range(matrix.permutation, positions(outer, names));
  llvm::append_range(matrix.permutation, positions(inner, names));
  if (!batch.empty())
    matrix.shape.push_back(letters.size(batch));
  matrix.shape.push_back(letters.size(outer));
  matrix.shape.push_back(letters.size(inner));
  foldGroups(matrix, type);
  if (matrix.view && !isMatrix(matrix.view))
    matrix.view = nullptr;
  return matrix;
}

/// If `value` is one of equal parts of the first dimension of a larger value,
/// all of which are used: that value. A copy of it with its dimensions in the
/// order of `permutation` serves all of them, or what makes it writes it so.
static Value wholeOfParts(Value value, ArrayRef<int64_t> permutation) {
  auto part = value.getDefiningOp<ViewOp>();
  if (!part)
    return nullptr;
  Value whole = part.getInput();
  RankedTensorType type = tensorTypeOf(whole), own = part.getType();
  Strided layout = getLayout(own);
  if (permutation.empty() || permutation[0] != 0 || own.getRank() < 2 ||
      own.getRank() != type.getRank() ||
      layout.strides != getLayout(type).strides ||
      own.getShape().drop_front() != type.getShape().drop_front() ||
      own.getDimSize(0) == type.getDimSize(0))
    return nullptr;
  SmallVector<int64_t> turned;
  for (int64_t dim : permutation)
    turned.push_back(type.getDimSize(dim));
  int64_t rows = 0;
  for (Operation *user : whole.getUsers()) {
    auto view = dyn_cast<ViewOp>(user);
    if (!view)
      continue;
    // Another part was here before.
    if (view.getType().getShape() == ArrayRef(turned) &&
        llvm::any_of(view->getUsers(), llvm::IsaPred<CopyOp>))
      return whole;
    if (view.getType().getShape() == own.getShape() &&
        getLayout(view.getType()).strides == layout.strides)
      rows += own.getDimSize(0);
  }
  return rows >= type.getDimSize(0) ? whole : Value();
}

/// `value` as the matrix, copied if needed.
static Value asMatrix(OpBuilder &builder, Location loc, Value value,
                      const Matrix &matrix) {
  if (matrix.view)
    return viewAs(builder, loc, value, matrix.view);
  if (Value whole = wholeOfParts(value, matrix.permutation)) {
    Strided layout = getLayout(tensorTypeOf(value));
    int64_t start = (layout.offset - getLayout(tensorTypeOf(whole)).offset) /
                    std::max<int64_t>(layout.strides[0], 1);
    Value copy = denseOf(builder, loc,
                         transposeOf(builder, loc, whole, matrix.permutation));
    return reshapeOf(
        builder, loc,
        rowsOf(builder, loc, copy, start, tensorTypeOf(value).getDimSize(0)),
        matrix.shape);
  }
  Value permuted = transposeOf(builder, loc, value, matrix.permutation);
  return reshapeOf(builder, loc, denseOf(builder, loc, permuted), matrix.shape);
}

/// Sums over the letters that no other tensor of the equation has.
static Value sumAlone(OpBuilder &builder, Location loc, Value value,
                      std::string &names, StringRef others) {
  SmallVector<int64_t> dims;
  std::string left;
  for (auto [i, letter] : llvm::enumerate(names))
    if (others.contains(letter))
      left += letter;
    else
      dims.push_back(i);
  if (dims.empty())
    return value;
  names = left;
  return graph::ReduceOp::create(builder, loc, graph::ReductionKind::Sum, value,
                                 dims);
}

/// Whether a letter of `names` is in no other tensor of the equation.
static bool sumsAlone(StringRef names, StringRef others) {
  return llvm::any_of(names,
                      [&](char letter) { return !others.contains(letter); });
}

/// Whether bf16 has every value of the type of `value`.
static bool isInBF16(Value value) {
  Type element = tensorTypeOf(value).getElementType();
  return element.isBF16() ||
         (isa<FloatType>(element) && element.getIntOrFloatBitWidth() == 8);
}

Value cleave::exec::castTo(OpBuilder &builder, Location loc, Value value,
                           Type element) {
  RankedTensorType type = tensorTypeOf(value);
  if (type.getElementType() == element)
    return value;
  return graph::CastOp::create(
      builder, loc, RankedTensorType::get(type.getShape(), element), value);
}

/// Whether a GPU's library multiplies both in the 16 bits that they have.
static bool areIn16Bits(Value lhs, Value rhs) {
  Type element = tensorTypeOf(lhs).getElementType();
  return tensorTypeOf(rhs).getElementType() == element &&
         (element.isBF16() || element.isF16());
}

/// Whether a GPU's library multiplies both in the 8 bits that they have: not
/// two of the wider range.
static bool areIn8Bits(Value lhs, Value rhs) {
  Type left = tensorTypeOf(lhs).getElementType(),
       right = tensorTypeOf(rhs).getElementType();
  auto isNarrow = [](Type type) {
    return isa<Float8E4M3FNType, Float8E5M2Type>(type);
  };
  return isNarrow(left) && isNarrow(right) &&
         !(isa<Float8E5M2Type>(left) && isa<Float8E5M2Type>(right));
}

/// Whether a product of 8 bits by `einsum` adds up, and has in a row, multiples
/// of 16 elements, and is of two matrices.
static bool fillsLines(const graph::Einsum &einsum, RankedTensorType lhs,
                       RankedTensorType rhs) {
  int64_t summed = 1, rows = 1, columns = 1;
  auto count = [&](StringRef names, RankedTensorType type, StringRef others,
                   int64_t &own) {
    for (auto [letter, size] : llvm::zip_equal(names, type.getShape()))
      if (!others.contains(letter))
        own *= size;
      else if (StringRef(einsum.output).contains(letter))
        return false;
    return true;
  };
  if (!count(einsum.lhs, lhs, einsum.rhs, rows) ||
      !count(einsum.rhs, rhs, einsum.lhs, columns))
    return false;
  for (auto [letter, size] : llvm::zip_equal(einsum.lhs, lhs.getShape()))
    if (StringRef(einsum.rhs).contains(letter))
      summed *= size;
  return summed % 16 == 0 && rows % 16 == 0 && columns % 16 == 0 &&
         summed > 0 && rows > 0 && columns > 0;
}

/// `value`, or a copy of it whose rows (or columns) are contiguous and begin
/// at multiples of 16 elements.
static Value inLines(OpBuilder &builder, Location loc, Value value,
                     bool columns) {
  RankedTensorType type = tensorTypeOf(value), dense = denseType(type);
  Strided layout = getLayout(dense);
  int64_t rank = type.getRank();
  if (columns) {
    layout.strides[rank - 2] = 1;
    layout.strides[rank - 1] = type.getDimSize(rank - 2);
  }
  if (isLines8(type, columns))
    return value;
  return CopyOp::create(builder, loc, withLayout(dense, layout), value,
                        Value());
}

Value cleave::exec::contract(OpBuilder &builder, Operation *op,
                             StringRef equation, Value lhs, Value rhs,
                             const ProductForms &forms, bool rounded) {
  Location loc = op->getLoc();
  std::string error;
  std::optional<graph::Einsum> einsum = graph::Einsum::parse(equation, error);
  if (!einsum) {
    op->emitOpError("equation ") << error;
    return nullptr;
  }
  // The library multiplies f32 and bf16, that of a GPU f16 too; sums are in
  // f32.
  bool alike = forms.in16Bits && areIn16Bits(lhs, rhs);
  bool narrow = (alike || (isInBF16(lhs) && isInBF16(rhs))) &&
                !sumsAlone(einsum->lhs, einsum->rhs + einsum->output) &&
                !sumsAlone(einsum->rhs, einsum->lhs + einsum->output);
  bool eight = forms.in8Bits && narrow && areIn8Bits(lhs, rhs) &&
               fillsLines(*einsum, tensorTypeOf(lhs), tensorTypeOf(rhs));
  Type factor = builder.getF32Type();
  if (narrow)
    factor = alike ? tensorTypeOf(lhs).getElementType()
                   : Type(builder.getBF16Type());
  rounded &= narrow && alike;
  if (!eight) {
    lhs = castTo(builder, loc, lhs, factor);
    rhs = castTo(builder, loc, rhs, factor);
  }
  lhs = sumAlone(builder, loc, lhs, einsum->lhs, einsum->rhs + einsum->output);
  rhs = sumAlone(builder, loc, rhs, einsum->rhs, einsum->lhs + einsum->output);
  StringRef output = einsum->output;
  // The rows come from the operand whose own letters come first in the result.
  size_t firstRow =
      output.find_first_of(filter(output, einsum->lhs, einsum->rhs));
  size_t firstColumn =
      output.find_first_of(filter(output, einsum->rhs, einsum->lhs));
  if (firstColumn < firstRow) {
    std::swap(lhs, rhs);
    std::swap(einsum->lhs, einsum->rhs);
  }

  Letters letters;
  for (auto [value, names] : {std::pair(lhs, StringRef(einsum->lhs)),
                              std::pair(rhs, StringRef(einsum->rhs))})
    for (auto [i, letter] : llvm::enumerate(names))
      letters.sizes[StringRef(&letter, 1)] = tensorTypeOf(value).getDimSize(i);

  // Chooses the order of letters within a group that copies the fewest
  // elements.
  std::string both = filter(einsum->lhs, einsum->rhs, "");
  SmallVector<std::string> batches, rows, columns, sums;
  for (StringRef source :
       {output, StringRef(einsum->lhs), StringRef(einsum->rhs)}) {
    auto add = [](SmallVectorImpl<std::string> &list, std::string item) {
      if (!llvm::is_contained(list, item))
        list.push_back(item);
    };
    add(batches, filter(source, filter(output, both, ""), ""));
    if (source.data() != einsum->rhs.data())
      add(rows, filter(source, filter(output, einsum->lhs, einsum->rhs), ""));
    if (source.data() != einsum->lhs.data())
      add(columns,
          filter(source, filter(output, einsum->rhs, einsum->lhs), ""));
    if (source.data() != output.data())
      add(sums, filter(source, both, output));
  }
  int64_t best = -1;
  Matrix a, b;
  for (StringRef batch : batches)
    for (StringRef row : rows)
      for (StringRef column : columns)
        for (StringRef sum : sums) {
          Matrix left = makeMatrix(tensorTypeOf(lhs), einsum->lhs, letters,
                                   batch, row, sum);
          Matrix right = makeMatrix(tensorTypeOf(rhs), einsum->rhs, letters,
                                    batch, sum, column);
          int64_t copied =
              (left.view ? 0 : tensorTypeOf(lhs).getNumElements()) +
              (right.view ? 0 : tensorTypeOf(rhs).getNumElements());
          if (best >= 0 && copied >= best)
            continue;
          best = copied;
          a = left;
          b = right;
          letters.batch = batch, letters.rows = row, letters.columns = column;
        }
  Value left = asMatrix(builder, loc, lhs, a),
        right = asMatrix(builder, loc, rhs, b);
  if (eight) {
    left = inLines(builder, loc, left, /*columns=*/false);
    right = inLines(builder, loc, right, /*columns=*/true);
  }
  SmallVector<int64_t> shape(a.shape);
  shape.back() = b.shape.back();
  auto command = ContractOp::create(
      builder, loc,
      RankedTensorType::get(shape, rounded ? factor : builder.getF32Type()),
      left, right);
  for (StringRef name : {graph::kTwinAttr, graph::kCloneAttr})
    if (Attribute attr = op->getAttr(name))
      command->setAttr(name, attr);
  Value product = command.getOutput();
  std::string order = letters.batch + letters.rows + letters.columns;
  SmallVector<int64_t> open;
  for (char letter : order)
    open.push_back(letters.sizes.lookup(StringRef(&letter, 1)));
  product = reshapeOf(builder, loc, product, open);
  return transposeOf(builder, loc, product, positions(output, order));
}

//===----------------------------------------------------------------------===//
// Patterns
//===----------------------------------------------------------------------===//

namespace {

/// Whether the library can compute `value`, whose sums are in f32.
bool summedInF32(Value value) {
  Type element = tensorTypeOf(value).getElementType();
  return isa<FloatType>(element) && element.getIntOrFloatBitWidth() <= 32;
}

/// Whether `value` is a product rounded to the 16 bits of its factors.
bool isRounded(Value value, Value factor) {
  Type element = tensorTypeOf(value).getElementType();
  return element.getIntOrFloatBitWidth() == 16 &&
         element == tensorTypeOf(factor).getElementType();
}

/// Replaces `old` by the sums, rounded to its type if they are not.
void replaceRounded(PatternRewriter &rewriter, Value old, Value sums) {
  RankedTensorType type = tensorTypeOf(old);
  if (type.getElementType() == tensorTypeOf(sums).getElementType())
    return replaceDense(rewriter, old, sums);
  rewriter.replaceAllUsesWith(
      old, castTo(rewriter, old.getLoc(), sums, type.getElementType()));
}

struct SelectContract : OpRewritePattern<graph::ContractOp> {
  ProductForms forms;
  SelectContract(MLIRContext *context, ProductForms forms)
      : OpRewritePattern(context), forms(forms) {}
  LogicalResult matchAndRewrite(graph::ContractOp op,
                                PatternRewriter &rewriter) const override {
    if (!summedInF32(op.getOutput()))
      return failure();
    Value product =
        contract(rewriter, op, op.getEquation(), op.getLhs(), op.getRhs(),
                 forms, isRounded(op.getOutput(), op.getLhs()));
    if (!product)
      return failure();
    replaceRounded(rewriter, op.getOutput(), product);
    rewriter.eraseOp(op);
    return success();
  }
};

struct SelectLinear : OpRewritePattern<graph::LinearOp> {
  ProductForms forms;
  SelectLinear(MLIRContext *context, ProductForms forms)
      : OpRewritePattern(context), forms(forms) {}
  LogicalResult matchAndRewrite(graph::LinearOp op,
                                PatternRewriter &rewriter) const override {
    RankedTensorType type = tensorTypeOf(op.getOutput());
    if (!summedInF32(op.getOutput()))
      return failure();
    std::string rows;
    for (char letter = 'A';
         static_cast<int64_t>(rows.size()) < type.getRank() - 1; ++letter)
      rows += letter;
    // Rounded once, with its bias: by the product, or by what adds the bias.
    bool rounded = forms.in16Bits && isRounded(op.getOutput(), op.getInput()) &&
                   (!op.getBias() || takesBias(op));
    Value product = contract(rewriter, op, rows + "i,oi->" + rows + "o",
                             op.getInput(), op.getWeight(), forms, rounded);
    if (!product)
      return failure();
    auto command = rootOf(product).getDefiningOp<ContractOp>();
    if (op.getBias() && tensorTypeOf(product).getElementType().isF32())
      product = addBias(rewriter, op, product);
    else if (op.getBias()) {
      rewriter.setInsertionPoint(command);
      Value bias = denseOf(rewriter, op.getLoc(), op.getBias());
      rewriter.modifyOpInPlace(command,
                               [&] { command.getBiasMutable().assign(bias); });
      rewriter.setInsertionPoint(op);
    }
    replaceRounded(rewriter, op.getOutput(), product);
    rewriter.eraseOp(op);
    return success();
  }

  /// Whether a product of `op` in 16 bits can add its bias: columns are the
  /// weight's rows, and rows of all matrices begin at multiples of 16 bytes.
  static bool takesBias(graph::LinearOp op) {
    RankedTensorType weight = tensorTypeOf(op.getWeight());
    return tensorTypeOf(op.getOutput()).getRank() > 1 &&
           tensorTypeOf(op.getBias()).getElementType() ==
               tensorTypeOf(op.getOutput()).getElementType() &&
           weight.getDimSize(0) % 8 == 0 && weight.getDimSize(1) % 8 == 0 &&
           weight.getDimSize(1) > 0 &&
           tensorTypeOf(op.getOutput()).getNumElements() > 0;
  }

  /// If a kernel reads the result, it also adds the bias. Otherwise the product
  /// accumulates onto the bias, written to its memory beforehand.
  static Value addBias(PatternRewriter &rewriter, graph::LinearOp op,
                       Value product) {
    Location loc = op.getLoc();
    Value bias = castTo(rewriter, loc, op.getBias(), rewriter.getF32Type());
    if (bias != op.getBias() ||
        llvm::any_of(op.getOutput().getUsers(), isFusible))
      return graph::AddOp::create(rewriter, loc, product, bias);
    auto contract = rootOf(product).getDefiningOp<ContractOp>();
    rewriter.setInsertionPoint(contract);
    RankedTensorType type = tensorTypeOf(contract.getOutput());
    Strided layout = getLayout(tensorTypeOf(op.getBias()));
    // The product with a vector is transposed: the weight's rows are its rows.
    bool isVector = tensorTypeOf(op.getOutput()).getRank() == 1;
    layout.strides.insert(
        isVector ? layout.strides.end() : layout.strides.begin(), 0);
    Value rows = viewAs(rewriter, loc, op.getBias(), withLayout(type, layout));
    Value start = CopyOp::create(rewriter, loc, type, rows, Value());
    rewriter.modifyOpInPlace(
        contract, [&] { contract.getAccumulatorMutable().assign(start); });
    rewriter.setInsertionPoint(op);
    return product;
  }
};

struct SelectScatterAdd : OpRewritePattern<graph::ScatterAddOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::ScatterAddOp op,
                                PatternRewriter &rewriter) const override {
    RankedTensorType type = tensorTypeOf(op.getOutput());
    if (op.getDim() != 0 || op.getBatch() != 0 || !summedInF32(op.getOutput()))
      return failure();
    Location loc = op.getLoc();
    Type sum = rewriter.getF32Type();
    int64_t count = tensorTypeOf(op.getIndices()).getNumElements();
    int64_t rows = type.getDimSize(0);
    int64_t columns = rows == 0 ? 0 : type.getNumElements() / rows;
    IntegerAttr skip = op.getPaddingIndexAttr();
    Value ids = denseOf(
        rewriter, loc,
        reshapeOf(rewriter, loc, localIndices(op, rewriter, skip), {count}));
    Value updates = castTo(rewriter, loc, op.getUpdates(), sum);
    updates = denseOf(rewriter, loc,
                      reshapeOf(rewriter, loc, updates, {count, columns}));
    Value sums = ScatterAddOp::create(
        rewriter, loc, RankedTensorType::get({rows, columns}, sum), updates,
        ids, Value(), skip);
    sums = reshapeOf(rewriter, loc, sums, type.getShape());
    rewriter.replaceOp(op, castTo(rewriter, loc, sums, type.getElementType()));
    return success();
  }

  /// The rows of this shard that the indices of `op` refer to; out of range if
  /// they are on another shard. Clears `skip` if the rows express it too.
  static Value localIndices(graph::ScatterAddOp op, PatternRewriter &rewriter,
                            IntegerAttr &skip) {
    if (!op.getOrigin())
      return op.getIndices();
    graph::Formula f{rewriter, op.getLoc()};
    Type wide = rewriter.getI64Type();
    Value indices = f.cast(op.getIndices(), wide);
    Value origin = f.reshape(op.getOrigin(), {});
    Value local = f.sub(indices, origin);
    if (skip)
      local = f.select(f.compare(graph::Predicate::eq, indices,
                                 f.scalar(indices, skip.getInt())),
                       f.scalar(indices, -1), local);
    skip = {};
    return local;
  }
};

//===----------------------------------------------------------------------===//
// Accumulation
//===----------------------------------------------------------------------===//

/// True if the one use of `value` is the only read of its memory, and the part
/// may overwrite it.
static bool diesHere(Value value) {
  for (;;) {
    if (!value.hasOneUse())
      return false;
    auto view = value.getDefiningOp<ViewOp>();
    if (!view)
      break;
    value = view.getInput();
  }
  auto argument = dyn_cast<BlockArgument>(value);
  if (!argument)
    return value.getDefiningOp<ConstantOp>() == nullptr &&
           value.getDefiningOp<graph::ConstantOp>() == nullptr;
  auto function = dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp());
  return function && function.getArgAttr(argument.getArgNumber(), kDiesAttr);
}

/// add(x, view(command)) -> view(command accumulate x), if x is dead after.
template <typename OpTy> struct Accumulate : OpRewritePattern<graph::AddOp> {
  using OpRewritePattern<graph::AddOp>::OpRewritePattern;
  LogicalResult matchAndRewrite(graph::AddOp op,
                                PatternRewriter &rewriter) const override {
    return success(!op->hasAttr(kApartAttr) &&
                   (tryOperands(op, op.getLhs(), op.getRhs(), rewriter) ||
                    tryOperands(op, op.getRhs(), op.getLhs(), rewriter)));
  }

  bool tryOperands(graph::AddOp op, Value start, Value sum,
                   PatternRewriter &rewriter) const {
    auto last = rootOf(sum).getDefiningOp<OpTy>();
    if (!last || start.getType() == nullptr || !diesHere(sum) ||
        !diesHere(start) ||
        tensorTypeOf(start).getShape() != tensorTypeOf(sum).getShape())
      return false;
    // Moves a chain of accumulating commands to where `start` is available.
    OpTy first = last;
    while (first.getAccumulator()) {
      auto before = first.getAccumulator().template getDefiningOp<OpTy>();
      if (!before || !before->hasOneUse())
        return false;
      first = before;
    }
    RankedTensorType type = tensorTypeOf(first.getOutput());
    if (tensorTypeOf(rootOf(sum)) != type)
      return false;
    std::optional<Strided> layout =
        rebase(tensorTypeOf(sum), type, getLayout(tensorTypeOf(start)));
    if (!layout)
      return false;
    RankedTensorType moved = withLayout(type, *layout);
    if (!canWrite(first, moved))
      return false;
    if (first == last) {
      rewriter.moveOpBefore(first, op);
    } else if (Operation *def = rootOf(start).getDefiningOp()) {
      if (def->getBlock() != first->getBlock() || !def->isBeforeInBlock(first))
        return false;
    }
    rewriter.setInsertionPoint(first);
    Value accumulator = viewAs(rewriter, op.getLoc(), start, moved);
    rewriter.modifyOpInPlace(
        first, [&] { first.getAccumulatorMutable().assign(accumulator); });
    for (OpTy command = first;;
         command = cast<OpTy>(*command->getUsers().begin())) {
      rewriter.modifyOpInPlace(command,
                               [&] { command.getOutput().setType(moved); });
      if (command == last)
        break;
    }
    rewriter.setInsertionPoint(op);
    replaceDense(
        rewriter, op.getOutput(),
        viewAs(rewriter, op.getLoc(), last.getOutput(), tensorTypeOf(start)));
    rewriter.eraseOp(op);
    return true;
  }

  static bool canWrite(ContractOp op, RankedTensorType type) {
    return op.canWriteResult(0, type);
  }
  static bool canWrite(ScatterAddOp op, RankedTensorType type) {
    return isDense(type);
  }
};

} // namespace

bool cleave::exec::isFusible(Operation *op) {
  return op->getDialect() &&
         op->getDialect()->getNamespace() ==
             graph::GraphDialect::getDialectNamespace() &&
         !isa<graph::ContractOp, graph::LinearOp, graph::AttentionOp,
              graph::AttentionGradOp, graph::AttentionBiasGradOp,
              graph::ScatterAddOp, graph::OrthonormalizeOp, graph::HeadLossOp,
              graph::GatherOp, graph::SortRowsOp, graph::GroupedContractOp,
              graph::GroupedContractWeightGradOp>(op);
}

void cleave::exec::populateSelectContract(RewritePatternSet &patterns,
                                          ProductForms forms) {
  patterns.add<SelectContract, SelectLinear>(patterns.getContext(), forms);
  patterns.add<SelectScatterAdd>(patterns.getContext());
}

void cleave::exec::populateAccumulate(RewritePatternSet &patterns) {
  patterns.add<Accumulate<ContractOp>, Accumulate<ScatterAddOp>>(
      patterns.getContext());
}
