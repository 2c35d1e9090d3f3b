//===- PredictStep.cpp - An estimate of a step on a GPU -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Planning/PredictStep.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Executable/Cuda/CommandLaunches.h"
#include "cleave/Target/CUDA/CompileCuda.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using namespace cleave::runtime;
namespace json = llvm::json;

//===----------------------------------------------------------------------===//
// Rates
//===----------------------------------------------------------------------===//

namespace {

/// Peak rates of a device in operations and bytes per second, as NVIDIA states
/// them: data sheets "H200 Tensor Core GPU" (SXM), "H100 Tensor Core GPU" (SXM)
/// and "A100 80GB" (SXM). Rates of tensor cores are those without sparsity.
struct DeviceRates {
  StringRef name, architecture;
  double tensor16, tensor8, float32, memory;
};

constexpr DeviceRates devices[] = {
    {"h200", "sm_90", 989e12, 1979e12, 67e12, 4.8e12},
    {"h100", "sm_90", 989e12, 1979e12, 67e12, 3.35e12},
    {"a100", "sm_80", 312e12, 312e12, 19.5e12, 2.039e12},
};

/// What of the peak is reached. On an H100, steps of GPT-2 of 124M to 1.3B
/// parameters reached 0.59 to 0.62 in products of 16 bits, 0.21 to 0.27 in
/// attention by cuDNN (of 64 channels), a fourth of that in the generated
/// kernels, and 0.54 to 0.86 of the memory in kinds of kernels. That other
/// devices and products of other types reach as much is assumed.
constexpr double productShare = 0.6, memoryShare = 0.75, attentionShare = 0.06,
                 cudnnShare = 0.24;
/// Of products and attention in f32; assumed.
constexpr double float32Share = 0.75, attentionShare32 = 0.35;
/// What one launch takes in a graph when nothing else does, in seconds.
constexpr double launchSeconds = 2e-6;

/// The sums of the commands of one kind.
struct Sums {
  int64_t commands = 0, launches = 0;
  double operations = 0, bytes = 0, seconds = 0;
};

} // namespace

ArrayRef<StringRef> cleave::predictedDevices() {
  static const StringRef names[] = {"h200", "h100", "a100"};
  return names;
}

//===----------------------------------------------------------------------===//
// Bytes of commands
//===----------------------------------------------------------------------===//

/// What a generated kernel reads and writes: operands and results once (of one
/// that is read at indices, at most an element for each of the space), partial
/// sums twice, and rows that stay neither in registers nor in shared memory, of
/// which a block has `shared` bytes, once more.
static double kernelBytes(exec::KernelOp kernel, int64_t shared) {
  // A thread has up to 16 pieces of a row in registers. Reductions have some
  // shared memory.
  int64_t longest = 16 * static_cast<int64_t>(kernel.getThreads()) *
                    static_cast<int64_t>(kernel.getVector());
  shared -= 4096;
  int64_t space = kernel.getRows() * kernel.getCols();
  double bytes = kernel.isTwoStage() ? 2.0 * kernel.getScratchBytes() : 0;
  for (BlockArgument arg : kernel.getBody().getArguments()) {
    auto type = cast<RankedTensorType>(arg.getType());
    int64_t elements = type.getNumElements();
    bool indexed = false, whole = false;
    llvm::SmallPtrSet<Operation *, 4> passes;
    for (Operation *user : arg.getUsers()) {
      auto load = dyn_cast<exec::LoadOp>(user);
      bool atIndex = load && !load.getIndices().empty();
      indexed |= atIndex;
      whole |= !atIndex;
      if (load && !atIndex && load.getMap().isFunctionOfDim(1))
        if (auto pass = dyn_cast<exec::PassOp>(user->getParentOp()))
          passes.insert(pass);
    }
    if (indexed && !whole)
      elements = std::min(elements, space);
    double own =
        static_cast<double>(elements) * elementBytes(type.getElementType());
    bool again = false;
    if (int64_t columns = static_cast<int64_t>(kernel.getCols());
        passes.size() > 1 && columns > longest) {
      int64_t row = columns * elementBytes(type.getElementType());
      again = row > shared;
      shared -= again ? 0 : row;
    }
    bytes += again ? 2 * own : own;
  }
  return bytes;
}

static double productBytes(const ContractCommand &c) {
  double in = static_cast<double>(c.m) * c.k + static_cast<double>(c.k) * c.n;
  double out = static_cast<double>(c.m) * c.n *
               ((c.beta != 0 ? 2 : 1) + (c.epilogue != Epilogue::None));
  return static_cast<double>(c.batch) *
         (in * byteSize(c.type) + out * byteSize(c.resultType));
}

