//===- Contraction.cpp - Types of contractions ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "VerifyPlace.h"
#include "cleave/Dialect/Graph/IR/Einsum.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"

using namespace mlir;
using namespace cleave::graph;

std::optional<Einsum> Einsum::parse(StringRef equation, std::string &error) {
  auto [inputs, output] = equation.split("->");
  auto [lhs, rhs] = inputs.split(',');
  Einsum result{lhs.str(), rhs.str(), output.str()};
  if (!equation.contains("->") || !inputs.contains(',')) {
    error = "must have the form \"ab,bc->ac\"";
    return std::nullopt;
  }
  for (const std::string *part : {&result.lhs, &result.rhs, &result.output}) {
    llvm::SmallDenseSet<char> seen;
    for (char letter : *part) {
      if (!llvm::isAlpha(letter)) {
        error = (Twine("'") + Twine(letter) + "' is not a letter").str();
        return std::nullopt;
      }
      if (!seen.insert(letter).second) {
        error =
            (Twine("'") + Twine(letter) + "' repeats within a tensor").str();
        return std::nullopt;
      }
    }
  }
  for (char letter : result.output)
    if (result.lhs.find(letter) == std::string::npos &&
        result.rhs.find(letter) == std::string::npos) {
      error = (Twine("'") + Twine(letter) + "' of the output is in no operand")
                  .str();
      return std::nullopt;
    }
  return result;
}

/// Floats of 8 bits of different formats may be multiplied.
static bool isFloat8(Type type) {
  return isa<FloatType>(type) && type.getIntOrFloatBitWidth() == 8;
}

LogicalResult cleave::graph::inferSumType(std::optional<Location> loc,
                                          Type operand,
                                          std::optional<Type> wanted,
                                          Type &result) {
  result = wanted.value_or(operand);
  if (result == operand ||
      (isa<FloatType>(result) && result.getIntOrFloatBitWidth() >= 32 &&
       operand.getIntOrFloatBitWidth() < result.getIntOrFloatBitWidth()))
    return success();
  return emitOptionalError(loc, "result_element ", result,
                           " is not a type that sums of ", operand, " have");
}

LogicalResult ContractOp::inferReturnTypes(MLIRContext *,
                                           std::optional<Location> loc,
                                           Adaptor adaptor,
                                           SmallVectorImpl<Type> &results) {
  std::string error;
  auto einsum = Einsum::parse(adaptor.getEquation(), error);
  if (!einsum)
    return emitOptionalError(loc, "equation \"", adaptor.getEquation(),
                             "\": ", error);
  RankedTensorType lhs = denseTypeOf(adaptor.getLhs());
  RankedTensorType rhs = denseTypeOf(adaptor.getRhs());
  Type left = lhs.getElementType(), right = rhs.getElementType();
  if (left != right && !(isFloat8(left) && isFloat8(right)))
    return emitOptionalError(loc, "operands have different element types, ",
                             left, " and ", right, "; insert a graph.cast");
  if (left != right && !adaptor.getResultElement())
    return emitOptionalError(loc, "operands of ", left, " and ", right,
                             " need a result_element");
  llvm::SmallDenseMap<char, int64_t> sizes;
  for (auto [letters, type] :
       {std::pair(StringRef(einsum->lhs), lhs), {einsum->rhs, rhs}}) {
    if (static_cast<int64_t>(letters.size()) != type.getRank())
      return emitOptionalError(loc, "\"", letters, "\" does not name the ",
                               type.getRank(), " dimensions of ", type);
    for (auto [letter, size] : llvm::zip(letters, type.getShape())) {
      auto [it, inserted] = sizes.try_emplace(letter, size);
      if (!inserted && it->second != size)
        return emitOptionalError(loc, "dimension '", std::string(1, letter),
                                 "' is ", it->second, " in ", lhs, " and ",
                                 size, " in ", rhs);
    }
  }
  SmallVector<int64_t> shape;
  for (char letter : einsum->output)
    shape.push_back(sizes[letter]);
  Type element;
  if (failed(inferSumType(loc, left, adaptor.getResultElement(), element)))
    return failure();
  results.push_back(RankedTensorType::get(shape, element));
  return success();
}

