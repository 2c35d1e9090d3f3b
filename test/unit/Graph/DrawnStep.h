//===- DrawnStep.h - Random steps and their dependences ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A random block of ops of a step, and which op depends on which, as a matrix
/// that is closed by squaring: a second way to find slices and roles, which
/// shares nothing with the first.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_GRAPH_DRAWNSTEP_H
#define CLEAVE_TEST_UNIT_GRAPH_DRAWNSTEP_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Testing/Random.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/OwningOpRef.h"
#include <functional>
#include <vector>

namespace cleave {

struct DrawnStep {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  mlir::func::FuncOp entry;
  /// The ops of the block, in order, without the terminator.
  std::vector<mlir::Operation *> ops;

  mlir::Block &body() { return entry.getBody().front(); }
};

/// Draws up to 40 ops over four arguments. Some are seeds, gradients and
/// checks, in any order; some have no reader.
inline DrawnStep drawStep(mlir::MLIRContext *context, uint64_t seed) {
  Random random(seed);
  DrawnStep step;
  mlir::OpBuilder builder(context);
  mlir::Location loc = builder.getUnknownLoc();
  step.module = mlir::ModuleOp::create(loc);
  builder.setInsertionPointToEnd(step.module->getBody());
  auto type = mlir::RankedTensorType::get({}, builder.getF32Type());
  step.entry = mlir::func::FuncOp::create(
      builder, loc, "step",
      builder.getFunctionType(llvm::SmallVector<mlir::Type>(4, type), {type}));
  mlir::Block *block = step.entry.addEntryBlock();
  builder.setInsertionPointToEnd(block);
  std::vector<mlir::Value> values(block->args_begin(), block->args_end());
  double chance = random.uniform(0, 0.2);
  for (int64_t i = 0, end = random.integer(1, 40); i < end; ++i) {
    mlir::Value a = random.pick(values), b = random.pick(values);
    if (random.chance(chance))
      values.push_back(graph::SeedOp::create(
          builder, loc, a, random.chance(0.5) ? b : mlir::Value()));
    else if (random.chance(chance))
      values.push_back(graph::GradientOp::create(builder, loc, a, "w"));
    else if (random.chance(0.3))
      values.push_back(graph::NegOp::create(builder, loc, a));
    else
      values.push_back(graph::AddOp::create(builder, loc, a, b));
  }
  mlir::func::ReturnOp::create(builder, loc, random.pick(values));
  for (mlir::Operation &op : block->without_terminator())
    step.ops.push_back(&op);
  return step;
}

/// Which op reads a result of which, and the closure of that.
class Dependences {
public:
  using Reads = std::function<bool(mlir::OpOperand &)>;
  using Passes = std::function<bool(mlir::Operation *)>;

  /// A dependence does not go on through an op that does not pass.
  Dependences(const DrawnStep &step, const Reads &reads, const Passes &passes)
      : ops(step.ops) {
    size_t n = ops.size();
    direct.assign(n, std::vector<bool>(n, false));
    for (size_t i = 0; i < n; ++i)
      for (mlir::OpOperand &use : ops[i]->getOpOperands())
        for (size_t j = 0; j < n; ++j)
          if (use.get().getDefiningOp() == ops[j] && reads(use))
            direct[i][j] = true;
    closure = direct;
    for (size_t grown = 1; grown;) {
      grown = 0;
      for (size_t i = 0; i < n; ++i)
        for (size_t j = 0; j < n; ++j)
          for (size_t k = 0; k < n; ++k)
            if (!closure[i][j] && closure[i][k] && passes(ops[k]) &&
                closure[k][j])
              closure[i][j] = ++grown;
    }
  }

  /// Whether op `i` depends on op `j`.
  bool operator()(size_t i, size_t j) const { return closure[i][j]; }

private:
  const std::vector<mlir::Operation *> &ops;
  std::vector<std::vector<bool>> direct, closure;
};

} // namespace cleave

#endif // CLEAVE_TEST_UNIT_GRAPH_DRAWNSTEP_H
