//===- SeparateBias.cpp - A bias after its product ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"

namespace cleave::graph {
#define GEN_PASS_DEF_SEPARATEBIAS
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {
struct SeparateBias final
    : cleave::graph::impl::SeparateBiasBase<SeparateBias> {
  void runOnOperation() override {
    getOperation().walk([](LinearOp op) {
      Value bias = op.getBias();
      if (!bias)
        return;
      OpBuilder builder(op);
      builder.setInsertionPointAfter(op);
      op.getBiasMutable().clear();
      auto sum = AddOp::create(builder, op.getLoc(), op.getType(),
                               op.getOutput(), bias);
      op.getOutput().replaceAllUsesExcept(sum.getOutput(), sum);
    });
  }
};
} // namespace
