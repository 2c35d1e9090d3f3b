//===- StepRolesTest.cpp - Roles of the ops of drawn steps ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/StepRoles.h"
#include "../TestAll.h"
#include "DrawnStep.h"
#include "mlir/Parser/Parser.h"
#include "gtest/gtest.h"
#include <map>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

/// A step in which each op has a role and a reason for it.
constexpr const char *kStep = R"(
  func.func @step(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
    %y = graph.mul %w, %x : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %norm = graph.abs %w : (tensor<f32>) -> tensor<f32>
    %decay = graph.neg %norm : (tensor<f32>) -> tensor<f32>
    %seed = graph.seed %y : (tensor<f32>) -> tensor<f32>
    %dw = graph.mul %seed, %x : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %g = graph.gradient %dw of "w" : (tensor<f32>) -> tensor<f32>
    %d = graph.add %g, %decay : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %new = graph.sub %w, %d : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %new : tensor<f32>
  })";

TEST(StepRoles, OfASmallStep) {
  MLIRContext context;
  context.loadDialect<func::FuncDialect, GraphDialect>();
  auto module = parseSourceString<ModuleOp>(kStep, &context);
  ASSERT_TRUE(module);
  Block &body = (*module->getOps<func::FuncOp>().begin()).front();
  StepRoles roles(body);
  std::string text;
  for (Operation &op : body.without_terminator()) {
    text += "FBU"[static_cast<unsigned>(roles.of(&op))];
    text += roles.servesUpdate(&op) ? "u" : "";
    text += roles.dependsOnSeed(&op) ? "1 " : "0 ";
  }
  // The norm and the decay of a parameter serve its update; the operand of a
  // gradient does not.
  EXPECT_EQ(text, "F0 Fu0 Fu0 B1 B1 Uu1 Uu1 Uu1 ");
}

TEST(StepRoles, AreThoseOfASecondImplementation) {
  MLIRContext context;
  context.loadDialect<func::FuncDialect, GraphDialect>();
  int64_t counts[3] = {};
  for (uint64_t seed = 0, end = testAll() ? 3000 : 150; seed < end; ++seed) {
    DrawnStep step = drawStep(&context, seed);
    // As where a seed reads only the type of its loss.
    bool typed = seed % 2;
    auto reads = [&](OpOperand &use) {
      return !typed || !isa<SeedOp>(use.getOwner()) ||
             use.getOperandNumber() != 0;
    };
    StepRoles roles(step.body(), reads);
    Dependences depends(step, reads, [](Operation *) { return true; });
    std::map<Operation *, unsigned> numbers;
    std::map<Operation *, bool> serves;
    for (Operation *op : step.ops)
      if (isa<SeedOp>(op))
        numbers.emplace(op, numbers.size() + 1);
    for (size_t i = step.ops.size(); i-- > 0;) {
      Operation *op = step.ops[i];
      bool update = isa<GradientOp>(op);
      unsigned last = isa<SeedOp>(op) ? numbers.at(op) : 0;
      for (size_t j = 0; j < step.ops.size(); ++j)
        if (depends(i, j)) {
          update |= isa<GradientOp>(step.ops[j]);
          if (isa<SeedOp>(step.ops[j]))
            last = std::max(last, numbers.at(step.ops[j]));
        }
      StepRole expected = update ? StepRole::Update
                          : last ? StepRole::Backward
                                 : StepRole::Forward;
      EXPECT_EQ(roles.of(op), expected) << seed;
      EXPECT_EQ(roles.seedIndex(op), last) << seed;
      bool only = !op->use_empty();
      for (Operation *user : op->getUsers())
        only &= serves[user] && !isa<GradientOp>(user);
      serves[op] = update || only;
      EXPECT_EQ(roles.servesUpdate(op), serves[op]) << seed;
      ++counts[static_cast<unsigned>(expected)];
    }
    EXPECT_EQ(roles.hasBackward(), !numbers.empty());
  }
  for (int64_t count : counts)
    EXPECT_GT(count, 200);
}

} // namespace
