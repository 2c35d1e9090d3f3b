//===- ScaleToFp8.cpp - Contractions of 8-bit operands --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Delayed scaling (Transformer Engine) as a rewrite of whole tensors. A linear
/// layer reads its operands in 8 bits, each multiplied by a scale of its own
/// that the maxima of the steps before give:
///
///   copy = cast(clamp(x * scale)), y = contract(copies) * (1/scale * 1/scale)
///
/// Scales and the histories of maxima are state of the training entry, which
/// writes them once in a step; other entries read the scales.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include <cmath>
#include <limits>

namespace cleave::graph {
#define GEN_PASS_DEF_SCALETOFP8
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {

/// A tensor that contractions read in 8 bits, with its scale.
struct ScaledTensor {
  FloatType type;
  /// What is scaled, in f32: its largest number decides the next scale.
  Value whole;
  /// The arguments; an entry that does not train has no history.
  BlockArgument scale, history;
  /// The scale that is used, and its reciprocal.
  Value factor, inverse;
};

/// Rewrites one entry.
class Scaling {
public:
  /// `known` are the names of the tensors of the entry that trains, which adds
  /// to them.
  Scaling(func::FuncOp entry, const LinearLayers &layers, int64_t history,
          int64_t margin, llvm::StringSet<> &known)
      : entry(entry), block(entry.getBody().front()), layers(layers),
        length(history), margin(margin), known(known),
        builder(entry.getContext()), f32(builder.getF32Type()) {}

  void run(ArrayRef<LinearContraction> contractions);

private:
  ScaledTensor *tensorOf(Value operand, StringRef parameter);
  Value copyOf(Value operand, ScaledTensor &tensor);
  Value inF32(Value operand);
  void rewrite(const LinearContraction &contraction);
  BlockArgument addState(StringRef name, StringRef slot,
                         ArrayRef<int64_t> shape);
  void write(ScaledTensor &tensor);
  void addResult(Value value, BlockArgument argument);

  /// The largest number of a type of 8 bits.
  static double largest(FloatType type) {
    return llvm::APFloat::getLargest(type.getFloatSemantics())
        .convertToDouble();
  }

  func::FuncOp entry;
  Block &block;
  const LinearLayers &layers;
  int64_t length, margin;
  llvm::StringSet<> &known;
  OpBuilder builder;
  Type f32;
  /// By the tensor whose elements the operands have; in the order of use.
  llvm::MapVector<Value, ScaledTensor> tensors;
  llvm::StringMap<unsigned> uses;
  llvm::DenseMap<Value, Value> copies, wide;
};

} // namespace

//===----------------------------------------------------------------------===//
// State
//===----------------------------------------------------------------------===//

/// Adds an argument of state. It belongs to no parameter: it is where its
/// tensor is.
BlockArgument Scaling::addState(StringRef name, StringRef slot,
                                ArrayRef<int64_t> shape) {
  std::string whole = (name + "_" + slot).str();
  auto text = [&](StringRef value) { return builder.getStringAttr(value); };
  DictionaryAttr attributes = builder.getDictionaryAttr(
      {builder.getNamedAttr(kNameAttr, text(whole)),
       builder.getNamedAttr(kRoleAttr, text("state")),
       builder.getNamedAttr(kSlotAttr, text(whole)),
       builder.getNamedAttr(kOptionalAttr, text("scales of fp8"))});
  unsigned index = entry.getNumArguments();
  // Inserting an argument of tensor type cannot fail.
  (void)entry.insertArgument(index, RankedTensorType::get(shape, f32),
                             attributes, entry.getLoc());
  return entry.getArgument(index);
}

/// The scaled tensor that `operand` is, or null if training has none that
/// corresponds to it.
ScaledTensor *Scaling::tensorOf(Value operand, StringRef parameter) {
  Value root = LinearLayers::rootOf(operand);
  if (auto it = tensors.find(root); it != tensors.end())
    return &it->second;
  FloatType type = Float8E4M3FNType::get(entry.getContext());
  StringRef kind;
  switch (layers.kindOf(operand)) {
  case OperandKind::Input:
    kind = "input";
    break;
  case OperandKind::Weight:
    kind = "weight";
    break;
  case OperandKind::Gradient:
    kind = "gradient";
    type = Float8E5M2Type::get(entry.getContext());
    break;
  }
  std::string name = (parameter + ".fp8_" + kind).str();
  if (unsigned use = uses[name]++)
    name += std::to_string(use);
  if (layers.trains())
    known.insert(name);
  else if (!known.contains(name))
    return nullptr;
  ScaledTensor tensor{type, inF32(operand), {}, {}, {}, {}};
  tensor.scale = addState(name, "scale", {});
  if (layers.trains())
    tensor.history = addState(name, "amax_history", {length});
  // State begins as zero: the scale is 1 until a step has set it.
  builder.setInsertionPointToStart(&block);
  Formula f{builder, entry.getLoc()};
  Value one = f.scalar(tensor.scale, 1.0);
  Value unset =
      f.compare(Predicate::eq, tensor.scale, f.scalar(tensor.scale, 0.0));
  tensor.factor = f.select(unset, one, tensor.scale);
  tensor.inverse = f.div(one, tensor.factor);
  return &tensors.insert({root, std::move(tensor)}).first->second;
}

void Scaling::addResult(Value value, BlockArgument argument) {
  StringRef name = getArgString(entry, argument.getArgNumber(), kNameAttr);
  Value written = WrittenOp::create(builder, value.getLoc(), value,
                                    builder.getStringAttr(name));
  Operation *terminator = block.getTerminator();
  terminator->insertOperands(terminator->getNumOperands(), written);
  (void)entry.insertResult(entry.getNumResults(), written.getType(),
                           builder.getDictionaryAttr(builder.getNamedAttr(
                               kUpdatesAttr, builder.getStringAttr(name))));
}

/// Appends the maximum of this step to the history, from which the oldest is
/// dropped, and computes the scale of the next step:
/// (largest / maximum of the history) / 2^margin. Without a maximum that is
/// positive and finite the scale stays.
void Scaling::write(ScaledTensor &tensor) {
  builder.setInsertionPointAfterValue(tensor.whole);
  Formula f{builder, tensor.whole.getLoc()};
  Value size = AbsOp::create(builder, f.loc, tensor.whole);
  Value amax = ReduceOp::create(
      builder, f.loc, ReductionKind::Max, size,
      llvm::to_vector(llvm::seq<int64_t>(0, tensorTypeOf(size).getRank())));
  builder.setInsertionPoint(block.getTerminator());
  Value history = f.reshape(amax, {1}), most = amax;
  if (length > 1) {
    Value kept =
        SliceOp::create(builder, f.loc, tensor.history, {1}, {length - 1}, {1});
    // Of the maxima before and this one, so that the maximum before is known
    // wherever the state is.
    most = MaximumOp::create(
        builder, f.loc,
        ReduceOp::create(builder, f.loc, ReductionKind::Max, kept, {0}), amax);
    history = ConcatOp::create(builder, f.loc, ValueRange{kept, history}, 0);
  }
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double target = std::ldexp(largest(tensor.type), -static_cast<int>(margin));
  Value scale = f.div(f.scalar(most, target), most);
  auto isBetween = [&](Value value) -> Value {
    return AndOp::create(
        builder, f.loc, f.compare(Predicate::gt, value, f.scalar(value, 0.0)),
        f.compare(Predicate::lt, value, f.scalar(value, infinity)));
  };
  Value usable =
      AndOp::create(builder, f.loc, isBetween(most), isBetween(scale));
  addResult(f.select(usable, scale, tensor.factor), tensor.scale);
  addResult(history, tensor.history);
}

//===----------------------------------------------------------------------===//
// Operands and sums
//===----------------------------------------------------------------------===//

/// `operand` in f32, before it was rounded to 16 bits if it was, so that it is
/// rounded once: a parameter is its f32 master.
Value Scaling::inF32(Value operand) {
  if (tensorTypeOf(operand).getElementType() == f32)
    return operand;
  Value &known = wide[operand];
  if (known)
    return known;
  auto rounding = operand.getDefiningOp<CastOp>();
  auto view = operand.getDefiningOp<ReshapeOp>();
  if (rounding && tensorTypeOf(rounding.getInput()).getElementType() == f32)
    return known = rounding.getInput();
  builder.setInsertionPointAfterValue(operand);
  Formula f{builder, operand.getLoc()};
  if (view && isa<BlockArgument>(LinearLayers::rootOf(operand))) {
    Value whole = inF32(view.getInput());
    return wide[operand] = f.reshape(whole, tensorTypeOf(operand).getShape());
  }
  return known = f.cast(operand, f32);
}

/// The one copy of `operand` in 8 bits. What is too large becomes the largest
/// number.
Value Scaling::copyOf(Value operand, ScaledTensor &tensor) {
  Value &copy = copies[operand];
  if (copy)
    return copy;
  Value value = inF32(operand);
  builder.setInsertionPointAfterValue(value);
  if (value.getDefiningOp() == nullptr)
    builder.setInsertionPointAfterValue(tensor.inverse);
  Formula f{builder, operand.getLoc()};
  double most = largest(tensor.type);
  Value scaled = f.mul(value, tensor.factor);
  scaled = MaximumOp::create(builder, f.loc, scaled, f.scalar(scaled, -most));
  scaled = MinimumOp::create(builder, f.loc, scaled, f.scalar(scaled, most));
  return copy = f.cast(scaled, tensor.type);
}

/// Gives a contraction operands of 8 bits. Its sums are divided by both scales
/// before a bias is added.
void Scaling::rewrite(const LinearContraction &contraction) {
  auto [op, parameter] = contraction;
  Value operands[] = {op->getOperand(0), op->getOperand(1)};
  for (Value operand : operands)
    if (!tensorOf(operand, parameter))
      return;
  // All are known: none moves in memory.
  SmallVector<Value> narrow, inverses;
  for (Value operand : operands) {
    ScaledTensor *tensor = tensorOf(operand, parameter);
    narrow.push_back(copyOf(operand, *tensor));
    inverses.push_back(tensor->inverse);
  }
  Type element = tensorTypeOf(op->getResult(0)).getElementType();
  builder.setInsertionPoint(op);
  Formula f{builder, op->getLoc()};
  Value sums, bias;
  if (auto linear = dyn_cast<LinearOp>(op)) {
    bias = linear.getBias();
    sums = LinearOp::create(builder, f.loc, narrow[0], narrow[1], Value(),
                            TypeAttr::get(f32));
  } else {
    sums = f.contract(cast<ContractOp>(op).getEquation(), narrow[0], narrow[1],
                      f32);
  }
  sums = f.mul(sums, f.mul(inverses[0], inverses[1]));
  if (bias)
    sums = f.add(sums, f.cast(bias, f32));
  op->getResult(0).replaceAllUsesWith(f.cast(sums, element));
  op->erase();
}

void Scaling::run(ArrayRef<LinearContraction> contractions) {
  for (const LinearContraction &contraction : contractions)
    rewrite(contraction);
  if (layers.trains())
    for (auto &[root, tensor] : tensors)
      write(tensor);
}

namespace {
struct ScaleToFp8 final : cleave::graph::impl::ScaleToFp8Base<ScaleToFp8> {
  using ScaleToFp8Base::ScaleToFp8Base;

  void runOnOperation() override {
    if (history < 1 || margin < 0 || margin > 100) {
      getOperation().emitError()
          << (history < 1 ? "the history of maxima must hold at least one step"
                          : "the margin of scales must be 0 to 100")
          << ", got " << (history < 1 ? history : margin).getValue();
      return signalPassFailure();
    }
    // The entry that trains decides what has a scale.
    std::vector<std::pair<func::FuncOp, LinearLayers>> entries;
    llvm::StringSet<> heads, known;
    FailureOr<SmallVector<func::FuncOp>> functions = findBodies(getOperation());
    if (failed(functions))
      return signalPassFailure();
    for (func::FuncOp function : *functions) {
      entries.emplace_back(function, LinearLayers(function));
      entries.back().second.findHeads(heads);
    }
    llvm::stable_sort(entries, [](const auto &a, const auto &b) {
      return a.second.trains() && !b.second.trains();
    });
    for (auto &[function, layers] : entries)
      Scaling(function, layers, history, margin, known).run(layers.find(heads));
    getOperation().walk([](Operation *op) { op->removeAttr(kPrecisionAttr); });
  }
};
} // namespace
