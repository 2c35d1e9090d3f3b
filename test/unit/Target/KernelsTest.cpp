//===- KernelsTest.cpp - Native kernels against the evaluator -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelEvaluator.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Parser/Parser.h"
#include "llvm/ADT/StringSwitch.h"
#include "gtest/gtest.h"
#include <bit>
#include <cmath>
#include <random>
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::testing;

namespace {

using Function = void (*)(void *const *, int64_t, int64_t, void *);

/// Replaces $R, $C, ... by numbers.
std::string instantiate(std::string text,
                        const std::map<std::string, int64_t> &numbers) {
  for (const auto &[name, number] : numbers)
    for (size_t at; (at = text.find(name)) != std::string::npos;)
      text.replace(at, name.size(), std::to_string(number));
  return text;
}

class Kernels : public ::testing::Test {
protected:
  Kernels() {
    context.loadDialect<exec::ExecDialect, arith::ArithDialect,
                        math::MathDialect>();
  }

  /// Compiles the only kernel of `text` for each vector width and compares its
  /// outputs with the evaluator's, for several ways to split the items.
  void check(const std::string &text, int64_t integerBound = 7) {
    SCOPED_TRACE(text);
    auto module = parseSourceString<ModuleOp>(text, &context);
    ASSERT_TRUE(module);
    auto kernel = *module->getOps<exec::KernelOp>().begin();
    std::vector<Memory> inputs;
    for (BlockArgument arg : kernel.getBody().front().getArguments())
      inputs.push_back(randomMemory(arg, integerBound));
    std::vector<Memory> expected = inputs;
    KernelEvaluator evaluator(kernel, expected);
    evaluator.run();
    ASSERT_EQ(evaluator.error, "");
    for (int bits : {128, 256, 512}) {
      if (bits > CpuTarget::host().vectorBits)
        continue;
      SCOPED_TRACE(bits);
      auto target = CpuTarget::get("", bits);
      ASSERT_TRUE(!!target);
      auto object = compileKernels(*module, *target);
      ASSERT_TRUE(succeeded(object));
      auto library = loadKernels(*object);
      ASSERT_TRUE(!!library);
      auto run = (Function)(*library)->lookup(kernel.getFunctionName());
      ASSERT_NE(run, nullptr);
      Function finish = nullptr;
      if (kernel.isTwoStage())
        ASSERT_NE(finish = (Function)(*library)->lookup(kernel.getFinishName()),
                  nullptr);
      for (int64_t piece : {int64_t(1) << 40, int64_t(1), int64_t(3)})
        compare(kernel, run, finish, piece, inputs, expected);
    }
  }

private:
  Memory randomMemory(BlockArgument arg, int64_t integerBound) {
    auto type = cast<RankedTensorType>(arg.getType());
    exec::Strided layout = exec::getLayout(type);
    int64_t elements = 1;
    for (auto [size, stride] : llvm::zip(type.getShape(), layout.strides))
      elements += (size - 1) * stride;
    Type element = type.getElementType();
    Memory memory(elements * KernelEvaluator::byteSize(element));
    std::uniform_real_distribution<double> real(-2, 2);
    for (int64_t i = 0; i < elements; ++i) {
      int64_t bound = element.isInteger(1) ? 2 : integerBound;
      KernelEvaluator::write(memory, element, i,
                             {real(random), int64_t(random() % bound)});
    }
    return memory;
  }