LogicalResult cleave::graph::inferLinear(std::optional<Location> loc,
                                         Value input, Value weight, Value bias,
                                         Type element,
                                         RankedTensorType &result) {
  RankedTensorType x = denseTypeOf(input), w = denseTypeOf(weight);
  if (x.getRank() < 1 || w.getRank() != 2 ||
      x.getShape().back() != w.getDimSize(1))
    return emitOptionalError(loc, "input ", x, " and weight ", w,
                             " need shapes [..., i] and [o, i]");
  if (bias && denseTypeOf(bias).getShape() != ArrayRef(w.getDimSize(0)))
    return emitOptionalError(loc, "bias ", bias.getType(), " must be [",
                             w.getDimSize(0), "]");
  if (x.getElementType() != w.getElementType())
    return emitOptionalError(loc, "input ", x, " and weight ", w,
                             " have different element types");
  if (bias && denseTypeOf(bias).getElementType() != element)
    return emitOptionalError(loc, "bias ", bias.getType(), " must have the ",
                             "element type of the sums, ", element);
  SmallVector<int64_t> shape(x.getShape());
  shape.back() = w.getDimSize(0);
  result = RankedTensorType::get(shape, element);
  return success();
}

LogicalResult LinearOp::inferReturnTypes(MLIRContext *,
                                         std::optional<Location> loc,
                                         Adaptor adaptor,
                                         SmallVectorImpl<Type> &results) {
  RankedTensorType type;
  Type element;
  if (failed(inferSumType(loc, denseTypeOf(adaptor.getInput()).getElementType(),
                          adaptor.getResultElement(), element)) ||
      failed(inferLinear(loc, adaptor.getInput(), adaptor.getWeight(),
                         adaptor.getBias(), element, type)))
    return failure();
  results.push_back(type);
  return success();
}

/// Checks that `rows` has the dimensions of `groups`, and one more.
static LogicalResult checkGroups(std::optional<Location> loc,
                                 RankedTensorType rows,
                                 RankedTensorType groups) {
  if (groups.getRank() > 0 && rows.getRank() == groups.getRank() + 1 &&
      rows.getShape().drop_back() == groups.getShape())
    return success();
  return emitOptionalError(loc, "rows ", rows, " and groups ", groups,
                           " need shapes [i..., k] and [i...]");
}

LogicalResult
GroupedLinearOp::inferReturnTypes(MLIRContext *, std::optional<Location> loc,
                                  Adaptor adaptor,
                                  SmallVectorImpl<Type> &results) {
  RankedTensorType rows = denseTypeOf(adaptor.getRows());
  RankedTensorType weight = denseTypeOf(adaptor.getWeight());
  if (failed(checkGroups(loc, rows, denseTypeOf(adaptor.getGroups()))))
    return failure();
  bool transpose = adaptor.getTranspose();
  if (weight.getRank() != 3 ||
      weight.getDimSize(transpose ? 2 : 1) != rows.getShape().back())
    return emitOptionalError(loc, "rows ", rows, " need a weight ",
                             transpose ? "[e, m, k]" : "[e, k, m]",
                             " with k = ", rows.getShape().back(), ", not ",
                             weight);
  Type element = rows.getElementType();
  if (element != weight.getElementType())
    return emitOptionalError(loc, "rows ", rows, " and weight ", weight,
                             " have different element types");
  if (failed(inferSumType(loc, element, adaptor.getResultElement(), element)))
    return failure();
  SmallVector<int64_t> shape(rows.getShape());
  shape.back() = weight.getDimSize(transpose ? 1 : 2);
  results.push_back(RankedTensorType::get(shape, element));
  return success();
}

LogicalResult GroupedLinearOp::verify() { return verifyPlace(*this); }

LogicalResult GroupedLinearWeightGradOp::inferReturnTypes(
    MLIRContext *, std::optional<Location> loc, Adaptor adaptor,
    SmallVectorImpl<Type> &results) {
  RankedTensorType rows = denseTypeOf(adaptor.getRows());
  RankedTensorType gradient = denseTypeOf(adaptor.getGradient());
  RankedTensorType groups = denseTypeOf(adaptor.getGroups());
  if (failed(checkGroups(loc, rows, groups)) ||
      failed(checkGroups(loc, gradient, groups)))
    return failure();
  int64_t size = adaptor.getSize();
  if (size < 0)
    return emitOptionalError(loc, "size must not be negative");
  Type element = rows.getElementType();
  if (element != gradient.getElementType())
    return emitOptionalError(loc, "rows ", rows, " and gradient ", gradient,
                             " have different element types");
  if (failed(inferSumType(loc, element, adaptor.getResultElement(), element)))
    return failure();
  SmallVector<int64_t> shape{size, rows.getShape().back(),
                             gradient.getShape().back()};
  if (adaptor.getTranspose())
    std::swap(shape[1], shape[2]);
  results.push_back(RankedTensorType::get(shape, element));
  return success();
}

LogicalResult GroupedLinearWeightGradOp::verify() { return verifyPlace(*this); }
