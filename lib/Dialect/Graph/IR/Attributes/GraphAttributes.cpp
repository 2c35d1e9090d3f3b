//===- GraphAttributes.cpp - The attributes of the graph dialect ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/AdditiveParameters.h"
#include "cleave/Dialect/Graph/IR/Attributes/AttributeTable.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/Attributes/Clones.h"
#include "cleave/Dialect/Graph/IR/Attributes/EvenRows.h"
#include "cleave/Dialect/Graph/IR/Attributes/OrderedSum.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"

using namespace mlir;
using namespace cleave::graph;

static bool isRole(const AttributeUse &use) {
  static constexpr StringLiteral known[] = {
      "parameter", "buffer", "input", "state", "gradient", "scalar", "rng"};
  return llvm::is_contained(known, cast<StringAttr>(use.value).getValue());
}

static bool isPrecision(const AttributeUse &use) {
  StringRef name = cast<StringAttr>(use.value).getValue();
  return name == "f32" || name == "16bit";
}

static bool isFiniteAndNotNegative(const AttributeUse &use) {
  auto number = cast<FloatAttr>(use.value);
  return number.getValue().isFinite() && number.getValueAsDouble() >= 0.0;
}

static bool holdsSettings(const AttributeUse &use) {
  return llvm::all_of(cast<DictionaryAttr>(use.value), [](NamedAttribute own) {
    if (own.getName() == kRuleEntry)
      return isa<StringAttr>(own.getValue());
    return hasForm(own.getValue(), AttributeForm::Number);
  });
}

static bool hasDimension(const AttributeUse &use) {
  return use.tensor() && use.tensor().getRank() > 0;
}

static bool countsElements(const AttributeUse &use) {
  return use.tensor() && isPositive(use);
}

/// Whether the dimensions of a parameter that are not -1 increase.
static bool areDimsInOrder(const AttributeUse &use) {
  ArrayRef<int64_t> dims = cast<DenseI64ArrayAttr>(use.value).asArrayRef();
  if (!use.tensor() ||
      static_cast<int64_t>(dims.size()) != use.tensor().getRank())
    return false;
  int64_t last = -1;
  for (int64_t dim : dims) {
    if (dim < -1 || (dim >= 0 && dim <= last))
      return false;
    last = std::max(last, dim);
  }
  return true;
}

static bool isOfElementType(const AttributeUse &use) {
  // Shards have another shape.
  return use.tensor() && cast<DenseElementsAttr>(use.value).getElementType() ==
                             use.tensor().getElementType();
}

static bool isDimension(const AttributeUse &use) {
  int64_t dim = cast<IntegerAttr>(use.value).getInt();
  return use.tensor() && dim >= 0 && dim < use.tensor().getRank();
}

static bool hasAsManyElements(const AttributeUse &use) {
  int64_t elements = 1;
  for (int64_t dim : cast<DenseI64ArrayAttr>(use.value).asArrayRef())
    elements *= dim;
  // Shards hold fewer elements than the framework's shape.
  int64_t held = use.tensor() ? use.tensor().getNumElements() : 0;
  if (auto valid = use.others
                       ? use.others.getAs<DenseI64ArrayAttr>(kValidShapeAttr)
                       : DenseI64ArrayAttr())
    held = ShapedType::getNumElements(valid.asArrayRef());
  return held != 0 && elements % held == 0;
}

/// On an op, the shape is that of its one result.
static bool isShapeWithoutPadding(const AttributeUse &use) {
  RankedTensorType tensor = use.tensor();
  if (!tensor && use.op->getNumResults() == 1 &&
      !isa<FunctionOpInterface>(use.op))
    tensor = dyn_cast<RankedTensorType>(use.op->getResult(0).getType());
  ArrayRef<int64_t> shape = cast<DenseI64ArrayAttr>(use.value).asArrayRef();
  return tensor && static_cast<int64_t>(shape.size()) == tensor.getRank() &&
         llvm::all_of(shape, [](int64_t n) { return n >= 1; });
}

