//===- MatchForms.cpp - Clones in the form of their originals -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/Views.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Dialect/Graph/IR/Attributes/Clones.h"

namespace cleave::exec {
#define GEN_PASS_DEF_MATCHFORMS
#include "cleave/Dialect/Exec/Transforms/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// Whether the rows of a matrix are contiguous; otherwise its columns are.
static bool hasRows(RankedTensorType type) {
  return getLayout(type).strides.back() == 1;
}

/// A compact layout with contiguous columns.
static RankedTensorType inColumns(RankedTensorType type) {
  int64_t rank = type.getRank(), rows = type.getDimSize(rank - 2);
  Strided layout = getLayout(denseType(type));
  layout.strides[rank - 2] = 1;
  layout.strides[rank - 1] = rows;
  return withLayout(type, layout);
}

namespace {
struct MatchForms : exec::impl::MatchFormsBase<MatchForms> {
  void runOnOperation() override {
    llvm::DenseMap<Attribute, ContractOp> originals;
    SmallVector<ContractOp> clones;
    getOperation().walk([&](ContractOp op) {
      Attribute twin = op->getAttr(graph::kTwinAttr);
      if (!twin)
        return;
      if (op->hasAttr(graph::kCloneAttr))
        clones.push_back(op);
      else
        originals.try_emplace(twin, op);
    });
    for (ContractOp clone : clones)
      if (ContractOp original =
              originals.lookup(clone->getAttr(graph::kTwinAttr)))
        match(clone, original);
    getOperation().walk([&](ContractOp op) {
      op->removeAttr(graph::kTwinAttr);
      op->removeAttr(graph::kCloneAttr);
    });
  }

private:
  static void match(ContractOp clone, ContractOp original) {
    for (unsigned i : {0, 1}) {
      RankedTensorType wanted = tensorTypeOf(original->getOperand(i)),
                       found = tensorTypeOf(clone->getOperand(i));
      // One row or column is both.
      if (wanted.getShape() != found.getShape() ||
          hasRows(wanted) == hasRows(found) || found.getShape().back() == 1 ||
          found.getDimSize(found.getRank() - 2) == 1)
        continue;
      OpBuilder builder(clone);
      clone->setOperand(i, CopyOp::create(builder, clone.getLoc(),
                                          hasRows(wanted) ? denseType(found)
                                                          : inColumns(found),
                                          clone->getOperand(i), Value()));
    }
  }
};
} // namespace
