//===- PrintKernel.cpp - Kernels as CUDA C++ ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelPrinter.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Target/CUDA/PrintCuda.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::cuda;
using namespace cleave::exec;

KernelPrinter::KernelPrinter(KernelOp kernel, const llvm::BitVector &shared,
                             ArrayRef<int64_t> uses, int64_t sharedLimit,
                             raw_ostream &os, LaunchShapes &launches)
    : kernel(kernel), os(os), launches(launches), shared(shared), uses(uses),
      threads(kernel.getThreads()), rows(kernel.getRows()),
      cols(kernel.getCols()), vector(kernel.getVector()),
      sharedLimit(sharedLimit) {
  // Blocks consist of whole warps, of which each may have several rows.
  if (!kernel.hasApartColumns() || threads * kernel.getTeams() % 32 != 0)
    threads = std::min<int64_t>(1024, llvm::divideCeil(threads, 32) * 32);
  if (auto valid = kernel.getValid())
    ragged = int64_t(*valid) != rows * cols;
}

/// The comment, the bounds and the name of the function for so many uses.
void KernelPrinter::printBounds(int64_t uses) {
  int64_t block = threads * teams;
  launches[symbol(uses)] = {uses * grid, static_cast<int32_t>(block),
                            static_cast<int32_t>(flat ? 0 : sharedBytes)};
  os << "// grid " << uses * grid << ", block " << block << note << "\n";
  os << "extern \"C\" __global__ void __launch_bounds__(" << block;
  // ptxas would rather spill than use more registers than a full
  // multiprocessor has; kernels over rows use about a hundred.
  if (!flat)
    os << ", " << std::max<int64_t>(1, 480 / block);
  os << ")\n" << symbol(uses) << "(";
}

/// The parameters of one use.
std::string KernelPrinter::parameters() {
  std::string text;
  llvm::raw_string_ostream os(text);
  unsigned inputs = kernel.getNumInputs();
  for (BlockArgument arg : kernel.getBody().front().getArguments()) {
    unsigned i = arg.getArgNumber();
    Type element = cast<RankedTensorType>(arg.getType()).getElementType();
    std::string id = i < inputs ? "in" + std::to_string(i)
                                : "out" + std::to_string(i - inputs);
    names[arg] = id;
    os << (i ? ", " : "") << (i < inputs ? "const " : "") << memoryName(element)
       << (shared.test(i) ? " *" : " *__restrict__ ") << id;
  }
  if (kernel.isTwoStage())
    os << ", char *__restrict__ scratch";
  return text;
}

void KernelPrinter::printHead(bool finish, int64_t blocks, StringRef remark) {
  finishing = finish;
  grid = blocks;
  note = remark.str();
  if (isCalled())
    os << "static __device__ __forceinline__ void\n"
       << symbol(0) << "(const unsigned block, ";
  else
    printBounds(1);
  os << parameters() << ") {\n";
  os.indent();
}

/// The end of the code, and the functions that call it.
void KernelPrinter::printTail() {
  os.unindent();
  os << "}\n\n";
  if (!isCalled())
    return;
  for (int64_t number : uses)
    printUses(number);
}

/// The blocks of each use are neighbours.
void KernelPrinter::printUses(int64_t uses) {
  auto arguments = kernel.getBody().front().getArguments();
  bool many = uses > 1;
  printBounds(uses);
  if (many)
    os << "const __grid_constant__ Uses<" << uses << ", " << arguments.size()
       << "> uses"
       << (kernel.isTwoStage() ? ", char *__restrict__ scratch" : "");
  else
    os << parameters();
  os << ") {\n";
  os.indent();
  if (many)
    os << "const unsigned use = blockIdx.x / " << grid << ";\n";
  os << symbol(0) << "(blockIdx.x";
  if (many)
    os << " % " << grid;
  for (BlockArgument arg : arguments) {
    Type element = cast<RankedTensorType>(arg.getType()).getElementType();
    if (many)
      os << ",\n    static_cast<"
         << (arg.getArgNumber() < kernel.getNumInputs() ? "const " : "")
         << memoryName(element) << " *>(uses.at[use][" << arg.getArgNumber()
         << "])";
    else
      os << ", " << name(arg);
  }
  if (kernel.isTwoStage()) {
    os << ", scratch";
    if (many)
      os << " + use * " << kernel.getScratchBytes() << "ll";
  }
  os << ");\n";
  os.unindent();
  os << "}\n\n";
}

