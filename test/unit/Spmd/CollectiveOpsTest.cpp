//===- CollectiveOpsTest.cpp - What movements send, and to whom -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "gtest/gtest.h"
#include <set>

using namespace mlir;
using namespace cleave::spmd;

namespace {

/// The one movement of a function over a mesh of mb=2 (sequential), x=4, y=3.
class Movements : public testing::Test {
protected:
  Movements() {
    context.loadDialect<func::FuncDialect, SpmdDialect>();
    mesh.axes = {{"mb", 2, true}, {"x", 4, false}, {"y", 3, false}};
  }

  CommunicationOpInterface parse(const std::string &op,
                                 const std::string &operand) {
    module = parseSourceString<ModuleOp>(
        "spmd.mesh @mesh <[\"mb\" = 2, \"x\" = 4, \"y\" = 3]> sequential "
        "[\"mb\"]\nfunc.func @f(%x: " +
            operand + ") {\n %0 = " + op + "\n return\n}",
        &context);
    CommunicationOpInterface found;
    if (module)
      module->walk([&](CommunicationOpInterface op) { found = op; });
    return found;
  }

  MLIRContext context;
  Mesh mesh;
  OwningOpRef<ModuleOp> module;
};

TEST_F(Movements, ElementsInRingTerms) {
  struct Case {
    std::string op, operand;
    double elements, bytes;
  };
  for (const Case &c : std::initializer_list<Case>{
           // 2 * 3/4 * 24
           {"spmd.all_reduce sum %x over @mesh {\"x\"} : tensor<24xf32>",
            "tensor<24xf32>", 36, 144},
           // Micro-batches accumulate: only x is sent along.
           {"spmd.all_reduce sum %x over @mesh {\"mb\", \"x\"} : "
            "tensor<24xbf16>",
            "tensor<24xbf16>", 36, 72},
           {"spmd.all_reduce sum %x over @mesh {\"mb\"} : tensor<24xf32>",
            "tensor<24xf32>", 0, 0},
           // 2 * 11/12 * 24
           {"spmd.all_reduce max %x over @mesh {\"x\", \"y\"} : tensor<24xf32>",
            "tensor<24xf32>", 44, 176},
           // 3/4 * 96
           {"spmd.all_gather %x by <@mesh, [{\"x\"}]> : tensor<24xf32> -> "
            "tensor<96xf32>",
            "tensor<24xf32>", 72, 288},
           // 1/2 * 24
           {"spmd.reduce_scatter sum %x by <@mesh, [{\"x\":(2)2}]> : "
            "tensor<24xi1> -> tensor<12xi1>",
            "tensor<24xi1>", 12, 12},
           // 2/3 * 36
           {"spmd.all_to_all %x over @mesh {\"y\"} from 1 to 0 : "
            "tensor<6x6xf64> -> tensor<2x18xf64>",
            "tensor<6x6xf64>", 24, 192},
           // 2/3 * 24, as without room for more than even shares
           {"spmd.all_to_all_rows %x from %s to %s over @mesh {\"y\"} : "
            "tensor<12x2xbf16>, tensor<4xi64> -> tensor<24x2xbf16>",
            "tensor<12x2xbf16>, %s: tensor<4xi64>", 16, 32},
           {"spmd.all_to_all_rows %x from %s to %s over @mesh {\"y\"} : "
            "tensor<24x2xbf16>, tensor<4xi64> -> tensor<12x2xbf16>",
            "tensor<24x2xbf16>, %s: tensor<4xi64>", 16, 32},
           {"spmd.permute %x from <@mesh, [{\"x\":(1)2}]> to <@mesh, "
            "[{\"x\":(2)2}]> : tensor<24xf32>",
            "tensor<24xf32>", 24, 96},
           {"spmd.permute %x from <@mesh, [{\"x\":(1)2, \"x\":(2)2}]> to "
            "<@mesh, [{\"x\"}]> : tensor<24xf32>",
            "tensor<24xf32>", 0, 0}}) {
    CommunicationOpInterface op = parse(c.op, c.operand);
    ASSERT_TRUE(op) << c.op;
    EXPECT_EQ(op.getElementsSent(mesh), c.elements) << c.op;
    EXPECT_EQ(op.getBytesSent(mesh), c.bytes) << c.op;
    EXPECT_EQ(op.getCommunicationMesh().getValue(), "mesh");
  }
}

TEST_F(Movements, AxesOfGroups) {
  EXPECT_EQ(parse("spmd.all_gather %x by <@mesh, [{\"y\"}, {\"x\"}]> : "
                  "tensor<2x2xf32> -> tensor<6x8xf32>",
                  "tensor<2x2xf32>")
                .getCommunicationAxes(),
            (AxisList{{"y"}, {"x"}}));
  EXPECT_EQ(parse("spmd.permute %x from <@mesh, [{\"x\":(1)2}]> to <@mesh, "
                  "[{\"x\":(2)2}]> : tensor<24xf32>",
                  "tensor<24xf32>")
                .getCommunicationAxes(),
            (AxisList{{"x", 1, 2}, {"x", 2, 2}}));
}

// Each position receives the shard that it is to hold, from one that holds it;
// no position sends twice; who keeps its shard sends nothing.
TEST_F(Movements, PermutationsExchange) {
  Mesh mesh;
  mesh.axes = {{"x", 8}, {"y", 4}, {"z", 2}};
  AxisList x{{"x"}}, y{{"y"}}, low{{"x", 2, 4}}, high{{"x", 1, 4}};
  for (const Permutation &p : {
           Permutation{{y}, {high}},
           Permutation{{high}, {low}},
           Permutation{{high, y}, {y, low}},
           Permutation{{{{"x"}, {"z"}}}, {{{"z"}, {"x"}}}},
           Permutation{{{{"y", 2, 2}}, {{"x", 1, 2}, {"z"}}},
                       {{{"z"}}, {{"y", 1, 2}, {"x", 4, 2}}}},
       }) {
    ASSERT_FALSE(p.check(mesh)) << *p.check(mesh);
    std::set<int64_t> senders;
    for (int64_t number = 0; number < mesh.size(); ++number) {
      auto here = mesh.coordinates(number), from = p.source(mesh, here);
      EXPECT_TRUE(senders.insert(mesh.position(from)).second);
      for (size_t dim = 0; dim < p.from.size(); ++dim)
        EXPECT_EQ(mesh.partIndex(p.from[dim], from),
                  mesh.partIndex(p.to[dim], here));
      // Digits that take no part stay.
      AxisList axes = p.axes(mesh);
      auto a = from, b = here;
      mesh.setPart(axes, 0, a);
      mesh.setPart(axes, 0, b);
      EXPECT_EQ(a, b);
    }
  }
}

} // namespace
