//===- SpmdOps.cpp - Ops of the spmd dialect ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/Chunks.h"
#include "cleave/Dialect/Spmd/IR/OfDevice.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

#include "cleave/Dialect/Spmd/IR/SpmdDialect.cpp.inc"

void SpmdDialect::initialize() {
  registerAttributes();
  addOperations<
#define GET_OP_LIST
#include "cleave/Dialect/Spmd/IR/SpmdOps.cpp.inc"
      >();
}

//===----------------------------------------------------------------------===//
// Attributes on functions and other ops
//===----------------------------------------------------------------------===//

/// Checks one `spmd.` attribute of an argument or a result of type `type`.
static LogicalResult verifyEntryAttribute(Operation *op, Type type,
                                          NamedAttribute attribute) {
  auto error = [&] {
    return op->emitOpError()
           << "attribute '" << attribute.getName().getValue() << "': ";
  };
  if (attribute.getName() == kShardingAttr) {
    auto sharding = dyn_cast<ShardingAttr>(attribute.getValue());
    if (!sharding)
      return error() << "must be a #spmd.sharding";
    return verifySharding(error, op, sharding, type);
  }
  if (attribute.getName() == kGlobalTypeAttr) {
    auto global = dyn_cast<TypeAttr>(attribute.getValue());
    if (!global || !isa<RankedTensorType>(global.getValue()))
      return error() << "must be a tensor type";
    return success();
  }
  return error() << "is unknown";
}

LogicalResult SpmdDialect::verifyRegionArgAttribute(Operation *op, unsigned,
                                                    unsigned argument,
                                                    NamedAttribute attribute) {
  Type type;
  if (auto function = dyn_cast<FunctionOpInterface>(op))
    type = function.getArgumentTypes()[argument];
  return verifyEntryAttribute(op, type, attribute);
}

LogicalResult SpmdDialect::verifyRegionResultAttribute(
    Operation *op, unsigned, unsigned result, NamedAttribute attribute) {
  Type type;
  if (auto function = dyn_cast<FunctionOpInterface>(op))
    type = function.getResultTypes()[result];
  return verifyEntryAttribute(op, type, attribute);
}

/// An entry of `spmd.ring_shift` names a dimension of an operand or a result.
static LogicalResult verifyRingShift(function_ref<InFlightDiagnostic()> error,
                                     Operation *op, Attribute attribute) {
  auto shift = dyn_cast<DictionaryAttr>(attribute);
  auto number = [&](StringRef name) -> std::optional<int64_t> {
    auto value = shift ? shift.getAs<IntegerAttr>(name) : IntegerAttr();
    return value ? std::optional(value.getInt()) : std::nullopt;
  };
  auto operand = number("operand"), result = number("result");
  auto dim = number("dim");
  bool known = operand.has_value() != result.has_value() && dim &&
               number("steps").has_value();
  if (known) {
    int64_t index = operand ? *operand : *result;
    int64_t count = operand ? op->getNumOperands() : op->getNumResults();
    known = index >= 0 && index < count;
    if (known) {
      Value value = operand ? op->getOperand(index) : op->getResult(index);
      auto type = dyn_cast<RankedTensorType>(value.getType());
      known = type && *dim >= 0 && *dim < type.getRank();
    }
  }
  if (!known)
    return error() << "must hold an operand or a result, its dim and steps";
  return success();
}