  void compare(exec::KernelOp kernel, Function run, Function finish,
               int64_t piece, const std::vector<Memory> &inputs,
               const std::vector<Memory> &expected) {
    std::vector<Memory> actual = inputs;
    // Guards around each argument catch writes out of bounds.
    constexpr size_t guard = 256;
    std::vector<void *> args;
    for (Memory &memory : actual) {
      memory.insert(memory.begin(), guard, 0x7b);
      memory.insert(memory.end(), guard, 0x7b);
      args.push_back(memory.data() + guard);
    }
    Memory scratch(kernel.getScratchBytes() + guard, 0x7b);
    auto split = [&](Function f, int64_t items) {
      for (int64_t begin = 0; begin < items; begin += piece)
        f(args.data(), begin, std::min(items, begin + piece), scratch.data());
    };
    split(run, kernel.getItems());
    if (finish)
      split(finish, kernel.getFinishItems());
    for (size_t i = kernel.getScratchBytes(); i < scratch.size(); ++i)
      ASSERT_EQ(scratch[i], 0x7b) << "wrote behind scratch memory";
    for (auto [k, arg] :
         llvm::enumerate(kernel.getBody().front().getArguments())) {
      Type type = cast<RankedTensorType>(arg.getType()).getElementType();
      for (size_t i = 0; i < guard; ++i) {
        ASSERT_EQ(actual[k][i], 0x7b) << "wrote before argument " << k;
        ASSERT_EQ(actual[k][actual[k].size() - 1 - i], 0x7b)
            << "wrote behind argument " << k;
      }
      Memory memory(actual[k].begin() + guard, actual[k].end() - guard);
      int64_t n = memory.size() / KernelEvaluator::byteSize(type);
      for (int64_t i = 0; i < n; ++i) {
        Number a = KernelEvaluator::read(memory, type, i);
        Number e = KernelEvaluator::read(expected[k], type, i);
        ASSERT_EQ(a.integer, e.integer) << "argument " << k << " at " << i;
        if (std::isnan(e.real))
          ASSERT_TRUE(std::isnan(a.real));
        else
          ASSERT_NEAR(a.real, e.real, 2e-5 * std::max(1.0, std::fabs(e.real)))
              << "argument " << k << " at " << i << ", pieces of " << piece;
      }
    }
  }

  MLIRContext context;
  std::mt19937 random{20250101};
};

/// Rows and columns: one, a few, around every vector width and block.
const std::pair<int64_t, int64_t> shapes[] = {
    {1, 1},   {1, 7},   {9, 1},   {37, 1},  {5, 2},   {3, 8},
    {7, 15},  {4, 16},  {2, 17},  {3, 63},  {2, 64},  {5, 65},
    {3, 100}, {2, 128}, {3, 130}, {1, 255}, {2, 257}, {70, 33}};

TEST_F(Kernels, Map) {
  for (auto [r, c] : shapes)
    check(instantiate(R"(
exec.kernel @k map [$R, $C] (%x: tensor<$Rx$Cxf32>, %b: tensor<$Cxf32>, %s: tensor<f32>)
    -> (%y: tensor<$Rx$Cxf32>, %m: tensor<$Rx$Cxi1>) {
  %scale = exec.load %s at affine_map<(r, c) -> (0)> : tensor<f32> -> f32
  %zero = arith.constant 0.0 : f32
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxf32> -> f32
    %1 = exec.load %b at affine_map<(r, c) -> (c)> : tensor<$Cxf32> -> f32
    %2 = arith.addf %0, %1 : f32
    %3 = math.tanh %2 : f32
    %4 = arith.mulf %3, %scale : f32
    %5 = arith.cmpf ogt, %4, %zero : f32
    exec.store %4, %y at affine_map<(r, c) -> (r * $C + c)> : f32, tensor<$Rx$Cxf32>
    exec.store %5, %m at affine_map<(r, c) -> (r * $C + c)> : i1, tensor<$Rx$Cxi1>
    exec.yield
  }
})",
                      {{"$R", r}, {"$C", c}}));
}

TEST_F(Kernels, MapShortLastRow) {
  for (int64_t valid : {129, 160, 191, 192})
    check(instantiate(R"(
exec.kernel @k map [3, 64] (%x: tensor<$Vxf32>) -> (%y: tensor<$Vxf32>)
    attributes {valid = $V : i64} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 64 + c)> : tensor<$Vxf32> -> f32
    %1 = math.exp %0 : f32
    exec.store %1, %y at affine_map<(r, c) -> (r * 64 + c)> : f32, tensor<$Vxf32>
    exec.yield
  }
})",
                      {{"$V", valid}}));
}

