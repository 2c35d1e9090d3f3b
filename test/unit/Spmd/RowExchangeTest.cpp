//===- RowExchangeTest.cpp - Rows to the positions of their groups --------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/Transforms/RowExchange.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Interpreter/Interpreter.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/FormatVariadic.h"
#include "gtest/gtest.h"

#include <random>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

using Lists = std::vector<std::vector<int64_t>>;

/// Rows along "ep", beside another axis whose positions have other rows.
class RowExchanges : public testing::Test {
protected:
  RowExchanges() {
    registerReferenceModels(registry);
    registry.insert<func::FuncDialect, graph::GraphDialect, SpmdDialect>();
    context.appendDialectRegistry(registry);
    context.loadAllAvailableDialects();
  }

  /// The results for these offsets of each position; nothing with `error`.
  NamedTensors run(int64_t positions, const Lists &offsets, int64_t groups,
                   int64_t bound) {
    int64_t all = static_cast<int64_t>(offsets.size()),
            length = positions * groups + 1;
    auto result = [&](const char *name, int64_t rows, int64_t columns,
                      bool list) {
      return list ? llvm::formatv("tensor<{0}xi64> {{graph.name = \"{1}\", "
                                  "spmd.sharding = #spmd.sharding<@mesh, "
                                  "[{{\"dp\", \"ep\"}]>, spmd.global_type = "
                                  "tensor<{2}xi64>}",
                                  rows, name, all * rows)
                        .str()
                  : llvm::formatv("tensor<{0}x{1}xi64> {{graph.name = "
                                  "\"{2}\", spmd.sharding = "
                                  "#spmd.sharding<@mesh, [{{\"dp\", \"ep\"}, "
                                  "{{}]>, spmd.global_type = "
                                  "tensor<{3}x{1}xi64>}",
                                  rows, columns, name, all * rows)
                        .str();
    };
    std::string list = llvm::formatv("tensor<{0}xi64>", positions + 1).str(),
                table =
                    llvm::formatv("tensor<{0}x{1}xi64>", positions, groups + 1)
                        .str();
    std::string text =
        llvm::formatv("spmd.mesh @mesh <[\"dp\" = {0}, \"ep\" = {1}]>\n",
                      all / positions, positions)
            .str() +
        "func.func @loss(%o: " + result("offsets", 1, length, false) +
        ") -> (" + result("send", positions + 1, 0, true) + ", " +
        result("receive", positions + 1, 0, true) + ", " +
        result("ranges", positions, groups + 1, false) +
        ") {\n%0 = " + "graph.constant dense<0> : " + list +
        "\n%1 = graph.constant dense<0> : " + table +
        "\nreturn %0, %0, %1 : " + list + ", " + list + ", " + table + "\n}";
    auto module = parseSourceString<ModuleOp>(text, &context);
    EXPECT_TRUE(module) << text;
    auto function = *module->getOps<func::FuncOp>().begin();
    Operation *end = function.getBody().front().getTerminator();
    OpBuilder builder(end);
    RowExchange made = buildRowExchange(
        builder, function.getLoc(), function.getArgument(0),
        FlatSymbolRefAttr::get(&context, "mesh"),
        (*module->getOps<MeshOp>().begin()).getMesh(), AxisRef{"ep"},
        RowBound{bound, 4, "layer 3", "--room", "a few"});
    if (!withChecks)
      for (auto check :
           llvm::make_early_inc_range(function.getOps<graph::CheckOp>()))
        check.erase();
    end->setOperands({made.sendOffsets, made.receiveOffsets, made.ranges});
    EXPECT_TRUE(succeeded(mlir::verify(*module)));
    RefTensor given({all, length}, builder.getI64Type());
    size_t at = 0;
    for (const std::vector<int64_t> &own : offsets)
      for (int64_t value : own)
        given.ints[at++] = value;
    ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
      error += diagnostic.str();
      return success();
    });
    auto out = Interpreter(*module, Precision::Exact)
                   .run("loss", {{"offsets", given}});
    if (failed(out))
      return {};
    return out->outputs;
  }

  DialectRegistry registry;
  MLIRContext context;
  std::string error;
  /// Whether the program has the checks that were built.
  bool withChecks = true;
};

