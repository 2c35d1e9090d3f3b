//===- Sparse.cpp - Sums of chosen elements -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Sparse.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

Units cleave::spmd::unitsOf(const WorkerTerms &terms) {
  return terms.shape() == ArrayRef(terms.shard)
             ? Units::whole(terms.shape())
             : Units::shards(terms.shape(), terms.shard);
}

LargestElements cleave::spmd::chooseLargest(WorkerTerms &terms, int64_t count) {
  Formula &f = terms.f;
  LargestElements chosen{unitsOf(terms), {}, {}, {}, {}};
  chosen.terms = terms.place(chosen.units.split(f, terms.terms), 0, 1);
  auto largest = graph::TopKOp::create(
      f.builder, f.loc, graph::AbsOp::create(f.builder, f.loc, chosen.terms),
      count);
  chosen.magnitudes = largest.getValues();
  chosen.indices = largest.getIndices();
  // Magnitudes have no sign.
  chosen.values = graph::GatherOp::create(
      f.builder, f.loc, chosen.terms, chosen.indices, Value(),
      f.builder.getI64IntegerAttr(2), IntegerAttr(), IntegerAttr(),
      f.builder.getI64IntegerAttr(2));
  return chosen;
}

/// Adds `values` up at `indices` of a last dimension of `size`; the first
/// `batch` dimensions are those of the result.
static Value scatter(Formula &f, Value values, Value indices, int64_t size,
                     int64_t batch) {
  auto integer = [&](int64_t value) {
    return f.builder.getI64IntegerAttr(value);
  };
  return graph::ScatterAddOp::create(
      f.builder, f.loc, values, indices, Value(), integer(batch), integer(size),
      IntegerAttr(), IntegerAttr(), integer(batch));
}

CompressedSum cleave::spmd::sumSparse(WorkerTerms &terms,
                                      const LargestElements &chosen,
                                      Value sent) {
  Formula &f = terms.f;
  int64_t size = chosen.units.size();
  int64_t count = tensorTypeOf(chosen.indices).getShape().back();
  Value kept = f.sub(chosen.terms, scatter(f, sent, chosen.indices, size,
                                           /*batch=*/2));
  auto gather = [&](Value value) {
    Value all =
        graph::TransposeOp::create(f.builder, f.loc, terms.place(value, -1, 1),
                                   ArrayRef<int64_t>{1, 0, 2});
    return f.reshape(all, {chosen.units.count(), terms.workers() * count});
  };
  // An index takes 4 bytes.
  Value indices = gather(f.cast(chosen.indices, f.builder.getI32Type()));
  Value sum = scatter(f, gather(sent), f.cast(indices, f.builder.getI64Type()),
                      size, /*batch=*/1);
  return {chosen.units.join(f, sum), chosen.units.join(f, kept)};
}
