//===- FusedKernelsTest.cpp - Kernels of graph ops against the reference --===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Graph functions are executed by the reference interpreter, and fused and
/// executed natively: whole, in pieces, and in place. Results of the native
/// runs are equal bit by bit, and near the reference's.
///
//===----------------------------------------------------------------------===//

#include "FusionRunner.h"
#include "cleave/Dialect/Exec/Kernels/KernelBuilder.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Pipelines/Register.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "gtest/gtest.h"
#include <cmath>
#include <random>

using namespace mlir;
using namespace cleave;
using namespace cleave::testing;

namespace {

class Fusion : public ::testing::Test {
protected:
  Fusion() {
    DialectRegistry registry;
    registerAllDialects(registry);
    registerReferenceModels(registry);
    context.appendDialectRegistry(registry);
    context.loadAllAvailableDialects();
  }

  /// Checks the only function of `text`. Integers are drawn below `bound`.
  /// Returns the number of kernels.
  int64_t check(const std::string &text, int64_t bound = 4,
                double tolerance = 2e-5) {
    SCOPED_TRACE(text);
    auto module = parseSourceString<ModuleOp>(text, &context);
    EXPECT_TRUE(module);
    if (!module)
      return -1;
    auto entry = *module->getOps<func::FuncOp>().begin();
    NamedTensors inputs;
    for (auto [i, type] : llvm::enumerate(entry.getArgumentTypes()))
      inputs["arg" + std::to_string(i)] =
          draw(cast<RankedTensorType>(type), bound);
    Interpreter interpreter(*module, Precision::Exact);
    auto expected = interpreter.run(entry.getSymName(), inputs);
    EXPECT_TRUE(succeeded(expected));
    if (failed(expected))
      return -1;

    PassManager passes(&context);
    passes.addPass(exec::createFuse());
    EXPECT_TRUE(succeeded(passes.run(*module)));
    std::string fused;
    llvm::raw_string_ostream os(fused);
    module->print(os);
    SCOPED_TRACE(fused);
    int64_t kernels = 0;
    for (auto kernel : module->getOps<exec::KernelOp>())
      kernels += kernel.getRows() > 0;
    for (int bits : {256, 512}) {
      if (bits > CpuTarget::host().vectorBits)
        continue;
      SCOPED_TRACE(bits);
      auto target = CpuTarget::get("", bits);
      if (!target) {
        ADD_FAILURE() << llvm::toString(target.takeError());
        return -1;
      }
      auto object = compileKernels(*module, *target);
      EXPECT_TRUE(succeeded(object));
      if (failed(object))
        return -1;
      auto library = loadKernels(*object);
      if (!library) {
        ADD_FAILURE() << llvm::toString(library.takeError());
        return -1;
      }
      FusionRunner runner(*module, **library);
      auto whole = runner.run(entry, inputs, int64_t(1) << 40, false);
      EXPECT_EQ(runner.error, "");
      for (auto [i, result] : llvm::enumerate(whole))
        compare(expected->outputs.at("result" + std::to_string(i)), result, i,
                tolerance);
      auto pieces = runner.run(entry, inputs, 3, true);
      EXPECT_EQ(runner.error, "");
      for (size_t i = 0; i < whole.size() && i < pieces.size(); ++i) {
        EXPECT_TRUE(sameBits(whole[i], pieces[i]))
            << "result " << i << " depends on pieces or on memory";
      }
    }
    return kernels;
  }

  std::mt19937_64 random{1};
  MLIRContext context;

private:
  RefTensor draw(RankedTensorType type, int64_t bound) {
    RefTensor tensor(type);
    std::normal_distribution<double> normal;
    for (double &x : tensor.floats)
      x = static_cast<float>(normal(random));
    bool isBool = type.getElementType().isInteger(1);
    for (int64_t &x : tensor.ints)
      x = random() % (isBool ? 2 : bound);
    return tensor;
  }

  static bool sameBits(const RefTensor &a, const RefTensor &b) {
    if (a.ints != b.ints || a.floats.size() != b.floats.size())
      return false;
    for (size_t i = 0; i < a.floats.size(); ++i)
      if (!(a.floats[i] == b.floats[i] ||
            (std::isnan(a.floats[i]) && std::isnan(b.floats[i]))))
        return false;
    return true;
  }

