//===- FindSizes.cpp - The sizes of a model -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SizeFinder.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Planning/CostForms.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;
using closedforms::ModelSizes;

double SizeFinder::elementsOf(Value value) {
  return static_cast<double>(
      cast<RankedTensorType>(value.getType()).getNumElements());
}

Value SizeFinder::lookThrough(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<ReshapeOp, TransposeOp, CastOp, BroadcastOp, SliceOp>(op))
      break;
    value = op->getOperand(0);
  }
  return value;
}

bool SizeFinder::isContraction(Operation *op) {
  return isa<ContractOp, LinearOp, GroupedLinearOp>(op);
}

closedforms::Parameter *SizeFinder::parameterOf(Value value) {
  auto it = parameters.find(lookThrough(value));
  return it == parameters.end() ? nullptr : &sizes.parameters[it->second];
}

Operation *SizeFinder::contractionOf(Value value) const {
  while (Operation *op = value.getDefiningOp()) {
    if (isContraction(op))
      return op;
    if (auto add = dyn_cast<AddOp>(op)) {
      // A bias.
      bool left = isOfParameters(add.getLhs());
      if (left == isOfParameters(add.getRhs()))
        return nullptr;
      value = left ? add.getRhs() : add.getLhs();
      continue;
    }
    if (auto mul = dyn_cast<MulOp>(op)) {
      bool left = !trained.contains(mul.getLhs());
      if (left == !trained.contains(mul.getRhs()))
        return nullptr;
      value = left ? mul.getRhs() : mul.getLhs();
      continue;
    }
    if (!isa<ReshapeOp, TransposeOp, CastOp, DropoutOp, SliceOp>(op))
      return nullptr;
    value = op->getOperand(0);
  }
  return nullptr;
}

void SizeFinder::addContraction(Operation &op) {
  closedforms::Contraction own;
  own.operations =
      static_cast<double>(cast<CostOpInterface>(op).getCost().flops);
  own.inBlock = true;
  own.inRegion = checkpointRegion(op.getLoc()).has_value();
  own.output = elementsOf(op.getResult(0));
  auto precision = op.getAttrOfType<StringAttr>("graph.precision");
  for (Value factor : {op.getOperand(0), op.getOperand(1)}) {
    own.gradients += hasGradient(factor);
    if (closedforms::Parameter *parameter = parameterOf(factor)) {
      parameter->multiplied = parameter->hasFeatures = true;
      parameter->readByBackward = true;
      parameter->staysWide = precision && precision.getValue() == "f32";
      own.hasWeight = true;
      own.weight = parameter->elements;
    } else {
      own.input = elementsOf(factor);
      own.sharesInput = !read.insert(lookThrough(factor)).second;
    }
  }
  if (auto contract = dyn_cast<ContractOp>(op))
    addExperts(contract, own);
  if (auto grouped = dyn_cast<GroupedLinearOp>(op))
    addRowsOfExperts(grouped);
  // The bias of a contraction whose output is sharded is sharded with it, until
  // an addition to the stream says that it is summed.
  if (auto linear = dyn_cast<LinearOp>(op); linear && linear.getBias())
    if (closedforms::Parameter *bias = parameterOf(linear.getBias()))
      bias->hasFeatures = true;
  contractions[&op] = sizes.contractions.size();
  sizes.contractions.push_back(own);
}

/// Scores of attention in which query i sees keys up to its own position, at
/// most `window` of them: a triangle less the one outside of the window.
static double visible(double queries, double keys, bool causal,
                      std::optional<double> window) {
  auto triangle = [](double n) { return n > 0 ? n * (n + 1) / 2 : 0; };
  if (!causal)
    return queries * keys;
  double all = triangle(keys) - triangle(keys - queries);
  if (!window)
    return all;
  return all - (triangle(keys - *window) - triangle(keys - queries - *window));
}