const char *cleave::cuda::reductionName(ReductionKind kind) {
  return kind == ReductionKind::Sum   ? "Sum"
         : kind == ReductionKind::Max ? "Max"
                                      : "Min";
}

LogicalResult KernelPrinter::printFlat() {
  int64_t perRow = llvm::divideCeil(cols, vector), total = rows * perRow;
  // Small blocks, where larger ones would be fewer than multiprocessors.
  while (threads > 64 && llvm::divideCeil(total, threads) < 148)
    threads /= 2;
  printHead(/*finish=*/false, llvm::divideCeil(total, threads), "");
  bool narrow = total < (int64_t(1) << 30);
  os << "const " << (narrow ? "int" : "long long") << " i = " << block()
     << " * " << threads << (narrow ? "" : "ll") << " + threadIdx.x;\n";
  if (total % threads != 0)
    os << "if (i >= " << total << ")\n  return;\n";
  os << "[[maybe_unused]] const int row = i / " << perRow << ";\n";
  os << "[[maybe_unused]] const int c = i % " << perRow;
  if (vector > 1)
    os << " * " << vector;
  os << ";\n";
  if (ragged)
    os << "if ((long long)row * " << cols << " + c >= " << *kernel.getValid()
       << ")\n  return;\n";
  for (Operation &op : kernel.getBody().front()) {
    if (auto pass = dyn_cast<PassOp>(op)) {
      if (failed(printColumns(pass.getBody().front())))
        return failure();
    } else if (failed(printOp(op))) {
      return failure();
    }
  }
  printTail();
  return success();
}

/// Declares the memory of rows that are kept.
void KernelPrinter::declareKept() {
  int64_t at = 0;
  for (KeepOp keep : kernel.getBody().front().getOps<KeepOp>()) {
    auto type = cast<RankedTensorType>(keep.getRow().getType());
    std::string element = memoryName(type.getElementType());
    const Slot &slot = kept[keep.getRow()];
    if (slot.registers) {
      os << element << " " << slot.name << "[" << pieces << "][" << vector
         << "];\n";
      continue;
    }
    os << element << " *const " << slot.name << " = reinterpret_cast<"
       << element << " *>(shared + " << at << ");\n";
    at += llvm::divideCeil(
              type.getNumElements() * byteSize(type.getElementType()), 16) *
          16;
  }
}

/// Declares the sums of a group of rows, and sets them to their identity.
void KernelPrinter::declareSums() {
  bool finishes = kernel.isTwoStage();
  for (auto &[op, slot] : sums) {
    auto accumulate = cast<AccumulateOp>(op);
    Type type = accumulate.getValue().getType();
    bool inside = isa<PassOp>(op->getParentOp());
    std::string initial = identity(accumulate.getKind(), type);
    int64_t bytes =
        llvm::divideCeil((inside ? cols : 1) * byteSize(type), 64) * 64;
    std::string memory = memoryName(type);
    if (finishes)
      os << memory << " *const " << slot.name << "_row = reinterpret_cast<"
         << memory << " *>(scratch + " << partialBase[op]
         << " + (long long)group * " << bytes << ");\n";
    if (slot.registers) {
      int64_t count = inside ? pieces : 1, width = inside ? vector : 1;
      os << typeName(type) << " " << slot.name << "[" << count << "][" << width
         << "];\n";
      os << "#pragma unroll\nfor (int k = 0; k < " << count << "; ++k)\n"
         << "  #pragma unroll\n  for (int j = 0; j < " << width << "; ++j)\n"
         << "    " << slot.name << "[k][j] = " << initial << ";\n";
    } else {
      printColumnLoop([&] {
        os << "for (int j = 0; j < " << vector << "; ++j)\n  "
           << sumPlace(accumulate, "(c + j)") << " = " << initial << ";\n";
      });
    }
  }
}