TEST_F(Kernels, MapTransposedAndSplitColumns) {
  for (auto [r, c] : shapes)
    check(instantiate(R"(
exec.kernel @k map [$R, $C] (%x: tensor<$Cx$Rxf32>, %z: tensor<$Rx$Cxf32>)
    -> (%y: tensor<$Rx$Cxf32>, %w: tensor<$Cx$Rxf32>) {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (c * $R + r)> : tensor<$Cx$Rxf32> -> f32
    %1 = exec.load %z at affine_map<(r, c) -> (((r * $C + c) mod 16) + ((r * $C + c) floordiv 16) * 16)> : tensor<$Rx$Cxf32> -> f32
    %2 = arith.addf %0, %1 : f32
    exec.store %2, %y at affine_map<(r, c) -> (r * $C + c)> : f32, tensor<$Rx$Cxf32>
    exec.store %1, %w at affine_map<(r, c) -> (c * $R + r)> : f32, tensor<$Cx$Rxf32>
    exec.yield
  }
})",
                      {{"$R", r}, {"$C", c}}));
}

TEST_F(Kernels, HeadsTurn) {
  // [b, s, h, d] from [b, h, s, d]: contiguous inside of a head.
  for (int64_t d : {4, 16, 20, 32, 64})
    check(
        instantiate(R"(
exec.kernel @k map [6, $C] (%x: tensor<2x4x3x$Dxf32>) -> (%y: tensor<6x$Cxf32>) {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> ((r floordiv 3) * $B + (c floordiv $D) * $H + (r mod 3) * $D + c mod $D)> : tensor<2x4x3x$Dxf32> -> f32
    exec.store %0, %y at affine_map<(r, c) -> (r * $C + c)> : f32, tensor<6x$Cxf32>
    exec.yield
  }
})",
                    {{"$D", d}, {"$C", 4 * d}, {"$H", 3 * d}, {"$B", 12 * d}}));
}

TEST_F(Kernels, RowsWithoutPass) {
  for (int64_t r : {1, 5, 33})
    check(instantiate(R"(
exec.kernel @k map [$R, 1] (%x: tensor<$Rxf32>, %i: tensor<$Rxi64>) -> (%y: tensor<$Rxf32>, %z: tensor<$Rxf64>) {
  %0 = exec.load %x at affine_map<(r, c) -> (r)> : tensor<$Rxf32> -> f32
  %i0 = exec.load %i at affine_map<(r, c) -> (r)> : tensor<$Rxi64> -> i64
  %1 = arith.mulf %0, %0 : f32
  %2 = math.rsqrt %1 : f32
  %b = arith.constant 0.9 : f64
  %f = arith.sitofp %i0 : i64 to f64
  %p = math.powf %b, %f : f64
  exec.store %2, %y at affine_map<(r, c) -> (r)> : f32, tensor<$Rxf32>
  exec.store %p, %z at affine_map<(r, c) -> (r)> : f64, tensor<$Rxf64>
})",
                      {{"$R", r}}));
}

TEST_F(Kernels, Softmax) {
  for (auto [r, c] : shapes)
    check(instantiate(R"(
exec.kernel @k row [$R, $C] (%x: tensor<$Rx$Cxf32>) -> (%y: tensor<$Rx$Cxf32>, %n: tensor<$Rxf32>) {
  %max = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxf32> -> f32
    %1 = exec.reduce max %0 : f32
    exec.yield %1 : f32
  }
  %e = exec.keep : tensor<$Cxf32>
  %sum, %least = exec.pass -> f32, f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxf32> -> f32
    %1 = arith.subf %0, %max : f32
    %2 = math.exp %1 : f32
    exec.store %2, %e at affine_map<(r, c) -> (c)> : f32, tensor<$Cxf32>
    %3 = exec.reduce sum %2 : f32
    %4 = exec.reduce min %0 : f32
    exec.yield %3, %4 : f32, f32
  }
  exec.store %least, %n at affine_map<(r, c) -> (r)> : f32, tensor<$Rxf32>
  exec.pass {
    %0 = exec.load %e at affine_map<(r, c) -> (c)> : tensor<$Cxf32> -> f32
    %1 = arith.divf %0, %sum : f32
    exec.store %1, %y at affine_map<(r, c) -> (r * $C + c)> : f32, tensor<$Rx$Cxf32>
    exec.yield
  }
})",
                      {{"$R", r}, {"$C", c}}));
}

