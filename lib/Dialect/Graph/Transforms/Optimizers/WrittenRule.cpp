//===- WrittenRule.cpp - Updates that a module defines --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "WrittenRule.h"
#include "UpdateBuilder.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace cleave::graph;

func::FuncOp cleave::graph::findUpdate(func::FuncOp step, StringRef name) {
  auto updates =
      step->getParentOfType<ModuleOp>().lookupSymbol<ModuleOp>(kUpdatesModule);
  return updates ? updates.lookupSymbol<func::FuncOp>(name) : func::FuncOp();
}

StringRef WrittenRule::name() const { return function.getSymName(); }

StringRef WrittenRule::roleOf(unsigned argument) const {
  return getArgString(function, argument, kRoleAttr);
}

std::string WrittenRule::problem() const {
  auto error = [&](const Twine &why) {
    return ("the update '@" + function.getSymName() + "' " + why).str();
  };
  if (!function.getBody().hasOneBlock() || function.getNumArguments() < 2 ||
      roleOf(0) != "parameter" || roleOf(1) != "gradient")
    return error("has not the arguments parameter and gradient first");
  SmallVector<Type> results{function.getArgumentTypes()[0]};
  for (unsigned i = 2; i < function.getNumArguments(); ++i) {
    if (roleOf(i) != "state" && roleOf(i) != "scalar")
      return error(llvm::formatv("has an argument {0} that is neither state "
                                 "nor a scalar",
                                 i));
    if (getArgString(function, i, kNameAttr).empty())
      return error(llvm::formatv("has no name for its argument {0}", i));
    if (roleOf(i) == "state")
      results.push_back(function.getArgumentTypes()[i]);
    else if (cast<RankedTensorType>(function.getArgumentTypes()[i]).getRank())
      return error("has a scalar that has dimensions");
  }
  if (function.getArgumentTypes()[1] != results.front())
    return error("has a gradient of another type than its parameter");
  if (function.getResultTypes() != ArrayRef(results))
    return error("does not return its parameter and its state");
  return "";
}

std::vector<std::string> WrittenRule::scalars() const {
  std::vector<std::string> names;
  for (unsigned i = 0; i < function.getNumArguments(); ++i)
    if (roleOf(i) == "scalar")
      names.push_back(getArgString(function, i, kNameAttr).str());
  return names;
}

static ArrayRef<int64_t> shapeOf(Type type) {
  return cast<RankedTensorType>(type).getShape();
}

bool WrittenRule::isElementwise() const {
  ArrayRef<int64_t> own = shapeOf(function.getArgumentTypes()[0]);
  auto fits = [&](Type type) {
    return shapeOf(type).empty() || shapeOf(type) == own;
  };
  return llvm::all_of(
      function.getBody().front().without_terminator(), [&](Operation &op) {
        auto constant = dyn_cast<ConstantOp>(op);
        bool known = op.hasTrait<OpTrait::PointwiseOp>() ||
                     isa<BroadcastOp>(op) ||
                     (constant && isa<SplatElementsAttr>(constant.getValue()));
        return known && llvm::all_of(op.getOperandTypes(), fits) &&
               llvm::all_of(op.getResultTypes(), fits);
      });
}

/// The framework's shape of one parameter.
static SmallVector<int64_t> frameworkShape(const TrainedParameter &parameter) {
  return llvm::map_to_vector(llvm::seq(0u, parameter.rank()),
                             [&](unsigned dim) { return parameter.size(dim); });
}

std::string WrittenRule::refusal(const TrainedParameter &parameter) const {
  ArrayRef<int64_t> own = shapeOf(function.getArgumentTypes()[0]);
  if (own != ArrayRef<int64_t>(frameworkShape(parameter)))
    return llvm::formatv("its update '@{0}' is of another shape than {1}",
                         name(), parameter.shapeText());
  bool stacked = parameter.own().size() != parameter.all().size();
  if (stacked && !isElementwise())
    return llvm::formatv("its update '@{0}' reads more than one element for "
                         "each, and the parameter is one of a stack",
                         name());
  for (unsigned i = 2; i < function.getNumArguments(); ++i)
    if (ArrayRef<int64_t> shape = shapeOf(function.getArgumentTypes()[i]);
        !shape.empty() && shape != own)
      return llvm::formatv("state '{0}' of its update '@{1}' has neither the "
                           "parameter's shape nor is it a number",
                           getArgString(function, i, kNameAttr), name());
  return "";
}

SmallVector<StateSlot> WrittenRule::slots(const TrainedParameter &parameter,
                                          const OptimizerSettings &) const {
  SmallVector<StateSlot> result;
  for (unsigned i = 2; i < function.getNumArguments(); ++i)
    if (roleOf(i) == "state")
      result.push_back({getArgString(function, i, kNameAttr),
                        shapeOf(function.getArgumentTypes()[i]).empty()
                            ? SmallVector<int64_t>()
                            : parameter.all()});
  return result;
}

/// Clones the body with other shapes or element types than it is written in.
SmallVector<Value> WrittenRule::update(UpdateBuilder &b) const {
  ArrayRef<int64_t> own = shapeOf(function.getArgumentTypes()[0]);
  ArrayRef<int64_t> stored = b.parameter.type().getShape();
  bool rearranged = isElementwise();
  auto given = [&](Value value) {
    bool whole = tensorTypeOf(value).getShape() == stored && !stored.empty();
    return rearranged || !whole ? value : b.reshape(value, own);
  };
  auto convert = [&](RankedTensorType type) {
    Type element = type.getElementType();
    return RankedTensorType::get(
        rearranged && type.getShape() == own ? stored : type.getShape(),
        isa<FloatType>(element) ? b.computeType() : element);
  };
  IRMapping mapping;
  unsigned state = 0;
  for (BlockArgument argument : function.getArguments()) {
    StringRef role = roleOf(argument.getArgNumber());
    Value value = role == "parameter"  ? b.wideParameter()
                  : role == "gradient" ? b.scaledGradient()
                  : role == "state"
                      ? b.wide(b.state[state++])
                      : b.wide(b.given.lookup(getArgString(
                            function, argument.getArgNumber(), kNameAttr)));
    mapping.map(argument, given(value));
  }
  Block &body = function.getBody().front();
  for (Operation &op : body.without_terminator()) {
    if (auto constant = dyn_cast<ConstantOp>(op)) {
      auto type = convert(tensorTypeOf(constant.getOutput()));
      if (auto splat = getSplatValue(constant.getOutput());
          splat && isa<FloatType>(type.getElementType())) {
        mapping.map(constant.getOutput(), b.splat(type, *splat));
        continue;
      }
    }
    Operation *copy = b.builder.clone(op, mapping);
    for (Value result : copy->getResults())
      result.setType(convert(tensorTypeOf(result)));
  }
  SmallVector<Value> results;
  for (auto [index, operand] :
       llvm::enumerate(body.getTerminator()->getOperands())) {
    Value old = index ? b.state[index - 1] : Value(b.parameter.argument());
    Value value =
        b.reshape(mapping.lookup(operand), tensorTypeOf(old).getShape());
    results.push_back(b.stored(value, old));
  }
  return results;
}