/// Combines the sums of teams.
void KernelPrinter::reduceTeamSums() {
  StringRef again = "k > 0";
  for (auto &[op, slot] : sums) {
    os << "#pragma unroll\nfor (int k = 0; k < "
       << (isa<PassOp>(op->getParentOp()) ? pieces : 1)
       << "; ++k)\n  reduceTeams<" << rowShape() << ">(" << slot.name << "[k], "
       << reductionName(cast<AccumulateOp>(op).getKind()) << "(), " << again
       << ");\n";
    again = "true";
  }
}

/// Stores the sums that are in registers.
void KernelPrinter::storeSums() {
  bool finishes = kernel.isTwoStage();
  for (auto &[op, slot] : sums) {
    if (!slot.registers)
      continue;
    auto accumulate = cast<AccumulateOp>(op);
    if (!isa<PassOp>(op->getParentOp())) {
      os << "if (" << thread() << " == 0)\n  " << sumPlace(accumulate, "0")
         << " = " << slot.name << "[0][0];\n";
      continue;
    }
    printColumnLoop([&] {
      inPass = true;
      int64_t bytes = finishes ? 16
                               : accessBytes(accumulate.getMemory(),
                                             accumulate.getMap(), {});
      inPass = false;
      if (vector > 1 && bytes > 0) {
        std::string place = sumPlace(accumulate, "c");
        size_t at = place.find('[');
        os << "storeVector<" << bytes << ">(" << place.substr(0, at) << " + "
           << place.substr(at + 1, place.size() - at - 2) << ", " << slot.name
           << "[k]);\n";
        return;
      }
      if (vector > 1)
        os << "#pragma unroll\nfor (int j = 0; j < " << vector << "; ++j)\n  ";
      os << sumPlace(accumulate, vector == 1 ? "c" : "(c + j)") << " = "
         << slot.name << (vector == 1 ? "[k][0]" : "[k][j]") << ";\n";
    });
  }
}

LogicalResult KernelPrinter::printRows() {
  int64_t items = kernel.getItems();
  bool groups = kernel.accumulates(), finishes = kernel.isTwoStage();
  std::string remark;
  if (sharedBytes)
    remark += ", dynamic shared memory " + std::to_string(sharedBytes);
  if (finishes)
    remark += ", scratch " + std::to_string(kernel.getScratchBytes());
  printHead(/*finish=*/false, items * tiles, remark);
  if (sharedBytes)
    os << "extern __shared__ __align__(16) char shared[];\n";
  declareKept();
  // Of the memories of reductions.
  os << "[[maybe_unused]] int turn = 0;\n";
  if (!groups) {
    os << "const int row = " << block() << ";\n";
    if (failed(printRow()))
      return failure();
    printTail();
    return success();
  }

  // Partial sums of the group; of the only one, the results.
  if (teams > 1)
    os << "const int lane = threadIdx.x % " << threads
       << ", team = threadIdx.x / " << threads << ";\n";
  os << "const int group = " << block();
  if (tiles > 1)
    os << " / " << tiles;
  os << ";\n";
  declareSums();
  // Group g begins at row g * rows / groups.
  auto firstOf = [&](StringRef group) {
    std::string more =
        group.contains(' ') ? "(" + group.str() + ")" : group.str();
    if (rows % items == 0)
      return more + " * " + std::to_string(rows / items);
    bool narrow = (rows + 1) * items < (int64_t(1) << 31);
    return "int(" + std::string(narrow ? "" : "(long long)") + more + " * " +
           std::to_string(rows) + " / " + std::to_string(items) + ")";
  };
  os << "const int last = " << firstOf("group + 1") << ";\n";
  if (teams == 1) {
    os << "for (int row = " << firstOf("group") << "; row < last; ++row) {\n";
    os.indent();
  } else {
    os << "for (int first = " << firstOf("group")
       << "; first < last; first += " << teams << ") {\n";
    os.indent();
    os << "const int row = "
       << (idle ? "min(first + team, last - 1)" : "first + team") << ";\n";
    if (idle)
      os << "[[maybe_unused]] const bool own = first + team < last;\n";
  }
  if (failed(printRow()))
    return failure();
  os.unindent();
  os << "}\n";
  bool wasRagged = ragged, wasIdle = idle;
  ragged = idle = false;
  if (teams > 1) {
    reduceTeamSums();
    os << "if (team == 0) {\n";
    os.indent();
  }
  storeSums();
  if (teams > 1) {
    os.unindent();
    os << "}\n";
  }
  ragged = wasRagged;
  idle = wasIdle;
  printTail();
  return success();
}