TEST_F(Kernels, KeptRowLargerThanTheStack) {
  check(R"(
exec.kernel @k row [3, 70001] (%x: tensor<3x70001xf32>) -> (%y: tensor<3x70001xf32>) {
  %e = exec.keep : tensor<70001xf32>
  %f = exec.keep : tensor<70001xf32>
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 70001 + c)> : tensor<3x70001xf32> -> f32
    exec.store %0, %e at affine_map<(r, c) -> (c)> : f32, tensor<70001xf32>
    %1 = arith.mulf %0, %0 : f32
    exec.store %1, %f at affine_map<(r, c) -> (c)> : f32, tensor<70001xf32>
    exec.yield
  }
  exec.pass {
    %0 = exec.load %e at affine_map<(r, c) -> (c)> : tensor<70001xf32> -> f32
    %1 = exec.load %f at affine_map<(r, c) -> (c)> : tensor<70001xf32> -> f32
    %2 = arith.addf %0, %1 : f32
    exec.store %2, %y at affine_map<(r, c) -> (r * 70001 + c)> : f32, tensor<3x70001xf32>
    exec.yield
  }
})");
}

TEST_F(Kernels, Column) {
  for (auto [r, c] : shapes)
    for (int64_t groups : std::set<int64_t>{1, (r + 3) / 4, r})
      check(instantiate(R"(
exec.kernel @k column [$R, $C] (%x: tensor<$Rx$Cxf32>, %g: tensor<$Cxf32>)
    -> (%y: tensor<$Cxf32>, %z: tensor<f32>, %m: tensor<$Cxf32>, %n: tensor<i64>, %o: tensor<$Rxf32>)
    attributes {groups = $G : i64} {
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxf32> -> f32
    %1 = exec.load %g at affine_map<(r, c) -> (c)> : tensor<$Cxf32> -> f32
    %2 = arith.mulf %0, %1 : f32
    exec.accumulate sum %2, %y at affine_map<(r, c) -> (c)> : f32, tensor<$Cxf32>
    exec.accumulate max %2, %m at affine_map<(r, c) -> ($C - 1 - c)> : f32, tensor<$Cxf32>
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  %i = exec.index affine_map<(r, c) -> (r)>
  exec.accumulate max %i, %n at affine_map<(r, c) -> (0)> : i64, tensor<i64>
  exec.accumulate sum %sum, %z at affine_map<(r, c) -> (0)> : f32, tensor<f32>
  exec.store %sum, %o at affine_map<(r, c) -> (r)> : f32, tensor<$Rxf32>
})",
                        {{"$R", r}, {"$C", c}, {"$G", groups}}));
}

TEST_F(Kernels, Gather) {
  for (auto [r, c] : shapes)
    check(instantiate(R"(
exec.kernel @k gather [$R, $C] (%w: tensor<7x$Cxf32>, %ids: tensor<$Rxi64>, %each: tensor<$Rx$Cxi32>, %on: tensor<$Rx$Cxi1>)
    -> (%y: tensor<$Rx$Cxf32>, %z: tensor<$Rx$Cxf32>) {
  %id = exec.load %ids at affine_map<(r, c) -> (r)> : tensor<$Rxi64> -> i64
  exec.pass {
    %0 = exec.load %w[%id] at affine_map<(r, c)[i] -> (i * $C + c)> : tensor<7x$Cxf32> -> f32
    exec.store %0, %y at affine_map<(r, c) -> (r * $C + c)> : f32, tensor<$Rx$Cxf32>
    %1 = exec.load %each at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxi32> -> i32
    %2 = exec.load %on at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxi1> -> i1
    %3 = arith.extsi %1 : i32 to i64
    %4 = exec.load %w[%3] where %2 at affine_map<(r, c)[i] -> (i * $C)> : tensor<7x$Cxf32> -> f32
    %5 = exec.load %w where %2 at affine_map<(r, c) -> (c)> : tensor<7x$Cxf32> -> f32
    %6 = arith.addf %4, %5 : f32
    exec.store %6, %z at affine_map<(r, c) -> (r * $C + c)> : f32, tensor<$Rx$Cxf32>
    exec.yield
  }
})",
                      {{"$R", r}, {"$C", c}}));
}

