//===- ApplyOptimizer.cpp - From gradients to a training step -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CheckFinite.h"
#include "Optimizers/UpdateBuilder.h"
#include "Optimizers/WrittenRule.h"
#include "cleave/Dialect/Graph/Analysis/InputValues.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "cleave/Support/PassCounts.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Debug.h"
#include "llvm/Support/FormatVariadic.h"
#include <list>

#define DEBUG_TYPE "graph-apply-optimizer"

static cleave::PassCount updatedParameters(DEBUG_TYPE,
                                           "Parameters that are updated");
static cleave::PassCount stateTensors(DEBUG_TYPE,
                                      "Tensors of the optimizer's state");

namespace cleave::graph {
#define GEN_PASS_DEF_APPLYOPTIMIZER
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {

/// One trained parameter, its rule, its gradient, and the result of its update.
struct Update {
  explicit Update(TrainedParameter parameter)
      : parameter(std::move(parameter)) {}

  TrainedParameter parameter;
  GradientOp gradient;
  const OptimizerRule *rule = nullptr;
  OptimizerSettings settings;
  SmallVector<StateSlot> slots;
  /// The parameter's state before and after, one for each slot.
  SmallVector<Value, 2> state, newState;
  Value newParameter;
};

std::string slotName(const Update &update, const StateSlot &slot) {
  return (update.parameter.name() + "." + slot.name).str();
}

class Optimizer {
public:
  Optimizer(func::FuncOp step, const OptimizerOptions &options)
      : step(step), block(step.getBody().front()), options(options),
        builder(step.getContext()) {}

  LogicalResult run();

private:
  LogicalResult checkOptions();
  LogicalResult findGradients();
  LogicalResult chooseRule(Update &update);
  void addArguments();
  void scaleLoss();
  void checkCounts();
  SmallVector<Value> gradients() const;
  void clip();
  void update(Update &update);
  Value learningRate(const Update &update);
  LogicalResult markWritten();
  void setResults();

  bool clips() const { return options.maxGradNorm > 0.0; }
  std::optional<double> argumentNumber(const Update &update,
                                       StringRef attribute);
  const OptimizerRule *findRule(StringRef name, std::string &why);

  func::FuncOp step;
  Block &block;
  const OptimizerOptions &options;
  OpBuilder builder;
  std::vector<Update> updates;
  /// Rules that the module defines, by name, and their scalar arguments.
  std::map<std::string, WrittenRule> written;
  llvm::StringMap<Value> given;
  Value lr, number, lossScale;       ///< the scalar arguments
  StepScalars scalars;               ///< of rules
  Value gradientNorm, gradientScale; ///< with clipping
  std::map<double, Value> scaledLr;  ///< one per factor in use
};

LogicalResult Optimizer::checkOptions() {
  const OptimizerRule *rule = findOptimizerRule(options.rule);
  std::string why =
      rule ? checkSettings(*rule, options.settings)
           : llvm::formatv("unknown optimizer '{0}'; there are {1}",
                           options.rule, optimizerRuleNames())
                 .str();
  if (why.empty() && !(options.maxGradNorm >= 0.0 &&
                       llvm::APFloat(options.maxGradNorm).isFinite()))
    why = "the norm to clip to must not be negative";
  if (why.empty())
    return success();
  return step.emitError() << (rule ? "optimizer: " : "") << why;
}

/// The rule `name` of the table, or "@name", which the module defines. Returns
/// null and sets `why` where there is none.
const OptimizerRule *Optimizer::findRule(StringRef name, std::string &why) {
  if (!name.consume_front("@")) {
    const OptimizerRule *rule = findOptimizerRule(name);
    if (!rule)
      why = llvm::formatv("unknown optimizer '{0}'; there are {1}", name,
                          optimizerRuleNames());
    return rule;
  }
  if (auto known = written.find(name.str()); known != written.end())
    return &known->second;
  func::FuncOp function = findUpdate(step, name);
  if (!function) {
    why = llvm::formatv("the module has no update '@{0}' in '@{1}'", name,
                        kUpdatesModule);
    return nullptr;
  }
  WrittenRule rule(function);
  why = rule.problem();
  if (!why.empty())
    return nullptr;
  return &written.emplace(name.str(), rule).first->second;
}

/// The rule and the settings of one parameter: those of the step, with what its
/// attributes say. Another rule than the step's begins with its own defaults.
LogicalResult Optimizer::chooseRule(Update &update) {
  unsigned index = update.parameter.argument().getArgNumber();
  auto error = [&](const Twine &why) {
    return emitError(update.parameter.argument().getLoc())
           << "parameter \"" << update.parameter.name() << "\": " << why;
  };
  std::string name = options.rule;
  auto own = step.getArgAttrOfType<DictionaryAttr>(index, kOptimizerAttr);
  if (own)
    if (auto rule = own.getAs<StringAttr>(kRuleEntry))
      name = rule.str();
  std::string problem;
  update.rule = findRule(name, problem);
  if (!update.rule)
    return error(problem);
  OptimizerSettings given;
  if (name == options.rule)
    given = options.settings;
  if (own)
    for (NamedAttribute setting : own)
      if (auto number = dyn_cast<FloatAttr>(setting.getValue()))
        given[setting.getName().str()] = number.getValueAsDouble();
  if (auto decay = argumentNumber(update, kWeightDecayAttr))
    given["weight_decay"] = *decay;
  std::string why = checkSettings(*update.rule, given);
  if (why.empty())
    why = update.rule->refusal(update.parameter);
  if (!why.empty())
    return error(why);
  update.settings = completeSettings(*update.rule, given);
  update.slots = update.rule->slots(update.parameter, update.settings);
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
    Update update(TrainedParameter(step, argument));
    StringRef name = update.parameter.name();
    update.gradient = gradients.lookup(name);
    if (!update.gradient)
      return emitError(argument.getLoc())
             << "parameter \"" << name << "\" has no graph.gradient in '@"
             << step.getSymName() << "'; run --graph-differentiate before";
    if (failed(chooseRule(update)))
      return failure();
    updates.push_back(std::move(update));
  }
  if (updates.empty())
    return step.emitError()
           << "'@" << step.getSymName() << "' has no parameter to train";
  return success();
}

/// The stored shape of a tensor of state.
static SmallVector<int64_t> shapeOf(const Update &update,
                                    const StateSlot &slot) {
  if (!slot.sizes.empty())
    return slot.sizes;
  return llvm::map_to_vector(slot.dims, [&](int64_t dim) {
    return update.parameter.type().getDimSize(dim);
  });
}

/// The attributes of a tensor of state that say what it belongs to. One with
/// other dimensions than its parameter's has their numbers.
static SmallVector<NamedAttribute> stateAttributes(func::FuncOp step,
                                                   const Update &update,
                                                   const StateSlot &slot) {
  Builder builder(step.getContext());
  SmallVector<NamedAttribute> attributes{
      builder.getNamedAttr(kOfAttr,
                           builder.getStringAttr(update.parameter.name())),
      builder.getNamedAttr(kSlotAttr, builder.getStringAttr(slot.name))};
  SmallVector<int64_t> sizes = shapeOf(update, slot);
  if (slot.dims != update.parameter.all() || !slot.sizes.empty())
    attributes.push_back(builder.getNamedAttr(
        kParameterDimsAttr, builder.getDenseI64ArrayAttr(slot.dims)));
  SmallVector<int64_t> shape =
      update.parameter.frameworkShape(slot.dims, sizes);
  if (step.getArgAttr(update.parameter.argument().getArgNumber(),
                      kFrameworkShapeAttr) &&
      shape.size() != sizes.size())
    attributes.push_back(builder.getNamedAttr(
        kFrameworkShapeAttr, builder.getDenseI64ArrayAttr(shape)));
  return attributes;
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
    for (const StateSlot &slot : update.slots) {
      Type element = update.parameter.type().getElementType();
      add(RankedTensorType::get(shapeOf(update, slot),
                                slot.element ? slot.element : element),
          slotName(update, slot), "state", stateAttributes(step, update, slot));
    }
  add(RankedTensorType::get({}, builder.getF32Type()), "lr", "scalar");
  add(RankedTensorType::get({}, builder.getI64Type()), "step", "scalar");
  if (options.scaleLoss)
    add(RankedTensorType::get({}, builder.getF32Type()), "loss_scale",
        "scalar");

  std::vector<std::string> names;
  for (const auto &[name, rule] : written)
    for (const std::string &scalar : rule.scalars())
      if (given.try_emplace(scalar).second) {
        names.push_back(scalar);
        add(RankedTensorType::get({}, builder.getF32Type()), scalar, "scalar");
      }

  unsigned first = step.getNumArguments();
  // Inserting an argument of tensor type cannot fail.
  (void)step.insertArguments(
      SmallVector<unsigned>(types.size(), first), types, attributes,
      SmallVector<Location>(types.size(), step.getLoc()));
  for (Update &update : updates)
    for (size_t i = 0; i < update.slots.size(); ++i)
      update.state.push_back(step.getArgument(first++));
  lr = step.getArgument(first++);
  number = step.getArgument(first++);
  if (options.scaleLoss)
    lossScale = step.getArgument(first++);
  for (const std::string &name : names)
    given[name] = step.getArgument(first++);
}

/// Backward begins from the scale in place of 1; updates divide by it.
void Optimizer::scaleLoss() {
  for (SeedOp seed : block.getOps<SeedOp>()) {
    builder.setInsertionPoint(seed);
    Value scale = lossScale;
    Type element = tensorTypeOf(seed.getLoss()).getElementType();
    if (element != tensorTypeOf(scale).getElementType())
      scale = Formula{builder, seed.getLoc()}.cast(scale, element);
    if (Value old = seed.getScale())
      scale = Formula{builder, seed.getLoc()}.mul(old, scale);
    seed.getScaleMutable().assign(scale);
  }
  // Updates read it in the type of a norm of all gradients.
  builder.setInsertionPoint(block.getTerminator());
  Formula f{builder, step.getLoc()};
  Type element = tensorTypeOf(gradients().front()).getElementType();
  if (llvm::all_of(gradients(), [&](Value gradient) {
        return tensorTypeOf(gradient).getElementType() == element;
      }))
    lossScale = f.cast(lossScale, element);
  gradientScale = f.div(f.scalar(lossScale, 1.0), lossScale);
}

/// Whether `value` counts elements: an integer, or a sum of flags as floats.
bool isCount(Value value) {
  if (isa<IntegerType>(tensorTypeOf(value).getElementType()))
    return true;
  Operation *op = value.getDefiningOp();
  if (auto reduce = dyn_cast_or_null<ReduceOp>(op);
      reduce && reduce.getKind() != ReductionKind::Sum)
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

/// norm = |all gradients|, scale = min(1, c / (norm + 1e-6)); of gradients that
/// are not scaled with the loss any more.
void Optimizer::clip() {
  builder.setInsertionPoint(block.getTerminator());
  Formula f{builder, step.getLoc()};
  gradientNorm = buildGlobalNorm(builder, f.loc, gradients());
  if (lossScale)
    gradientNorm = f.div(gradientNorm, lossScale);
  buildFiniteCheck(builder, f.loc, gradientNorm,
                   "the norm of the gradients is not finite",
                   options.scaleLoss);
  Value quotient = f.div(f.scalar(gradientNorm, options.maxGradNorm),
                         f.add(gradientNorm, f.scalar(gradientNorm, 1e-6)));
  Value scale =
      MinimumOp::create(builder, f.loc, quotient, f.scalar(gradientNorm, 1.0));
  gradientScale = lossScale ? f.div(scale, lossScale) : scale;
}

std::optional<double> Optimizer::argumentNumber(const Update &update,
                                                StringRef attribute) {
  auto number = step.getArgAttrOfType<FloatAttr>(
      update.parameter.argument().getArgNumber(), attribute);
  return number ? std::optional(number.getValueAsDouble()) : std::nullopt;
}

/// The learning rate times the parameter's own factor.
Value Optimizer::learningRate(const Update &update) {
  double factor = argumentNumber(update, kLrScaleAttr).value_or(1.0);
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
  if (!clips() && !options.checkFinite && !options.scaleLoss)
    builder.setInsertionPointAfter(update.gradient);
  UpdateBuilder b(builder, update.parameter, update.settings, scalars);
  b.gradient = update.gradient.getOutput();
  b.lr = learningRate(update);
  b.number = number;
  b.gradientScale = gradientScale;
  b.given = given;
  b.state.assign(update.state.begin(), update.state.end());
  SmallVector<Value> results = update.rule->update(b);
  update.newParameter = results.front();
  llvm::append_range(update.newState, ArrayRef(results).drop_front());
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
             << "a result of '@" << step.getSymName() << "' updates \""
             << name.getValue() << "\", which is no buffer of its type";
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
    append(update.newParameter, single(kUpdatesAttr, update.parameter.name()));
    for (auto [slot, value] : llvm::zip(update.slots, update.newState))
      append(value, single(kUpdatesAttr, slotName(update, slot)));
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
  checkCounts();
  if (options.checkFinite)
    buildFiniteChecks(builder, step,
                      clips() ? SmallVector<Value>() : gradients(),
                      options.scaleLoss);
  if (options.scaleLoss)
    scaleLoss();
  if (clips())
    clip();
  if (failed(markWritten()))
    return failure();
  for (Update &parameter : updates)
    update(parameter);
  if (auto module = step->getParentOfType<ModuleOp>())
    if (auto unused = module.lookupSymbol<ModuleOp>(kUpdatesModule))
      unused.erase();
  setResults();
  return success();
}

struct ApplyOptimizer final
    : cleave::graph::impl::ApplyOptimizerBase<ApplyOptimizer> {
  using ApplyOptimizerBase =
      cleave::graph::impl::ApplyOptimizerBase<ApplyOptimizer>;

  ApplyOptimizer() { addSettings(); }
  ApplyOptimizer(const ApplyOptimizer &other) : ApplyOptimizerBase(other) {
    addSettings();
  }
  explicit ApplyOptimizer(ApplyOptimizerOptions options)
      : ApplyOptimizerBase(std::move(options)) {
    addSettings();
  }
  explicit ApplyOptimizer(const OptimizerOptions &options) {
    addSettings();
    optimizer = options.rule;
    maxGradNorm = options.maxGradNorm;
    checkFinite = options.checkFinite;
    scaleLoss = options.scaleLoss;
    for (auto &[name, option] : settings)
      if (auto it = options.settings.find(name); it != options.settings.end())
        *option = settingText(it->second);
  }

  void runOnOperation() override {
    FailureOr<func::FuncOp> step = findEntry(getOperation(), entry);
    if (failed(step))
      return signalPassFailure();
    OptimizerOptions options;
    options.rule = optimizer;
    options.maxGradNorm = maxGradNorm;
    options.checkFinite = checkFinite;
    options.scaleLoss = scaleLoss;
    for (const auto &[name, option] : settings) {
      StringRef text = option->getValue();
      if (text.empty())
        continue;
      std::optional<double> value = parseSetting(text);
      if (!value) {
        step->emitError() << "optimizer: " << name << " is '" << text
                          << "', which is not a number";
        return signalPassFailure();
      }
      options.settings[name] = *value;
    }
    if (failed(applyOptimizer(*step, options)))
      return signalPassFailure();
    count(*step);
  }

  void count(func::FuncOp step) {
    for (unsigned i = 0; i < step.getNumArguments(); ++i)
      stateTensors += isOptimizerState(step, i);
    for (BlockArgument argument : updatedArguments(step)) {
      if (!argument || !isTrained(step, argument.getArgNumber()))
        continue;
      ++updatedParameters;
      LLVM_DEBUG(llvm::dbgs()
                 << "@" << step.getSymName() << " updates "
                 << nameArgument(step, argument.getArgNumber()) << "\n");
    }
  }

private:
  /// An option for each setting that a rule declares.
  void addSettings() {
    for (const NamedSetting &setting : allOptimizerSettings()) {
      flagNames.push_back(llvm::join(llvm::split(setting.name, '_'), "-"));
      texts.push_back(setting.text);
      settings.emplace_back(
          setting.name.str(),
          std::make_unique<Option<std::string>>(*this, flagNames.back(),
                                                llvm::cl::desc(texts.back())));
    }
  }

  /// What options refer to.
  std::list<std::string> flagNames, texts;
  SmallVector<std::pair<std::string, std::unique_ptr<Option<std::string>>>>
      settings;
};

} // namespace

LogicalResult cleave::graph::applyOptimizer(func::FuncOp step,
                                            const OptimizerOptions &options) {
  return Optimizer(step, options).run();
}

std::unique_ptr<Pass>
cleave::graph::createApplyOptimizerWith(const OptimizerOptions &options) {
  return std::make_unique<ApplyOptimizer>(options);
}

std::string cleave::graph::whyRefused(const OptimizerRule &rule,
                                      func::FuncOp entry,
                                      BlockArgument parameter) {
  return rule.refusal(TrainedParameter(entry, parameter));
}
