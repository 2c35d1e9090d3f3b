//===- UpdateBuilder.cpp - What an update rule builds with ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "UpdateBuilder.h"

using namespace mlir;
using namespace cleave::graph;

TrainedParameter::TrainedParameter(func::FuncOp step, BlockArgument argument)
    : value(argument),
      ownName(getArgString(step, argument.getArgNumber(), kNameAttr)) {
  unsigned index = argument.getArgNumber();
  ArrayRef<int64_t> shape = type().getShape();
  SmallVector<int64_t> framework(shape);
  if (auto given =
          step.getArgAttrOfType<DenseI64ArrayAttr>(index, kFrameworkShapeAttr))
    framework.assign(given.asArrayRef().begin(), given.asArrayRef().end());
  int64_t rank = shape.size(), next = 0;
  for (int64_t size : framework) {
    SmallVector<int64_t> &group = groups.emplace_back();
    int64_t elements = 1;
    while (next < rank && (group.empty() || elements < size)) {
      elements *= shape[next];
      group.push_back(next++);
    }
  }
  // Trailing factors of size 1.
  while (!groups.empty() && next < rank)
    groups.back().push_back(next++);
  if (step.getArgAttr(index, kStackedAttr))
    groups.erase(groups.begin());
}

int64_t TrainedParameter::size(unsigned dim) const {
  int64_t elements = 1;
  for (int64_t own : groups[dim])
    elements *= type().getDimSize(own);
  return elements;
}

std::string TrainedParameter::shapeText() const {
  std::string text;
  for (unsigned dim = 0; dim < rank(); ++dim)
    text += (dim ? "x" : "") + std::to_string(size(dim));
  return text;
}

SmallVector<int64_t> TrainedParameter::all() const {
  return llvm::to_vector(llvm::seq<int64_t>(0, type().getRank()));
}

SmallVector<int64_t> TrainedParameter::own() const {
  SmallVector<int64_t> dims;
  for (ArrayRef<int64_t> group : groups)
    llvm::append_range(dims, group);
  return dims;
}

SmallVector<int64_t> TrainedParameter::without(unsigned dim) const {
  SmallVector<int64_t> dims = all();
  llvm::erase_if(dims, [&](int64_t other) {
    return llvm::is_contained(groups[dim], other);
  });
  return dims;
}

SmallVector<int64_t>
TrainedParameter::frameworkShape(ArrayRef<int64_t> dims,
                                 ArrayRef<int64_t> sizes) const {
  SmallVector<int64_t> shape;
  const SmallVector<int64_t> *last = nullptr;
  for (auto [dim, size] : llvm::zip_equal(dims, sizes)) {
    auto group = llvm::find_if(groups, [dim = dim](const auto &group) {
      return llvm::is_contained(group, dim);
    });
    // The dimension that counts the parameters of a stack is of no group.
    bool joins = group != groups.end() && last == &*group;
    if (joins)
      shape.back() *= size;
    else
      shape.push_back(size);
    last = group == groups.end() ? nullptr : &*group;
  }
  return shape;
}

int64_t TrainedParameter::elements() const {
  int64_t elements = 1;
  for (unsigned dim = 0; dim < rank(); ++dim)
    elements *= size(dim);
  return elements;
}

Type UpdateBuilder::computeType() const {
  Type type = parameter.type().getElementType();
  return type.isF64() ? type : builder.getF32Type();
}

Value UpdateBuilder::constant(double value) {
  return splat(RankedTensorType::get({}, computeType()), value);
}

Value UpdateBuilder::scaledGradient() {
  Value g = wide(gradient);
  return gradientScale ? mul(g, wide(gradientScale)) : g;
}

Value UpdateBuilder::mean(Value value, ArrayRef<int64_t> dims) {
  double elements = 1;
  for (int64_t dim : dims)
    elements *= tensorTypeOf(value).getDimSize(dim);
  return dims.empty() ? value : mul(sum(value, dims), constant(1.0 / elements));
}

Value UpdateBuilder::sqrt(Value value) {
  return SqrtOp::create(builder, loc, value);
}

Value UpdateBuilder::maximum(Value a, Value b) {
  return MaximumOp::create(builder, loc, a, b);
}

Value UpdateBuilder::minimum(Value a, Value b) {
  return MinimumOp::create(builder, loc, a, b);
}

Value UpdateBuilder::norm(Value value) {
  SmallVector<int64_t> dims = parameter.own();
  Value squares = mul(value, value);
  return sqrt(dims.empty() ? squares : sum(squares, dims));
}

ArrayRef<Value>
UpdateBuilder::once(const std::string &key,
                    function_ref<SmallVector<Value>(Formula &, Value)> build) {
  auto [it, isNew] = scalars.try_emplace(key);
  if (isNew) {
    OpBuilder::InsertionGuard guard(builder);
    Block *block = parameter.argument().getOwner();
    builder.setInsertionPointToStart(block);
    Formula f{builder, block->getParentOp()->getLoc()};
    it->second = build(f, f.cast(number, builder.getF64Type()));
  }
  return it->second;
}