TEST_F(Kernels, Dropout) {
  for (auto [r, c] : shapes)
    for (int64_t bias : {0, 64, 5})
      check(instantiate(R"(
exec.kernel @k map [$R, $C] (%x: tensor<$Rx$Cxf32>, %rng: tensor<2xi64>) -> (%y: tensor<$Rx$Cxf32>, %z: tensor<$Rx$Cxi32>) {
  %seed = exec.load %rng at affine_map<(r, c) -> (0)> : tensor<2xi64> -> i64
  %step = exec.load %rng at affine_map<(r, c) -> (1)> : tensor<2xi64> -> i64
  %base = arith.constant 17179869248 : i64
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxf32> -> f32
    %1 = exec.philox %seed, %step base %base at affine_map<(r, c) -> (r * $C + c + $B)> {id = 3 : i64, base_multiple = 64 : i64}
    %t = arith.constant 429496729 : i32
    %2 = arith.cmpi uge, %1, %t : i32
    %s = arith.constant 1.11111 : f32
    %3 = arith.mulf %0, %s : f32
    %zero = arith.constant 0.0 : f32
    %4 = arith.select %2, %3, %zero : f32
    exec.store %4, %y at affine_map<(r, c) -> (r * $C + c)> : f32, tensor<$Rx$Cxf32>
    exec.store %1, %z at affine_map<(r, c) -> (r * $C + c)> : i32, tensor<$Rx$Cxi32>
    exec.yield
  }
})",
                        {{"$R", r}, {"$C", c}, {"$B", bias}}),
            int64_t(1) << 31);
}

TEST_F(Kernels, Scan) {
  for (auto [r, c] : shapes)
    for (std::string direction : {"", " {reverse}"})
      check(instantiate(R"(
exec.kernel @k row [$R, $C] (%x: tensor<$Rx$Cxi64>, %f: tensor<$Rx$Cxf32>) -> (%y: tensor<$Rx$Cxi64>, %g: tensor<$Rx$Cxf32>, %m: tensor<$Rxf32>) {
  %max = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxi64> -> i64
    %1 = exec.scan %0)" + direction +
                            R"( : i64
    exec.store %1, %y at affine_map<(r, c) -> (r * $C + c)> : i64, tensor<$Rx$Cxi64>
    %2 = exec.load %f at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxf32> -> f32
    %3 = exec.scan %2)" + direction +
                            R"( : f32
    exec.store %3, %g at affine_map<(r, c) -> (r * $C + c)> : f32, tensor<$Rx$Cxf32>
    %4 = exec.reduce max %2 : f32
    exec.yield %4 : f32
  }
  exec.store %max, %m at affine_map<(r, c) -> (r)> : f32, tensor<$Rxf32>
})",
                        {{"$R", r}, {"$C", c}}));
}

TEST_F(Kernels, Integers) {
  for (auto [r, c] : shapes)
    check(instantiate(R"(
exec.kernel @k row [$R, $C] (%x: tensor<$Rx$Cxi64>, %d: tensor<$Rx$Cxi8>, %b: tensor<$Rx$Cxi1>)
    -> (%q: tensor<$Rx$Cxi64>, %p: tensor<$Rx$Cxi8>, %n: tensor<$Rxi64>, %a: tensor<$Rxi1>, %o: tensor<$Rx$Cxi32>, %f: tensor<$Rx$Cxf64>) {
  %one = arith.constant 1 : i64
  %count, %all = exec.pass -> i64, i1 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxi64> -> i64
    %1 = exec.load %d at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxi8> -> i8
    %2 = exec.load %b at affine_map<(r, c) -> (r * $C + c)> : tensor<$Rx$Cxi1> -> i1
    %3 = arith.extsi %1 : i8 to i64
    %4 = arith.addi %3, %one : i64
    %5 = arith.divsi %0, %4 : i64
    %6 = exec.index affine_map<(r, c) -> (r * 3 - c)>
    %7 = arith.trunci %6 : i64 to i32
    %8 = arith.extui %2 : i1 to i64
    %9 = arith.addi %5, %8 : i64
    %10 = arith.sitofp %9 : i64 to f64
    exec.store %9, %q at affine_map<(r, c) -> (r * $C + c)> : i64, tensor<$Rx$Cxi64>
    exec.store %1, %p at affine_map<(r, c) -> (r * $C + c)> : i8, tensor<$Rx$Cxi8>
    exec.store %7, %o at affine_map<(r, c) -> (r * $C + c)> : i32, tensor<$Rx$Cxi32>
    exec.store %10, %f at affine_map<(r, c) -> (r * $C + c)> : f64, tensor<$Rx$Cxf64>
    %11 = exec.reduce sum %8 : i64
    %12 = exec.reduce min %2 : i1
    exec.yield %11, %12 : i64, i1
  }
  exec.store %count, %n at affine_map<(r, c) -> (r)> : i64, tensor<$Rxi64>
  exec.store %all, %a at affine_map<(r, c) -> (r)> : i1, tensor<$Rxi1>
})",
                      {{"$R", r}, {"$C", c}}));
}

