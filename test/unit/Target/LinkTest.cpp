//===- LinkTest.cpp - Artifacts -------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/raw_ostream.h"
#include "gtest/gtest.h"
#include <cmath>
#include <dlfcn.h>
#include <map>

using namespace mlir;
using namespace cleave;

namespace {

const char *const kernel = R"(
exec.kernel @power map [4, 1] (%x: tensor<4xf64>) -> (%y: tensor<4xf64>) {
  %0 = exec.load %x at affine_map<(r, c) -> (r)> : tensor<4xf64> -> f64
  %1 = math.powf %0, %0 : f64
  exec.store %1, %y at affine_map<(r, c) -> (r)> : f64, tensor<4xf64>
})";

std::string compile(const char *text = kernel) {
  MLIRContext context;
  context
      .loadDialect<exec::ExecDialect, arith::ArithDialect, math::MathDialect>();
  auto module = parseSourceString<ModuleOp>(text, &context);
  auto object = compileKernels(*module, CpuTarget::host());
  return succeeded(object) ? *object : std::string();
}

TEST(Link, SharedObject) {
  std::string object = compile();
  ASSERT_FALSE(object.empty());
  llvm::SmallString<128> folder;
  ASSERT_FALSE(llvm::sys::fs::createUniqueDirectory("cleave-link", folder));
  std::string path = (folder + "/artifact.so").str();
  std::string json = "{\"quote\": \"\\\"\"}";
  llvm::Error error = linkSharedObject(object, json, path);
  ASSERT_FALSE(!!error) << llvm::toString(std::move(error));
  // Nothing else is left in the folder.
  std::error_code code;
  int files = 0;
  for (llvm::sys::fs::directory_iterator it(folder, code), end; it != end;
       it.increment(code))
    ++files;
  EXPECT_EQ(files, 1);

  void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << dlerror();
  EXPECT_EQ(*(uint32_t *)dlsym(handle, "cleave_abi_version"), 2u);
  EXPECT_EQ(*(uint64_t *)dlsym(handle, "cleave_program_size"), json.size());
  EXPECT_STREQ((const char *)dlsym(handle, "cleave_program"), json.c_str());
  auto run = (void (*)(void *const *, int64_t, int64_t, void *))dlsym(
      handle, "cleave_kernel_power");
  ASSERT_NE(run, nullptr);
  double x[] = {0.5, 1, 2, 3}, y[4];
  void *args[] = {x, y};
  run(args, 0, 4, nullptr);
  for (int i = 0; i < 4; ++i)
    EXPECT_DOUBLE_EQ(y[i], std::pow(x[i], x[i]));
  dlclose(handle);
  llvm::sys::fs::remove_directories(folder);
}

/// Kernels whose names are those of functions that they call, of what an
/// artifact exports, and of another kernel's second stage.
const char *const likeOthers = R"(
#row = affine_map<(r, c) -> (r)>
exec.kernel @exp map [4, 1] (%x: tensor<4xf64>) -> (%y: tensor<4xf64>) {
  %0 = exec.load %x at #row : tensor<4xf64> -> f64
  %1 = math.exp %0 : f64
  exec.store %1, %y at #row : f64, tensor<4xf64>
}
exec.kernel @tanh map [4, 1] (%x: tensor<4xf64>) -> (%y: tensor<4xf64>) {
  %0 = exec.load %x at #row : tensor<4xf64> -> f64
  %1 = math.tanh %0 : f64
  exec.store %1, %y at #row : f64, tensor<4xf64>
}
exec.kernel @program map [4, 1] (%x: tensor<4xf64>) -> (%y: tensor<4xf64>) {
  %0 = exec.load %x at #row : tensor<4xf64> -> f64
  exec.store %0, %y at #row : f64, tensor<4xf64>
}
exec.kernel @sum column [4, 1] (%x: tensor<4xf64>) -> (%y: tensor<1xf64>)
    attributes {groups = 2 : i64} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r)> : tensor<4xf64> -> f64
    exec.accumulate sum %0, %y at affine_map<(r, c) -> (c)> : f64, tensor<1xf64>
    exec.yield
  }
}
exec.kernel @sum_finish map [4, 1] (%x: tensor<4xf64>) -> (%y: tensor<4xf64>) {
  %0 = exec.load %x at #row : tensor<4xf64> -> f64
  exec.store %0, %y at #row : f64, tensor<4xf64>
})";

TEST(Link, NamesDoNotMeet) {
  std::string object = compile(likeOthers);
  ASSERT_FALSE(object.empty());
  llvm::SmallString<128> folder;
  ASSERT_FALSE(llvm::sys::fs::createUniqueDirectory("cleave-link", folder));
  std::string path = (folder + "/artifact.so").str();
  llvm::Error error = linkSharedObject(object, "{}", path);
  ASSERT_FALSE(!!error) << llvm::toString(std::move(error));
  void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << dlerror();
  auto library = loadKernels(object);
  ASSERT_TRUE(!!library) << llvm::toString(library.takeError());
  using Function = void (*)(void *const *, int64_t, int64_t, void *);
  struct {
    const char *symbol;
    double (*exact)(double);
  } functions[] = {
      {"cleave_kernel_exp", [](double v) { return std::exp(v); }},
      {"cleave_kernel_tanh", [](double v) { return std::tanh(v); }},
      {"cleave_kernel_program", [](double v) { return v; }},
      {"cleave_kernel_sum_finish", [](double v) { return v; }}};
  for (auto [symbol, exact] : functions)
    for (void *found : {dlsym(handle, symbol), (*library)->lookup(symbol)}) {
      ASSERT_NE(found, nullptr) << symbol;
      double x[] = {-0.5, 0, 2, 3}, y[4];
      void *args[] = {x, y};
      ((Function)found)(args, 0, 4, nullptr);
      for (int i = 0; i < 4; ++i)
        EXPECT_NEAR(y[i], exact(x[i]), 1e-15 * std::max(1.0, exact(x[i])))
            << symbol;
    }
  EXPECT_STREQ((const char *)dlsym(handle, "cleave_program"), "{}");
  double x[] = {1, 2, 3, 4}, sum = 0, scratch[64];
  void *args[] = {x, &sum};
  ((Function)dlsym(handle, "cleave_kernel_sum"))(args, 0, 2, scratch);
  ((Function)dlsym(handle, "cleave_finish_sum"))(args, 0, 1, scratch);
  EXPECT_EQ(sum, 10);
  dlclose(handle);
  llvm::sys::fs::remove_directories(folder);
}

