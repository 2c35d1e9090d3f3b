//===- GraphDialect.cpp - The graph dialect ---===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/AdditiveParameters.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave::graph;

#include "cleave/Dialect/Graph/IR/GraphDialect.cpp.inc"
#include "cleave/Dialect/Graph/IR/GraphEnums.cpp.inc"
#include "cleave/Dialect/Graph/IR/GraphInterfaces.cpp.inc"

void GraphDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "cleave/Dialect/Graph/IR/GraphOps.cpp.inc"
      >();
}

Operation *GraphDialect::materializeConstant(OpBuilder &builder,
                                             Attribute value, Type type,
                                             Location loc) {
  auto elements = dyn_cast<ElementsAttr>(value);
  if (!elements || elements.getType() != type)
    return nullptr;
  return ConstantOp::create(builder, loc, elements);
}

/// Whether the dimensions of a parameter that are not -1 increase.
static bool areInOrder(ArrayRef<int64_t> dims) {
  int64_t last = -1;
  for (int64_t dim : dims) {
    if (dim < -1 || (dim >= 0 && dim <= last))
      return false;
    last = std::max(last, dim);
  }
  return true;
}

/// Checks one `graph.` attribute of an argument or a result of type `type`.
/// `valid` is the shape without padding, if the tensor is padded.
static LogicalResult verifyEntryAttribute(Operation *op, Type type,
                                          DenseI64ArrayAttr valid,
                                          NamedAttribute attribute) {
  StringRef name = attribute.getName();
  auto error = [&](const Twine &expected) {
    return op->emitOpError() << "attribute '" << name << "' " << expected;
  };
  if (name == kNameAttr || name == kOfAttr || name == kSlotAttr ||
      name == kUpdatesAttr || name == kInitialAttr || name == kOptionalAttr)
    return isa<StringAttr>(attribute.getValue()) ? success()
                                                 : error("must be a string");
  if (name == kRoleAttr) {
    auto role = dyn_cast<StringAttr>(attribute.getValue());
    static constexpr StringLiteral known[] = {
        "parameter", "buffer", "input", "state", "gradient", "scalar", "rng"};
    if (!role || !llvm::is_contained(known, role.getValue()))
      return error("must be one of parameter, buffer, input, state, gradient, "
                   "scalar, rng");
    return success();
  }
  if (name == kAliasesAttr) {
    auto array = dyn_cast<ArrayAttr>(attribute.getValue());
    if (!array || !llvm::all_of(array, llvm::IsaPred<StringAttr>))
      return error("must be an array of strings");
    return success();
  }
  if (name == kFrozenAttr || name == kLossAttr || name == kTransientAttr ||
      name == kAdditiveAttr || name == kStackedAttr)
    return isa<UnitAttr>(attribute.getValue()) ? success()
                                               : error("must be a unit");
  if (name == kWeightDecayAttr || name == kLrScaleAttr) {
    auto number = dyn_cast<FloatAttr>(attribute.getValue());
    if (!number || !number.getType().isF64() || !number.getValue().isFinite() ||
        number.getValueAsDouble() < 0.0)
      return error("must be an f64 that is finite and not negative");
    return success();
  }
  if (name == kOptimizerAttr) {
    auto settings = dyn_cast<DictionaryAttr>(attribute.getValue());
    auto isSetting = [](NamedAttribute entry) {
      if (entry.getName() == kRuleEntry)
        return isa<StringAttr>(entry.getValue());
      auto number = dyn_cast<FloatAttr>(entry.getValue());
      return number && number.getType().isF64();
    };
    return settings && llvm::all_of(settings, isSetting)
               ? success()
               : error("must be a dictionary of f64 settings, with the rule as "
                       "a string");
  }
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (name == kSummedAttr)
    return isa<UnitAttr>(attribute.getValue()) && tensor && tensor.getRank() > 0
               ? success()
               : error("must be a unit, of a tensor with a dimension to sum "
                       "over");
  if (name == kElementsAttr) {
    // Shards have fewer.
    auto count = dyn_cast<IntegerAttr>(attribute.getValue());
    return tensor && count && count.getInt() > 0
               ? success()
               : error("must be a positive number, of a tensor");
  }
  if (name == kParameterDimsAttr) {
    auto dims = dyn_cast<DenseI64ArrayAttr>(attribute.getValue());
    if (!dims || !tensor ||
        static_cast<int64_t>(dims.size()) != tensor.getRank() ||
        !areInOrder(dims.asArrayRef()))
      return error("must be a dimension of the parameter, or -1, for each "
                   "dimension of the tensor, in order");
    return success();
  }
  if (name == kValueAttr) {
    // Shards have another shape.
    auto value = dyn_cast<DenseElementsAttr>(attribute.getValue());
    if (!value || !tensor || value.getElementType() != tensor.getElementType())
      return error("must be dense elements of the tensor's element type");
    return success();
  }
  if (name == kBatchDimAttr) {
    auto dim = dyn_cast<IntegerAttr>(attribute.getValue());
    if (!tensor || !dim || dim.getInt() < 0 || dim.getInt() >= tensor.getRank())
      return error("must be a dimension of the tensor");
    return success();
  }
  if (name == kFrameworkShapeAttr) {
    auto shape = dyn_cast<DenseI64ArrayAttr>(attribute.getValue());
    int64_t elements = 1;
    if (shape)
      for (int64_t dim : shape.asArrayRef())
        elements *= dim;
    // Shards hold fewer elements than the framework's shape.
    int64_t held = tensor ? tensor.getNumElements() : 0;
    if (valid)
      held = ShapedType::getNumElements(valid.asArrayRef());
    if (!shape || held == 0 || elements % held != 0)
      return error("must be a shape with as many elements as the tensor");
    return success();
  }
  if (name == kValidShapeAttr) {
    auto shape = dyn_cast<DenseI64ArrayAttr>(attribute.getValue());
    if (!shape || !tensor ||
        static_cast<int64_t>(shape.size()) != tensor.getRank() ||
        llvm::any_of(shape.asArrayRef(), [](int64_t n) { return n < 1; }))
      return error("must be a positive size for each dimension of the tensor");
    return success();
  }
  return op->emitOpError() << "unknown attribute '" << name << "'";
}

