//===- GraphDialect.cpp - The graph dialect ---===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
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