/// What LLVM's arbitrary-precision floats give is the judge: of all codes of a
/// narrow float, and of f32 numbers of all magnitudes, halfway ones among them.
class NarrowFloats : public ::testing::TestWithParam<const char *> {
protected:
  NarrowFloats() {
    context.loadDialect<exec::ExecDialect, arith::ArithDialect>();
  }

  const llvm::fltSemantics &semantics() {
    return *llvm::StringSwitch<const llvm::fltSemantics *>(GetParam())
                .Case("bf16", &llvm::APFloat::BFloat())
                .Case("f16", &llvm::APFloat::IEEEhalf())
                .Case("f8E5M2", &llvm::APFloat::Float8E5M2())
                .Default(&llvm::APFloat::Float8E4M3FN());
  }
  /// `number` as a narrow float. What is too large for f8E4M3FN is NaN in LLVM,
  /// and here the largest number.
  llvm::APFloat rounded(const llvm::APFloat &number) {
    llvm::APFloat result = number;
    bool inexact;
    result.convert(semantics(), llvm::APFloat::rmNearestTiesToEven, &inexact);
    if (result.isNaN() && !number.isNaN())
      return llvm::APFloat::getLargest(semantics(), number.isNegative());
    return result;
  }
  float wide(int64_t code) {
    llvm::APFloat number(semantics(), llvm::APInt(width(), code));
    bool inexact;
    number.convert(llvm::APFloat::IEEEsingle(),
                   llvm::APFloat::rmNearestTiesToEven, &inexact);
    return number.convertToFloat();
  }
  unsigned width() { return llvm::APFloat::semanticsSizeInBits(semantics()); }

  /// Runs a cast of `count` numbers on every kind of processor.
  template <typename Check>
  void run(std::string from, std::string to, std::vector<char> &input,
           int64_t count, int64_t bytes, Check check) {
    std::string text = instantiate(R"(
exec.kernel @k map [1, $N] (%x: tensor<$NxFROM>) -> (%y: tensor<$NxTO>) {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (c)> : tensor<$NxFROM> -> FROM
    %1 = arith.CAST %0 : FROM to TO
    exec.store %1, %y at affine_map<(r, c) -> (c)> : TO, tensor<$NxTO>
    exec.yield
  }
})",
                                   {{"$N", count}});
    bool narrows = from == "f32" || from == "f64";
    for (auto [what, with] : {std::pair<std::string, std::string>{"FROM", from},
                              {"TO", to},
                              {"CAST", narrows ? "truncf" : "extf"}})
      for (size_t at; (at = text.find(what)) != std::string::npos;)
        text.replace(at, what.size(), with);
    auto module = parseSourceString<ModuleOp>(text, &context);
    ASSERT_TRUE(module);
    auto kernel = *module->getOps<exec::KernelOp>().begin();
    for (auto [cpu, bits] : {std::pair<const char *, int>{"", 512},
                             {"", 256},
                             {"x86-64-v3", 256},
                             {"x86-64", 128}}) {
      if (bits > CpuTarget::host().vectorBits)
        continue;
      SCOPED_TRACE(bits);
      auto target = CpuTarget::get(cpu, bits);
      ASSERT_TRUE(!!target);
      auto object = compileKernels(*module, *target);
      ASSERT_TRUE(succeeded(object));
      auto library = loadKernels(*object);
      ASSERT_TRUE(!!library);
      auto function = (Function)(*library)->lookup(kernel.getFunctionName());
      std::vector<char> output(count * bytes);
      void *arguments[] = {input.data(), output.data()};
      function(arguments, 0, kernel.getItems(), nullptr);
      check(output);
    }
  }

  /// Of a NaN the code is not compared.
  void expectSame(uint64_t found, const llvm::APFloat &expected,
                  const std::string &of) {
    llvm::APFloat number(
        expected.getSemantics(),
        llvm::APInt(llvm::APFloat::semanticsSizeInBits(expected.getSemantics()),
                    found));
    if (expected.isNaN())
      ASSERT_TRUE(number.isNaN()) << of;
    else
      ASSERT_EQ(found, expected.bitcastToAPInt().getZExtValue()) << of;
  }

  uint64_t word(const std::vector<char> &memory, int64_t index, int64_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, memory.data() + index * bytes, bytes);
    return value;
  }

  MLIRContext context;
};