LogicalResult SpmdDialect::verifyOperationAttribute(Operation *op,
                                                    NamedAttribute attribute) {
  auto error = [&] {
    return op->emitOpError()
           << "attribute '" << attribute.getName().getValue() << "': ";
  };
  if (attribute.getName() == kRingAttr || attribute.getName() == kTwoRingAttr) {
    if (!isa<StringAttr>(attribute.getValue()))
      return error() << "must name an axis";
    return success();
  }
  if (attribute.getName() == kSamplesAttr) {
    auto dim = dyn_cast<IntegerAttr>(attribute.getValue());
    auto type = op->getNumResults() == 1
                    ? dyn_cast<RankedTensorType>(op->getResult(0).getType())
                    : RankedTensorType();
    if (!dim || !dim.getType().isSignlessInteger(64) || !type ||
        dim.getInt() < 0 || dim.getInt() >= type.getRank())
      return error() << "must be a dimension of the one result";
    return success();
  }
  if (attribute.getName() == kStepsAttr) {
    auto lies = dyn_cast<ArrayAttr>(attribute.getValue());
    if (!lies || lies.size() != 3 || op->getNumOperands() != 2 ||
        op->getNumResults() != 1)
      return error()
             << "needs two operands and a result, and a sharding of each";
    SmallVector<Value> values(op->getOperands());
    values.push_back(op->getResult(0));
    for (auto [entry, value] : llvm::zip_equal(lies, values)) {
      auto sharding = dyn_cast<ShardingAttr>(entry);
      if (!sharding)
        return error() << "must hold #spmd.sharding attributes";
      if (failed(verifySharding(error, op, sharding, value.getType())))
        return failure();
    }
    return success();
  }
  if (attribute.getName() == kHeldAttr) {
    auto held = dyn_cast<DenseI64ArrayAttr>(attribute.getValue());
    if (!held || llvm::any_of(held.asArrayRef(), [&](int64_t index) {
          return index < 0 || index >= op->getNumOperands();
        }))
      return error() << "must hold numbers of operands";
    return success();
  }
  if (attribute.getName() == kChunkAttr) {
    auto chunk = dyn_cast<DenseI64ArrayAttr>(attribute.getValue());
    if (!chunk || chunk.size() != 2 || chunk[0] < 0 || chunk[1] < 0)
      return error() << "must hold the numbers of a collective and of a chunk";
    return success();
  }
  if (attribute.getName() == kOfDeviceAttr)
    return isa<UnitAttr>(attribute.getValue())
               ? success()
               : LogicalResult(error() << "has no value");
  if (attribute.getName() == kRingShiftAttr)
    return verifyRingShift(error, op, attribute.getValue());
  auto array = dyn_cast<ArrayAttr>(attribute.getValue());
  bool shardings = attribute.getName() == kShardingsAttr;
  if (!shardings && attribute.getName() != kGlobalTypesAttr)
    return error() << "is unknown";
  if (!array || array.size() != op->getNumResults())
    return error() << "needs one entry for each of the " << op->getNumResults()
                   << " results";
  for (auto [entry, type] : llvm::zip(array, op->getResultTypes())) {
    if (!shardings) {
      auto global = dyn_cast<TypeAttr>(entry);
      if (!global || !isa<RankedTensorType>(global.getValue()))
        return error() << "must hold tensor types";
      continue;
    }
    auto sharding = dyn_cast<ShardingAttr>(entry);
    if (!sharding)
      return error() << "must hold #spmd.sharding attributes";
    if (failed(verifySharding(error, op, sharding, type)))
      return failure();
  }
  return success();
}

//===----------------------------------------------------------------------===//
// spmd.mesh
//===----------------------------------------------------------------------===//

/// `<["mb" = 4, "dp" = 2]>`
static ParseResult parseMeshAxes(OpAsmParser &parser, ArrayAttr &axes,
                                 DenseI64ArrayAttr &sizes) {
  SmallVector<Attribute> names;
  SmallVector<int64_t> values;
  auto parseAxis = [&]() -> ParseResult {
    std::string name;
    if (parser.parseString(&name) || parser.parseEqual() ||
        parser.parseInteger(values.emplace_back()))
      return failure();
    names.push_back(parser.getBuilder().getStringAttr(name));
    return success();
  };
  if (parser.parseLess() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseAxis) ||
      parser.parseGreater())
    return failure();
  axes = parser.getBuilder().getArrayAttr(names);
  sizes = parser.getBuilder().getDenseI64ArrayAttr(values);
  return success();
}

static void printMeshAxes(OpAsmPrinter &printer, Operation *, ArrayAttr axes,
                          DenseI64ArrayAttr sizes) {
  printer << "<[";
  llvm::interleaveComma(
      llvm::zip(axes, sizes.asArrayRef()), printer, [&](auto pair) {
        printer << std::get<0>(pair) << " = " << std::get<1>(pair);
      });
  printer << "]>";
}

Mesh MeshOp::getMesh() {
  Mesh mesh;
  ArrayAttr sequential = getSequentialAttr();
  for (auto [name, size] : llvm::zip(getAxes(), getSizes()))
    mesh.axes.push_back({cast<StringAttr>(name).str(), size,
                         sequential && llvm::is_contained(sequential, name)});
  return mesh;
}

LogicalResult MeshOp::verify() {
  if (getAxes().size() != getSizes().size())
    return emitOpError("needs one size for each axis");
  llvm::SmallDenseSet<Attribute> seen;
  for (auto [name, size] : llvm::zip(getAxes(), getSizes())) {
    if (!seen.insert(name).second)
      return emitOpError("has two axes ") << name;
    if (cast<StringAttr>(name).empty())
      return emitOpError("has an axis without a name");
    if (size < 1)
      return emitOpError("axis ")
             << name << " has size " << size << ", must be positive";
  }
  if (ArrayAttr sequential = getSequentialAttr())
    for (Attribute name : sequential)
      if (!seen.contains(name))
        return emitOpError("sequential axis ") << name << " is not an axis";
  return success();
}

MeshOp cleave::spmd::lookupMesh(Operation *from, FlatSymbolRefAttr name) {
  return SymbolTable::lookupNearestSymbolFrom<MeshOp>(from, name);
}

