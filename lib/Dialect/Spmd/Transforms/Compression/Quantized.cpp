//===- Quantized.cpp - Gradients as codes of few bits ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Codes of 8 bits or of one, summed in two rounds, as 1-bit Adam (arXiv
/// 2102.02888, section 4) communicates: a tensor is cut into as many pieces as
/// there are workers, each of which owns one. A worker sends the codes of piece
/// p to its owner (all-to-all), which adds up their values and sends the codes
/// of the sum to all (all-gather). What codes lose is kept on both sides: in
/// the worker's residual, and in that of the owner, in the state
/// `owner_residual`.
///
/// A piece of a worker has one scale: its largest magnitude over 127, and codes
/// -127 to 127, which are rounded to the nearest; or its mean magnitude, and a
/// sign.
///
//===----------------------------------------------------------------------===//

#include "Compressor.h"
#include "Units.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

/// Codes along the last dimension, and their scales, of which it has one.
struct Codes {
  Value codes, scales;
};

class Quantized : public Compressor {
public:
  Quantized(bool signs, int64_t smallest) : signs(signs), smallest(smallest) {}

  std::string whyNot(ArrayRef<int64_t> shape) const override {
    return tooSmall(shape, smallest);
  }
  std::string refusal(ArrayRef<int64_t> shape,
                      ArrayRef<int64_t> shard) const override {
    if (shape == shard)
      return "";
    return "its codes are those of pieces of the whole tensor, of which a rank "
           "holds a shard: compress parameters that no other axis shards";
  }
  CompressedSum build(WorkerTerms &terms) const override;

private:
  Codes encode(Formula &f, Value values) const;
  Value decode(Formula &f, const Codes &codes, Type element) const;

  bool signs;
  int64_t smallest;
};

} // namespace

Codes Quantized::encode(Formula &f, Value values) const {
  SmallVector<int64_t> shape(tensorTypeOf(values).getShape());
  int64_t last = shape.size() - 1, count = shape.back();
  shape.back() = 1;
  Value sizes = graph::AbsOp::create(f.builder, f.loc, values);
  if (signs) {
    Value sum = f.reshape(f.sum(sizes, {last}), shape);
    Value isNegative =
        f.compare(graph::Predicate::lt, values, f.scalar(values, 0.0));
    return {graph::PackBitsOp::create(f.builder, f.loc, isNegative),
            f.mul(sum, f.scalar(sum, 1.0 / static_cast<double>(count)))};
  }
  Value largest = f.reshape(
      graph::ReduceOp::create(f.builder, f.loc, graph::ReductionKind::Max,
                              sizes, ArrayRef<int64_t>{last}),
      shape);
  Value scales = f.div(largest, f.scalar(largest, 127.0));
  // A piece of zeros has the scale 0, and codes of 0.
  Value divisor =
      f.select(f.compare(graph::Predicate::gt, scales, f.scalar(scales, 0.0)),
               scales, f.scalar(scales, 1.0));
  Value quotient = f.div(values, divisor);
  Value rounded = graph::FloorOp::create(
      f.builder, f.loc, f.add(quotient, f.scalar(quotient, 0.5)));
  return {f.cast(rounded, f.builder.getI8Type()), scales};
}

Value Quantized::decode(Formula &f, const Codes &codes, Type element) const {
  if (!signs)
    return f.mul(f.cast(codes.codes, element), codes.scales);
  SmallVector<int64_t> shape(tensorTypeOf(codes.codes).getShape());
  shape.back() *= 8;
  Value isNegative = graph::UnpackBitsOp::create(
      f.builder, f.loc, RankedTensorType::get(shape, f.builder.getI1Type()),
      codes.codes);
  return f.select(isNegative, f.neg(codes.scales), codes.scales);
}

CompressedSum Quantized::build(WorkerTerms &terms) const {
  Formula &f = terms.f;
  int64_t workers = terms.workers();
  Type element = tensorTypeOf(terms.terms).getElementType();
  // Pieces of whole bytes.
  int64_t elements = ShapedType::getNumElements(terms.shape());
  int64_t size = llvm::divideCeil(elements, workers);
  size = signs ? llvm::alignTo(size, 8) : size;
  Units units = Units::pieces(terms.shape(), workers, size);
  Value all = units.split(f, terms.terms);
  auto send = [&](const Codes &codes, int64_t dim) {
    return Codes{terms.place(codes.codes, dim, -1),
                 terms.place(codes.scales, dim, -1)};
  };
  Codes own = encode(f, all);
  Value kept = f.sub(all, decode(f, own, element));
  // The owner of a piece adds up what it gets, in the order of workers.
  Value sums = f.sum(decode(f, send(own, 1), element), {0});
  Value residual = terms.addState("owner_residual", tensorTypeOf(sums), 0, -1,
                                  OtherWorkers{.elements = elements});
  sums = f.add(sums, terms.scaled(residual));
  Codes total = encode(f, sums);
  terms.write(residual, terms.unscaled(f.sub(sums, decode(f, total, element))));
  Value sum = decode(f, send(total, -1), element);
  return {units.join(f, sum), units.join(f, kept)};
}

template <bool signs>
static std::unique_ptr<Compressor>
createQuantized(const CompressorSettings &settings) {
  return std::make_unique<Quantized>(
      signs, static_cast<int64_t>(settings.lookup("smallest")));
}

const CompressorKind &cleave::spmd::int8Compressor() {
  static const CompressorKind kind{
      "int8", {smallestSetting()}, createQuantized<false>};
  return kind;
}

const CompressorKind &cleave::spmd::oneBitCompressor() {
  static const CompressorKind kind{
      "1bit", {smallestSetting()}, createQuantized<true>};
  return kind;
}