  static void compare(const RefTensor &expected, const RefTensor &actual,
                      size_t number, double tolerance) {
    ASSERT_EQ(expected.shape, actual.shape);
    EXPECT_EQ(expected.ints, actual.ints) << "result " << number;
    double scale = 1e-3;
    for (double x : expected.floats)
      if (std::isfinite(x))
        scale = std::max(scale, std::min(std::abs(x), 1.0));
    for (size_t i = 0; i < expected.floats.size(); ++i) {
      double e = expected.floats[i], a = actual.floats[i];
      if ((std::isnan(e) && std::isnan(a)) || e == a)
        continue;
      ASSERT_LE(std::abs(e - a), tolerance * (std::abs(e) + scale))
          << "result " << number << ", element " << i << ": " << a
          << " instead of " << e;
    }
  }
};

std::string replaceAll(std::string text, const std::string &from,
                       const std::string &to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;
       at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::string func(const std::string &args, const std::string &results,
                 const std::string &body) {
  return "func.func @f(" + args + ") -> (" + results + ") {\n" + body + "}\n";
}

TEST_F(Fusion, UnaryOps) {
  for (const char *op :
       {"neg", "abs", "exp", "sin", "cos", "tanh", "erf", "sigmoid", "silu",
        "relu", "floor", "gelu", "gelu X{tanh}"}) {
    std::string name = op, attributes;
    if (size_t at = name.find(" X"); at != std::string::npos) {
      attributes = name.substr(at + 2);
      name = name.substr(0, at);
    }
    for (const char *shape : {"5000x", "3x7x", "", "1x"})
      check(func("%x: tensor<" + std::string(shape) + "f32>",
                 "tensor<" + std::string(shape) + "f32>",
                 "%0 = graph." + name + " %x " + attributes + " : (tensor<" +
                     shape + "f32>) -> tensor<" + shape +
                     "f32>\nreturn %0 : tensor<" + shape + "f32>\n"));
  }
  for (const char *op : {"log", "sqrt", "rsqrt"})
    check(func("%x: tensor<33x5xf32>", "tensor<33x5xf32>",
               std::string("%a = graph.abs %x : (tensor<33x5xf32>) -> "
                           "tensor<33x5xf32>\n%0 = graph.") +
                   op +
                   " %a : (tensor<33x5xf32>) -> tensor<33x5xf32>\nreturn %0 : "
                   "tensor<33x5xf32>\n"));
}

TEST_F(Fusion, BinaryOpsBroadcast) {
  struct {
    const char *lhs, *rhs, *out;
  } shapes[] = {{"4x37x", "4x37x", "4x37x"}, {"4x37x", "37x", "4x37x"},
                {"4x1x", "1x37x", "4x37x"},  {"2x3x5x", "2x1x5x", "2x3x5x"},
                {"", "70x", "70x"},          {"6000x", "", "6000x"}};
  for (const char *op : {"add", "sub", "mul", "div", "maximum", "minimum"})
    for (auto [l, r, o] : shapes)
      for (const char *type : {"f32", "f64"}) {
        auto t = [&](const char *s) {
          return "tensor<" + std::string(s) + type + ">";
        };
        check(func("%x: " + t(l) + ", %y: " + t(r), t(o),
                   std::string("%0 = graph.") + op + " %x, %y : (" + t(l) +
                       ", " + t(r) + ") -> " + t(o) + "\nreturn %0 : " + t(o) +
                       "\n"));
      }
}

TEST_F(Fusion, IntegersAndConditions) {
  check(func(
      "%x: tensor<9x17xi64>, %y: tensor<17xi64>, %f: tensor<9x17xf32>",
      "tensor<9x17xf32>, tensor<9x17xi64>, tensor<9x17xi1>, tensor<9x17xi32>",
      R"(
    %0 = graph.compare lt %x, %y : (tensor<9x17xi64>, tensor<17xi64>) -> tensor<9x17xi1>
    %1 = graph.compare ne %x, %y : (tensor<9x17xi64>, tensor<17xi64>) -> tensor<9x17xi1>
    %2 = graph.and %0, %1 : (tensor<9x17xi1>, tensor<9x17xi1>) -> tensor<9x17xi1>
    %3 = graph.not %2 : (tensor<9x17xi1>) -> tensor<9x17xi1>
    %4 = graph.cast %x : (tensor<9x17xi64>) -> tensor<9x17xf32>
    %5 = graph.select %3, %4, %f : (tensor<9x17xi1>, tensor<9x17xf32>, tensor<9x17xf32>) -> tensor<9x17xf32>
    %6 = graph.mul %x, %y : (tensor<9x17xi64>, tensor<17xi64>) -> tensor<9x17xi64>
    %i = graph.iota {dim = 1 : i64, start = 3 : i64} : tensor<9x17xi64>
    %7 = graph.add %6, %i : (tensor<9x17xi64>, tensor<9x17xi64>) -> tensor<9x17xi64>
    %8 = graph.cast %f : (tensor<9x17xf32>) -> tensor<9x17xi32>
    return %5, %7, %3, %8 : tensor<9x17xf32>, tensor<9x17xi64>, tensor<9x17xi1>, tensor<9x17xi32>
)"));
}

/// Row-wise ops over [2, R, C].
TEST_F(Fusion, RowOps) {
  const char *text = R"(
func.func @f(%x: tensor<2xRxCxf32>, %g: tensor<2xRxCxf32>, %w: tensor<Cxf32>, %b: tensor<Cxf32>, %t: tensor<2xRxi64>, %gl: tensor<2xRxf32>)
    -> (tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<Cxf32>, tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<Cxf32>,
        tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<2xRxf32>, tensor<2xRxCxf32>) {
  %y, %m, %s = graph.layer_norm %x weight %w bias %b {epsilon = 1.0e-5 : f64} : (tensor<2xRxCxf32>, tensor<Cxf32>, tensor<Cxf32>) -> (tensor<2xRxCxf32>, tensor<2xRxf32>, tensor<2xRxf32>)
  %dx = graph.layer_norm_grad %g, %x, %m, %s weight %w : (tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<2xRxf32>, tensor<2xRxf32>, tensor<Cxf32>) -> tensor<2xRxCxf32>
  %dw = graph.layer_norm_weight_grad %g, %x, %m, %s : (tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<2xRxf32>, tensor<2xRxf32>) -> tensor<Cxf32>
  %z, %q = graph.rms_norm %x weight %w {epsilon = 1.0e-5 : f64} : (tensor<2xRxCxf32>, tensor<Cxf32>) -> (tensor<2xRxCxf32>, tensor<2xRxf32>)
  %dz = graph.rms_norm_grad %g, %x, %q weight %w : (tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<2xRxf32>, tensor<Cxf32>) -> tensor<2xRxCxf32>
  %dv = graph.rms_norm_weight_grad %g, %x, %q : (tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<2xRxf32>) -> tensor<Cxf32>
  %p = graph.softmax %x : (tensor<2xRxCxf32>) -> tensor<2xRxCxf32>
  %dp = graph.softmax_grad %g, %p : (tensor<2xRxCxf32>, tensor<2xRxCxf32>) -> tensor<2xRxCxf32>
  %l = graph.softmax %x {log} : (tensor<2xRxCxf32>) -> tensor<2xRxCxf32>
  %dl = graph.softmax_grad %g, %l {log} : (tensor<2xRxCxf32>, tensor<2xRxCxf32>) -> tensor<2xRxCxf32>
  %ce, %lse = graph.cross_entropy %x, %t {ignore_index = 2 : i64, label_smoothing = 0.1 : f64} : (tensor<2xRxCxf32>, tensor<2xRxi64>) -> (tensor<2xRxf32>, tensor<2xRxf32>)
  %dc = graph.cross_entropy_grad %gl, %x, %t, %lse {ignore_index = 2 : i64, label_smoothing = 0.1 : f64} : (tensor<2xRxf32>, tensor<2xRxCxf32>, tensor<2xRxi64>, tensor<2xRxf32>) -> tensor<2xRxCxf32>
  return %y, %dx, %dw, %z, %dz, %dv, %p, %dp, %l, %dl, %ce, %dc : tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<Cxf32>, tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<Cxf32>,
        tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<2xRxCxf32>, tensor<2xRxf32>, tensor<2xRxCxf32>
}
)";
  for (auto [r, c] :
       {std::pair(3, 5), {1, 64}, {17, 16}, {5, 100}, {1, 1000}, {40, 3}})
    check(replaceAll(replaceAll(text, "xRx", "x" + std::to_string(r) + "x"),
                     "Cx", std::to_string(c) + "x"),
          std::min<int64_t>(c, 4), /*tolerance=*/2e-4);
}

TEST_F(Fusion, Reductions) {
  for (const char *kind : {"sum", "max", "min"})
    for (auto [dims, out] : {std::pair("0", "7x33x"),
                             {"1", "5x33x"},
                             {"2", "5x7x"},
                             {"0, 1", "33x"},
                             {"1, 2", "5x"},
                             {"0, 2", "7x"},
                             {"0, 1, 2", ""}}) {
      std::string o = "tensor<" + std::string(out) + "f32>";
      check(func("%x: tensor<5x7x33xf32>", o,
                 std::string("%0 = graph.reduce ") + kind +
                     " %x {dims = array<i64: " + dims +
                     ">} : (tensor<5x7x33xf32>) -> " + o +
                     "\nreturn %0 : " + o + "\n"));
    }
  check(func("%x: tensor<20000xf32>", "tensor<f32>",
             "%0 = graph.reduce sum %x {dims = array<i64: 0>} : "
             "(tensor<20000xf32>) -> tensor<f32>\n"
             "return %0 : tensor<f32>\n"));
  check(func("%x: tensor<1x4x70000xf32>", "tensor<1x70000xf32>",
             "%0 = graph.reduce max %x {dims = array<i64: 1>} : "
             "(tensor<1x4x70000xf32>) -> tensor<1x70000xf32>\n"
             "return %0 : tensor<1x70000xf32>\n"));
  for (const char *dim : {"0", "1", "2"})
    for (const char *reverse : {"", ", reverse"})
      check(func("%x: tensor<3x5x7xf32>", "tensor<3x5x7xf32>",
                 std::string("%0 = graph.cumulative_sum %x {dim = ") + dim +
                     " : i64" + reverse +
                     "} : (tensor<3x5x7xf32>) -> tensor<3x5x7xf32>\nreturn %0 "
                     ": tensor<3x5x7xf32>\n"));
}

TEST_F(Fusion, Movement) {
  auto one = [&](const std::string &in, const std::string &out,
                 const std::string &op) {
    check(func("%x: tensor<" + in + "xf32>", "tensor<" + out + "xf32>",
               "%0 = graph." + op + " : (tensor<" + in + "xf32>) -> tensor<" +
                   out + "xf32>\nreturn %0 : tensor<" + out + "xf32>\n"));
  };
  one("3x5x7", "7x3x5", "transpose %x {permutation = array<i64: 2, 0, 1>}");
  one("3x5x7", "5x3x7", "transpose %x {permutation = array<i64: 1, 0, 2>}");
  one("3x1x7", "2x3x5x7", "broadcast %x");
  one("8x9", "3x4",
      "slice %x {offsets = array<i64: 1, 0>, sizes = array<i64: 3, 4>, strides "
      "= array<i64: 2, 2>}");
  one("3x4", "8x9",
      "pad %x {value = 0.5 : f64, low = array<i64: 2, 0>, high = array<i64: 1, "
      "2>, interior = array<i64: 1, 1>}");
  one("2x3x8x9", "2x4x3x3x2x3",
      "patches %x {kernel = array<i64: 2, 3>, stride = array<i64: 2, 3>, "
      "padding = array<i64: 0, 1>, dilation = array<i64: 1, 1>}");
  one("2x3x8x9", "2x5x7x3x2x3",
      "patches %x {kernel = array<i64: 2, 3>, stride = array<i64: 2, 1>, "
      "padding = array<i64: 1, 1>, dilation = array<i64: 1, 2>}");
  one("2x5x7x3x2x3", "2x3x8x9",
      "patches_grad %x {image = array<i64: 8, 9>, kernel = array<i64: 2, 3>, "
      "stride = array<i64: 2, 1>, padding = array<i64: 1, 1>, dilation = "
      "array<i64: 1, 2>}");
  check(func("%x: tensor<3x5xf32>, %y: tensor<3x2xf32>, %z: tensor<3x40xf32>",
             "tensor<3x47xf32>",
             "%0 = graph.concat %x, %y, %z {dim = 1 : i64} : (tensor<3x5xf32>, "
             "tensor<3x2xf32>, tensor<3x40xf32>) -> tensor<3x47xf32>\n"
             "return %0 : tensor<3x47xf32>\n"));
  for (auto [dim, out] :
       {std::pair("0", "2x3x5x6"), {"1", "4x2x3x6"}, {"2", "4x5x2x3"}}) {
    std::string o = std::string("tensor<") + out + "xf32>";
    check(func("%x: tensor<4x5x6xf32>, %i: tensor<2x3xi64>", o,
               std::string("%0 = graph.gather %x, %i {dim = ") + dim +
                   " : i64} : (tensor<4x5x6xf32>, tensor<2x3xi64>) -> " + o +
                   "\nreturn %0 : " + o + "\n"));
  }
}

/// On a shard that begins at the row that %o says; indices name rows of the
/// whole.
TEST_F(Fusion, Indexed) {
  for (const char *columns : {"1", "6", "100"}) {
    std::string w = std::string("tensor<4x") + columns + "xf32>",
                y = std::string("tensor<3x2x") + columns + "xf32>";
    check(func("%w: " + w + ", %i: tensor<3x2xi64>, %o: tensor<1xi64>", y,
               "%0 = graph.gather %w, %i origin %o {dim = 0 : i64, global_size "
               "= 1000 : i64} : (" +
                   w + ", tensor<3x2xi64>, tensor<1xi64>) -> " + y +
                   "\nreturn %0 : " + y + "\n"),
          8);
  }
  for (const char *place : {"", " origin %o"})
    check(func("%i: tensor<3x2xi64>, %o: tensor<1xi64>", "tensor<3x2x70xi1>",
               std::string("%0 = graph.one_hot %i") + place +
                   " {size = 70 : i64" +
                   (*place ? ", global_size = 1000 : i64" : "") +
                   "} : (tensor<3x2xi64>" + (*place ? ", tensor<1xi64>" : "") +
                   ") -> tensor<3x2x70xi1>\nreturn %0 : tensor<3x2x70xi1>\n"),
          8);
}

/// A constant has no memory to be read at an index.
TEST_F(Fusion, IndexedConstants) {
  std::string constant = "%c = graph.constant dense<2.5> : tensor<4x6xf32>\n";
  check(func(
      "%x: tensor<6x6xf32>", "tensor<6x6xf32>",
      constant +
          "%p = graph.pad %c {low = array<i64: 1, 0>, high = array<i64: 1, 0>, "
          "interior = array<i64: 0, 0>, value = 1.0} : (tensor<4x6xf32>) -> "
          "tensor<6x6xf32>\n"
          "%y = graph.add %p, %x : (tensor<6x6xf32>, tensor<6x6xf32>) -> "
          "tensor<6x6xf32>\n"
          "return %y : tensor<6x6xf32>\n"));
  check(func("%i: tensor<3xi64>", "tensor<3x6xf32>",
             constant + "%y = graph.gather %c, %i {dim = 0 : i64} : "
                        "(tensor<4x6xf32>, tensor<3xi64>) -> tensor<3x6xf32>\n"
                        "return %y : tensor<3x6xf32>\n"));
  check(func("%i: tensor<3xi64>, %o: tensor<1xi64>", "tensor<3x6xf32>",
             constant + "%y = graph.gather %c, %i origin %o {dim = 0 : i64, "
                        "global_size = 1000 : i64} : "
                        "(tensor<4x6xf32>, tensor<3xi64>, tensor<1xi64>) -> "
                        "tensor<3x6xf32>\n"
                        "return %y : tensor<3x6xf32>\n"),
        8);
}

TEST_F(Fusion, Rope) {
  for (const char *attributes :
       {"", "{interleaved}", "{adjoint}", "{interleaved, adjoint}"})
    for (const char *c : {"7x32", "2x1x7x32"})
      check(func(std::string("%x: tensor<2x3x7x32xf32>, %c: tensor<") + c +
                     "xf32>, %s: tensor<" + c + "xf32>",
                 "tensor<2x3x7x32xf32>",
                 std::string("%0 = graph.rope %x, %c, %s ") + attributes +
                     " : (tensor<2x3x7x32xf32>, tensor<" + c +
                     "xf32>, tensor<" + c +
                     "xf32>) -> tensor<2x3x7x32xf32>\nreturn %0 : "
                     "tensor<2x3x7x32xf32>\n"));
}

TEST_F(Fusion, Dropout) {
  for (const char *shape : {"3x64x", "3x50x", "9000x", "2x3x128x", "7x"}) {
    std::string t = "tensor<" + std::string(shape) + "f32>";
    check(func("%x: " + t + ", %r: tensor<2xi64>", t,
               "%0 = graph.dropout %x, %r {probability = 0.3 : f64, id = 5 : "
               "i64} : (" +
                   t + ", tensor<2xi64>) -> " + t + "\nreturn %0 : " + t +
                   "\n"),
          int64_t(1) << 40);
  }
  // The slice begins somewhere in dimension 0, and at 0 in dimension 1.
  check(func(
      "%x: tensor<4x64xf32>, %r: tensor<2xi64>, %i: tensor<i64>",
      "tensor<4x64xf32>",
      "%n = graph.iota {dim = 0 : i64} : tensor<2xi64>\n"
      "%one = graph.constant dense<1> : tensor<i64>\n"
      "%m = graph.sub %one, %n : (tensor<i64>, tensor<2xi64>) -> "
      "tensor<2xi64>\n"
      "%o = graph.mul %m, %i : (tensor<2xi64>, tensor<i64>) -> tensor<2xi64>\n"
      "%0 = graph.dropout %x, %r origin %o {probability = 0.3 : f64, id = 5 : "
      "i64, global_shape = array<i64: 16, 64>} "
      ": (tensor<4x64xf32>, tensor<2xi64>, tensor<2xi64>) -> "
      "tensor<4x64xf32>\nreturn %0 : tensor<4x64xf32>\n"));
}

TEST_F(Fusion, Optimizers) {
  for (const char *shape : {"5000x", "13x3x", ""}) {
    std::string t = "tensor<" + std::string(shape) + "f32>";
    check(
        func("%p: " + t + ", %g: " + t + ", %m: " + t + ", %w: " + t +
                 ", %lr: tensor<f32>, %a: tensor<f32>, %b: tensor<f32>, %s: "
                 "tensor<f32>, %step: tensor<i64>",
             t + ", " + t + ", " + t + ", " + t + ", " + t,
             "%v = graph.mul %w, %w : (" + t + ", " + t + ") -> " + t + "\n" +
                 "%one = graph.constant dense<1.5> : tensor<f32>\n"
                 "%a2 = graph.mul %a, %a : (tensor<f32>, tensor<f32>) -> "
                 "tensor<f32>\n"
                 "%c1 = graph.add %a2, %one : (tensor<f32>, tensor<f32>) -> "
                 "tensor<f32>\n"
                 "%b2 = graph.mul %b, %b : (tensor<f32>, tensor<f32>) -> "
                 "tensor<f32>\n"
                 "%c2 = graph.add %b2, %one : (tensor<f32>, tensor<f32>) -> "
                 "tensor<f32>\n"
                 "%0, %1, %2 = graph.adamw %p, %g, %m, %v lr %lr, %c1, %c2 "
                 "scale %s {beta1 = 0.9 : f64, beta2 = 0.99 : f64, "
                 "epsilon = 1.0e-3 : f64, weight_decay = 0.1 : f64} : (" +
                 t + ", " + t + ", " + t + ", " + t +
                 ", tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> (" +
                 t + ", " + t + ", " + t + ")\n" +
                 "%3, %4 = graph.sgd %p, %g buffer %m lr %lr, %step {momentum "
                 "= 0.9 : f64, dampening = 0.1 : f64, "
                 "weight_decay = 0.01 : f64, nesterov} : (" +
                 t + ", " + t + ", " + t + ", tensor<f32>, tensor<i64>) -> (" +
                 t + ", " + t + ")\n" + "return %0, %1, %2, %3, %4 : " + t +
                 ", " + t + ", " + t + ", " + t + ", " + t + "\n"));
  }
  check(func("%x: tensor<100x70xf32>, %y: tensor<9xf32>, %z: tensor<f32>",
             "tensor<f32>",
             "%0 = graph.global_norm %x, %y, %z : (tensor<100x70xf32>, "
             "tensor<9xf32>, tensor<f32>) -> tensor<f32>\n"
             "return %0 : tensor<f32>\n"));
  check(func("%step: tensor<i64>", "tensor<f32>, tensor<f32>", R"(
    %b = graph.constant dense<0.999> : tensor<f64>
    %one = graph.constant dense<1.0> : tensor<f64>
    %s = graph.cast %step : (tensor<i64>) -> tensor<f64>
    %p = graph.pow %b, %s : (tensor<f64>, tensor<f64>) -> tensor<f64>
    %c = graph.sub %one, %p : (tensor<f64>, tensor<f64>) -> tensor<f64>
    %r = graph.sqrt %c : (tensor<f64>) -> tensor<f64>
    %0 = graph.cast %c : (tensor<f64>) -> tensor<f32>
    %1 = graph.cast %r : (tensor<f64>) -> tensor<f32>
    return %0, %1 : tensor<f32>, tensor<f32>
)"),
        1000, 1e-6);
}

/// Every op runs somewhere: in a kernel, made of ops that do, or in a library.
TEST_F(Fusion, EveryOpHasCode) {
  StringRef elsewhere[] = {"contract", "linear", "attention", "attention_grad",
                           "attention_bias_grad", "head_loss", "scatter_add",
                           "orthonormalize", "sort_rows", "grouped_contract",
                           "grouped_contract_weight_grad",
                           // Replaced by ops of sorted rows.
                           "grouped_linear", "grouped_linear_weight_grad",
                           // Replaced by the op of each worker.
                           "per_worker", "constant", "check"};
  std::string missing;
  for (RegisteredOperationName name : context.getRegisteredOperations())
    if (name.getDialectNamespace() == "graph" &&
        !name.hasInterface<KernelLoweringInterface>() &&
        !name.hasInterface<KernelDecompositionInterface>() &&
        !llvm::is_contained(elsewhere, name.stripDialect()))
      missing += name.getStringRef().str() + " ";
  EXPECT_EQ(missing, "");
}

/// A function of these arguments, ops and results.
std::string
functionText(const std::string &arguments, const std::string &body,
             const std::vector<std::pair<std::string, std::string>> &results) {
  std::string names, types;
  for (auto &[name, type] : results) {
    names += (names.empty() ? "" : ", ") + name;
    types += (types.empty() ? "" : ", ") + type;
  }
  return "func.func @f(" + arguments + ") -> (" + types + ") {\n" + body +
         "  return " + names + " : " + types + "\n}\n";
}

/// A random graph over rows and columns: element-wise and row-wise ops,
/// reductions both ways, values used by several, some of them results.
std::string randomFunction(std::mt19937_64 &random, int64_t rows,
                           int64_t cols) {
  auto pick = [&](int64_t n) { return (int64_t)(random() % n); };
  std::string E =
      "tensor<" + std::to_string(rows) + "x" + std::to_string(cols) + "xf32>";
  std::string R = "tensor<" + std::to_string(rows) + "xf32>";
  std::string K = "tensor<" + std::to_string(rows) + "x1xf32>";
  std::string C = "tensor<" + std::to_string(cols) + "xf32>";
  std::string T =
      "tensor<" + std::to_string(cols) + "x" + std::to_string(rows) + "xf32>";
  std::string D3 =
      "tensor<" + std::to_string(rows) + "x1x" + std::to_string(cols) + "xf32>";
  std::vector<std::string> elements = {"%x", "%y"}, rowValues = {"%r"},
                           columns = {"%c"};
  std::vector<std::pair<std::string, std::string>> results;
  std::string body;
  int number = 0;
  auto emit = [&](const std::string &code, std::vector<std::string> &list,
                  const std::string &type) {
    std::string name = "%v" + std::to_string(number++);
    body += "  " + name + " = graph." + code + "\n";
    list.push_back(name);
    if (pick(5) == 0)
      results.push_back({name, type});
    return name;
  };
  auto any = [&](std::vector<std::string> &list) {
    return list[pick(list.size())];
  };
  // Bounded: the functions that follow keep values near 1.
  for (int64_t left = 5 + pick(20); left > 0; --left) {
    switch (pick(13)) {
    case 0:
      emit("add " + any(elements) + ", " + any(elements) + " : (" + E + ", " +
               E + ") -> " + E,
           elements, E);
      break;
    case 1:
      emit("sub " + any(elements) + ", " + any(columns) + " : (" + E + ", " +
               C + ") -> " + E,
           elements, E);
      break;
    case 2:
      emit("tanh " + any(elements) + " : (" + E + ") -> " + E, elements, E);
      break;
    case 3:
      emit("softmax " + any(elements) + " : (" + E + ") -> " + E, elements, E);
      break;
    case 4: {
      std::string k = any(rowValues) + "k" + std::to_string(number);
      body += "  " + k + " = graph.reshape " + k.substr(0, k.find('k')) +
              " : (" + R + ") -> " + K + "\n";
      emit("mul " + any(elements) + ", " + k + " : (" + E + ", " + K + ") -> " +
               E,
           elements, E);
      break;
    }
    case 5: {
      std::string s = emit("reduce max " + any(elements) +
                               " {dims = array<i64: 1>} : (" + E + ") -> " + R,
                           rowValues, R);
      emit("tanh " + s + " : (" + R + ") -> " + R, rowValues, R);
      break;
    }
    case 6: {
      std::string s = emit("reduce sum " + any(elements) +
                               " {dims = array<i64: 0>} : (" + E + ") -> " + C,
                           columns, C);
      columns.pop_back();
      emit("tanh " + s + " : (" + C + ") -> " + C, columns, C);
      break;
    }
    case 7:
      emit("sigmoid " + any(rowValues) + " : (" + R + ") -> " + R, rowValues,
           R);
      break;
    case 8:
      emit("gelu " + any(elements) + " {tanh} : (" + E + ") -> " + E, elements,
           E);
      break;
    case 9:
      emit("dropout " + any(elements) +
               ", %rng {probability = 0.2 : f64, id = " +
               std::to_string(pick(3)) + " : i64} : (" + E +
               ", tensor<2xi64>) -> " + E,
           elements, E);
      break;
    case 10: {
      std::string t = any(elements) + "t" + std::to_string(number);
      body += "  " + t + " = graph.transpose " + t.substr(0, t.find('t')) +
              " {permutation = array<i64: 1, 0>} : (" + E + ") -> " + T + "\n";
      std::string u = t + "u";
      body += "  " + u + " = graph.neg " + t + " : (" + T + ") -> " + T + "\n";
      emit("transpose " + u + " {permutation = array<i64: 1, 0>} : (" + T +
               ") -> " + E,
           elements, E);
      break;
    }
    case 11: {
      std::string a = any(elements);
      std::string d = a + "d" + std::to_string(number);
      body +=
          "  " + d + " = graph.reshape " + a + " : (" + E + ") -> " + D3 + "\n";
      std::string e = d + "e";
      body +=
          "  " + e + " = graph.relu " + d + " : (" + D3 + ") -> " + D3 + "\n";
      emit("reshape " + e + " : (" + D3 + ") -> " + E, elements, E);
      break;
    }
    default:
      emit("maximum " + any(elements) + ", " + any(elements) + " : (" + E +
               ", " + E + ") -> " + E,
           elements, E);
      break;
    }
  }
  results.push_back({elements.back(), E});
  return functionText("%x: " + E + ", %y: " + E + ", %r: " + R + ", %c: " + C +
                          ", %rng: tensor<2xi64>",
                      body, results);
}

TEST_F(Fusion, RandomGraphs) {
  int64_t count = 40;
  if (const char *text = std::getenv("CLEAVE_RANDOM_GRAPHS"))
    count = std::max<int64_t>(count, std::atoll(text));
  std::pair<int64_t, int64_t> shapes[] = {{5, 7},   {1, 40},  {33, 1}, {16, 64},
                                          {9, 130}, {70, 16}, {3, 3}};
  for (int64_t i = 0; i < count && !HasFailure(); ++i) {
    auto [rows, cols] = shapes[random() % std::size(shapes)];
    check(randomFunction(random, rows, cols), 100, 2e-3);
  }
}

} // namespace