ArrayRef<AttributeRow> cleave::graph::attributeTable() {
  using enum AttributeForm;
  static constexpr StringLiteral unit = "a unit", string = "a string";
  static const AttributeRow rows[] = {
      {kNameAttr, String, OnEntry, string, "the name in the framework"},
      {kRoleAttr, String, OnEntry,
       "one of parameter, buffer, input, state, gradient, scalar, rng",
       "what the argument is; `gradient`: what an update of the next step "
       "reads",
       isRole},
      {kAliasesAttr, Array, OnEntry, "an array of strings",
       "further names of the same (tied) parameter", holdsStrings},
      {kInitialAttr, String, OnEntry, string,
       "the parameter whose value it begins with where it is given none"},
      {kFrozenAttr, Unit, OnEntry, unit,
       "a parameter without gradient and state of the optimizer"},
      {kAdditiveAttr, Unit, OnEntry, unit,
       "a parameter that the model adds, as a bias"},
      {kTransientAttr, Unit, OnEntry, unit,
       "a buffer that files of weights may lack"},
      {kValueAttr, Elements, OnEntry,
       "dense elements of the tensor's element type",
       "the (whole) value of a buffer before any is given", isOfElementType},
      {kLossAttr, Unit, OnEntry, unit,
       "a loss: the sum of these is differentiated; result 0 where none is "
       "marked"},
      {kBatchDimAttr, Integer, OnEntry, "a dimension of the tensor",
       "the dimension that holds samples", isDimension},
      {kOfAttr, String, OnEntry, string,
       "the parameter that state, or a gradient, belongs to"},
      {kSlotAttr, String, OnEntry, string, "which state of that parameter"},
      {kOptionalAttr, String, OnEntry, string,
       "the technique that state belongs to: a checkpoint may lack all state "
       "of it, which is zero then"},
      {kSummedAttr, Unit, OnEntry,
       "a unit, of a tensor with a dimension to sum over",
       "state of which the sum over the first dimension counts", hasDimension},
      {kElementsAttr, Integer, OnEntry, "a positive number, of a tensor",
       "the elements of state, in order, after which zeros follow",
       countsElements},
      {kParameterDimsAttr, Integers, OnEntry,
       "a dimension of the parameter, or -1, for each dimension of the tensor, "
       "in order",
       "the dimensions of the parameter that state has", areDimsInOrder},
      {kStackedAttr, Unit, OnEntry, unit,
       "a parameter whose dimension 0 counts parameters of the framework"},
      {kFrameworkShapeAttr, Integers, OnEntry,
       "a shape with as many elements as the tensor",
       "the framework's shape of what is stored factored", hasAsManyElements},
      {kWeightDecayAttr, Number, OnEntry,
       "an f64 that is finite and not negative",
       "the weight decay of a parameter", isFiniteAndNotNegative},
      {kLrScaleAttr, Number, OnEntry, "an f64 that is finite and not negative",
       "a factor on the learning rate of a parameter", isFiniteAndNotNegative},
      {kOptimizerAttr, Dictionary, OnEntry,
       "a dictionary of f64 settings, with the rule as a string",
       "settings of the optimizer for a parameter", holdsSettings},
      {kUpdatesAttr, String, OnEntry, string,
       "the name of the argument whose value a result replaces"},
      {kValidShapeAttr, Integers, OnEntry | OnOp,
       "a positive size for each dimension of the tensor",
       "the shape without padding; on a `graph.gradient`, of the parameter",
       isShapeWithoutPadding},
      {kUnreadAttr, Array, OnOp, "an array of strings",
       "on a module: the names of buffers that no entry reads", holdsStrings},
      {kUnevaluatedAttr, String, OnOp, string,
       "on a module: why the model has no loss in evaluation mode"},
      {kPrecisionAttr, String, OnOp, "f32 or 16bit",
       "the precision that a person has chosen for the op, until "
       "`--graph-mixed-precision`",
       isPrecision},
      {kOrderedAttr, Unit, OnOp, unit,
       "on a `graph.reduce`: the order of the sum depends on the sizes of the "
       "reduced dimensions alone"},
      {kPaddingAttr, Unit, OnOp, unit,
       "on a `graph.select` that replaces the values of padding"},
      {kTwinAttr, Integer, OnOp, "an i64",
       "on a contraction and on its clones in backward: their number, by which "
       "they are computed in one form"},
      {kCloneAttr, Unit, OnOp, unit, "on such a clone"},
      {kEvenRowsAttr, Integer, OnOp, "an i64",
       "on a contraction of rows that other ranks send, and on what sends some "
       "of its rows: as many are received "
       "where all receive as many"},
  };
  return rows;
}

LogicalResult GraphDialect::verifyOperationAttribute(Operation *op,
                                                     NamedAttribute attribute) {
  return verifyAttribute(attributeTable(), OnOp, attribute.getName(),
                         {op, attribute.getValue()});
}

LogicalResult GraphDialect::verifyRegionArgAttribute(Operation *op, unsigned,
                                                     unsigned index,
                                                     NamedAttribute attribute) {
  return verifyEntryAttribute(attributeTable(), OnArgument, op, index,
                              attribute);
}

LogicalResult GraphDialect::verifyRegionResultAttribute(
    Operation *op, unsigned, unsigned index, NamedAttribute attribute) {
  return verifyEntryAttribute(attributeTable(), OnResult, op, index, attribute);
}
