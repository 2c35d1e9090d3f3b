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

//===----------------------------------------------------------------------===//
// Rows sorted by group
//===----------------------------------------------------------------------===//

LogicalResult SortRowsOp::inferReturnTypes(MLIRContext *context,
                                           std::optional<Location> loc,
                                           Adaptor adaptor,
                                           SmallVectorImpl<Type> &results) {
  RankedTensorType groups = denseTypeOf(adaptor.getGroups());
  int64_t size = adaptor.getSize();
  if (groups.getRank() != 1 || size < 1)
    return emitOptionalError(loc, "needs groups [n] and size >= 1, but has ",
                             groups, " and ", size);
  if (static_cast<int64_t>(adaptor.getGlobalSize().value_or(size)) < 1 ||
      (adaptor.getOrigin() &&
       denseTypeOf(adaptor.getOrigin()).getShape() != ArrayRef<int64_t>{1}))
    return emitOptionalError(
        loc, "needs a positive global_size, and an origin of one element");
  Type wide = IntegerType::get(context, 64);
  auto rows = RankedTensorType::get(groups.getShape(), wide);
  llvm::append_values(results, rows, rows,
                      RankedTensorType::get({1, size + 1}, wide));
  return success();
}

/// Checks the operands that both contractions of sorted rows share, and finds
/// the element type of their result and the number of groups.
static LogicalResult inferGrouped(std::optional<Location> loc,
                                  RankedTensorType rows, RankedTensorType other,
                                  RankedTensorType offsets,
                                  std::optional<Type> wanted, Type &element,
                                  int64_t &groups) {
  if (rows.getRank() != 2 || offsets.getRank() != 2 ||
      !offsets.getElementType().isInteger(64) || offsets.getDimSize(0) < 1 ||
      offsets.getDimSize(1) < 2)
    return emitOptionalError(
        loc, "needs rows [r, k] and i64 offsets [p, e + 1], but has ", rows,
        " and ", offsets);
  if (rows.getElementType() != other.getElementType())
    return emitOptionalError(loc, "operands ", rows, " and ", other,
                             " have different element types");
  groups = offsets.getDimSize(1) - 1;
  return inferSumType(loc, rows.getElementType(), wanted, element);
}

LogicalResult
GroupedContractOp::inferReturnTypes(MLIRContext *, std::optional<Location> loc,
                                    Adaptor adaptor,
                                    SmallVectorImpl<Type> &results) {
  RankedTensorType rows = denseTypeOf(adaptor.getRows()),
                   weight = denseTypeOf(adaptor.getWeight());
  Type element;
  int64_t groups;
  if (failed(inferGrouped(loc, rows, weight, denseTypeOf(adaptor.getOffsets()),
                          adaptor.getResultElement(), element, groups)))
    return failure();
  bool transposed = adaptor.getTranspose();
  if (weight.getRank() != 3 || weight.getDimSize(0) != groups ||
      weight.getDimSize(transposed ? 2 : 1) != rows.getDimSize(1))
    return emitOptionalError(
        loc, "rows ", rows, " and weight ", weight, " need shapes [r, k] and ",
        transposed ? "[e, m, k]" : "[e, k, m]", " with ", groups, " groups e");
  results.push_back(RankedTensorType::get(
      {rows.getDimSize(0), weight.getDimSize(transposed ? 1 : 2)}, element));
  return success();
}

LogicalResult GroupedContractWeightGradOp::inferReturnTypes(
    MLIRContext *, std::optional<Location> loc, Adaptor adaptor,
    SmallVectorImpl<Type> &results) {
  RankedTensorType rows = denseTypeOf(adaptor.getRows()),
                   grads = denseTypeOf(adaptor.getGrads());
  Type element;
  int64_t groups;
  if (failed(inferGrouped(loc, rows, grads, denseTypeOf(adaptor.getOffsets()),
                          adaptor.getResultElement(), element, groups)))
    return failure();
  if (grads.getRank() != 2 || grads.getDimSize(0) != rows.getDimSize(0))
    return emitOptionalError(loc, "rows ", rows, " and gradients ", grads,
                             " need shapes [r, k] and [r, m]");
  int64_t k = rows.getDimSize(1), m = grads.getDimSize(1);
  if (adaptor.getTranspose())
    std::swap(k, m);
  results.push_back(RankedTensorType::get({groups, k, m}, element));
  return success();
}