TEST_F(RowExchanges, NumbersFollowFromThoseOfAll) {
  std::mt19937_64 random(5);
  for (int64_t positions : {2, 3, 4, 8})
    for (int64_t groups : {1, 3}) {
      // 1. Drawn rows of each group; some positions have none.
      int64_t all = 2 * positions, length = positions * groups;
      Lists offsets;
      for (int64_t i = 0; i < all; ++i) {
        std::vector<int64_t> own{0};
        for (int64_t e = 0; e < length; ++e)
          own.push_back(own.back() +
                        static_cast<int64_t>(i % 3 ? random() % 5 : 0));
        offsets.push_back(own);
      }
      NamedTensors out = run(positions, offsets, groups, 5 * length);
      ASSERT_EQ(error, "");
      // 2. One after the other.
      for (int64_t rank = 0; rank < all; ++rank) {
        int64_t first = rank / positions * positions, me = rank % positions,
                place = 0;
        auto number = [&](const char *name, int64_t i, int64_t of) {
          return out[name].ints[static_cast<size_t>(rank * of + i)];
        };
        for (int64_t p = 0; p < positions; ++p) {
          EXPECT_EQ(number("send", p, positions + 1),
                    offsets[rank][static_cast<size_t>(p * groups)]);
          EXPECT_EQ(number("receive", p, positions + 1), place);
          for (int64_t e = 0; e <= groups; ++e) {
            EXPECT_EQ(number("ranges", p * (groups + 1) + e,
                             positions * (groups + 1)),
                      place);
            auto group = static_cast<size_t>(me * groups + e);
            if (e < groups)
              place +=
                  offsets[first + p][group + 1] - offsets[first + p][group];
          }
        }
        EXPECT_EQ(number("send", positions, positions + 1),
                  offsets[rank].back());
        EXPECT_EQ(number("receive", positions, positions + 1), place);
      }
    }
}

/// The first rank that receives too many says how many, and what has room.
TEST_F(RowExchanges, MoreThanTheBoundIsAnError) {
  // The second position of the first group receives 8 rows; in the second
  // group, which has 4 in all, each position receives 2.
  Lists offsets{{0, 0, 4}, {0, 0, 4}, {0, 1, 2}, {0, 1, 2}};
  EXPECT_FALSE(run(2, offsets, 1, 8).empty());
  EXPECT_EQ(error, "");
  EXPECT_TRUE(run(2, offsets, 1, 7).empty());
  EXPECT_EQ(error,
            "check failed: -:2: layer 3: rank 1 receives 8 rows, and has "
            "room for 7 (--room=a few); --room=2 has room for the most "
            "that a rank receives");
  // The first position of the second group receives 3.
  error.clear();
  offsets = {{0, 1, 2}, {0, 1, 2}, {0, 2, 2}, {0, 1, 1}};
  EXPECT_TRUE(run(2, offsets, 1, 2).empty());
  EXPECT_EQ(error,
            "check failed: -:2: layer 3: rank 2 receives 3 rows, and has "
            "room for 2 (--room=a few); --room=0.75 has room for the "
            "most that a rank receives");
}

/// Where checks take effect later, no position of a group sends any rows, so
/// that what follows stays within its buffers.
TEST_F(RowExchanges, NoRowsAreSentAfterAnOverflow) {
  withChecks = false;
  Lists offsets{{0, 0, 4}, {0, 0, 4}, {0, 1, 2}, {0, 1, 2}};
  NamedTensors out = run(2, offsets, 1, 7);
  ASSERT_EQ(error, "");
  for (const char *name : {"send", "receive"}) {
    const std::vector<int64_t> &numbers = out[name].ints;
    EXPECT_EQ(std::vector<int64_t>(numbers.begin(), numbers.begin() + 6),
              std::vector<int64_t>(6));
    EXPECT_EQ(std::vector<int64_t>(numbers.begin() + 6, numbers.end()),
              (std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
  }
  const std::vector<int64_t> &ranges = out["ranges"].ints;
  EXPECT_EQ(ranges, (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0,
                                          1, 1, 2}));
}

} // namespace