static double attentionBytes(const AttentionCommand &a, bool backward) {
  double heads = static_cast<double>(a.batch) * a.heads,
         shared = static_cast<double>(a.batch) * a.kvHeads;
  double q = heads * a.queries * a.headSize,
         o = heads * a.queries * a.valueSize;
  double kv = shared * a.keys * (a.headSize + a.valueSize);
  int64_t in = byteSize(a.type), out = byteSize(a.resultType);
  return backward ? (q + kv + 2 * o) * in + (q + kv) * out
                  : (q + kv) * in + o * out;
}

static double copyBytes(const CopyCommand &copy) {
  double elements = static_cast<double>(copy.elementBytes);
  for (int64_t size : copy.sizes)
    elements *= static_cast<double>(size);
  return 2 * elements;
}

//===----------------------------------------------------------------------===//
// The step
//===----------------------------------------------------------------------===//

static int64_t launchesOf(const Command &command) {
  if (command.kind == CommandKind::Kernel)
    return command.kernel.finish.empty() ? 1 : 2;
  if (command.kind == CommandKind::Contract)
    return 1;
  auto at = [](const Ref &) { return uint64_t(1) << 20; };
  auto launches = cuda::planLaunches(command, {at});
  if (launches)
    return static_cast<int64_t>(launches->size());
  llvm::consumeError(launches.takeError());
  return 0;
}

json::Object cleave::predictStep(ModuleOp module, const Program &program,
                                 StringRef device) {
  const DeviceRates *rates =
      llvm::find_if(devices, [&](auto &d) { return d.name == device; });
  SymbolTable symbols(module);
  llvm::StringMap<exec::KernelOp> kernels;
  module.walk([&](exec::LaunchOp launch) {
    if (auto kernel = symbols.lookup<exec::KernelOp>(launch.getKernel()))
      kernels[kernel.getFunctionName(static_cast<int64_t>(launch.getUses()))] =
          kernel;
  });
  double memory = rates->memory * memoryShare;
  int64_t shared = sharedBytesOf(rates->architecture);
  llvm::MapVector<StringRef, Sums> kinds;
  llvm::MapVector<std::pair<StringRef, StringRef>, Sums> labels;
  auto add = [&](const Command &command, StringRef kind, double operations,
                 double rate, double bytes) {
    int64_t launches = launchesOf(command);
    for (Sums *sums : {&kinds[kind], &labels[{command.label, kind}]}) {
      sums->commands += 1;
      sums->launches += launches;
      sums->operations += operations;
      sums->bytes += bytes;
      sums->seconds += std::max(launches * launchSeconds,
                                std::max(operations / rate, bytes / memory));
    }
  };
  auto addCommand = [&](const Command &c) {
    double operations = static_cast<double>(c.flops);
    switch (c.kind) {
    case CommandKind::Kernel: {
      auto kernel = kernels.find(c.kernel.symbol);
      if (kernel == kernels.end())
        return;
      constexpr StringRef names[] = {
          "kernels over elements", "kernels over rows",
          "kernels that sum over rows", "kernels that gather"};
      add(c, names[static_cast<size_t>(kernel->second.getSkeleton())], 0,
          rates->float32, c.kernel.uses * kernelBytes(kernel->second, shared));
      return;
    }
    case CommandKind::Contract: {
      int64_t size = byteSize(c.contract.type);
      double peak = size == 4   ? rates->float32
                    : size == 2 ? rates->tensor16
                                : rates->tensor8;
      add(c,
          size == 4   ? "products of f32"
          : size == 2 ? "products of 16 bits"
                      : "products of 8 bits",
          operations, peak * (size == 4 ? float32Share : productShare),
          productBytes(c.contract));
      return;
    }
    case CommandKind::AttentionForward:
    case CommandKind::AttentionBackward: {
      bool narrow = byteSize(c.attention.type) == 2,
           fused = c.attention.libraryBytes >= 0;
      add(c,
          fused    ? "attention by cuDNN"
          : narrow ? "attention of 16 bits"
                   : "attention of f32",
          operations,
          (narrow ? rates->tensor16 : rates->float32) *
              (fused    ? cudnnShare
               : narrow ? attentionShare
                        : attentionShare32),
          attentionBytes(c.attention,
                         c.kind == CommandKind::AttentionBackward));
      return;
    }
    case CommandKind::ScatterAdd:
      // Rows are read, and those of the result read and written.
      add(c, "sums of rows at indices", 0, rates->float32,
          12.0 * static_cast<double>(c.scatterAdd.count) *
              static_cast<double>(c.scatterAdd.columns));
      return;
    case CommandKind::TopK:
      // Rows are read five times, and what is selected is sorted.
      add(c, "largest elements", 0, rates->float32,
          20.0 * static_cast<double>(c.topK.rows) * c.topK.columns +
              100.0 * static_cast<double>(c.topK.rows) * c.topK.k);
      return;
    case CommandKind::Orthonormalize: {
      // A pass over the columns in f64 for each reflection, and three others.
      const OrthonormalizeCommand &o = c.orthonormalize;
      double pass = 16.0 * static_cast<double>(o.batch) * o.rows * o.columns;
      add(c, "orthonormal columns", operations, rates->float32 / 2,
          pass * static_cast<double>(o.columns + 3));
      return;
    }
    case CommandKind::Copy:
      add(c, "copies", 0, rates->float32, copyBytes(c.copy));
      return;
    case CommandKind::Fill:
      add(c, "copies", 0, rates->float32, static_cast<double>(c.fill.bytes));
      return;
    case CommandKind::Check:
      add(c, "checks", 0, rates->float32, 0);
      return;
    default:
      return;
    }
  };
  auto entry = program.entries.find("train");
  if (entry == program.entries.end())
    entry = program.entries.begin();
  int64_t tokens = 0;
  if (entry != program.entries.end()) {
    for (const Action &action : entry->second.actions)
      if (const Part &part = program.parts[action.part]; !part.whenStopped)
        for (const Command &command : part.commands)
          addCommand(command);
    for (int32_t input : entry->second.inputs) {
      int64_t count = 1;
      for (int64_t size : program.tensors[input].shape)
        count *= size;
      tokens = tokens ? std::min(tokens, count) : count;
    }
  }

  Sums all;
  double outside = 0;
  json::Array rows;
  for (auto &[kind, sums] : kinds) {
    all.launches += sums.launches;
    all.seconds += sums.seconds;
    if (!kind.starts_with("products") && !kind.starts_with("attention"))
      outside += sums.bytes;
    rows.push_back(json::Object{{"kind", kind},
                                {"commands", sums.commands},
                                {"launches", sums.launches},
                                {"operations", sums.operations},
                                {"bytes", sums.bytes},
                                {"seconds", sums.seconds}});
  }
  json::Array commands;
  for (auto &[key, sums] : labels)
    commands.push_back(json::Object{{"label", key.first},
                                    {"kind", key.second},
                                    {"count", sums.commands},
                                    {"launches", sums.launches},
                                    {"operations", sums.operations},
                                    {"bytes", sums.bytes},
                                    {"seconds", sums.seconds}});
  return json::Object{
      {"device", device},
      {"estimate", true},
      {"rates",
       json::Object{{"products_16", rates->tensor16 * productShare},
                    {"products_8", rates->tensor8 * productShare},
                    {"products_f32", rates->float32 * float32Share},
                    {"attention_cudnn", rates->tensor16 * cudnnShare},
                    {"attention_16", rates->tensor16 * attentionShare},
                    {"attention_f32", rates->float32 * attentionShare32},
                    {"memory_bytes", memory},
                    {"launch_seconds", launchSeconds}}},
      {"tokens", tokens},
      {"launches", all.launches},
      {"seconds", all.seconds},
      {"bytes_outside", outside},
      {"kinds", std::move(rows)},
      {"commands", std::move(commands)}};
}

