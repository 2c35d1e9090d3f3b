//===- LargestElements.cpp - The largest elements of each worker ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Each worker sends the k elements of its terms of largest magnitude, with
/// their indices, and keeps the others (Aji and Heafield, arXiv 1704.05021;
/// Stich et al., arXiv 1809.07599). All workers gather what the others sent and
/// add it up in their order. k is the same in each step, so that messages have
/// one size.
///
/// With an axis inside of the workers, a worker is a node (HiTopKComm, arXiv
/// 2010.10458): its terms are reduced into pieces over that axis first, each
/// rank chooses from its piece, and the sums of pieces are gathered.
///
//===----------------------------------------------------------------------===//

#include "Sparse.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

class TopK : public Compressor {
public:
  TopK(double density, int64_t smallest, bool shards)
      : density(density), smallest(smallest), shards(shards) {}

  std::string whyNot(ArrayRef<int64_t> shape) const override {
    return tooSmall(shape, smallest);
  }
  std::string refusal(ArrayRef<int64_t> shape,
                      ArrayRef<int64_t> shard) const override {
    return shards ? "" : splitUnit(shape, shard);
  }
  bool choosesFromPieces() const override { return true; }
  std::optional<double> sharedSparsely() const override { return density; }
  CompressedSum build(WorkerTerms &terms) const override;

private:
  double density;
  int64_t smallest;
  bool shards;
};

} // namespace

CompressedSum TopK::build(WorkerTerms &terms) const {
  int64_t size = unitsOf(terms).size();
  LargestElements chosen = chooseLargest(
      terms, std::clamp<int64_t>(std::llround(density * size), 1, size));
  return sumSparse(terms, chosen, chosen.values);
}

const CompressorKind &cleave::spmd::topKCompressor() {
  static const CompressorKind kind{
      "topk",
      {{"density", std::nullopt, "above 0 and at most 1",
        [](double x) { return x > 0 && x <= 1; }},
       smallestSetting(),
       unitSetting()},
      [](const CompressorSettings &settings) -> std::unique_ptr<Compressor> {
        return std::make_unique<TopK>(
            settings.lookup("density"),
            static_cast<int64_t>(settings.lookup("smallest")),
            settings.lookup("unit") == 1);
      }};
  return kind;
}
