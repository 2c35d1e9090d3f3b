//===- Threshold.cpp - Elements above a threshold -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Dynamic communication thresholding of gradients (arXiv 2010.08899, section
/// 4): a worker sends the elements of its terms whose magnitude is at least its
/// threshold, which every so many steps becomes that of the K-th largest. In
/// between as many elements as there are may be above it; messages have one
/// size, the capacity, and what exceeds it stays in the residual, the smallest
/// first.
///
//===----------------------------------------------------------------------===//

#include "Sparse.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::Predicate;

namespace {

class Threshold : public Compressor {
public:
  explicit Threshold(const CompressorSettings &settings)
      : keep(settings.lookup("keep")), capacity(settings.lookup("capacity")),
        every(static_cast<int64_t>(settings.lookup("every"))),
        smallest(static_cast<int64_t>(settings.lookup("smallest"))),
        shards(settings.lookup("unit") == 1) {}

  std::string whyNot(ArrayRef<int64_t> shape) const override {
    return tooSmall(shape, smallest);
  }
  std::string refusal(ArrayRef<int64_t> shape,
                      ArrayRef<int64_t> shard) const override {
    return shards ? "" : splitUnit(shape, shard);
  }
  std::optional<double> sharedSparsely() const override {
    return keep * capacity;
  }
  CompressedSum build(WorkerTerms &terms) const override;

private:
  double keep, capacity;
  int64_t every, smallest;
  bool shards;
};

} // namespace

CompressedSum Threshold::build(WorkerTerms &terms) const {
  Formula &f = terms.f;
  int64_t size = unitsOf(terms).size();
  int64_t kept = std::clamp<int64_t>(std::llround(keep * size), 1, size);
  int64_t most = std::clamp<int64_t>(
      static_cast<int64_t>(std::ceil(capacity * kept)), kept, size);
  LargestElements chosen = chooseLargest(terms, most);
  SmallVector<int64_t> shape(tensorTypeOf(chosen.magnitudes).getShape());
  // The threshold of each worker and unit; 0 before it is chosen.
  SmallVector<int64_t> one{shape[0], shape[1], 1};
  Value old = terms.addState(
      "threshold",
      RankedTensorType::get(one, tensorTypeOf(terms.terms).getElementType()), 0,
      1, OtherWorkers{.summed = true});
  Value exact = graph::SliceOp::create(f.builder, f.loc, chosen.magnitudes,
                                       ArrayRef<int64_t>{0, 0, kept - 1}, one,
                                       ArrayRef<int64_t>{1, 1, 1});
  // Updates count from 1.
  Value turn = graph::RemOp::create(f.builder, f.loc, terms.step,
                                    f.scalar(terms.step, every));
  Value isTurn =
      f.compare(Predicate::eq, turn, f.scalar(terms.step, every > 1 ? 1 : 0));
  Value isNew = graph::OrOp::create(
      f.builder, f.loc, f.compare(Predicate::eq, old, f.scalar(old, 0.0)),
      isTurn);
  Value threshold = f.select(isNew, exact, old);
  terms.write(old, threshold);
  Value isAbove = f.compare(Predicate::ge, chosen.magnitudes, threshold);
  Value sent = f.select(isAbove, chosen.values, f.scalar(chosen.values, 0.0));
  return sumSparse(terms, chosen, sent);
}

const CompressorKind &cleave::spmd::thresholdCompressor() {
  static const CompressorKind kind{
      "threshold",
      {{"keep", std::nullopt, "above 0 and at most 1",
        [](double x) { return x > 0 && x <= 1; }},
       {"every", 1000.0, "a positive integer",
        [](double x) { return x >= 1 && x == static_cast<int64_t>(x); }},
       {"capacity", 1.5, "at least 1: times the elements that are kept",
        [](double x) { return x >= 1; }},
       smallestSetting(),
       unitSetting()},
      [](const CompressorSettings &settings) -> std::unique_ptr<Compressor> {
        return std::make_unique<Threshold>(settings);
      }};
  return kind;
}
