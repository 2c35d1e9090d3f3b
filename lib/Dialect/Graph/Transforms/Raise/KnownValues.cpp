//===- KnownValues.cpp - Elements that depend on no input -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KnownValues.h"
#include "Evaluation.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

static int64_t countOf(ArrayRef<int64_t> shape) {
  int64_t count = 1;
  for (int64_t size : shape)
    count *= size;
  return count;
}

Elements::Elements(ArrayRef<int64_t> shape, ArrayRef<int64_t> stored,
                   Type element)
    : shape(shape), stored(stored), element(element), count(countOf(stored)) {
  if (element.isInteger(1))
    data = std::vector<uint8_t>(count);
  else if (!isa<FloatType>(element))
    data = std::vector<int64_t>(count);
  else if (element.isF64())
    data = std::vector<double>(count);
  else
    data = std::vector<float>(count);
}

double Elements::number(size_t i) const {
  return std::visit([&](auto &values) -> double { return values[i]; }, data);
}

int64_t Elements::integer(size_t i) const {
  return std::visit([&](auto &values) -> int64_t { return values[i]; }, data);
}

void Elements::set(size_t i, double number) {
  auto type = dyn_cast<FloatType>(element);
  if (!type)
    return set(i, static_cast<int64_t>(number));
  if (type.getWidth() < 32) {
    APFloat rounded(number);
    bool loses;
    rounded.convert(type.getFloatSemantics(), APFloat::rmNearestTiesToEven,
                    &loses);
    rounded.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven,
                    &loses);
    number = rounded.convertToDouble();
  }
  if (type.isF64())
    std::get<std::vector<double>>(data)[i] = number;
  else
    std::get<std::vector<float>>(data)[i] = static_cast<float>(number);
}

void Elements::set(size_t i, int64_t integer) {
  if (isa<FloatType>(element))
    return set(i, static_cast<double>(integer));
  unsigned width = element.getIntOrFloatBitWidth();
  if (width == 1)
    std::get<std::vector<uint8_t>>(data)[i] = integer != 0;
  else
    std::get<std::vector<int64_t>>(data)[i] =
        width < 64 ? llvm::SignExtend64(integer, width) : integer;
}

SmallVector<int64_t> Elements::stridesIn(ArrayRef<int64_t> result) const {
  SmallVector<int64_t> strides(result.size(), 0);
  int64_t stride = 1;
  for (size_t i = 0; i < stored.size(); ++i) {
    size_t from = stored.size() - 1 - i;
    if (stored[from] != 1)
      strides[result.size() - 1 - i] = stride;
    stride *= stored[from];
  }
  return strides;
}

Elements Elements::withRank(size_t rank) const {
  Elements result = *this;
  while (result.shape.size() < rank) {
    result.shape.insert(result.shape.begin(), 1);
    result.stored.insert(result.stored.begin(), 1);
  }
  return result;
}

bool Elements::all() const {
  for (size_t i = 0; i < count; ++i)
    if (!truth(i))
      return false;
  return true;
}

KnownValues::KnownValues(func::FuncOp function) {
  // A buffer that any entry updates is state, and its first value says little.
  llvm::StringSet<> updated;
  for (auto other :
       function->getParentOfType<ModuleOp>().getOps<func::FuncOp>())
    for (unsigned i = 0; i < other.getNumResults(); ++i)
      if (auto name = other.getResultAttrOfType<StringAttr>(i, kUpdatesAttr))
        updated.insert(name.getValue());
  for (BlockArgument argument : function.getArguments()) {
    unsigned i = argument.getArgNumber();
    Dependence &found = dependences[argument];
    found.trained = graph::isTrained(function, i);
    auto value = function.getArgAttrOfType<DenseElementsAttr>(i, kValueAttr);
    if (value && !updated.contains(getArgString(function, i, kNameAttr))) {
      found.constant = true;
      known[argument] = elementsOf(value);
    }
  }
  for (Operation &op : function.getBody().front())
    for (Value result : op.getResults())
      dependences[result] = dependenceOf(&op, result);
}

KnownValues::Dependence KnownValues::dependenceOf(Operation *op, Value result) {
  Dependence found;
  found.constant = op->getNumRegions() == 0;
  for (Value operand : op->getOperands()) {
    Dependence own = dependence(operand);
    found.constant &= own.constant;
    found.trained |= own.trained;
  }
  found.trained &= isa<FloatType>(getElementTypeOrSelf(result));
  return found;
}

KnownValues::Dependence KnownValues::dependence(Value value) {
  auto found = dependences.find(value);
  if (found != dependences.end())
    return found->second;
  Operation *op = value.getDefiningOp();
  return dependences[value] = op ? dependenceOf(op, value) : Dependence();
}

const Elements *KnownValues::of(Value value) {
  auto found = known.find(value);
  if (found != known.end())
    return found->second.get();
  std::unique_ptr<Elements> result;
  Operation *op = value.getDefiningOp();
  if (op && dependence(value).constant && op->getNumResults() == 1) {
    SmallVector<const Elements *> operands;
    for (Value operand : op->getOperands())
      operands.push_back(of(operand));
    if (!llvm::is_contained(operands, nullptr))
      result = evaluate(op, operands, limit);
  }
  return (known[value] = std::move(result)).get();
}