/// Where a block stores its sum of a column: among partial sums, or the result.
std::string KernelPrinter::sumPlace(AccumulateOp op, StringRef column) {
  if (kernel.isTwoStage())
    return sums[op].name + "_row[" + column.str() + "]";
  return name(op.getMemory()) + "[" + offset(op.getMap(), {}, column) + "]";
}

/// The second stage: a block has 32 columns of one sum. Each of its warps adds
/// neighbouring groups in order, and then the first adds what the warps have.
LogicalResult KernelPrinter::printFinish() {
  int64_t groups = kernel.getItems(), total = 0;
  int64_t warps = std::clamp<int64_t>(llvm::PowerOf2Ceil(groups) / 4, 1, 16);
  auto widthOf = [&](Operation *op) {
    return isa<PassOp>(op->getParentOp()) ? cols : 1;
  };
  for (auto &[op, slot] : sums)
    total += llvm::divideCeil(widthOf(op), 32);
  threads = 32 * warps;
  teams = 1;
  idle = false;
  sharedBytes = 0;
  printHead(/*finish=*/true, total, "");
  os << "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;\n";
  os << "[[maybe_unused]] constexpr int row = 0;\n";
  int64_t each = llvm::divideCeil(groups, warps), begin = 0;
  for (auto &[op, slot] : sums) {
    auto accumulate = cast<AccumulateOp>(op);
    Type type = accumulate.getValue().getType();
    int64_t width = widthOf(op), blocks = llvm::divideCeil(width, 32);
    int64_t bytes = llvm::divideCeil(width * byteSize(type), 64) * 64;
    std::string memory = memoryName(type), sum = typeName(type);
    std::string initial = identity(accumulate.getKind(), type);
    bool all = blocks == total;
    if (!all) {
      os << "if (int(" << block() << ") >= " << begin << " && int(" << block()
         << ") < " << begin + blocks << ") {\n";
      os.indent();
    }
    os << "[[maybe_unused]] const int c = (int(" << block() << ") - " << begin
       << ") * 32 + lane;\n";
    os << sum << " sum = " << initial << ";\n";
    os << "if (c < " << width << ") {\n";
    os.indent();
    os << "const int last = min((warp + 1) * " << each << ", " << groups
       << ");\n";
    os << "#pragma unroll 4\n";
    os << "for (int group = warp * " << each << "; group < last; ++group) {\n";
    os.indent();
    os << "const " << sum << " next = *reinterpret_cast<const " << memory
       << " *>(scratch + " << partialBase[op] << " + (long long)group * "
       << bytes << " + c * " << byteSize(type) << ");\n";
    os << "sum = " << combine(accumulate.getKind(), type, "sum", "next")
       << ";\n";
    os.unindent();
    os << "}\n";
    os.unindent();
    os << "}\n";
    if (warps > 1)
      os << "sum = reduceWarps<" << warps << ">(sum, "
         << reductionName(accumulate.getKind()) << "());\n";
    os << "if (warp == 0 && c < " << width << ")\n  "
       << name(accumulate.getMemory()) << "["
       << offset(accumulate.getMap(), {}, "c") << "] = sum;\n";
    if (!all) {
      os.unindent();
      os << "}\n";
    }
    begin += blocks;
  }
  printTail();
  return success();
}

LogicalResult KernelPrinter::print() {
  analyse();
  constexpr int64_t limit = int64_t(1) << 31;
  if (rows >= limit || cols >= limit)
    return kernel.emitError("has too many rows or columns for a device");
  if (sharedBytes > sharedLimit)
    return kernel.emitError("keeps ")
           << sharedBytes << " bytes of a row; a block has " << sharedLimit;
  if (flat)
    return printFlat();
  if (failed(printRows()))
    return failure();
  return kernel.isTwoStage() ? printFinish() : success();
}