void SizeFinder::addAttention(AttentionOp op) {
  auto q = cast<RankedTensorType>(op.getQuery().getType()).getShape();
  auto k = cast<RankedTensorType>(op.getKey().getType()).getShape();
  closedforms::Attention own;
  own.batch = static_cast<double>(q[0]);
  own.heads = static_cast<double>(q[1]);
  own.queries = static_cast<double>(q[2]);
  own.headSize = static_cast<double>(q[3]);
  own.keyHeads = static_cast<double>(k[1]);
  own.keys = static_cast<double>(k[2]);
  std::optional<double> window;
  if (op.getWindow())
    window = static_cast<double>(*op.getWindow());
  own.scores = own.batch * own.heads *
               visible(own.queries, own.keys, op.getCausal(), window) /
               static_cast<double>(op.getBlocks());
  own.learnedBias = op.getBias() && hasGradient(op.getBias());
  own.inRegion = checkpointRegion(op.getLoc()).has_value();
  sizes.attentions.push_back(own);
}

/// An activation, and a product of one and of another output.
void SizeFinder::addActivation(Operation &op) {
  auto mark = [&](Value value) {
    Operation *from = contractionOf(value);
    if (from)
      sizes.contractions[contractions.at(from)].activated = true;
    return from != nullptr;
  };
  if (isa<ReluOp, GeluOp, SiluOp, TanhOp, SigmoidOp>(op)) {
    if (mark(op.getOperand(0)))
      activations.insert(op.getResult(0));
    return;
  }
  for (auto [own, other] : {std::pair(0, 1), std::pair(1, 0)})
    if (activations.contains(op.getOperand(own)) && mark(op.getOperand(other)))
      ++sizes.gates;
}

void SizeFinder::addLookup(GatherOp op) {
  closedforms::Parameter *table = parameterOf(op.getInput());
  if (!table)
    return;
  if (constants.contains(op.getIndices())) {
    table->positions = true;
    return;
  }
  if (choice && lookThrough(op.getIndices()) == choice.getIndices()) {
    // A bias of experts.
    table->experts = static_cast<double>(
        cast<RankedTensorType>(op.getInput().getType()).getDimSize(0));
    table->hasFeatures = true;
    return;
  }
  table->lookedUp = table->hasFeatures = true;
  sizes.lookedUp += elementsOf(op.getOutput());
}

void SizeFinder::addBranch(AddOp op) {
  auto type = cast<RankedTensorType>(op.getOutput().getType());
  for (auto [own, other] : {std::pair(op.getLhs(), op.getRhs()),
                            std::pair(op.getRhs(), op.getLhs())})
    if (closedforms::Parameter *parameter = parameterOf(own);
        parameter && hasGradient(other) && !isOfParameters(other)) {
      // A bias of experts, a table with a row for each position, or a bias.
      if (ofExperts.contains(other)) {
        parameter->experts = static_cast<double>(
            cast<RankedTensorType>(lookThrough(own).getType()).getDimSize(0));
        parameter->hasFeatures = true;
      } else if (cast<RankedTensorType>(own.getType()).getRank() > 1 &&
                 !parameter->multiplied)
        parameter->positions = true;
      else if (contractionOf(other))
        parameter->hasFeatures = true;
      return;
    }
  if (op.getLhs().getType() != type || op.getRhs().getType() != type ||
      type.getRank() < 3 || !hasGradient(op.getLhs()) ||
      !hasGradient(op.getRhs()))
    return;
  for (auto [branch, stream] : {std::pair(op.getRhs(), op.getLhs()),
                                std::pair(op.getLhs(), op.getRhs())}) {
    if (!ofMixtures.contains(branch) || sizes.mixtures.empty())
      continue;
    // What each token gets of all experts is one sum.
    if (!ofMixtures.contains(stream) && !contractionOf(stream)) {
      sizes.mixtures.back().branch = elementsOf(op.getOutput());
      ofMixtures.erase(op.getOutput());
    }
    return;
  }
  for (Value branch : {op.getRhs(), op.getLhs()}) {
    Operation *last = contractionOf(branch);
    if (!last)
      continue;
    sizes.branches.push_back(elementsOf(op.getOutput()));
    // Its bias is added after the sum.
    Value value = branch;
    if (auto linear = dyn_cast<LinearOp>(last); linear && linear.getBias())
      if (closedforms::Parameter *bias = parameterOf(linear.getBias()))
        bias->hasFeatures = false;
    while (Operation *passed = value.getDefiningOp()) {
      if (passed == last)
        break;
      if (auto add = dyn_cast<AddOp>(passed)) {
        bool left = isOfParameters(add.getLhs());
        if (closedforms::Parameter *bias =
                parameterOf(left ? add.getLhs() : add.getRhs()))
          bias->hasFeatures = false;
        value = left ? add.getRhs() : add.getLhs();
        continue;
      }
      value = hasGradient(passed->getOperand(0)) ? passed->getOperand(0)
                                                 : passed->getOperand(1);
    }
    return;
  }
}