LogicalResult GraphDialect::verifyRegionArgAttribute(Operation *op,
                                                     unsigned regionIndex,
                                                     unsigned argIndex,
                                                     NamedAttribute attribute) {
  Type type;
  DenseI64ArrayAttr valid;
  if (auto function = dyn_cast<FunctionOpInterface>(op)) {
    type = function.getArgumentTypes()[argIndex];
    valid = dyn_cast_or_null<DenseI64ArrayAttr>(
        function.getArgAttr(argIndex, kValidShapeAttr));
  }
  return verifyEntryAttribute(op, type, valid, attribute);
}

LogicalResult
GraphDialect::verifyRegionResultAttribute(Operation *op, unsigned regionIndex,
                                          unsigned resultIndex,
                                          NamedAttribute attribute) {
  Type type;
  if (auto function = dyn_cast<FunctionOpInterface>(op))
    type = function.getResultTypes()[resultIndex];
  return verifyEntryAttribute(op, type, /*valid=*/{}, attribute);
}

std::optional<SmallVector<int64_t>>
cleave::graph::broadcastShapes(ArrayRef<ArrayRef<int64_t>> shapes) {
  size_t rank = 0;
  for (ArrayRef<int64_t> shape : shapes)
    rank = std::max(rank, shape.size());
  SmallVector<int64_t> result(rank, 1);
  for (ArrayRef<int64_t> shape : shapes) {
    size_t lead = rank - shape.size();
    for (auto [i, size] : llvm::enumerate(shape)) {
      int64_t &dim = result[lead + i];
      if (size == dim || size == 1)
        continue;
      if (dim != 1)
        return std::nullopt;
      dim = size;
    }
  }
  return result;
}