llvm::StringMap<SmallVector<int64_t>>
cleave::cuda::usesOfKernels(ModuleOp module) {
  llvm::StringMap<SmallVector<int64_t>> uses;
  module.walk([&](LaunchOp launch) {
    SmallVector<int64_t> &own = uses[launch.getKernel()];
    auto number = static_cast<int64_t>(launch.getUses());
    if (!llvm::is_contained(own, number))
      own.push_back(number);
  });
  for (auto kernel : module.getOps<KernelOp>()) {
    SmallVector<int64_t> &own = uses[kernel.getSymName()];
    if (own.empty())
      own.push_back(1);
    llvm::sort(own);
  }
  return uses;
}

/// The lines of the model that a kernel is of, as a comment: a kernel that is
/// launched several times is of as many lines.
static std::string linesComment(KernelOp kernel, ArrayRef<LaunchOp> launches) {
  std::vector<std::string> lines;
  auto add = [&](Operation *op) {
    op->getLoc()->walk([&](Location part) {
      if (isa<FusedLoc>(part))
        return WalkResult::advance();
      std::string line = sourceLine(part);
      if (!line.empty() && !llvm::is_contained(lines, line))
        lines.push_back(line);
      return WalkResult::skip();
    });
  };
  kernel.getBody().walk(add);
  llvm::for_each(launches, add);
  constexpr size_t kLines = 8;
  std::string text;
  for (const std::string &line : ArrayRef(lines).take_front(kLines))
    text += (text.empty() ? "// " : ", ") + line;
  if (lines.size() > kLines)
    text += " and " + std::to_string(lines.size() - kLines) + " more";
  return text.empty() ? text : text + "\n";
}

FailureOr<std::string> cleave::printCuda(ModuleOp module,
                                         LaunchShapes &launches,
                                         int64_t sharedBytes) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  bool half = false, brain = false, eight = false;
  auto see = [&](TypeRange types) {
    for (Type type : types) {
      type = getElementTypeOrSelf(type);
      half |= type.isF16();
      brain |= type.isBF16();
      eight |= isa<Float8E4M3FNType, Float8E5M2Type>(type);
    }
  };
  for (auto kernel : module.getOps<KernelOp>()) {
    see(kernel.getBody().getArgumentTypes());
    kernel.getBody().walk([&](Operation *op) { see(op->getResultTypes()); });
  }
  stream << "// Generated by Cleave.\n";
  if (half)
    stream << "#include <cuda_fp16.h>\n";
  if (brain)
    stream << "#include <cuda_bf16.h>\n";
  if (eight)
    stream << "#include <cuda_fp8.h>\n";
  stream << deviceFunctions();
  if (eight)
    stream << float8Functions();
  auto uses = usesOfKernels(module);
  if (llvm::any_of(uses, [](auto &entry) { return entry.second.back() > 1; }))
    stream << "/// The arguments of a launch of many uses of a kernel.\n"
              "template <int uses, int arguments> struct Uses {\n"
              "  void *at[uses][arguments];\n};\n\n";
  // Only a launch knows which memory results may take over.
  llvm::StringMap<llvm::BitVector> shared;
  llvm::StringMap<SmallVector<LaunchOp>> launched;
  module.walk([&](LaunchOp launch) {
    launched[launch.getKernel()].push_back(launch);
    auto uses = static_cast<unsigned>(launch.getUses());
    unsigned inputs = launch.getOperands().size() / uses;
    llvm::BitVector &own = shared[launch.getKernel()];
    own.resize(inputs + launch.getOutputs().size() / uses);
    for (auto [result, operand] : launch.getInplacePairs()) {
      own.set(operand);
      own.set(inputs + result);
    }
  });
  for (auto kernel : module.getOps<KernelOp>()) {
    auto known = shared.find(kernel.getSymName());
    llvm::BitVector all(kernel.getBody().front().getNumArguments(), true);
    stream << linesComment(kernel, launched[kernel.getSymName()]);
    if (failed(KernelPrinter(
                   kernel, known == shared.end() ? all : known->second,
                   uses[kernel.getSymName()], sharedBytes, stream, launches)
                   .print()))
      return failure();
  }
  return text;
}