TEST_P(NarrowFloats, Extend) {
  int64_t count = int64_t(1) << width(), bytes = width() / 8;
  std::vector<char> input(count * bytes);
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(input.data() + i * bytes, &i, bytes);
  run(GetParam(), "f32", input, count, 4, [&](const std::vector<char> &output) {
    for (int64_t i = 0; i < count; ++i) {
      llvm::APFloat expected(semantics(), llvm::APInt(width(), i));
      bool inexact;
      expected.convert(llvm::APFloat::IEEEsingle(),
                       llvm::APFloat::rmNearestTiesToEven, &inexact);
      expectSame(word(output, i, 4), expected, std::to_string(i));
    }
  });
}

TEST_P(NarrowFloats, Truncate) {
  std::mt19937 random(7);
  std::vector<uint32_t> numbers;
  for (uint32_t high = 0; high < 0x10000; high += 0x40)
    for (uint32_t low : {0u, 1u, 0x8000u, 0x7fffu, 0x8001u, 0xffffu})
      numbers.push_back((high << 16) + low);
  // Halfway between codes, and next to that.
  for (int64_t code = 0; code + 1 < int64_t(1) << width();
       code += width() == 8 ? 1 : 37) {
    auto bits = std::bit_cast<uint32_t>(wide(code));
    // That of two subnormal numbers has other bits.
    auto middle = std::bit_cast<uint32_t>(wide(code) / 2 + wide(code + 1) / 2);
    unsigned fraction = llvm::APFloat::semanticsPrecision(semantics()) - 1;
    for (uint32_t at : {bits, bits + (1u << (22 - fraction)),
                        bits + (1u << (23 - fraction)), middle})
      for (uint32_t next : {0u, 1u, ~0u})
        numbers.push_back(at + next);
  }
  for (int i = 0; i < 20000; ++i)
    numbers.push_back(random());
  int64_t count = numbers.size(), bytes = width() / 8;
  std::vector<char> input(count * 4);
  std::memcpy(input.data(), numbers.data(), input.size());
  auto check = [&](auto number) {
    return [&, number](const std::vector<char> &output) {
      for (int64_t i = 0; i < count; ++i) {
        expectSame(word(output, i, bytes), rounded(number(i)),
                   std::to_string(numbers[i]));
      }
    };
  };
  run("f32", GetParam(), input, count, bytes, check([&](int64_t i) {
        return llvm::APFloat(llvm::APFloat::IEEEsingle(),
                             llvm::APInt(32, numbers[i]));
      }));
  // The same and numbers next to them in f64, which are rounded once.
  std::vector<char> wide(count * 8);
  auto next = [&](int64_t i) {
    double value = std::bit_cast<float>(numbers[i]);
    return i % 3 == 0 ? value : std::nextafter(value, i % 3 == 1 ? 1e300 : 0);
  };
  for (int64_t i = 0; i < count; ++i) {
    double value = next(i);
    std::memcpy(wide.data() + i * 8, &value, 8);
  }
  run("f64", GetParam(), wide, count, bytes,
      check([&](int64_t i) { return llvm::APFloat(next(i)); }));
}

INSTANTIATE_TEST_SUITE_P(Types, NarrowFloats,
                         ::testing::Values("bf16", "f16", "f8E4M3FN",
                                           "f8E5M2"));

} // namespace
