//===- FusionRunner.cpp - Fused functions run natively --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FusionRunner.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include <cstring>

using namespace mlir;
using namespace cleave;
using namespace cleave::testing;
using graph::tensorTypeOf;

using Function = void (*)(void *const *, int64_t, int64_t, void *);

static int64_t byteSize(Type type) {
  return std::max(1u, type.getIntOrFloatBitWidth() / 8);
}

FusionRunner::Buffer FusionRunner::allocate(int64_t bytes) {
  // What a kernel does not write must not look right by chance.
  return std::make_shared<std::vector<uint64_t>>(bytes / 8 + 1,
                                                 0xfff7a5a5fff7a5a5);
}

/// Copies element by element between a tensor and its memory.
static void transfer(RefTensor &tensor, char *memory, bool toMemory) {
  for (int64_t i = 0; i < tensor.size(); ++i) {
    auto move = [&](auto sample, auto &element) {
      using T = decltype(sample);
      T value;
      char *place = memory + i * sizeof(T);
      if (toMemory) {
        value = static_cast<T>(element);
        std::memcpy(place, &value, sizeof(T));
      } else {
        std::memcpy(&value, place, sizeof(T));
        element = value;
      }
    };
    Type type = tensor.element;
    if (type.isF32())
      move(float(), tensor.floats[i]);
    else if (type.isF64())
      move(double(), tensor.floats[i]);
    else if (type.isInteger(64))
      move(int64_t(), tensor.ints[i]);
    else if (type.isInteger(32))
      move(int32_t(), tensor.ints[i]);
    else
      move(int8_t(), tensor.ints[i]);
  }
}

void FusionRunner::runLaunch(exec::LaunchOp launch, int64_t piece,
                             bool overwrite) {
  auto kernel = symbols.lookup<exec::KernelOp>(launch.getKernel());
  SmallVector<void *> args;
  for (Value operand : launch.getOperands()) {
    RankedTensorType type = tensorTypeOf(operand);
    args.push_back(reinterpret_cast<char *>(buffers[operand]->data()) +
                   exec::getLayout(type).offset *
                       byteSize(type.getElementType()));
  }
  SmallVector<bool> taken(launch.getOperands().size(), false);
  for (auto [r, result] : llvm::enumerate(launch.getResults())) {
    Buffer buffer;
    for (auto [output, operand] : launch.getInplacePairs()) {
      if (!overwrite || output != r || taken[operand] || buffer)
        continue;
      // The operand itself may be read by others: give the launch a copy.
      taken[operand] = true;
      buffer = std::make_shared<std::vector<uint64_t>>(
          *buffers[launch.getOperands()[operand]]);
      RankedTensorType type = tensorTypeOf(launch.getOperands()[operand]);
      args[operand] =
          reinterpret_cast<char *>(buffer->data()) +
          exec::getLayout(type).offset * byteSize(type.getElementType());
    }
    RankedTensorType type = tensorTypeOf(result);
    if (!buffer)
      buffer =
          allocate(type.getNumElements() * byteSize(type.getElementType()));
    buffers[result] = buffer;
    args.push_back(buffer->data());
  }
  Buffer scratch = allocate(kernel.getScratchBytes());
  auto runAll = [&](StringRef name, int64_t items) {
    auto function = reinterpret_cast<Function>(library.lookup(name));
    if (!function) {
      error = ("no code for " + name).str();
      return;
    }
    for (int64_t begin = 0; begin < items; begin += piece)
      function(args.data(), begin, std::min(items, begin + piece),
               scratch->data());
  };
  runAll(kernel.getFunctionName(), kernel.getItems());
  if (kernel.isTwoStage() && error.empty())
    runAll(kernel.getFinishName(), kernel.getFinishItems());
}

std::vector<RefTensor> FusionRunner::run(func::FuncOp entry,
                                         const NamedTensors &inputs,
                                         int64_t piece, bool overwrite) {
  buffers.clear();
  for (auto [i, argument] : llvm::enumerate(entry.getArguments())) {
    RefTensor tensor = inputs.at("arg" + std::to_string(i));
    buffers[argument] = allocate(tensor.size() * byteSize(tensor.element));
    transfer(tensor, reinterpret_cast<char *>(buffers[argument]->data()), true);
  }
  Block &block = entry.getBody().front();
  for (Operation &op : block.without_terminator()) {
    if (auto view = dyn_cast<exec::ViewOp>(op))
      buffers[view.getOutput()] = buffers[view.getInput()];
    else if (auto constant = dyn_cast<exec::ConstantOp>(op)) {
      auto value = cast<DenseElementsAttr>(constant.getValue());
      Buffer buffer = buffers[constant.getOutput()] =
          allocate(value.getRawData().size());
      std::memcpy(buffer->data(), value.getRawData().data(),
                  value.getRawData().size());
    } else if (auto launch = dyn_cast<exec::LaunchOp>(op))
      runLaunch(launch, piece, overwrite);
    else
      error = ("not in a kernel: " + op.getName().getStringRef()).str();
    if (!error.empty())
      return {};
  }
  std::vector<RefTensor> results;
  for (Value value : block.getTerminator()->getOperands()) {
    RefTensor tensor(tensorTypeOf(value).getShape(),
                     tensorTypeOf(value).getElementType());
    transfer(tensor, reinterpret_cast<char *>(buffers[value]->data()), false);
    results.push_back(std::move(tensor));
  }
  return results;
}
