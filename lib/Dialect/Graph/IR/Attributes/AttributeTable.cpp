//===- AttributeTable.cpp - Checks attributes by a table ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Attributes/AttributeTable.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace cleave::graph;

bool cleave::graph::isNotNegative(const AttributeUse &use) {
  return cast<IntegerAttr>(use.value).getInt() >= 0;
}

bool cleave::graph::isPositive(const AttributeUse &use) {
  return cast<IntegerAttr>(use.value).getInt() > 0;
}

bool cleave::graph::holdsStrings(const AttributeUse &use) {
  return llvm::all_of(cast<ArrayAttr>(use.value), llvm::IsaPred<StringAttr>);
}

bool cleave::graph::holdsDictionaries(const AttributeUse &use) {
  return llvm::all_of(cast<ArrayAttr>(use.value),
                      llvm::IsaPred<DictionaryAttr>);
}

bool cleave::graph::hasForm(Attribute value, AttributeForm form) {
  switch (form) {
  case AttributeForm::Unit:
    return isa<UnitAttr>(value);
  case AttributeForm::String:
    return isa<StringAttr>(value);
  case AttributeForm::Integer: {
    auto integer = dyn_cast<IntegerAttr>(value);
    return integer && integer.getType().isSignlessInteger(64);
  }
  case AttributeForm::Number: {
    auto number = dyn_cast<FloatAttr>(value);
    return number && number.getType().isF64();
  }
  case AttributeForm::Type:
    return isa<TypeAttr>(value);
  case AttributeForm::Elements:
    return isa<DenseElementsAttr>(value);
  case AttributeForm::Integers:
    return isa<DenseI64ArrayAttr>(value);
  case AttributeForm::Array:
    return isa<ArrayAttr>(value);
  case AttributeForm::Dictionary:
    return isa<DictionaryAttr>(value);
  case AttributeForm::Other:
    return true;
  }
  llvm_unreachable("a form of attributes");
}

StringRef cleave::graph::attributeFormName(AttributeForm form) {
  static constexpr StringLiteral names[] = {
      "unit",     "string",   "integer", "number",     "type",
      "elements", "integers", "array",   "dictionary", "other"};
  return names[static_cast<size_t>(form)];
}

std::string cleave::graph::attributeHolderNames(unsigned holders) {
  std::string text;
  for (auto [holder, name] :
       {std::pair(OnOp, "op"), {OnArgument, "argument"}, {OnResult, "result"}})
    if (holders & holder)
      text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

LogicalResult cleave::graph::verifyAttribute(ArrayRef<AttributeRow> table,
                                             AttributeHolder holder,
                                             StringRef name,
                                             const AttributeUse &use) {
  const AttributeRow *row = llvm::find_if(
      table, [&](const AttributeRow &own) { return own.name == name; });
  if (row == table.end())
    return use.op->emitOpError() << "unknown attribute '" << name << "'";
  if (!(row->holders & holder))
    return use.op->emitOpError()
           << "attribute '" << name
           << "' is of: " << attributeHolderNames(row->holders)
           << "; it is on: " << attributeHolderNames(holder);
  if (!hasForm(use.value, row->form) || (row->isValid && !row->isValid(use)))
    return use.op->emitOpError()
           << "attribute '" << name << "' must be " << row->expected;
  return success();
}

LogicalResult cleave::graph::verifyEntryAttribute(ArrayRef<AttributeRow> table,
                                                  AttributeHolder holder,
                                                  Operation *op, unsigned index,
                                                  NamedAttribute attribute) {
  AttributeUse use{op, attribute.getValue()};
  if (auto function = dyn_cast<FunctionOpInterface>(op)) {
    bool argument = holder == OnArgument;
    use.type = argument ? function.getArgumentTypes()[index]
                        : function.getResultTypes()[index];
    use.others = argument ? function.getArgAttrDict(index)
                          : function.getResultAttrDict(index);
  }
  return verifyAttribute(table, holder, attribute.getName(), use);
}
