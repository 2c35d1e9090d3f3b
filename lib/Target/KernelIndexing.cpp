//===- KernelIndexing.cpp - Memory access of affine maps ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Target/KernelIndexing.h"
#include "mlir/IR/AffineMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include <algorithm>
#include <cstdlib>
#include <numeric>

using namespace mlir;
using namespace cleave;

std::optional<LaneStep> cleave::stepOf(AffineExpr expr,
                                       const LaneGeometry &geometry) {
  if (auto constant = dyn_cast<AffineConstantExpr>(expr))
    return LaneStep{0, std::abs(constant.getValue())};
  if (auto dim = dyn_cast<AffineDimExpr>(expr))
    return dim.getPosition() == 0 ? geometry.row : geometry.col;
  if (auto symbol = dyn_cast<AffineSymbolExpr>(expr)) {
    unsigned i = symbol.getPosition();
    if (i < geometry.varyingSymbols.size() && geometry.varyingSymbols[i])
      return std::nullopt;
    return LaneStep{0, 1};
  }
  auto binary = cast<AffineBinaryOpExpr>(expr);
  auto lhs = stepOf(binary.getLHS(), geometry);
  auto rhs = stepOf(binary.getRHS(), geometry);
  if (!lhs || !rhs)
    return std::nullopt;
  if (expr.getKind() == AffineExprKind::Add)
    return LaneStep{lhs->stride + rhs->stride,
                    std::gcd(lhs->multiple, rhs->multiple)};
  // Affine expressions keep their constants on the right.
  auto constant = dyn_cast<AffineConstantExpr>(binary.getRHS());
  if (!constant)
    return lhs->stride == 0 && rhs->stride == 0 ? std::optional(LaneStep{0, 1})
                                                : std::nullopt;
  int64_t k = constant.getValue();
  if (expr.getKind() == AffineExprKind::Mul)
    return LaneStep{lhs->stride * k, lhs->multiple * std::abs(k)};
  if (k <= 0)
    return std::nullopt;
  // With the base a multiple of g, where g divides k, all lanes lie in the
  // same period of k when they span less than g.
  int64_t g = std::gcd(lhs->multiple, k);
  bool same = lhs->stride >= 0 && lhs->stride * int64_t(geometry.lanes - 1) < g;
  if (lhs->stride != 0 && !same)
    return std::nullopt;
  if (expr.getKind() == AffineExprKind::Mod)
    return LaneStep{lhs->stride, g == k ? 0 : g};
  if (expr.getKind() == AffineExprKind::FloorDiv)
    return LaneStep{0, lhs->multiple % k == 0 ? lhs->multiple / k : 1};
  return lhs->stride == 0 ? std::optional(LaneStep{0, 1}) : std::nullopt;
}

/// Coefficients of row and column in `expr` if it is linear in them; symbols
/// and constants are left in `rest`.
static bool splitLinear(AffineExpr expr, int64_t factor, int64_t coefficient[2],
                        AffineExpr &rest) {
  if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
    coefficient[dim.getPosition()] += factor;
    return true;
  }
  if (expr.getKind() == AffineExprKind::Add) {
    auto binary = cast<AffineBinaryOpExpr>(expr);
    return splitLinear(binary.getLHS(), factor, coefficient, rest) &&
           splitLinear(binary.getRHS(), factor, coefficient, rest);
  }
  if (!expr.isFunctionOfDim(0) && !expr.isFunctionOfDim(1)) {
    rest = rest + expr * factor;
    return true;
  }
  auto binary = cast<AffineBinaryOpExpr>(expr);
  if (auto constant = dyn_cast<AffineConstantExpr>(binary.getRHS());
      constant && expr.getKind() == AffineExprKind::Mul)
    return splitLinear(binary.getLHS(), factor * constant.getValue(),
                       coefficient, rest);
  return false;
}

AffineExpr cleave::flatten(AffineExpr expr, int64_t cols) {
  MLIRContext *context = expr.getContext();
  AffineExpr flat = getAffineDimExpr(0, context);
  int64_t coefficient[2] = {0, 0};
  AffineExpr rest = getAffineConstantExpr(0, context);
  if (splitLinear(expr, 1, coefficient, rest) &&
      (coefficient[0] == coefficient[1] * cols || cols == 1))
    return flat * (cols == 1 ? coefficient[0] : coefficient[1]) + rest;
  // With one column, the column is 0 and the row the flat index.
  if (cols == 1)
    return expr.replaceDims({flat, getAffineConstantExpr(0, context)});
  return expr.replaceDims({flat.floorDiv(cols), flat % cols});
}

std::optional<std::pair<int64_t, int64_t>>
cleave::rangeOf(AffineExpr expr, ArrayRef<int64_t> extents) {
  if (auto constant = dyn_cast<AffineConstantExpr>(expr))
    return std::pair(constant.getValue(), constant.getValue());
  if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
    if (dim.getPosition() >= extents.size())
      return std::nullopt;
    return std::pair<int64_t, int64_t>(0, extents[dim.getPosition()]);
  }
  if (isa<AffineSymbolExpr>(expr))
    return std::nullopt;
  auto binary = cast<AffineBinaryOpExpr>(expr);
  auto lhs = rangeOf(binary.getLHS(), extents);
  auto rhs = rangeOf(binary.getRHS(), extents);
  if (!lhs || !rhs)
    return std::nullopt;
  if (expr.getKind() == AffineExprKind::Add)
    return std::pair(lhs->first + rhs->first, lhs->second + rhs->second);
  if (expr.getKind() == AffineExprKind::Mul) {
    int64_t corners[] = {lhs->first * rhs->first, lhs->first * rhs->second,
                         lhs->second * rhs->first, lhs->second * rhs->second};
    return std::pair(*llvm::min_element(corners), *llvm::max_element(corners));
  }
  if (rhs->first != rhs->second || rhs->first <= 0)
    return std::nullopt;
  int64_t k = rhs->first;
  auto floorDiv = [&](int64_t v) { return (v - (v < 0 ? k - 1 : 0)) / k; };
  switch (expr.getKind()) {
  case AffineExprKind::Mod:
    return std::pair<int64_t, int64_t>(0, k - 1);
  case AffineExprKind::FloorDiv:
    return std::pair(floorDiv(lhs->first), floorDiv(lhs->second));
  default:
    return std::pair(-floorDiv(-lhs->first), -floorDiv(-lhs->second));
  }
}
