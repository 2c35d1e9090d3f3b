//===- CudaTest.cpp - CUDA kernels against the evaluator ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Emulation.h"
#include "KernelEvaluator.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/MemoryBuffer.h"
#include "gtest/gtest.h"
#include <dlfcn.h>
#include <random>

using namespace mlir;
using namespace cleave;
using namespace cleave::testing;

namespace {

/// A kernel and its arguments, called through pointers to void: on the
/// machines that this runs on, all pointers are passed alike.
struct Call {
  void *function;
  std::vector<void *> args;
};

void invoke(void *data) {
  const Call &call = *static_cast<Call *>(data);
  void *a[10] = {};
  std::copy(call.args.begin(), call.args.end(), a);
  using F = void (*)(void *, void *, void *, void *, void *, void *, void *,
                     void *, void *, void *);
  reinterpret_cast<F>(call.function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6],
                                     a[7], a[8], a[9]);
}

/// Runs a function with the geometry that the comment before it states.
void launch(llvm::StringRef text, const std::string &name,
            const std::vector<void *> &args) {
  size_t at = text.find(name + "(");
  ASSERT_NE(at, llvm::StringRef::npos) << name;
  llvm::StringRef head = text.substr(text.substr(0, at).rfind("// grid "));
  int blocks = 0, threads = 0;
  head.consume_front("// grid ");
  ASSERT_FALSE(head.consumeInteger(10, blocks));
  head.consume_front(", block ");
  ASSERT_FALSE(head.consumeInteger(10, threads));
  void *function = dlsym(RTLD_DEFAULT, name.c_str());
  ASSERT_NE(function, nullptr) << name;
  Call call{function, args};
  emulation::emulate(static_cast<unsigned>(blocks),
                     static_cast<unsigned>(threads), invoke, &call);
}

TEST(Cuda, Kernels) {
  MLIRContext context;
  context
      .loadDialect<exec::ExecDialect, arith::ArithDialect, math::MathDialect>();
  auto module = parseSourceFile<ModuleOp>(CLEAVE_CUDA_KERNELS, &context);
  ASSERT_TRUE(module);
  auto file = llvm::MemoryBuffer::getFile(CLEAVE_CUDA_TEXT);
  ASSERT_TRUE(!!file);
  llvm::StringRef text = (*file)->getBuffer();
  std::mt19937 random(7);
  std::uniform_real_distribution<double> real(-2, 2);
  int kernels = 0;
  for (auto kernel : module->getOps<exec::KernelOp>()) {
    SCOPED_TRACE(kernel.getSymName().str());
    ++kernels;
    auto arguments = kernel.getBody().front().getArguments();
    std::vector<Memory> expected;
    for (BlockArgument arg : arguments) {
      auto type = cast<RankedTensorType>(arg.getType());
      Type element = type.getElementType();
      int64_t n = type.getNumElements();
      Memory memory(n * KernelEvaluator::byteSize(element));
      for (int64_t i = 0; i < n; ++i)
        KernelEvaluator::write(
            memory, element, i,
            {real(random), int64_t(random() % (element.isInteger(1) ? 2 : 7))});
      expected.push_back(memory);
    }
    std::vector<Memory> actual = expected;
    KernelEvaluator evaluator(kernel, expected);
    evaluator.run();
    ASSERT_EQ(evaluator.error, "");

    // Guards around each argument catch writes out of bounds.
    constexpr size_t guard = 256;
    std::vector<void *> args;
    for (Memory &memory : actual) {
      memory.insert(memory.begin(), guard, 0x7b);
      memory.insert(memory.end(), guard, 0x7b);
      args.push_back(memory.data() + guard);
    }
    Memory scratch(kernel.getScratchBytes() + guard, 0x7b);
    args.push_back(scratch.data());
    launch(text, kernel.getFunctionName(), args);
    if (kernel.isTwoStage())
      launch(text, kernel.getFinishName(), args);
    for (size_t i = kernel.getScratchBytes(); i < scratch.size(); ++i)
      ASSERT_EQ(scratch[i], 0x7b) << "wrote behind scratch memory";

    for (auto [k, arg] : llvm::enumerate(arguments)) {
      Type type = cast<RankedTensorType>(arg.getType()).getElementType();
      for (size_t i = 0; i < guard; ++i) {
        ASSERT_EQ(actual[k][i], 0x7b);
        ASSERT_EQ(actual[k][actual[k].size() - 1 - i], 0x7b);
      }
      Memory memory(actual[k].begin() + guard, actual[k].end() - guard);
      int64_t n = memory.size() / KernelEvaluator::byteSize(type);
      for (int64_t i = 0; i < n; ++i) {
        Number a = KernelEvaluator::read(memory, type, i);
        Number e = KernelEvaluator::read(expected[k], type, i);
        ASSERT_EQ(a.integer, e.integer) << "argument " << k << " at " << i;
        ASSERT_NEAR(a.real, e.real, 2e-5 * std::max(1.0, std::fabs(e.real)))
            << "argument " << k << " at " << i;
      }
    }
  }
  EXPECT_EQ(kernels, 21);
}

} // namespace