TEST(Link, ErrorsNameTheFile) {
  llvm::Error error =
      linkSharedObject(compile(), "{}", "/nonexistent/folder/a.so");
  ASSERT_TRUE(!!error);
  EXPECT_NE(llvm::toString(std::move(error)).find("/nonexistent/folder"),
            std::string::npos);
  error = linkSharedObject("not an object", "{}", "/tmp/cleave-bad.so");
  ASSERT_TRUE(!!error);
  EXPECT_NE(llvm::toString(std::move(error)).find("cannot link"),
            std::string::npos);
}

/// The linker is part of this process: an error leaves it usable, and options
/// of the program as they were given.
TEST(Link, InThisProcess) {
  llvm::cl::opt<int> given("given-before-a-link", llvm::cl::init(1));
  const char *words[] = {"test", "--given-before-a-link=7"};
  ASSERT_TRUE(llvm::cl::ParseCommandLineOptions(2, words, "", &llvm::nulls()));
  std::string object = compile();
  llvm::SmallString<128> folder;
  ASSERT_FALSE(llvm::sys::fs::createUniqueDirectory("cleave-link", folder));
  for (bool right : {true, false, true}) {
    llvm::Error error = linkSharedObject(right ? object : "not an object", "{}",
                                         (folder + "/a.so").str());
    EXPECT_EQ(!error, right);
    llvm::consumeError(std::move(error));
    EXPECT_EQ(given, 7);
    EXPECT_TRUE(llvm::cl::getRegisteredOptions().contains(given.ArgStr));
  }
  llvm::sys::fs::remove_directories(folder);
}

TEST(Target, Names) {
  auto level3 = CpuTarget::get("x86-64-v3", 0);
  ASSERT_TRUE(!!level3);
  EXPECT_EQ(level3->vectorBits, 256);
  auto level4 = CpuTarget::get("x86-64-v4", 0);
  ASSERT_TRUE(!!level4);
  EXPECT_EQ(level4->vectorBits, 512);
  for (auto [cpu, bits] : {std::pair("pdp11", 0), std::pair("x86-64-v3", 512),
                           std::pair("x86-64-v4", 100)}) {
    auto target = CpuTarget::get(cpu, bits);
    EXPECT_FALSE(!!target);
    llvm::consumeError(target.takeError());
  }
}

/// A module in a context of its own.
struct Kernels {
  explicit Kernels(const std::string &text) {
    context.loadDialect<exec::ExecDialect, arith::ArithDialect,
                        math::MathDialect>();
    module = parseSourceString<ModuleOp>(text, &context);
  }
  MLIRContext context;
  OwningOpRef<ModuleOp> module;
};

/// The sum of the columns of 8 rows by two groups of them.
const char *const sums = R"(
exec.kernel @sums column [8, 4] (%x: tensor<8x4xf32>) -> (%y: tensor<4xf32>)
    attributes {groups = 2 : i64} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (4 * r + c)>
        : tensor<8x4xf32> -> f32
    exec.accumulate sum %0, %y at affine_map<(r, c) -> (c)> : f32, tensor<4xf32>
    exec.yield
  }
})";

std::string replaced(std::string text, StringRef from, StringRef to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST(Link, KernelsOfAnotherProgram) {
  std::string power = kernel;
  Kernels lender(power + sums),
      program(
          replaced(power, "@power", "@other") +
          replaced(replaced(power, "@power", "@narrow"), "[4, 1]", "[2, 1]") +
          replaced(sums, "@sums", "@power"));
  ASSERT_TRUE(lender.module && program.module);
  BorrowedFunctions borrowed;
  auto there = compileKernels(*lender.module, CpuTarget::host());
  auto here = compileKernels(*program.module, CpuTarget::host(), *lender.module,
                             borrowed);
  ASSERT_TRUE(succeeded(there) && succeeded(here));
  // A kernel has the code of one that is alike but for its name, not of one
  // with its name. Two stages are two functions.
  std::map<std::string, std::string> found;
  for (const auto &entry : borrowed)
    found[entry.getKey().str()] = entry.getValue();
  std::map<std::string, std::string> expected;
  for (const char *prefix : {"", "cleave_signature_"}) {
    std::string p = prefix;
    expected[p + "cleave_kernel_other"] = p + "cleave_kernel_power";
    expected[p + "cleave_kernel_power"] = p + "cleave_kernel_sums";
    expected[p + "cleave_finish_power"] = p + "cleave_finish_sums";
  }
  EXPECT_EQ(found, expected);
  auto lent = loadKernels(*there), own = loadKernels(*here);
  ASSERT_TRUE(lent && own);
  for (const auto &entry : borrowed) {
    EXPECT_NE((*lent)->lookup(entry.getValue()), nullptr);
    EXPECT_EQ((*own)->lookup(entry.getKey()), nullptr);
  }
  EXPECT_NE((*own)->lookup("cleave_kernel_narrow"), nullptr);
}

} // namespace
