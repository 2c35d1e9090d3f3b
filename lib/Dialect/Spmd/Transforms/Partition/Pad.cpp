//===- Pad.cpp - Uneven sizes made divisible ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PaddedSizes.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Graph/IR/ShardingRules/PaddedForm.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/SmallBitVector.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_PAD
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
using Shape = SmallVector<int64_t>;

/// Rewrites one function to padded sizes.
class Padder {
public:
  Padder(func::FuncOp function, const PaddedSizes &sizes)
      : function(function), sizes(sizes), builder(function.getContext()) {}

  LogicalResult run() {
    Block &body = function.getBody().front();
    SmallVector<Operation *> ops;
    for (Operation &op : body.without_terminator())
      ops.push_back(&op);
    SmallVector<BlockArgument> arguments(body.getArguments());
    for (BlockArgument argument : arguments) {
      if (!isa<RankedTensorType>(argument.getType()))
        return graph::emitArgumentError(function, argument.getArgNumber())
               << " is not a tensor";
      addArgument(argument);
    }
    for (Operation *op : ops)
      if (failed(rewrite(op)))
        return failure();
    finish(body.getTerminator());
    for (Operation *op : llvm::reverse(replaced))
      op->erase();
    body.eraseArguments(0, arguments.size());
    writeAttributes();
    return success();
  }

private:
  /// A value of the padded program.
  struct Known {
    Shape valid;
    /// Dimensions whose padding is zero.
    llvm::SmallBitVector zero;
  };

  static Shape shapeOf(Value value) {
    return Shape(cast<RankedTensorType>(value.getType()).getShape());
  }
  void define(Value value, const Shape &valid, bool zero = false) {
    known[value] = {valid, llvm::SmallBitVector(valid.size(), zero)};
  }
  bool isZero(Value value, unsigned dim) { return known[value].zero.test(dim); }

  void addArgument(BlockArgument argument);
  LogicalResult rewrite(Operation *op);
  void finish(Operation *terminator);
  void writeAttributes();
  Shape sizesAlong(Operation *op, const graph::FactorMapping &mapping,
                   const Shape &valid);
  Value convert(Value value, const Shape &shape);
  Value mask(Value value, unsigned dim, TypedAttr fill);
  Value satisfy(OpOperand &operand, Value value);
  bool needsZero(OpOperand &operand, unsigned dim);
  Value maskForReaders(Value result, Value value);
  void markZero(Operation *op, Operation *built);

  func::FuncOp function;
  const PaddedSizes &sizes;
  OpBuilder builder;
  IRMapping mapping;
  llvm::DenseMap<Value, Known> known;
  std::map<std::pair<void *, Shape>, Value> converted;
  std::map<std::tuple<void *, unsigned, const void *>, Value> masked;
  SmallVector<Operation *> replaced;
};
} // namespace

//===----------------------------------------------------------------------===//
// Between sizes
//===----------------------------------------------------------------------===//

/// Returns `value` in `shape`: removes padding that is not needed, and adds
/// zeros where padding is needed.
Value Padder::convert(Value value, const Shape &shape) {
  Shape now = shapeOf(value);
  if (now == shape)
    return value;
  Value &result = converted[{value.getAsOpaquePointer(), shape}];
  if (result)
    return result;
  Location loc = value.getLoc();
  Known from = known[value];
  Shape cut = now, offsets(now.size(), 0), ones(now.size(), 1);
  for (auto [size, wanted, valid] : llvm::zip_equal(cut, shape, from.valid))
    if (size != wanted)
      size = valid;
  Value made = value;
  Known to = from;
  if (cut != now)
    made = graph::SliceOp::create(builder, loc, made, offsets, cut, ones);
  if (cut != shape) {
    Shape high;
    for (auto [dim, size] : llvm::enumerate(cut)) {
      high.push_back(shape[dim] - size);
      if (high.back() > 0)
        to.zero.set(dim);
    }
    made = graph::PadOp::create(builder, loc, made, APFloat(0.0), offsets, high,
                                offsets);
  }
  known[made] = to;
  return result = made;
}

/// Returns `value` with `fill` in the padding of dimension `dim`.
Value Padder::mask(Value value, unsigned dim, TypedAttr fill) {
  Value &result =
      masked[{value.getAsOpaquePointer(), dim, fill.getAsOpaquePointer()}];
  if (result)
    return result;
  Location loc = value.getLoc();
  graph::Formula f{builder, loc};
  Known from = known[value];
  Shape shape(from.valid.size(), 1);
  shape[dim] = shapeOf(value)[dim];
  // One for each mask: those of samples are cut into micro-batches, and others
  // of the same shape are not.
  Value place = graph::IotaOp::create(
      builder, loc, RankedTensorType::get(shape, builder.getI64Type()), dim, 0);
  Value inside =
      f.compare(graph::Predicate::lt, place, f.scalar(place, from.valid[dim]));
  Value other = graph::ConstantOp::create(
      builder, loc,
      DenseElementsAttr::get(RankedTensorType::get({}, fill.getType()),
                             Attribute(fill)));
  Value made = f.select(inside, value, other);
  // What is chosen among is still bound as it was.
  made.getDefiningOp()->setAttr(graph::kPaddingAttr, builder.getUnitAttr());
  bool zero = fill == builder.getZeroAttr(fill.getType());
  if (!zero)
    from.zero.reset();
  from.zero[dim] = zero;
  known[made] = from;
  return result = made;
}