void SizeFinder::addLoss(CrossEntropyOp op) {
  Operation *head = contractionOf(op.getLogits());
  if (!head)
    return;
  sizes.lossRows += elementsOf(op.getLoss());
  sizes.logits += elementsOf(op.getLogits());
  sizes.contractions[contractions.at(head)].inBlock = false;
  for (Value factor : {head->getOperand(0), head->getOperand(1)}) {
    if (closedforms::Parameter *parameter = parameterOf(factor))
      parameter->head = true;
    else
      sizes.headInput += elementsOf(factor);
  }
}

void SizeFinder::classify(Operation &op) {
  auto isFloat = [](Value value) {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    return type && isa<FloatType>(type.getElementType());
  };
  bool constant = llvm::all_of(
      op.getOperands(), [&](Value value) { return constants.contains(value); });
  bool own = llvm::all_of(op.getOperands(), [&](Value value) {
    return constants.contains(value) || ofParameters.contains(value);
  });
  bool gradient = !isa<StopGradientOp>(op) &&
                  llvm::any_of(op.getOperands(), [&](Value value) {
                    return trained.contains(value);
                  });
  for (Value result : op.getResults()) {
    if (constant)
      constants.insert(result);
    else if (own)
      ofParameters.insert(result);
    if (gradient && isFloat(result))
      trained.insert(result);
  }
}

ModelSizes SizeFinder::find() {
  for (BlockArgument argument : entry.getArguments()) {
    unsigned number = argument.getArgNumber();
    if (!hasRole(entry, number, "parameter"))
      continue;
    ofParameters.insert(argument);
    if (!isTrained(entry, number))
      continue;
    trained.insert(argument);
    parameters[argument] = sizes.parameters.size();
    closedforms::Parameter own;
    own.name = getArgString(entry, number, kNameAttr).str();
    own.elements = elementsOf(argument);
    own.oneDimension =
        cast<RankedTensorType>(argument.getType()).getRank() == 1;
    sizes.parameters.push_back(own);
  }
  for (Operation &op : entry.getBody().front().without_terminator()) {
    classify(op);
    followExperts(op);
    if (isContraction(&op))
      addContraction(op);
    else if (auto attention = dyn_cast<AttentionOp>(op))
      addAttention(attention);
    else if (auto gather = dyn_cast<GatherOp>(op))
      addLookup(gather);
    else if (auto add = dyn_cast<AddOp>(op))
      addBranch(add);
    else if (auto loss = dyn_cast<CrossEntropyOp>(op))
      addLoss(loss);
    else if (auto choose = dyn_cast<TopKOp>(op))
      addRouter(choose);
    else if (isa<LayerNormOp, RmsNormOp>(op))
      addNorm(op);
    else if (isa<ReluOp, GeluOp, SiluOp, TanhOp, SigmoidOp, MulOp>(op))
      addActivation(op);
    if (isa<LayerNormOp, RmsNormOp>(op) && op.getNumOperands() > 1)
      if (closedforms::Parameter *scale = parameterOf(op.getOperand(1)))
        scale->readByBackward = true;
  }
  return std::move(sizes);
}

ModelSizes cleave::findSizes(ModuleOp module) {
  func::FuncOp found = module.lookupSymbol<func::FuncOp>("loss");
  if (!found || found.isExternal() || !found.getBody().hasOneBlock()) {
    ModelSizes none;
    none.unknown = "a module without an entry @loss";
    return none;
  }
  return SizeFinder(found).find();
}
