//===- Sharding.cpp - Text and checks of the sharding attribute -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace cleave::spmd;

#define GET_ATTRDEF_CLASSES
#include "cleave/Dialect/Spmd/IR/SpmdAttributes.cpp.inc"

void SpmdDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "cleave/Dialect/Spmd/IR/SpmdAttributes.cpp.inc"
      >();
}

//===----------------------------------------------------------------------===//
// Parsing
//===----------------------------------------------------------------------===//

/// The text of `"name"`, which lives in the context.
static ParseResult parseName(AsmParser &parser, StringRef &name) {
  std::string text;
  if (parser.parseString(&text))
    return failure();
  name = StringAttr::get(parser.getContext(), text).getValue();
  return success();
}

/// `"tp"` or `"tp":(1)2`
static ParseResult parseAxis(AsmParser &parser, AxisRef &axis) {
  if (parseName(parser, axis.name))
    return failure();
  if (parser.parseOptionalColon())
    return success();
  return failure(parser.parseLParen() || parser.parseInteger(axis.pre) ||
                 parser.parseRParen() || parser.parseInteger(axis.size));
}

/// `{"dp", "tp":(1)2, ?}`
static ParseResult parseDim(AsmParser &parser, AxisList &axes, bool &open) {
  open = false;
  return parser.parseCommaSeparatedList(
      AsmParser::Delimiter::Braces, [&]() -> ParseResult {
        if (open)
          return parser.emitError(parser.getCurrentLocation(),
                                  "`?` must come last");
        if (!parser.parseOptionalQuestion()) {
          open = true;
          return success();
        }
        return parseAxis(parser, axes.emplace_back());
      });
}

/// `"tp"`, `max "tp"` or `min "tp"`
static ParseResult parsePartial(AsmParser &parser, PartialAxis &partial) {
  if (!parser.parseOptionalKeyword("max"))
    partial.kind = ReductionKind::Max;
  else if (!parser.parseOptionalKeyword("min"))
    partial.kind = ReductionKind::Min;
  else
    (void)parser.parseOptionalKeyword("sum");
  return parseAxis(parser, partial.axis);
}

Attribute ShardingAttr::parse(AsmParser &parser, Type) {
  SMLoc loc = parser.getCurrentLocation();
  FlatSymbolRefAttr mesh;
  Sharding sharding;
  if (parser.parseLess() || parser.parseAttribute(mesh) ||
      parser.parseComma() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&] {
        bool open;
        ParseResult result =
            parseDim(parser, sharding.dims.emplace_back(), open);
        sharding.open.push_back(open);
        return result;
      }))
    return {};
  if (!parser.parseOptionalComma())
    if (parser.parseKeyword("partial") || parser.parseEqual() ||
        parser.parseCommaSeparatedList(AsmParser::Delimiter::Braces, [&] {
          return parsePartial(parser, sharding.partial.emplace_back());
        }))
      return {};
  if (parser.parseGreater())
    return {};
  SmallVector<DimSharding> dims;
  for (auto [axes, open] : llvm::zip(sharding.dims, sharding.open))
    dims.push_back({axes, open});
  return parser.getChecked<ShardingAttr>(loc, parser.getContext(), mesh, dims,
                                         sharding.partial);
}

Attribute AxesAttr::parse(AsmParser &parser, Type) {
  AxisList axes;
  if (parser.parseLess() ||
      parser.parseCommaSeparatedList(
          AsmParser::Delimiter::Braces,
          [&] { return parseAxis(parser, axes.emplace_back()); }) ||
      parser.parseGreater())
    return {};
  return AxesAttr::get(parser.getContext(), axes);
}

//===----------------------------------------------------------------------===//
// Printing
//===----------------------------------------------------------------------===//

void ShardingAttr::print(AsmPrinter &printer) const {
  printer << "<" << getMesh() << ", " << getSharding().str() << ">";
}

void AxesAttr::print(AsmPrinter &printer) const {
  printer << "<{";
  llvm::interleaveComma(getAxes(), printer.getStream(),
                        [&](const AxisRef &axis) { printer << axis.str(); });
  printer << "}>";
}

//===----------------------------------------------------------------------===//
// Data
//===----------------------------------------------------------------------===//

Sharding ShardingAttr::getSharding() const {
  Sharding result;
  for (const DimSharding &dim : getDims()) {
    result.dims.emplace_back(dim.axes.begin(), dim.axes.end());
    result.open.push_back(dim.open);
  }
  result.partial.assign(getPartial().begin(), getPartial().end());
  return result;
}

ShardingAttr ShardingAttr::get(FlatSymbolRefAttr mesh,
                               const Sharding &sharding) {
  SmallVector<DimSharding> dims;
  for (auto [axes, open] : llvm::zip(sharding.dims, sharding.open))
    dims.push_back({axes, open});
  return get(mesh.getContext(), mesh, dims, sharding.partial);
}

//===----------------------------------------------------------------------===//
// Verification
//===----------------------------------------------------------------------===//

/// What can be said without the mesh.
LogicalResult ShardingAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                   FlatSymbolRefAttr,
                                   ArrayRef<DimSharding> dims,
                                   ArrayRef<PartialAxis> partial) {
  SmallVector<AxisRef> all;
  for (const DimSharding &dim : dims)
    llvm::append_range(all, dim.axes);
  for (const PartialAxis &entry : partial)
    all.push_back(entry.axis);
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (all[i].name == all[j].name &&
          (all[i].isWhole() || all[j].isWhole() || all[i] == all[j]))
        return emitError() << "axis \"" << all[i].name << "\" is used twice";
  return success();
}

LogicalResult
cleave::spmd::verifySharding(function_ref<InFlightDiagnostic()> emitError,
                             Operation *from, ShardingAttr attr, Type type) {
  MeshOp meshOp = lookupMesh(from, attr.getMesh());
  if (!meshOp)
    return emitError() << "unknown mesh " << attr.getMesh();
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor ||
      tensor.getRank() != static_cast<int64_t>(attr.getDims().size()))
    return emitError() << "sharding has " << attr.getDims().size()
                       << " dimensions for a value of type " << type;
  Mesh mesh = meshOp.getMesh();
  SmallVector<AxisRef> all;
  for (const DimSharding &dim : attr.getDims())
    llvm::append_range(all, dim.axes);
  for (const PartialAxis &entry : attr.getPartial())
    all.push_back(entry.axis);
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::optional<std::string> why = mesh.check(all[i]))
      return emitError() << *why;
    if (mesh.overlap(all[i], ArrayRef(all).take_front(i)))
      return emitError() << "axis " << all[i].str()
                         << " overlaps another one of the sharding";
  }
  return success();
}

void cleave::spmd::annotate(Operation *op, ShardingAttr sharding, Type global) {
  MLIRContext *context = op->getContext();
  op->setAttr(kShardingsAttr, ArrayAttr::get(context, {sharding}));
  op->setAttr(kGlobalTypesAttr,
              ArrayAttr::get(context, {TypeAttr::get(global)}));
}
