//===- PowerSgd.cpp - Gradients of low rank -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// PowerSGD (arXiv 1905.13727, algorithms 1 and 2): one step of power iteration
/// on the sum of all workers' matrices, from the right factor of the step
/// before.
///
///   P = orthonormalize(sum_w M_w Q), Q' = sum_w M_w^T P, sum = P Q'^T
///
/// where `M_w` are the terms of worker w with its residual, of the first
/// dimension by all others. Two tensors of `rank` columns are reduced in place
/// of the matrix. The first Q is pseudo-random, the same on all ranks; with
/// `right=fixed` it stays (Ramesh et al., "Zero-Shot Text-to-Image Generation",
/// arXiv 2102.12092, appendix D). With `factors=bf16` P and Q are rounded to 16
/// bits before they are reduced; what is lost stays in the residual.
///
//===----------------------------------------------------------------------===//

#include "Compressor.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

struct MatrixShape {
  int64_t rows = 1, columns = 1;
};

class PowerSgd : public Compressor {
public:
  explicit PowerSgd(const CompressorSettings &settings)
      : rank(static_cast<int64_t>(settings.lookup("rank"))),
        minRate(settings.lookup("min_rate")),
        isFixed(settings.lookup("right") == 1),
        isNarrow(settings.lookup("factors") == 1) {}

  std::string whyNot(ArrayRef<int64_t> shape) const override;
  std::string refusal(ArrayRef<int64_t> shape,
                      ArrayRef<int64_t> shard) const override;
  CompressedSum build(WorkerTerms &terms) const override;

private:
  Value startOf(WorkerTerms &terms, Value state, RankedTensorType type) const;
  Value sumOfProducts(WorkerTerms &terms, StringRef equation, Value matrices,
                      Value factor) const;

  int64_t rank;
  double minRate;
  bool isFixed, isNarrow;
};

} // namespace

/// The matrix that a tensor is: its first dimension by all others.
static MatrixShape matrixOf(ArrayRef<int64_t> shape) {
  MatrixShape matrix;
  if (shape.empty())
    return matrix;
  matrix.rows = shape[0];
  for (int64_t size : shape.drop_front())
    matrix.columns *= size;
  return matrix;
}

/// Vectors are summed as they are, and matrices whose factors are not smaller
/// by more than the rate.
std::string PowerSgd::whyNot(ArrayRef<int64_t> shape) const {
  MatrixShape matrix = matrixOf(shape);
  if (matrix.rows < 2 || matrix.columns < 2)
    return "no matrices";
  double all = static_cast<double>(matrix.rows) * matrix.columns;
  double sent = static_cast<double>(rank) * (matrix.rows + matrix.columns);
  if (all / sent > minRate)
    return "";
  return "factors of rank " + std::to_string(rank) +
         " are not min_rate times smaller";
}

std::string PowerSgd::refusal(ArrayRef<int64_t> shape,
                              ArrayRef<int64_t>) const {
  MatrixShape matrix = matrixOf(shape);
  int64_t smaller = std::min(matrix.rows, matrix.columns);
  if (rank <= smaller)
    return "";
  return "rank " + std::to_string(rank) + " is above " +
         std::to_string(smaller) + ", the smaller side of this matrix of " +
         std::to_string(matrix.rows) + " x " + std::to_string(matrix.columns);
}

/// Numbers of [-1, 1) that look random, by their index: the fractional part of
/// a large multiple of the sine of an angle, computed in f64.
static Value pseudoRandom(Formula &f, RankedTensorType type) {
  auto wide = RankedTensorType::get(type.getShape(), f.builder.getF64Type());
  auto index = [&](int64_t dim) -> Value {
    return graph::IotaOp::create(f.builder, f.loc, wide, dim, 0);
  };
  Value row = index(0), column = index(1);
  Value angle = f.add(f.mul(row, f.scalar(row, 12.9898)),
                      f.mul(column, f.scalar(column, 78.233)));
  Value large = f.mul(graph::SinOp::create(f.builder, f.loc, angle),
                      f.scalar(angle, 43758.5453));
  Value part = f.sub(large, graph::FloorOp::create(f.builder, f.loc, large));
  Value centred = f.sub(f.mul(part, f.scalar(part, 2.0)), f.scalar(part, 1.0));
  return f.cast(centred, type.getElementType());
}

/// The sum over workers of a contraction with each worker's matrix.
Value PowerSgd::sumOfProducts(WorkerTerms &terms, StringRef equation,
                              Value matrices, Value factor) const {
  Formula &f = terms.f;
  Value products = f.contract(equation, matrices, factor);
  Type wide = tensorTypeOf(products).getElementType();
  if (isNarrow)
    products = f.cast(products, f.builder.getBF16Type());
  return f.cast(terms.sum(products), wide);
}

/// The right factor of the step before; a pseudo-random one before the first
/// step, where it is zero.
Value PowerSgd::startOf(WorkerTerms &terms, Value state,
                        RankedTensorType type) const {
  Formula &f = terms.f;
  Value random = pseudoRandom(f, type);
  if (isFixed)
    return random;
  Value largest = graph::ReduceOp::create(
      f.builder, f.loc, graph::ReductionKind::Max,
      graph::AbsOp::create(f.builder, f.loc, state), ArrayRef<int64_t>{0, 1});
  Value isUnset =
      f.compare(graph::Predicate::eq, largest, f.scalar(largest, 0.0));
  return f.select(isUnset, random, state);
}

CompressedSum PowerSgd::build(WorkerTerms &terms) const {
  Formula &f = terms.f;
  MatrixShape matrix = matrixOf(terms.shape());
  Value matrices =
      f.reshape(terms.terms, {terms.workers(), matrix.rows, matrix.columns});
  auto type = RankedTensorType::get({matrix.columns, rank},
                                    tensorTypeOf(matrices).getElementType());
  Value state =
      isFixed ? Value()
              : terms.addState("right_factor", type, -1, -1, OtherWorkers());
  Value left = graph::OrthonormalizeOp::create(
      f.builder, f.loc,
      sumOfProducts(terms, "wnm,mr->wnr", matrices,
                    startOf(terms, state, type)));
  Value right = sumOfProducts(terms, "wnm,nr->wmr", matrices, left);
  if (state)
    terms.write(state, right);
  Value sum = f.contract("nr,mr->nm", left, right);
  // Each worker keeps its terms without its share of the sum.
  Value share =
      f.mul(sum, f.scalar(sum, 1.0 / static_cast<double>(terms.workers())));
  Value kept = f.sub(matrices, share);
  SmallVector<int64_t> shape(terms.shape());
  return {f.reshape(sum, shape),
          f.reshape(kept, tensorTypeOf(terms.terms).getShape())};
}

const CompressorKind &cleave::spmd::powerSgdCompressor() {
  static const CompressorKind kind{
      "powersgd",
      {{"rank", std::nullopt, "a positive integer",
        [](double x) { return x >= 1 && x == static_cast<int64_t>(x); }},
       {"min_rate", 2.0, "a number that is not negative",
        [](double x) { return x >= 0; }},
       {"right", 0.0, "warm or fixed", nullptr, {"warm", "fixed"}},
       {"factors", 0.0, "f32 or bf16", nullptr, {"f32", "bf16"}}},
      [](const CompressorSettings &settings) -> std::unique_ptr<Compressor> {
        return std::make_unique<PowerSgd>(settings);
      }};
  return kind;
}
