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

using namespace mlir;
using namespace cleave;
using namespace cleave::runtime;
using machines::CommandSums;
using machines::Prediction;

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

} // namespace

ArrayRef<StringRef> cleave::predictedDevices() {
  static const StringRef names[] = {"h200", "h100", "a100"};
  return names;
}

std::optional<double> cleave::peakOperations(StringRef device) {
  for (const DeviceRates &rates : devices)
    if (rates.name == device)
      return rates.tensor16;
  return std::nullopt;
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

namespace {
/// Sums up the commands of a step.
class Predictor {
public:
  Predictor(ModuleOp module, const DeviceRates &rates);

  void addEntry(const Program &program);
  Prediction finish(StringRef device);

private:
  /// Counts a command of a kind that does `operations` at a rate, and moves
  /// `bytes`.
  void add(const Command &command, StringRef kind, double operations,
           double rate, double bytes);
  /// The same for a contraction or attention.
  void addLarge(const Command &command, StringRef kind, double operations,
                double rate, double bytes) {
    large.insert(kind);
    add(command, kind, operations, rate, bytes);
  }
  /// The same for one that only moves bytes.
  void addMove(const Command &command, StringRef kind, double bytes) {
    add(command, kind, 0, rates.float32, bytes);
  }
  void addCommand(const Command &command);
  void addKernel(const Command &command);
  void addContraction(const Command &command);
  void addAttention(const Command &command);

  const DeviceRates &rates;
  double memory = rates.memory * memoryShare;
  int64_t shared = sharedBytesOf(rates.architecture);
  llvm::StringMap<exec::KernelOp> kernels;
  llvm::MapVector<StringRef, CommandSums> kinds;
  /// Those of contractions and attention.
  llvm::DenseSet<StringRef> large;
  llvm::MapVector<std::pair<StringRef, StringRef>, CommandSums> labels;
  int64_t tokens = 0;
};
} // namespace

Predictor::Predictor(ModuleOp module, const DeviceRates &rates) : rates(rates) {
  SymbolTable symbols(module);
  module.walk([&](exec::LaunchOp launch) {
    if (auto kernel = symbols.lookup<exec::KernelOp>(launch.getKernel()))
      kernels[kernel.getFunctionName(static_cast<int64_t>(launch.getUses()))] =
          kernel;
  });
}

void Predictor::add(const Command &command, StringRef kind, double operations,
                    double rate, double bytes) {
  int64_t launches = launchesOf(command);
  for (CommandSums *sums : {&kinds[kind], &labels[{command.label, kind}]}) {
    sums->commands += 1;
    sums->launches += launches;
    sums->operations += operations;
    sums->bytes += bytes;
    sums->seconds += std::max(launches * launchSeconds,
                              std::max(operations / rate, bytes / memory));
  }
}

void Predictor::addKernel(const Command &command) {
  auto kernel = kernels.find(command.kernel.symbol);
  if (kernel == kernels.end())
    return;
  constexpr StringRef names[] = {"kernels over elements", "kernels over rows",
                                 "kernels that sum over rows",
                                 "kernels that gather"};
  addMove(command, names[static_cast<size_t>(kernel->second.getSkeleton())],
          command.kernel.uses * kernelBytes(kernel->second, shared));
}

void Predictor::addContraction(const Command &command) {
  int64_t size = byteSize(command.contract.type);
  double peak = size == 4   ? rates.float32
                : size == 2 ? rates.tensor16
                            : rates.tensor8;
  addLarge(command,
           size == 4   ? "products of f32"
           : size == 2 ? "products of 16 bits"
                       : "products of 8 bits",
           static_cast<double>(command.flops),
           peak * (size == 4 ? float32Share : productShare),
           productBytes(command.contract));
}

void Predictor::addAttention(const Command &command) {
  bool narrow = byteSize(command.attention.type) == 2,
       fused = command.attention.libraryBytes >= 0;
  double share = fused    ? cudnnShare
                 : narrow ? attentionShare
                          : attentionShare32;
  addLarge(command,
           fused    ? "attention by cuDNN"
           : narrow ? "attention of 16 bits"
                    : "attention of f32",
           static_cast<double>(command.flops),
           (narrow ? rates.tensor16 : rates.float32) * share,
           attentionBytes(command.attention,
                          command.kind == CommandKind::AttentionBackward));
}

void Predictor::addCommand(const Command &c) {
  switch (c.kind) {
  case CommandKind::Kernel:
    return addKernel(c);
  case CommandKind::Contract:
    return addContraction(c);
  case CommandKind::AttentionForward:
  case CommandKind::AttentionBackward:
    return addAttention(c);
  case CommandKind::ScatterAdd:
    // Rows are read, and those of the result read and written.
    return addMove(c, "sums of rows at indices",
                   12.0 * static_cast<double>(c.scatterAdd.count) *
                       static_cast<double>(c.scatterAdd.columns));
  case CommandKind::TopK:
    // Rows are read five times, and what is selected is sorted.
    return addMove(c, "largest elements",
                   20.0 * static_cast<double>(c.topK.rows) * c.topK.columns +
                       100.0 * static_cast<double>(c.topK.rows) * c.topK.k);
  case CommandKind::Orthonormalize: {
    // A pass over the columns in f64 for each reflection, and three others.
    const OrthonormalizeCommand &o = c.orthonormalize;
    double pass = 16.0 * static_cast<double>(o.batch) * o.rows * o.columns;
    return add(c, "orthonormal columns", static_cast<double>(c.flops),
               rates.float32 / 2, pass * static_cast<double>(o.columns + 3));
  }
  case CommandKind::SortRows:
    // Each group's block reads all groups twice.
    return addMove(
        c, "orders of rows",
        static_cast<double>(c.sortRows.rows) *
            (2.0 * byteSize(c.sortRows.groupType) * (c.sortRows.size + 1) +
             16));
  case CommandKind::GroupedContract: {
    // Tiles of 16 rows and columns in shared memory, without tensor cores.
    const GroupedContractCommand &g = c.groupedContract;
    double weights = static_cast<double>(g.groups) * g.k * g.m,
           rows = static_cast<double>(g.rows) * g.k,
           others = static_cast<double>(g.rows) * g.m;
    double bytes =
        byteSize(g.type) * (rows + (g.weightGradient ? others : weights)) +
        byteSize(g.resultType()) * (g.weightGradient ? weights : others);
    return addLarge(c, "products of sorted rows", static_cast<double>(c.flops),
                    rates.float32 / 4, bytes);
  }
  case CommandKind::Copy:
    return addMove(c, "copies", copyBytes(c.copy));
  case CommandKind::Fill:
    return addMove(c, "copies", static_cast<double>(c.fill.bytes));
  case CommandKind::Check:
    return addMove(c, "checks", 0);
  default:
    return;
  }
}

/// Adds the commands of the entry that trains, or of the first one.
void Predictor::addEntry(const Program &program) {
  auto entry = program.entries.find("train");
  if (entry == program.entries.end())
    entry = program.entries.begin();
  if (entry == program.entries.end())
    return;
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

Prediction Predictor::finish(StringRef device) {
  Prediction prediction;
  prediction.device = device.str();
  prediction.rates = {{"products_16", rates.tensor16 * productShare},
                      {"products_8", rates.tensor8 * productShare},
                      {"products_f32", rates.float32 * float32Share},
                      {"attention_cudnn", rates.tensor16 * cudnnShare},
                      {"attention_16", rates.tensor16 * attentionShare},
                      {"attention_f32", rates.float32 * attentionShare32},
                      {"memory_bytes", memory},
                      {"launch_seconds", launchSeconds}};
  prediction.tokens = tokens;
  for (auto &[kind, sums] : kinds) {
    prediction.launches += sums.launches;
    prediction.seconds += sums.seconds;
    if (!large.contains(kind))
      prediction.bytesOutside += sums.bytes;
    prediction.kinds.push_back({kind.str(), sums});
  }
  for (auto &[key, sums] : labels)
    prediction.labels.push_back({key.first.str(), key.second.str(), sums});
  return prediction;
}

Prediction cleave::predictStep(ModuleOp module, const Program &program,
                               StringRef device) {
  const DeviceRates *rates =
      llvm::find_if(devices, [&](auto &d) { return d.name == device; });
  Predictor predictor(module, *rates);
  predictor.addEntry(program);
  return predictor.finish(device);
}