std::vector<std::string>
cleave::predictionText(const json::Object &prediction) {
  std::vector<std::string> lines;
  double seconds = prediction.getNumber("seconds").value_or(0);
  int64_t tokens = prediction.getInteger("tokens").value_or(0);
  lines.push_back(llvm::formatv(
      "estimate for one {0} (nothing was run): {1:F1} ms a step, {2} tokens/s, "
      "{3} launches",
      prediction.getString("device").value_or(""), seconds * 1e3,
      seconds > 0 ? std::llround(tokens / seconds) : 0,
      prediction.getInteger("launches").value_or(0)));
  if (const json::Array *kinds = prediction.getArray("kinds"))
    for (const json::Value &value : *kinds) {
      const json::Object &kind = *value.getAsObject();
      double own = kind.getNumber("seconds").value_or(0);
      lines.push_back(llvm::formatv(
          "  {0,-28} {1,8:F2} ms {2,5:F1} %  {3,5} launches {4,9:F1} GFLOP "
          "{5,9:F1} MB",
          kind.getString("kind").value_or(""), own * 1e3,
          seconds > 0 ? 100 * own / seconds : 0.0,
          kind.getInteger("launches").value_or(0),
          kind.getNumber("operations").value_or(0) / 1e9,
          kind.getNumber("bytes").value_or(0) / 1e6));
    }
  if (tokens > 0)
    lines.push_back(llvm::formatv(
        "  outside of products and attention, {0:F1} kB a token are moved "
        "(estimate)",
        prediction.getNumber("bytes_outside").value_or(0) /
            static_cast<double>(tokens) / 1e3));
  return lines;
}
