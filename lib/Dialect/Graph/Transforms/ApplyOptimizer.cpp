//===- ApplyOptimizer.cpp - From gradients to a training step -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CheckFinite.h"
#include "InputValues.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/Transforms/Optimizer.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include <limits>
#include <map>

namespace cleave::graph {
#define GEN_PASS_DEF_APPLYOPTIMIZER
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {

/// One trained parameter, its gradient, and the result of its update.
struct Update {
  BlockArgument parameter;
  StringRef name;
  GradientOp gradient;
  /// The parameter's state before and after, one for each slot.
  SmallVector<Value, 2> state, newState;
  Value newParameter;
};

class Optimizer {
public:
  Optimizer(func::FuncOp step, const OptimizerOptions &options)
      : step(step), block(step.getBody().front()), options(options),
        builder(step.getContext()) {}

  LogicalResult run();

private:
  LogicalResult checkOptions();
  LogicalResult findGradients();
  void addArguments();
  void buildScalars();
  void checkCounts();
  SmallVector<Value> gradients() const;
  void clip();
  void update(Update &update);
  Value learningRate(const Update &update);
  LogicalResult markWritten();
  void setResults();

  bool clips() const { return options.maxGradNorm > 0.0; }
  ArrayRef<StringLiteral> slots() const;
  double argumentNumber(const Update &update, StringRef attribute,
                        double otherwise);

  func::FuncOp step;
  Block &block;
  const OptimizerOptions &options;
  OpBuilder builder;
  SmallVector<Update> updates;
  Value lr, number;                   ///< the scalar arguments
  Value correction1, sqrtCorrection2; ///< AdamW's bias corrections
  Value gradientNorm, gradientScale;  ///< with clipping
  std::map<double, Value> scaledLr;   ///< one per factor in use
};

LogicalResult Optimizer::checkOptions() {
  auto reject = [&](const Twine &what) {
    return step.emitError() << "optimizer: " << what;
  };
  auto inUnit = [](double value) { return value >= 0.0 && value < 1.0; };
  auto notNegative = [](double value) {
    return value >= 0.0 && value < std::numeric_limits<double>::infinity();
  };
  if (!inUnit(options.beta1) || !inUnit(options.beta2))
    return reject("beta1 and beta2 must be at least 0 and below 1");
  if (!notNegative(options.epsilon))
    return reject("epsilon must not be negative");
  if (!notNegative(options.effectiveWeightDecay()))
    return reject("weight decay must not be negative");
  if (!notNegative(options.momentum))
    return reject("momentum must not be negative");
  if (!notNegative(options.maxGradNorm))
    return reject("the norm to clip to must not be negative");
  if (options.nesterov && (options.momentum == 0.0 || options.dampening != 0.0))
    return reject("Nesterov's momentum needs momentum and no dampening");
  return success();
}

LogicalResult Optimizer::findGradients() {
  llvm::StringMap<GradientOp> gradients;
  for (auto gradient : block.getOps<GradientOp>())
    if (!gradients.try_emplace(gradient.getParameter(), gradient).second)
      return gradient.emitOpError("is the second gradient of \"")
             << gradient.getParameter() << "\"";
  for (BlockArgument argument : step.getArguments()) {
    if (hasRole(step, argument.getArgNumber(), "state"))
      return emitError(argument.getLoc())
             << "'@" << step.getSymName() << "' has an optimizer already";
    if (!isTrained(step, argument.getArgNumber()))
      continue;
    Update update;
    update.parameter = argument;
    update.name = getArgString(step, argument.getArgNumber(), kNameAttr);
    update.gradient = gradients.lookup(update.name);
    if (!update.gradient)
      return emitError(argument.getLoc())
             << "parameter \"" << update.name
             << "\" has no graph.gradient in '@" << step.getSymName()
             << "'; run --graph-differentiate before";
    updates.push_back(update);
  }
  if (updates.empty())
    return step.emitError()
           << "'@" << step.getSymName() << "' has no parameter to train";
  return success();
}

ArrayRef<StringLiteral> Optimizer::slots() const {
  static constexpr StringLiteral adamw[] = {"exp_avg", "exp_avg_sq"};
  static constexpr StringLiteral sgd[] = {"momentum_buffer"};
  if (options.kind == OptimizerOptions::Kind::AdamW)
    return adamw;
  return options.momentum != 0.0 ? ArrayRef<StringLiteral>(sgd)
                                 : ArrayRef<StringLiteral>();
}

void Optimizer::addArguments() {
  SmallVector<Type> types;
  SmallVector<DictionaryAttr> attributes;
  auto add = [&](Type type, StringRef name, StringRef role,
                 SmallVector<NamedAttribute> more = {}) {
    more.push_back(
        builder.getNamedAttr(kNameAttr, builder.getStringAttr(name)));
    more.push_back(
        builder.getNamedAttr(kRoleAttr, builder.getStringAttr(role)));
    types.push_back(type);
    attributes.push_back(builder.getDictionaryAttr(more));
  };
  for (Update &update : updates)
    for (StringRef slot : slots()) {
      SmallVector<NamedAttribute> more{
          builder.getNamedAttr(kOfAttr, builder.getStringAttr(update.name)),
          builder.getNamedAttr(kSlotAttr, builder.getStringAttr(slot))};
      if (Attribute shape = step.getArgAttr(update.parameter.getArgNumber(),
                                            kFrameworkShapeAttr))
        more.push_back(builder.getNamedAttr(kFrameworkShapeAttr, shape));
      add(update.parameter.getType(), (update.name + "." + slot).str(), "state",
          more);
    }
  add(RankedTensorType::get({}, builder.getF32Type()), "lr", "scalar");
  add(RankedTensorType::get({}, builder.getI64Type()), "step", "scalar");

  unsigned first = step.getNumArguments();
  // Inserting an argument of tensor type cannot fail.
  (void)step.insertArguments(
      SmallVector<unsigned>(types.size(), first), types, attributes,
      SmallVector<Location>(types.size(), step.getLoc()));
  for (Update &update : updates)
    for (size_t i = 0; i < slots().size(); ++i)
      update.state.push_back(step.getArgument(first++));
  lr = step.getArgument(first++);
  number = step.getArgument(first);
}

/// AdamW's bias corrections, 1 - beta1^t and sqrt(1 - beta2^t), once per step.
void Optimizer::buildScalars() {
  if (options.kind != OptimizerOptions::Kind::AdamW)
    return;
  builder.setInsertionPointToStart(&block);
  Formula f{builder, step.getLoc()};
  Value t = f.cast(number, builder.getF64Type());
  Value one = f.scalar(t, 1.0);
  auto correction = [&](double beta) {
    return f.sub(one, f.pow(f.scalar(t, beta), t));
  };
  correction1 = f.cast(correction(options.beta1), builder.getF32Type());
  sqrtCorrection2 =
      f.cast(SqrtOp::create(builder, f.loc, correction(options.beta2)),
             builder.getF32Type());
}

/// Whether `value` counts elements: an integer, or a sum of flags as floats.
bool isCount(Value value) {
  if (isa<IntegerType>(tensorTypeOf(value).getElementType()))
    return true;
  Operation *op = value.getDefiningOp();
  if (auto reduce = dyn_cast_or_null<ReduceOp>(op);
      reduce && reduce.getKind() != ReductionKind::sum)
    return false;
  if (isa_and_nonnull<CastOp, ReduceOp, ReshapeOp, BroadcastOp>(op))
    return isCount(op->getOperand(0));
  return false;
}

/// A loss that is a mean over counted elements is undefined if there are none.
void Optimizer::checkCounts() {
  llvm::DenseSet<Value> checked;
  for (DivOp div : llvm::to_vector(block.getOps<DivOp>())) {
    Value count = div.getRhs();
    if (tensorTypeOf(count).getRank() != 0 || !isCount(count) ||
        !dependsOnInputsAlone(step, count) || !checked.insert(count).second)
      continue;
    builder.setInsertionPointAfterValue(count);
    Formula f{builder, div.getLoc()};
    CheckOp::create(builder, div.getLoc(),
                    f.compare(Predicate::ne, count, f.scalar(count, 0.0)),
                    "the loss is a mean over no elements: every target of this "
                    "batch is ignored");
  }
}

SmallVector<Value> Optimizer::gradients() const {
  return llvm::map_to_vector(updates, [](const Update &update) -> Value {
    return const_cast<GradientOp &>(update.gradient).getOutput();
  });
}

/// norm = |all gradients|, scale = min(1, c / (norm + 1e-6)).
void Optimizer::clip() {
  builder.setInsertionPoint(block.getTerminator());
  Formula f{builder, step.getLoc()};
  gradientNorm = buildGlobalNorm(builder, f.loc, gradients());
  buildFiniteCheck(builder, f.loc, gradientNorm,
                   "the norm of the gradients is not finite");
  Value quotient = f.div(f.scalar(gradientNorm, options.maxGradNorm),
                         f.add(gradientNorm, f.scalar(gradientNorm, 1e-6)));
  gradientScale =
      MinimumOp::create(builder, f.loc, quotient, f.scalar(gradientNorm, 1.0));
}

double Optimizer::argumentNumber(const Update &update, StringRef attribute,
                                 double otherwise) {
  auto number = step.getArgAttrOfType<FloatAttr>(
      update.parameter.getArgNumber(), attribute);
  return number ? number.getValueAsDouble() : otherwise;
}

/// The learning rate times the parameter's own factor.
Value Optimizer::learningRate(const Update &update) {
  double factor = argumentNumber(update, kLrScaleAttr, 1.0);
  if (factor == 1.0)
    return lr;
  Value &scaled = scaledLr[factor];
  if (!scaled) {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToStart(&block);
    Formula f{builder, step.getLoc()};
    scaled = f.mul(lr, f.scalar(lr, factor));
  }
  return scaled;
}

void Optimizer::update(Update &update) {
  // Without clipping, the update directly follows the gradient, so that its
  // memory is released early.
  if (!clips() && !options.checkFinite)
    builder.setInsertionPointAfter(update.gradient);
  Location loc = update.parameter.getLoc();
  Value gradient = update.gradient.getOutput();
  Value rate = learningRate(update);
  auto attribute = [&](double value) { return llvm::APFloat(value); };
  double decay =
      argumentNumber(update, kWeightDecayAttr, options.effectiveWeightDecay());
  Operation *op;
  if (options.kind == OptimizerOptions::Kind::AdamW)
    op = AdamWOp::create(builder, loc, update.parameter, gradient,
                         update.state[0], update.state[1], rate, correction1,
                         sqrtCorrection2, gradientScale,
                         attribute(options.beta1), attribute(options.beta2),
                         attribute(options.epsilon), attribute(decay));
  else
    op = SgdOp::create(builder, loc, update.parameter, gradient,
                       update.state.empty() ? Value() : update.state[0], rate,
                       number, gradientScale, attribute(options.momentum),
                       attribute(options.dampening), attribute(decay),
                       options.nesterov);
  update.newParameter = op->getResult(0);
  llvm::append_range(update.newState, op->getResults().drop_front());
}

/// Marks what the model writes to buffers as part of the update. A value that
/// it leaves as it is, is no result.
LogicalResult Optimizer::markWritten() {
  auto returnOp = cast<func::ReturnOp>(block.getTerminator());
  builder.setInsertionPoint(returnOp);
  for (OpOperand &operand : returnOp->getOpOperands()) {
    auto name = step.getResultAttrOfType<StringAttr>(operand.getOperandNumber(),
                                                     kUpdatesAttr);
    if (!name)
      continue;
    BlockArgument *buffer =
        llvm::find_if(step.getArguments(), [&](BlockArgument argument) {
          return getArgString(step, argument.getArgNumber(), kNameAttr) ==
                 name.getValue();
        });
    if (buffer == step.getArguments().end() ||
        !hasRole(step, buffer->getArgNumber(), "buffer") ||
        buffer->getType() != operand.get().getType())
      return step.emitError()
             << "result " << operand.getOperandNumber() << " of '@"
             << step.getSymName() << "' updates \"" << name.getValue()
             << "\", which is no buffer of its type";
    operand.set(WrittenOp::create(builder, operand.get().getLoc(),
                                  operand.get(), name));
  }
  return success();
}

/// Results: those of the model, the norm, each parameter and its state.
void Optimizer::setResults() {
  auto returnOp = cast<func::ReturnOp>(block.getTerminator());
  SmallVector<Value> operands;
  SmallVector<DictionaryAttr> attributes;
  auto append = [&](Value value, DictionaryAttr dictionary) {
    operands.push_back(value);
    attributes.push_back(dictionary);
  };
  auto single = [&](StringRef key, StringRef value) {
    return builder.getDictionaryAttr(
        builder.getNamedAttr(key, builder.getStringAttr(value)));
  };
  for (auto [index, value] : llvm::enumerate(returnOp.getOperands())) {
    DictionaryAttr dictionary = step.getResultAttrDict(index);
    if (dictionary && dictionary.get(kOfAttr))
      continue;
    NamedAttrList kept(dictionary);
    kept.erase(kLossAttr);
    append(value, kept.getDictionary(builder.getContext()));
  }
  if (gradientNorm)
    append(gradientNorm, single(kNameAttr, "grad_norm"));
  for (Update &update : updates) {
    append(update.newParameter, single(kUpdatesAttr, update.name));
    for (auto [slot, value] : llvm::zip(slots(), update.newState))
      append(value, single(kUpdatesAttr, (update.name + "." + slot).str()));
  }
  returnOp.getOperandsMutable().assign(operands);
  step.setType(builder.getFunctionType(step.getArgumentTypes(),
                                       ValueRange(operands).getTypes()));
  step.setAllResultAttrs(attributes);
}

LogicalResult Optimizer::run() {
  if (failed(checkOptions()) || failed(findGradients()))
    return failure();
  addArguments();
  buildScalars();
  checkCounts();
  if (options.checkFinite)
    buildFiniteChecks(builder, step,
                      clips() ? SmallVector<Value>() : gradients());
  if (clips())
    clip();
  if (failed(markWritten()))
    return failure();
  for (Update &parameter : updates)
    update(parameter);
  setResults();
  return success();
}

struct ApplyOptimizer final
    : cleave::graph::impl::ApplyOptimizerBase<ApplyOptimizer> {
  using ApplyOptimizerBase::ApplyOptimizerBase;

  void runOnOperation() override {
    FailureOr<func::FuncOp> step = findEntry(getOperation(), entry);
    if (failed(step))
      return signalPassFailure();
    OptimizerOptions options;
    if (optimizer == "sgd") {
      options.kind = OptimizerOptions::Kind::Sgd;
    } else if (optimizer != "adamw") {
      step->emitError() << "unknown optimizer '" << optimizer
                        << "'; there are adamw and sgd";
      return signalPassFailure();
    }
    options.beta1 = beta1;
    options.beta2 = beta2;
    options.epsilon = eps;
    if (weightDecay >= 0.0)
      options.weightDecay = weightDecay;
    options.momentum = momentum;
    options.dampening = dampening;
    options.nesterov = nesterov;
    options.maxGradNorm = maxGradNorm;
    options.checkFinite = checkFinite;
    if (failed(applyOptimizer(*step, options)))
      signalPassFailure();
  }
};

} // namespace

LogicalResult cleave::graph::applyOptimizer(func::FuncOp step,
                                            const OptimizerOptions &options) {
  return Optimizer(step, options).run();
}
