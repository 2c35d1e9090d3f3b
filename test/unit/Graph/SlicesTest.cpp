//===- SlicesTest.cpp - Slices of drawn steps -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "../TestAll.h"
#include "DrawnStep.h"
#include "gtest/gtest.h"
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

/// A drawn step, operands that are not read, and ops that do not pass.
class DrawnSlices {
public:
  DrawnSlices(MLIRContext *context, uint64_t seed)
      : step(drawStep(context, seed)), random(seed + 1) {
    double few = random.uniform(0, 0.4);
    for (Operation *op : step.ops) {
      if (random.chance(few))
        stops.insert(op);
      for (OpOperand &use : op->getOpOperands())
        if (random.chance(few))
          unread.insert(&use);
    }
  }

  bool reads(OpOperand &use) const { return !unread.contains(&use); }
  bool passes(Operation *op) const { return !stops.contains(op); }

  DrawnStep step;
  Random random;
  std::set<OpOperand *> unread;
  std::set<Operation *> stops;
};

std::set<Operation *> asSet(const OpSlice &slice) {
  return {slice.begin(), slice.end()};
}

TEST(Slices, AreThoseOfASecondImplementation) {
  MLIRContext context;
  context.loadDialect<func::FuncDialect, GraphDialect>();
  int64_t nonempty = 0;
  for (uint64_t seed = 0, end = testAll() ? 3000 : 150; seed < end; ++seed) {
    DrawnSlices drawn(&context, seed);
    const std::vector<Operation *> &ops = drawn.step.ops;
    auto reads = [&](OpOperand &use) { return drawn.reads(use); };
    auto passes = [&](Operation *op) { return drawn.passes(op); };
    SliceOptions options{.reads = reads, .passes = passes};
    Dependences depends(drawn.step, reads, passes);
    Dependences all(drawn.step, reads, [](Operation *) { return true; });

    size_t one = drawn.random.integer(0, ops.size() - 1);
    std::set<Operation *> chosen, before, after, dependent;
    for (Operation *op : ops)
      if (drawn.random.chance(0.1))
        chosen.insert(op);
    for (size_t i = 0; i < ops.size(); ++i) {
      if (chosen.contains(ops[i]))
        dependent.insert(ops[i]);
      if (depends(i, one))
        after.insert(ops[i]);
      for (size_t j = 0; j < ops.size(); ++j)
        if (chosen.contains(ops[j])) {
          // Through ops that pass, from one that passes.
          if (depends(i, j) && passes(ops[j]))
            dependent.insert(ops[i]);
          if (depends(j, i))
            before.insert(ops[i]);
        }
      EXPECT_EQ(dependsOn(ops[one], ops[i], reads), one == i || all(one, i));
    }
    OpSlice forward = forwardSlice(
        drawn.step.body(), [&](Operation *op) { return chosen.contains(op); },
        options);
    EXPECT_EQ(asSet(forward), dependent) << seed;
    EXPECT_TRUE(llvm::is_sorted(forward, [](Operation *a, Operation *b) {
      return a->isBeforeInBlock(b);
    }));
    SmallVector<Operation *> roots(chosen.begin(), chosen.end());
    EXPECT_EQ(asSet(backwardSlice(roots, options)), before) << seed;
    nonempty += !before.empty() && !dependent.empty();

    // From a value: its op is reached too, and the terminator reads it.
    Value value = ops[one]->getResult(0);
    std::set<Operation *> made{ops[one]};
    for (size_t i = 0; i < ops.size(); ++i)
      if (passes(ops[one]) && depends(one, i))
        made.insert(ops[i]);
    EXPECT_EQ(asSet(backwardSlice(value, options)), made) << seed;
    OpSlice read = forwardSlice(value, options);
    read.remove(drawn.step.body().getTerminator());
    EXPECT_EQ(asSet(read), after) << seed;
  }
  EXPECT_GT(nonempty, 50);
}

TEST(Slices, ValuesThatDependOnOthers) {
  MLIRContext context;
  context.loadDialect<func::FuncDialect, GraphDialect>();
  for (uint64_t seed = 0, end = testAll() ? 3000 : 150; seed < end; ++seed) {
    DrawnStep step = drawStep(&context, seed);
    Random random(seed + 1);
    std::set<void *> chosen;
    Value argument = step.body().getArgument(random.integer(0, 3));
    Value result = random.pick(step.ops)->getResult(0);
    llvm::DenseSet<Value> values =
        dependentValues(step.body(), [&](Value value) {
          return value == argument || value == result;
        });
    std::set<Operation *> expected = asSet(forwardSlice(argument));
    for (Operation *op : forwardSlice(result))
      expected.insert(op);
    expected.insert(result.getDefiningOp());
    for (BlockArgument other : step.body().getArguments())
      EXPECT_EQ(values.contains(other), other == argument);
    for (Operation *op : step.ops)
      EXPECT_EQ(values.contains(op->getResult(0)), expected.contains(op))
          << seed;
  }
}

} // namespace
