//===- MessageNames.cpp - What messages call values -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

/// An argument, a result or an operand without a name.
static std::string numbered(StringRef what, unsigned index) {
  return (what + " " + Twine(index)).str();
}

static std::string quoted(StringRef what, StringRef name) {
  return (what + " \"" + name + "\"").str();
}

std::string cleave::graph::nameArgument(FunctionOpInterface function,
                                        unsigned index) {
  auto name = function.getArgAttrOfType<StringAttr>(index, kNameAttr);
  if (!name)
    return numbered("argument", index);
  auto role = function.getArgAttrOfType<StringAttr>(index, kRoleAttr);
  return quoted(role ? role.getValue() : StringRef("argument"),
                name.getValue());
}

std::string cleave::graph::nameArgument(BlockArgument argument) {
  Operation *owner = argument.getOwner()->getParentOp();
  auto function = dyn_cast_or_null<FunctionOpInterface>(owner);
  if (!function || argument.getOwner() != &function.getFunctionBody().front())
    return numbered("argument", argument.getArgNumber());
  return nameArgument(function, argument.getArgNumber());
}

std::string cleave::graph::nameResult(FunctionOpInterface function,
                                      unsigned index) {
  if (auto name = function.getResultAttrOfType<StringAttr>(index, kNameAttr))
    return quoted("result", name.getValue());
  auto updated = function.getResultAttrOfType<StringAttr>(index, kUpdatesAttr);
  if (!updated)
    return numbered("result", index);
  // Every result that updates is looked for among all arguments.
  auto name = StringAttr::get(function.getContext(), kNameAttr);
  if (ArrayAttr all = function.getArgAttrsAttr())
    for (auto [i, own] : llvm::enumerate(all.getAsRange<DictionaryAttr>()))
      if (own.get(name) == updated)
        return "the new value of " + nameArgument(function, i);
  return quoted("the new value of", updated.getValue());
}

std::string cleave::graph::nameValue(Value value) {
  if (auto argument = dyn_cast<BlockArgument>(value))
    return nameArgument(argument);
  Operation *op = value.getDefiningOp();
  std::string text = ("'" + op->getName().getStringRef() + "'").str();
  if (op->getNumResults() > 1)
    text = numbered("result", cast<OpResult>(value).getResultNumber()) +
           " of " + text;
  std::string line = sourceLine(value.getLoc());
  return line.empty() ? text : text + " at " + line;
}

std::string cleave::graph::nameOperand(OpOperand &operand) {
  return numbered("operand", operand.getOperandNumber()) + " (" +
         nameValue(operand.get()) + ")";
}

InFlightDiagnostic
cleave::graph::emitArgumentError(FunctionOpInterface function, unsigned index) {
  return function.emitError() << nameArgument(function, index);
}

InFlightDiagnostic cleave::graph::emitResultError(FunctionOpInterface function,
                                                  unsigned index) {
  Location loc = function.getLoc();
  Region &body = function.getFunctionBody();
  if (!body.empty() && body.back().mightHaveTerminator()) {
    Operation *returned = body.back().getTerminator();
    loc = returned->getLoc();
    if (index < returned->getNumOperands())
      if (Operation *op = returned->getOperand(index).getDefiningOp())
        loc = op->getLoc();
  }
  return emitError(loc) << nameResult(function, index);
}
