//===- FactorParameters.cpp - Weights in factored shape -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The pass first reads every entry and finds, for each parameter, the shape
/// that all its projections agree on; then it rewrites every entry.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/Einsum.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "llvm/ADT/StringSet.h"

namespace cleave::graph {
#define GEN_PASS_DEF_FACTORPARAMETERS
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {

using Shape = SmallVector<int64_t>;

/// A projection of rows whose features are reshaped into factors.
struct Projection {
  /// `rows,weight->rows features`: the feature letter is the output's last.
  Einsum einsum;
  /// The linear or contraction, and the addition of a bias after it, or null.
  Operation *op = nullptr;
  AddOp addition;
  BlockArgument weight;
  Value features;
  Shape factors;
  /// Features are read in slices: the first factor numbers them.
  bool sliced = false;

  /// Read again at each use, because rewriting another projection may replace
  /// them.
  Value input() const { return op->getOperand(0); }
  Value bias() const {
    if (auto linear = dyn_cast<LinearOp>(op))
      return linear.getBias();
    if (!addition)
      return Value();
    bool isLhs = addition->getOperand(0) == op->getResult(0);
    return addition->getOperand(isLhs ? 1 : 0);
  }
};

int64_t product(ArrayRef<int64_t> shape) {
  int64_t result = 1;
  for (int64_t size : shape)
    result *= size;
  return result;
}

/// The factors of the last dimension in a reshape that keeps the other
/// dimensions.
std::optional<Shape> factorsOfReshape(Operation *op) {
  auto reshape = dyn_cast<ReshapeOp>(op);
  if (!reshape)
    return std::nullopt;
  ArrayRef<int64_t> rows = reshape.getInput().getType().getShape().drop_back();
  ArrayRef<int64_t> to = reshape.getType().getShape();
  if (to.size() <= rows.size() || to.take_front(rows.size()) != rows)
    return std::nullopt;
  return Shape(to.drop_front(rows.size()));
}

/// The one factoring to which every reader reshapes `value`.
std::optional<Shape> factorsOfReaders(Value value) {
  std::optional<Shape> common;
  for (Operation *user : value.getUsers()) {
    std::optional<Shape> factors = factorsOfReshape(user);
    if (!factors || (common && *common != *factors))
      return std::nullopt;
    common = factors;
  }
  return common;
}

/// Whether `slice` takes a range of the last dimension and all of the others.
bool isFeatureSlice(SliceOp slice) {
  size_t last = slice.getSizes().size() - 1;
  return slice.getStrides()[last] == 1 &&
         slice.getSizes().drop_back() ==
             slice.getInput().getType().getShape().drop_back() &&
         llvm::all_of(slice.getOffsets().drop_back(),
                      [](int64_t offset) { return offset == 0; }) &&
         slice.getSizes()[last] > 0;
}

/// The factoring implied by slices of `features` and their reshapes: equal
/// slices give a factor of their own, [k, heads, size], or [k, size] if they
/// are read without a reshape; slices of different numbers of heads share one
/// factor of heads, [heads, size].
std::optional<Shape> factorsOfSlices(Value features) {
  int64_t size = tensorTypeOf(features).getShape().back();
  std::optional<Shape> first;
  bool equal = true, sameTail = true;
  SmallVector<std::pair<int64_t, int64_t>> ranges;
  for (Operation *user : features.getUsers()) {
    auto slice = dyn_cast<SliceOp>(user);
    if (!slice || !isFeatureSlice(slice))
      return std::nullopt;
    std::optional<Shape> factors = factorsOfReaders(slice.getOutput());
    if (!factors || factors->size() < 2)
      factors = Shape{slice.getSizes().back()};
    if (!first)
      first = factors;
    equal &= *factors == *first;
    sameTail &=
        ArrayRef(*factors).drop_front() == ArrayRef(*first).drop_front();
    ranges.push_back({slice.getOffsets().back(), slice.getSizes().back()});
  }
  if (!first || !sameTail || (!equal && first->size() < 2))
    return std::nullopt;
  Shape factors(*first);
  if (!equal)
    factors.erase(factors.begin());
  int64_t unit = product(factors);
  for (auto [offset, length] : ranges)
    if (offset % unit != 0 || length % unit != 0)
      return std::nullopt;
  if (size % unit != 0)
    return std::nullopt;
  // Slices without a reshape must cover all features, each once.
  if (first->size() == 1 && static_cast<int64_t>(ranges.size()) * unit != size)
    return std::nullopt;
  factors.insert(factors.begin(), size / unit);
  return factors;
}

/// The projection of `op`, if its features are read in factors.
std::optional<Projection> matchProjection(Operation &op) {
  Projection projection;
  projection.op = &op;
  if (auto linear = dyn_cast<LinearOp>(op)) {
    int64_t rows = linear.getInput().getType().getRank() - 1;
    // Adding the bias separately would round once more for narrow floats.
    if (rows > 20 ||
        (linear.getBias() && linear.getType().getElementTypeBitWidth() < 32))
      return std::nullopt;
    std::string letters;
    for (int64_t i = 0; i < rows; ++i)
      letters += static_cast<char>('A' + i);
    projection.einsum = {letters + "Y", "ZY", letters + "Z"};
    projection.weight = dyn_cast<BlockArgument>(linear.getWeight());
    projection.features = linear.getOutput();
  } else if (auto grouped = dyn_cast<GroupedLinearOp>(op)) {
    std::string letters;
    for (int64_t i = 0, rank = grouped.getGroups().getType().getRank();
         i < std::min<int64_t>(rank, 20); ++i)
      letters += static_cast<char>('A' + i);
    projection.einsum = {letters + "Y", grouped.getTranspose() ? "XZY" : "XYZ",
                         letters + "Z"};
    projection.weight = dyn_cast<BlockArgument>(grouped.getWeight());
    projection.features = grouped.getOutput();
  } else if (auto contract = dyn_cast<ContractOp>(op)) {
    std::string error;
    std::optional<Einsum> einsum = Einsum::parse(contract.getEquation(), error);
    if (!einsum || einsum->output.empty())
      return std::nullopt;
    projection.einsum = *einsum;
    projection.weight = dyn_cast<BlockArgument>(contract.getRhs());
    projection.features = contract.getOutput();
    // The only reader adds a bias to the last dimension.
    if (contract.getOutput().hasOneUse())
      if (auto add = dyn_cast<AddOp>(*contract.getOutput().user_begin())) {
        Value other =
            add.getLhs() == contract.getOutput() ? add.getRhs() : add.getLhs();
        if (tensorTypeOf(other).getShape() ==
            contract.getType().getShape().take_back(1)) {
          projection.addition = add;
          projection.features = add.getOutput();
        }
      }
  }
  if (!projection.weight || projection.features.use_empty())
    return std::nullopt;
  char feature = projection.einsum.output.back();
  if (!StringRef(projection.einsum.rhs).contains(feature) ||
      StringRef(projection.einsum.lhs).contains(feature))
    return std::nullopt;
  std::optional<Shape> factors = factorsOfReaders(projection.features);
  projection.sliced = !factors;
  if (!factors)
    factors = factorsOfSlices(projection.features);
  if (!factors || factors->size() < 2)
    return std::nullopt;
  projection.factors = *factors;
  return projection;
}

/// The shape of `argument` when its dimension `dim` is factored.
Shape factoredShape(BlockArgument argument, int64_t dim,
                    ArrayRef<int64_t> factors) {
  ArrayRef<int64_t> shape = tensorTypeOf(argument).getShape();
  Shape result(shape.take_front(dim));
  llvm::append_range(result, factors);
  llvm::append_range(result, shape.drop_front(dim + 1));
  return result;
}

class Factoring {
public:
  explicit Factoring(ModuleOp module) : module(module) {}
  void run();

private:
  void propose(func::FuncOp entry, BlockArgument argument, Shape shape);
  void readEntry(func::FuncOp entry);
  void rewriteArguments(func::FuncOp entry);
  bool isStored(BlockArgument argument) const;
  void rewriteProjection(const Projection &projection);
  static Value multiplyGroups(Formula &f, GroupedLinearOp op,
                              const Projection &projection);

  ModuleOp module;
  /// The shape in which each parameter is to be stored, by name.
  llvm::StringMap<Shape> shapes;
  /// The previous type of each parameter.
  llvm::StringMap<Type> types;
  /// Parameters that stay unchanged: readers disagree, they are already
  /// factored, or an optimizer's state has their shape.
  llvm::StringSet<> rejected;
  SmallVector<Projection> projections;
};

void Factoring::propose(func::FuncOp entry, BlockArgument argument,
                        Shape shape) {
  unsigned index = argument.getArgNumber();
  StringRef name = getArgString(entry, index, kNameAttr);
  if (name.empty() || !hasRole(entry, index, "parameter"))
    return;
  auto [it, inserted] = shapes.try_emplace(name, shape);
  if (!inserted && it->second != shape)
    rejected.insert(name);
}

/// Whether `argument` is a parameter that is to be stored in factored shape.
bool Factoring::isStored(BlockArgument argument) const {
  auto entry = cast<func::FuncOp>(argument.getOwner()->getParentOp());
  StringRef name = getArgString(entry, argument.getArgNumber(), kNameAttr);
  return hasRole(entry, argument.getArgNumber(), "parameter") &&
         shapes.contains(name) && !rejected.contains(name);
}

void Factoring::readEntry(func::FuncOp entry) {
  for (unsigned i = 0; i < entry.getNumArguments(); ++i) {
    if (StringRef of = getArgString(entry, i, kOfAttr); !of.empty())
      rejected.insert(of);
    if (!hasRole(entry, i, "parameter"))
      continue;
    StringRef name = getArgString(entry, i, kNameAttr);
    Type type = entry.getArgumentTypes()[i];
    if (entry.getArgAttr(i, kFrameworkShapeAttr) ||
        types.try_emplace(name, type).first->second != type)
      rejected.insert(name);
  }
  for (Operation &op : entry.getBody().front()) {
    std::optional<Projection> projection = matchProjection(op);
    if (!projection)
      continue;
    int64_t dim = projection->einsum.rhs.find(projection->einsum.output.back());
    propose(entry, projection->weight,
            factoredShape(projection->weight, dim, projection->factors));
    projections.push_back(*projection);
  }
}

/// Changes the type of each factored parameter; its readers read a reshape to
/// the old type until a projection is rewritten.
void Factoring::rewriteArguments(func::FuncOp entry) {
  Block &block = entry.getBody().front();
  OpBuilder builder(&block, block.begin());
  for (BlockArgument argument : block.getArguments()) {
    if (!isStored(argument))
      continue;
    unsigned index = argument.getArgNumber();
    auto it = shapes.find(getArgString(entry, index, kNameAttr));
    RankedTensorType type = tensorTypeOf(argument);
    entry.setArgAttr(index, kFrameworkShapeAttr,
                     builder.getDenseI64ArrayAttr(type.getShape()));
    argument.setType(type.clone(it->second));
    auto reshape =
        ReshapeOp::create(builder, argument.getLoc(), type, argument);
    argument.replaceAllUsesExcept(reshape, reshape);
  }
  entry.setType(builder.getFunctionType(block.getArgumentTypes(),
                                        entry.getResultTypes()));
}

/// The product of rows with the matrices of their groups, its features in
/// factors. Where these are read in slices, the matrix has features of the same
/// place of all slices side by side: an axis then shards each slice alike.
Value Factoring::multiplyGroups(Formula &f, GroupedLinearOp op,
                                const Projection &projection) {
  Shape factors = projection.factors;
  int64_t count = factors.size(), dim = projection.einsum.rhs.find('Z');
  int64_t moved = projection.sliced ? 1 : 0,
          leading = op.getType().getRank() - 1;
  auto rotated = [&](int64_t rank, int64_t at, int64_t by) {
    Shape order = llvm::to_vector(llvm::seq<int64_t>(0, rank));
    std::rotate(order.begin() + at, order.begin() + at + by,
                order.begin() + at + count);
    return order;
  };
  Value weight = projection.weight;
  if (moved)
    weight = TransposeOp::create(f.builder, f.loc, weight,
                                 rotated(2 + count, dim, moved));
  std::rotate(factors.begin(), factors.begin() + moved, factors.end());
  Value value = GroupedLinearOp::create(
      f.builder, f.loc, op.getRows(),
      f.reshape(weight, tensorTypeOf(op.getWeight()).getShape()),
      op.getGroups(), op.getOrigin(), op.getTranspose(), op.getGlobalSizeAttr(),
      op.getResultElementAttr());
  Shape shape(op.getType().getShape().drop_back());
  llvm::append_range(shape, factors);
  value = f.reshape(value, shape);
  if (moved)
    value = TransposeOp::create(f.builder, f.loc, value,
                                rotated(leading + count, leading, count - 1));
  return value;
}

void Factoring::rewriteProjection(const Projection &projection) {
  const Shape &factors = projection.factors;
  Operation *old = projection.features.getDefiningOp();
  OpBuilder builder(old);
  InheritPrecision inherit(builder, old);
  Formula f{builder, old->getLoc()};
  // Letters that the equation does not use, one for each factor.
  Einsum einsum = projection.einsum;
  std::string used = einsum.lhs + einsum.rhs, letters;
  for (char letter = 'a'; letter <= 'z' && letters.size() < factors.size();
       ++letter)
    if (!StringRef(used).contains(letter))
      letters += letter;
  if (letters.size() != factors.size())
    return;
  einsum.rhs.replace(einsum.rhs.find(einsum.output.back()), 1, letters);
  einsum.output.replace(einsum.output.size() - 1, 1, letters);

  Value value;
  if (auto grouped = dyn_cast<GroupedLinearOp>(projection.op))
    value = multiplyGroups(f, grouped, projection);
  else
    value =
        f.contract(einsum.str(), projection.input(), projection.weight,
                   tensorTypeOf(projection.op->getResult(0)).getElementType());
  if (Value bias = projection.bias()) {
    if (auto reshape = bias.getDefiningOp<ReshapeOp>())
      bias = reshape.getInput();
    value = f.add(value, f.reshape(bias, factors));
  }
  size_t rows = einsum.output.size() - factors.size();
  ArrayRef<int64_t> shape = tensorTypeOf(value).getShape();
  int64_t unit = product(ArrayRef(factors).drop_front());
  for (Operation *user :
       llvm::make_early_inc_range(projection.features.getUsers())) {
    builder.setInsertionPoint(user);
    Formula at{builder, user->getLoc()};
    auto slice = dyn_cast<SliceOp>(user);
    if (!slice) {
      user->getResult(0).replaceAllUsesWith(value);
      user->erase();
      continue;
    }
    Shape offsets(shape.size(), 0), sizes(shape), strides(shape.size(), 1);
    offsets[rows] = slice.getOffsets().back() / unit;
    sizes[rows] = slice.getSizes().back() / unit;
    Value part = SliceOp::create(builder, user->getLoc(), value, offsets, sizes,
                                 strides);
    for (Operation *reader : llvm::make_early_inc_range(user->getUsers()))
      if (auto reshape = dyn_cast<ReshapeOp>(reader)) {
        reshape.getOutput().replaceAllUsesWith(
            at.reshape(part, reshape.getType().getShape()));
        reshape->erase();
      }
    if (!user->use_empty())
      slice.getOutput().replaceAllUsesWith(
          at.reshape(part, slice.getType().getShape()));
    user->erase();
  }
  if (projection.addition)
    projection.addition->erase();
  projection.op->erase();
}

void Factoring::run() {
  SmallVector<func::FuncOp> entries;
  for (auto entry : module.getOps<func::FuncOp>())
    if (entry.getBody().hasOneBlock())
      entries.push_back(entry);
  for (func::FuncOp entry : entries)
    readEntry(entry);
  llvm::erase_if(projections, [&](const Projection &projection) {
    return !isStored(projection.weight);
  });
  for (const Projection &projection : projections)
    if (auto bias = dyn_cast_or_null<BlockArgument>(projection.bias()))
      propose(cast<func::FuncOp>(bias.getOwner()->getParentOp()), bias,
              projection.factors);
  for (StringRef name : rejected.keys())
    shapes.erase(name);
  for (func::FuncOp entry : entries)
    rewriteArguments(entry);
  for (const Projection &projection : projections)
    rewriteProjection(projection);
  // Removes reshapes without readers.
  for (func::FuncOp entry : entries)
    for (auto reshape : llvm::make_early_inc_range(
             entry.getBody().front().getOps<ReshapeOp>()))
      if (reshape.use_empty())
        reshape.erase();
}

struct FactorParameters final
    : cleave::graph::impl::FactorParametersBase<FactorParameters> {
  using FactorParametersBase::FactorParametersBase;
  void runOnOperation() override { Factoring(getOperation()).run(); }
};

} // namespace
