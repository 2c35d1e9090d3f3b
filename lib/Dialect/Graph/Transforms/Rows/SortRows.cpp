//===- SortRows.cpp - Rows sorted by group --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "cleave/Dialect/Graph/Transforms/SortedRows.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::graph {
#define GEN_PASS_DEF_SORTROWS
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {
struct SortRows final : cleave::graph::impl::SortRowsBase<SortRows> {
  void runOnOperation() override {
    getOperation().walk([](Block *block) {
      SmallVector<GroupedOps> all = findGroupedOps(*block);
      for (const GroupedOps &grouped : all)
        sortRows(grouped);
      // Ops that made rows which are now read elsewhere.
      if (!all.empty())
        for (Operation &op : llvm::make_early_inc_range(llvm::reverse(*block)))
          if (isOpTriviallyDead(&op))
            op.erase();
    });
  }
};
} // namespace