/// Returns `value`, the padded form of `operand`, masked as the rule of the op
/// requires.
Value Padder::satisfy(OpOperand &operand, Value value) {
  Operation *op = operand.getOwner();
  const graph::ShardingRule &rule = sizes.ruleOf(op);
  Type element = cast<RankedTensorType>(value.getType()).getElementType();
  Shape valid = known[value].valid;
  for (auto [dim, factors] :
       llvm::enumerate(rule.operands[operand.getOperandNumber()])) {
    if (shapeOf(value)[dim] == valid[dim])
      continue;
    for (int64_t factor : factors) {
      TypedAttr fill = graph::paddingFill(rule.factors[factor], element);
      if (!fill || sizes.ofFactor(op, factor) == rule.factors[factor].size)
        continue;
      bool zero = fill == builder.getZeroAttr(element);
      if (zero && isZero(value, dim))
        continue;
      Value made = mask(value, dim, fill);
      // Later readers read the masked value too, so that only one is kept.
      if (zero && mapping.lookupOrDefault(operand.get()) == value)
        mapping.map(operand.get(), made);
      value = made;
    }
  }
  return value;
}

/// Whether the reader needs zeros in the padding of dimension `dim`.
bool Padder::needsZero(OpOperand &operand, unsigned dim) {
  Operation *op = operand.getOwner();
  if (!isa<graph::ShardingRuleOpInterface>(op))
    return false;
  const graph::ShardingRule &rule = sizes.ruleOf(op);
  unsigned i = operand.getOperandNumber();
  if (llvm::is_contained(rule.unused, i))
    return false;
  Type element = getElementTypeOrSelf(operand.get());
  return llvm::any_of(rule.operands[i][dim], [&](int64_t factor) {
    TypedAttr fill = graph::paddingFill(rule.factors[factor], element);
    return fill && fill == builder.getZeroAttr(element) &&
           sizes.ofFactor(op, factor) != rule.factors[factor].size;
  });
}

/// Returns `value`, the padded form of `result`, with zeros in padding of which
/// several ops read `result` and one needs zeros: all read it masked, so that
/// one is kept and one resharded for all.
Value Padder::maskForReaders(Value result, Value value) {
  if (result.use_empty() || result.hasOneUse())
    return value;
  for (unsigned dim = 0, e = shapeOf(value).size(); dim < e; ++dim)
    if (shapeOf(value)[dim] != known[value].valid[dim] && !isZero(value, dim) &&
        llvm::any_of(result.getUses(),
                     [&](OpOperand &use) { return needsZero(use, dim); })) {
      Type element = getElementTypeOrSelf(value);
      value = mask(value, dim, builder.getZeroAttr(element));
    }
  return value;
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

/// Returns the shape of a tensor of `mapping` in the padded form of `op`.
Shape Padder::sizesAlong(Operation *op, const graph::FactorMapping &mapping,
                         const Shape &valid) {
  Shape shape = valid;
  for (auto [dim, factors] : llvm::enumerate(mapping))
    if (!factors.empty()) {
      shape[dim] = 1;
      for (int64_t factor : factors)
        shape[dim] *= sizes.ofFactor(op, factor);
    }
  return shape;
}

/// Records the dimensions of results of `built`, the padded form of `op`, whose
/// padding is zero.
void Padder::markZero(Operation *op, Operation *built) {
  const graph::ShardingRule &rule = sizes.ruleOf(op);
  auto dimAlong = [](const graph::FactorMapping &mapping, int64_t factor) {
    return llvm::find_if(mapping,
                         [&](ArrayRef<int64_t> dim) {
                           return llvm::is_contained(dim, factor);
                         }) -
           mapping.begin();
  };
  graph::ConstantOp constant = dyn_cast<graph::ConstantOp>(built);
  for (int64_t factor = 0, e = rule.factors.size(); factor < e; ++factor) {
    // Skips factors that are not padded.
    if (sizes.ofFactor(op, factor) == rule.factors[factor].size)
      continue;
    bool zero = constant
                    ? graph::getSplatValue(constant.getOutput()) == 0.0
                    : graph::staysZero(rule, factor, [&](unsigned operand) {
                        return isZero(built->getOperand(operand),
                                      dimAlong(rule.operands[operand], factor));
                      });
    if (!zero)
      continue;
    for (auto [i, result] : llvm::enumerate(built->getResults()))
      if (size_t dim = dimAlong(rule.results[i], factor);
          dim < rule.results[i].size())
        known[result].zero.set(dim);
  }
}

LogicalResult Padder::rewrite(Operation *op) {
  builder.setInsertionPoint(op);
  if (!isa<graph::ShardingRuleOpInterface>(op))
    return op->emitOpError("has no sharding rule");
  const graph::ShardingRule &rule = sizes.ruleOf(op);
  SmallVector<Value> operands;
  for (OpOperand &operand : op->getOpOperands()) {
    unsigned i = operand.getOperandNumber();
    Value value = mapping.lookupOrDefault(operand.get());
    if (!llvm::is_contained(rule.unused, i)) {
      value =
          convert(value, sizesAlong(op, rule.operands[i], known[value].valid));
      value = satisfy(operand, value);
    }
    operands.push_back(value);
  }
  SmallVector<Type> types;
  SmallVector<Shape> valid;
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    auto type = cast<RankedTensorType>(result.getType());
    valid.push_back(Shape(type.getShape()));
    types.push_back(RankedTensorType::get(
        sizesAlong(op, rule.results[i], valid.back()), type.getElementType()));
  }
  Operation *built = op;
  if (TypeRange(op->getResultTypes()) == TypeRange(types) &&
      TypeRange(op->getOperandTypes()) == TypeRange(ValueRange(operands))) {
    op->setOperands(operands);
  } else {
    built = graph::buildPadded(op, builder, operands, types);
    if (!built)
      return op->emitOpError("has no padded form");
    replaced.push_back(op);
    // Properties of a gradient hold for its valid part.
    if (isa<graph::GradientOp>(op) && types.front() != op->getResultTypes()[0])
      built->setAttr(graph::kValidShapeAttr,
                     builder.getDenseI64ArrayAttr(valid.front()));
  }
  for (auto [result, shape] : llvm::zip_equal(built->getResults(), valid))
    define(result, shape);
  markZero(op, built);
  // The readers may need more padding than the op can produce.
  builder.setInsertionPointAfter(built);
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    Value value = convert(built->getResult(i), sizes.shapeOf(result));
    value = maskForReaders(result, value);
    if (value != result)
      mapping.map(result, value);
  }
  return success();
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

