//===- MathTest.cpp - Errors of elementary functions ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "mlir/Dialect/Math/IR/Math.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Parser/Parser.h"
#include "gtest/gtest.h"
#include <cmath>
#include <cstring>
#include <iostream>

using namespace mlir;
using namespace cleave;

namespace {

/// A function, its f64 counterpart, and the largest error that is accepted,
/// in units in the last place.
struct Case {
  const char *name;
  const char *op;
  double (*exact)(double);
  double bound;
};

const Case cases[] = {
    {"exp", "math.exp %0 : f32", [](double x) { return std::exp(x); }, 1.5},
    {"exp2", "math.exp2 %0 : f32", [](double x) { return std::exp2(x); }, 1.5},
    {"expm1", "math.expm1 %0 : f32", [](double x) { return std::expm1(x); }, 3},
    {"log", "math.log %0 : f32", [](double x) { return std::log(x); }, 1.5},
    {"log2", "math.log2 %0 : f32", [](double x) { return std::log2(x); }, 2},
    {"log1p", "math.log1p %0 : f32", [](double x) { return std::log1p(x); }, 3},
    {"tanh", "math.tanh %0 : f32", [](double x) { return std::tanh(x); }, 4},
    {"erf", "math.erf %0 : f32", [](double x) { return std::erf(x); }, 2},
    {"sin", "math.sin %0 : f32", [](double x) { return std::sin(x); }, 2},
    {"cos", "math.cos %0 : f32", [](double x) { return std::cos(x); }, 2},
    {"sqrt", "math.sqrt %0 : f32", [](double x) { return std::sqrt(x); }, 0.51},
    {"rsqrt", "math.rsqrt %0 : f32", [](double x) { return 1 / std::sqrt(x); },
     1.5},
    {"reciprocal", "arith.divf %one, %0 : f32", [](double x) { return 1 / x; },
     0.51},
    {"pow 3", "math.powf %0, %three : f32", [](double x) { return x * x * x; },
     1.51},
    {"pow 1.7", "math.powf %0, %odd : f32",
     [](double x) { return std::pow(x, double(1.7f)); }, 1.5},
};

constexpr int64_t kCount = 1 << 20;

/// Numbers of all sizes, then common ones, then special ones.
std::vector<float> arguments() {
  std::vector<float> x(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    if (i % 2) {
      // Odd multiplier: bit patterns spread over all exponents.
      uint32_t bits = uint32_t(i) * 2654435769u;
      std::memcpy(&x[i], &bits, 4);
    } else {
      x[i] = (double(i) / kCount - 0.5) * 40;
    }
  }
  float special[] = {
      0.0f,    -0.0f,   INFINITY, -INFINITY, NAN,        1.0f,   -1.0f,
      1e-45f,  -1e-45f, 1e-40f,   88.72f,    88.73f,     -87.3f, -103.9f,
      -104.5f, 3.4e38f, -3.4e38f, 2e-4f,     0.921875f,  4.0f,   0.5f,
      2e14f,   3e14f,   9.01f,    1e-8f,     16777216.0f};
  std::copy(std::begin(special), std::end(special), x.begin());
  return x;
}

double ulps(float got, double exact) {
  float nearest = float(exact);
  if (std::isnan(exact))
    return std::isnan(got) ? 0 : INFINITY;
  if (std::isinf(nearest) || std::isinf(got))
    return nearest == got ||
                   (std::isinf(nearest) && std::fabs(got) >= 3.402823e38f &&
                    std::signbit(got) == std::signbit(nearest))
               ? 0
               : INFINITY;
  if (std::signbit(got) != std::signbit(nearest))
    return INFINITY;
  int exponent;
  std::frexp(exact, &exponent);
  double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::fabs(double(got) - exact) / ulp;
}

TEST(Math, Errors) {
  MLIRContext context;
  context
      .loadDialect<exec::ExecDialect, arith::ArithDialect, math::MathDialect>();
  std::string text;
  for (auto [i, test] : llvm::enumerate(cases))
    text += "exec.kernel @k" + std::to_string(i) + R"( map [1024, 1024]
        (%x: tensor<1048576xf32>) -> (%y: tensor<1048576xf32>) {
      %one = arith.constant 1.0 : f32
      %three = arith.constant 3.0 : f32
      %odd = arith.constant 1.7 : f32
      exec.pass {
        %0 = exec.load %x at affine_map<(r, c) -> (r * 1024 + c)> : tensor<1048576xf32> -> f32
        %1 = )" +
            test.op + R"(
        exec.store %1, %y at affine_map<(r, c) -> (r * 1024 + c)> : f32, tensor<1048576xf32>
        exec.yield
      }
    })";
  auto module = parseSourceString<ModuleOp>(text, &context);
  ASSERT_TRUE(module);
  std::vector<float> x = arguments(), y(kCount);
  for (int bits : {256, 512}) {
    if (bits > CpuTarget::host().vectorBits)
      continue;
    auto target = CpuTarget::get("", bits);
    ASSERT_TRUE(!!target);
    auto object = compileKernels(*module, *target);
    ASSERT_TRUE(succeeded(object));
    auto library = loadKernels(*object);
    ASSERT_TRUE(!!library);
    for (auto [i, test] : llvm::enumerate(cases)) {
      auto run =
          (void (*)(void *const *, int64_t, int64_t, void *))(*library)->lookup(
              "cleave_kernel_k" + std::to_string(i));
      ASSERT_NE(run, nullptr);
      void *args[] = {x.data(), y.data()};
      run(args, 0, 1024, nullptr);
      double worst = 0;
      float where = 0;
      for (int64_t k = 0; k < kCount; ++k) {
        double error = ulps(y[k], test.exact(x[k]));
        if (error > worst) {
          worst = error;
          where = x[k];
        }
      }
      std::cout << bits << " bits: " << test.name << " " << worst << " ulp at "
                << where << "\n";
      EXPECT_LE(worst, test.bound) << test.name << " at " << where;
    }
  }
}

} // namespace