/// What is written on the op or the argument that gives `value`: one attribute
/// of an argument, one of a list of `all` results.
template <typename Attr>
static Attr readWritten(Value value, StringRef own, StringRef all) {
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    auto function = dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp());
    return function
               ? function.getArgAttrOfType<Attr>(argument.getArgNumber(), own)
               : Attr();
  }
  auto result = cast<OpResult>(value);
  auto list = result.getOwner()->getAttrOfType<ArrayAttr>(all);
  return list ? dyn_cast<Attr>(list[result.getResultNumber()]) : Attr();
}

ShardingAttr cleave::spmd::writtenShardingAttr(Value value) {
  return readWritten<ShardingAttr>(value, kShardingAttr, kShardingsAttr);
}

std::optional<Sharding> cleave::spmd::writtenSharding(Value value) {
  ShardingAttr known = writtenShardingAttr(value);
  if (!known)
    return std::nullopt;
  return known.getSharding();
}

RankedTensorType cleave::spmd::writtenGlobalType(Value value) {
  auto known = readWritten<TypeAttr>(value, kGlobalTypeAttr, kGlobalTypesAttr);
  return known ? dyn_cast<RankedTensorType>(known.getValue())
               : RankedTensorType();
}

MeshOp cleave::spmd::findMesh(ModuleOp module) {
  auto meshes = module.getOps<MeshOp>();
  return meshes.empty() ? MeshOp() : *meshes.begin();
}

//===----------------------------------------------------------------------===//
// Ops on values
//===----------------------------------------------------------------------===//

/// `{"mb", "tp":(1)2}`
static ParseResult parseAxisList(OpAsmParser &parser, AxesAttr &axes) {
  AxisList list;
  auto parseAxis = [&]() -> ParseResult {
    AxisRef &axis = list.emplace_back();
    std::string name;
    if (parser.parseString(&name))
      return failure();
    axis.name = parser.getBuilder().getStringAttr(name).getValue();
    if (parser.parseOptionalColon())
      return success();
    return failure(parser.parseLParen() || parser.parseInteger(axis.pre) ||
                   parser.parseRParen() || parser.parseInteger(axis.size));
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Braces, parseAxis))
    return failure();
  axes = AxesAttr::get(parser.getContext(), list);
  return success();
}

static void printAxisList(OpAsmPrinter &printer, Operation *, AxesAttr axes) {
  printer << "{";
  llvm::interleaveComma(axes.getAxes(), printer,
                        [&](const AxisRef &axis) { printer << axis.str(); });
  printer << "}";
}

LogicalResult ShardOffsetOp::verifySymbolUses(SymbolTableCollection &) {
  auto global = dyn_cast<RankedTensorType>(getGlobal());
  if (!global || global.getRank() != getType().getDimSize(0))
    return emitOpError("expected a result of one value for each dimension of ")
           << getGlobal();
  auto error = [&] { return emitOpError(); };
  return verifySharding(error, *this, getSharding(), global);
}

graph::OpCost ShardOffsetOp::getCost() {
  graph::OpCost cost;
  cost.work = graph::WorkClass::View;
  cost.bytesWritten = 8 * getType().getNumElements();
  return cost;
}

graph::OpCost BarrierOp::getCost() {
  graph::OpCost cost;
  cost.work = graph::WorkClass::View;
  return cost;
}

/// Each dimension along a factor of its own.
static graph::FactorMapping factorsOf(graph::ShardingRule &rule,
                                      RankedTensorType type) {
  graph::FactorMapping mapping;
  for (int64_t size : type.getShape()) {
    auto &factors = mapping.emplace_back();
    if (size != 1)
      factors.push_back(rule.addFactor(size));
  }
  return mapping;
}

graph::ShardingRule BarrierOp::getShardingRule() {
  graph::ShardingRule rule;
  auto type = cast<RankedTensorType>(getInput().getType());
  graph::FactorMapping mapping = factorsOf(rule, type);
  int64_t rank = cast<RankedTensorType>(getAfter().getType()).getRank();
  rule.operands = {mapping, graph::FactorMapping(rank)};
  rule.results = {mapping};
  rule.linear = {{0}};
  rule.unused = {1};
  return rule;
}

LogicalResult ConstrainOp::verifySymbolUses(SymbolTableCollection &) {
  if (!getSharding().getPartial().empty())
    return emitOpError("cannot ask for a partial result");
  auto error = [&] { return emitOpError(); };
  return verifySharding(error, *this, getSharding(), getType());
}

graph::ShardingRule ConstrainOp::getShardingRule() {
  graph::ShardingRule rule;
  graph::FactorMapping mapping = factorsOf(rule, getType());
  rule.operands = {mapping};
  rule.results = {mapping};
  if (!getReduced())
    rule.linear = {{0}};
  rule.resultsFirst = true;
  rule.keepsZero = true;
  return rule;
}

#define GET_OP_CLASSES
#include "cleave/Dialect/Spmd/IR/SpmdOps.cpp.inc"