/// Adds a padded argument. Ops that are not rewritten yet read the original
/// type.
void Padder::addArgument(BlockArgument argument) {
  Value padded = argument.getOwner()->addArgument(
      cast<RankedTensorType>(argument.getType()).clone(sizes.shapeOf(argument)),
      argument.getLoc());
  mapping.map(argument, padded);
  // The caller pads it with zeros.
  define(padded, shapeOf(argument), /*zero=*/true);
}

/// Builds the results. One that replaces an argument has its padded shape, with
/// zeros in the padding.
void Padder::finish(Operation *terminator) {
  builder.setInsertionPoint(terminator);
  for (auto [operand, argument] : llvm::zip_equal(
           terminator->getOpOperands(), graph::updatedArguments(function))) {
    Value value = mapping.lookupOrDefault(operand.get());
    if (Value updated = argument ? mapping.lookup(argument) : Value()) {
      value = convert(value, shapeOf(updated));
      Type element = cast<RankedTensorType>(value.getType()).getElementType();
      for (unsigned dim = 0, e = shapeOf(value).size(); dim < e; ++dim)
        if (shapeOf(value)[dim] != known[value].valid[dim] &&
            !isZero(value, dim))
          value = mask(value, dim, builder.getZeroAttr(element));
    }
    operand.set(value);
  }
}

void Padder::writeAttributes() {
  Block &body = function.getBody().front();
  Operation *terminator = body.getTerminator();
  function.setFunctionType(builder.getFunctionType(
      body.getArgumentTypes(), terminator->getOperandTypes()));
  graph::EntryAttributes attributes(function);
  auto validShape = [&](Value value) -> Attribute {
    const Shape &valid = known[value].valid;
    return shapeOf(value) == valid ? DenseI64ArrayAttr()
                                   : builder.getDenseI64ArrayAttr(valid);
  };
  for (BlockArgument argument : body.getArguments())
    if (Attribute valid = validShape(argument))
      attributes.setArg(argument.getArgNumber(), graph::kValidShapeAttr, valid);
  for (auto [i, value] : llvm::enumerate(terminator->getOperands()))
    if (Attribute valid = validShape(value))
      attributes.setResult(i, graph::kValidShapeAttr, valid);
  attributes.write();
}

namespace {
struct PadPass : spmd::impl::PadBase<PadPass> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    if (!mesh) {
      getOperation().emitError("the module has no spmd.mesh");
      return signalPassFailure();
    }
    // Of one part, no dimension is padded.
    if (llvm::all_of(mesh.getMesh().axes,
                     [](const MeshAxis &axis) { return axis.size == 1; }))
      return;
    PaddedSizes sizes(getOperation(), mesh.getMesh());
    if (!sizes.any())
      return;
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() && failed(pad(function, sizes)))
        return signalPassFailure();
  }

  static LogicalResult pad(func::FuncOp function, const PaddedSizes &sizes) {
    if (!function.getBody().hasOneBlock())
      return function.emitOpError("must have one block to be padded");
    return Padder(function, sizes).run();
  }
};
} // namespace
