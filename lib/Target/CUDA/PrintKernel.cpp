//===- PrintKernel.cpp - Rows and groups as CUDA C++ ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelPrinter.h"
#include "cleave/Dialect/Exec/IR/OrderedReduce.h"
#include "cleave/Target/CUDA/PrintCuda.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::cuda;
using namespace cleave::exec;

static int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

KernelPrinter::KernelPrinter(KernelOp kernel, const llvm::BitVector &shared,
                             ArrayRef<int64_t> uses, int64_t sharedLimit,
                             raw_ostream &os, LaunchShapes &launches)
    : kernel(kernel), os(os), launches(launches), shared(shared), uses(uses),
      threads(kernel.getThreads()), rows(kernel.getRows()),
      cols(kernel.getCols()), vector(kernel.getVector()),
      sharedLimit(sharedLimit) {
  // Blocks consist of whole warps, of which each may have several rows.
  if (!kernel.hasApartColumns() || threads * kernel.getTeams() % 32 != 0)
    threads = std::min<int64_t>(1024, ceilDiv(threads, 32) * 32);
  if (auto valid = kernel.getValid())
    ragged = int64_t(*valid) != rows * cols;
}

//===----------------------------------------------------------------------===//
// Parts of a softmax
//===----------------------------------------------------------------------===//

/// The load that `value` is of, but for a wider type; null if it is another
/// value.
static LoadOp loadOf(Value value) {
  if (auto wide = value.getDefiningOp<arith::ExtFOp>())
    value = wide.getIn();
  auto load = value.getDefiningOp<LoadOp>();
  return load && !load.getWhere() ? load : LoadOp();
}

static bool readsSame(LoadOp a, LoadOp b) {
  return a.getMemory() == b.getMemory() && a.getMap() == b.getMap() &&
         a.getIndices() == b.getIndices();
}

/// The one reduction of a pass, if it has one of `kind` whose order is free.
static ReduceOp onlyReduction(PassOp pass, Reduction kind) {
  Block &body = pass.getBody().front();
  auto yield = cast<YieldOp>(body.getTerminator());
  if (yield.getValues().size() != 1 || !body.getOps<StoreOp>().empty() ||
      !body.getOps<AccumulateOp>().empty() || !body.getOps<ScanOp>().empty())
    return {};
  auto reduce = yield.getValues()[0].getDefiningOp<ReduceOp>();
  return reduce && reduce.getKind() == kind && reduce.getType().isF32() &&
                 !reduce->hasAttr(kOrderedAttr)
             ? reduce
             : ReduceOp();
}

/// If the pass is the sum of exp(x - y) for the elements x of a row: x, and y,
/// a value of the row.
static std::pair<LoadOp, Value> exponentialSum(PassOp pass) {
  ReduceOp sum = onlyReduction(pass, Reduction::Sum);
  auto exp = sum ? sum.getValue().getDefiningOp<math::ExpOp>() : math::ExpOp();
  auto minus =
      exp ? exp.getOperand().getDefiningOp<arith::SubFOp>() : arith::SubFOp();
  if (!minus)
    return {};
  Operation *from = minus.getRhs().getDefiningOp();
  if (from && from->getBlock() == &pass.getBody().front())
    return {};
  return {loadOf(minus.getLhs()), minus.getRhs()};
}

//===----------------------------------------------------------------------===//
// Decisions that depend on the form
//===----------------------------------------------------------------------===//

/// Pieces of `vector` columns must not extend beyond the end of a row, and are
/// of use only where something is accessed by them.
void KernelPrinter::chooseVector() {
  int64_t ends = ragged ? int64_t(*kernel.getValid()) : 0;
  if (!llvm::isPowerOf2_64(vector) || vector > 16)
    vector = 1;
  while (cols % vector != 0 || ends % vector != 0)
    vector /= 2;
  bool scans = false, used = false;
  inPass = true;
  kernel.getBody().walk([&](Operation *op) {
    scans |= isa<ScanOp>(op);
    if (!isa<PassOp>(op->getParentOp()))
      return;
    if (auto load = dyn_cast<LoadOp>(op))
      used |= !load.getWhere() && accessBytes(load.getMemory(), load.getMap(),
                                              load.getIndices()) > 0;
    else if (auto store = dyn_cast<StoreOp>(op))
      used |= accessBytes(store.getMemory(), store.getMap(), {}) > 0;
  });
  inPass = false;
  if (scans || !used)
    vector = 1;
}

/// Whether all results with an element for each of the rows and columns are
/// narrow, and there are some: what they are computed from may be as exact as
/// they need.
static bool hasNarrowResults(KernelOp kernel) {
  bool some = false;
  for (BlockArgument arg :
       kernel.getBody().getArguments().drop_front(kernel.getNumInputs())) {
    auto type = cast<RankedTensorType>(arg.getType());
    if (type.getNumElements() < kernel.getRows() * kernel.getCols())
      continue;
    auto real = dyn_cast<FloatType>(type.getElementType());
    if (!real || real.getWidth() > 16)
      return false;
    some = true;
  }
  return some;
}

void KernelPrinter::analyse() {
  fast = hasNarrowResults(kernel);
  chooseVector();
  pieces = ceilDiv(cols, threads * vector);
  if (kernel.hasApartColumns())
    std::swap(pieces, tiles);
  bool crosses = false, scans = false;
  int64_t passes = 0;
  for (Operation &op : kernel.getBody().front()) {
    crosses |= isa<KeepOp, AccumulateOp>(op);
    if (auto pass = dyn_cast<PassOp>(op)) {
      ++passes;
      for (Operation &inner : pass.getBody().front()) {
        crosses |= isa<ReduceOp, ScanOp, AccumulateOp>(inner);
        scans |= isa<ScanOp>(inner);
      }
    }
  }
  flat = !crosses && passes <= 1;
  if (passes == 0)
    cols = vector = 1;

  // Rows that are kept, and partial sums, are in registers while these last.
  constexpr int64_t registers = 64;
  int64_t used = 0, index = 0;
  for (KeepOp keep : kernel.getBody().front().getOps<KeepOp>()) {
    auto type = cast<RankedTensorType>(keep.getRow().getType());
    int64_t words =
        pieces * vector * ceilDiv(byteSize(type.getElementType()), 4);
    Slot slot{"kept" + std::to_string(index++), false};
    slot.registers = !scans && used + words <= registers;
    if (slot.registers)
      used += words;
    else
      sharedBytes +=
          ceilDiv(type.getNumElements() * byteSize(type.getElementType()), 16) *
          16;
    kept[keep.getRow()] = slot;
    names[keep.getRow()] = slot.name;
  }
  int64_t base = 0;
  kernel.getBody().walk([&](AccumulateOp op) {
    bool inside = isa<PassOp>(op->getParentOp());
    int64_t size = byteSize(op.getValue().getType());
    int64_t words = inside ? pieces * vector * ceilDiv(size, 4) : 1;
    Slot slot{"partial" + std::to_string(sums.size()), false};
    slot.registers = !inside || (!scans && used + words <= registers);
    if (slot.registers)
      used += words;
    sums[op] = slot;
    partialBase[op] = base;
    base += ceilDiv((inside ? cols : 1) * size, 64) * 64 * kernel.getItems();
  });
  chooseTeams(scans);
  // The threads of a scan have no columns of their own, and only unrolled loops
  // have their elements in registers.
  if (!flat && !scans)
    holdRows(pieces <= 16 ? registers - used : 0);
}

/// Teams are of use, and have no memory in common, while rows that are kept and
/// sums are in registers.
void KernelPrinter::chooseTeams(bool scans) {
  auto inMemory = [](auto &entry) { return !entry.second.registers; };
  teams = kernel.getTeams();
  if (!kernel.accumulates() || scans || threads * teams > 1024 ||
      llvm::any_of(kept, inMemory) || llvm::any_of(sums, inMemory))
    teams = 1;
  if (threads * teams % 32 != 0) {
    threads = ceilDiv(threads, 32) * 32;
    tiles = ceilDiv(cols, threads * vector);
  }
  int64_t items = kernel.getItems();
  idle = teams > 1 && (rows % items != 0 || rows / items % teams != 0);
}

/// Chooses the rows of memory that stay in at most `registers`, or in shared
/// memory.
void KernelPrinter::holdRows(int64_t registers) {
  auto isOfRow = [](ValueRange indices) {
    return llvm::none_of(indices, [](Value index) {
      Operation *def = index.getDefiningOp();
      return def && isa<PassOp>(def->getParentOp());
    });
  };
  for (PassOp pass : kernel.getBody().front().getOps<PassOp>()) {
    auto see = [&](Value memory, AffineMap map, ValueRange indices, bool read) {
      if (!isa<BlockArgument>(memory) || !map.isFunctionOfDim(1) ||
          !isOfRow(indices))
        return;
      // What all rows of a block read alike is near, and registers are few.
      if (kernel.accumulates() && !map.isFunctionOfDim(0) && indices.empty())
        return;
      if (Held *known = findHeld(memory, map, indices))
        known->used |= read && known->firstPass != pass;
      else
        held.push_back({memory, map, SmallVector<Value>(indices), pass, ""});
    };
    for (Operation &op : pass.getBody().front()) {
      if (auto load = dyn_cast<LoadOp>(op); load && !load.getWhere())
        see(load.getMemory(), load.getMap(), load.getIndices(), true);
      else if (auto store = dyn_cast<StoreOp>(op))
        see(store.getMemory(), store.getMap(), {}, false);
    }
  }
  int64_t number = 0;
  llvm::erase_if(held, [&](Held &row) {
    auto type = cast<RankedTensorType>(row.memory.getType());
    int64_t words =
        ceilDiv(pieces * vector * byteSize(type.getElementType()), 4);
    if (!row.used)
      return true;
    // Blocks that have a fourth of a multiprocessor's registers for a row leave
    // no room for another block, which would be busy while one waits.
    constexpr int64_t most = (64 << 10) / 4;
    if (words <= registers && words * threads * teams <= most) {
      registers -= words;
    } else {
      // Reductions have some shared memory too.
      constexpr int64_t others = 4096;
      int64_t bytes = ceilDiv(cols * byteSize(type.getElementType()), 16) * 16;
      if (teams > 1 || sharedBytes + bytes + others > sharedLimit ||
          !needsRow(row))
        return true;
      row.sharedAt = sharedBytes;
      sharedBytes += bytes;
    }
    row.name = "row" + std::to_string(number++);
    return false;
  });
}

/// Whether a pass reads the row again that is not part of a softmax in one pass
/// (`printSoftmaxPass`).
bool KernelPrinter::needsRow(const Held &row) {
  for (PassOp pass : kernel.getBody().front().getOps<PassOp>()) {
    LoadOp ofSum = exponentialSum(pass).first;
    for (LoadOp load : pass.getBody().front().getOps<LoadOp>())
      if (!load.getWhere() && load != ofSum && pass != row.firstPass &&
          load.getMemory() == row.memory && load.getMap() == row.map &&
          load.getIndices() == ValueRange(row.indices))
        return true;
  }
  return false;
}

//===----------------------------------------------------------------------===//
// Pieces of text
//===----------------------------------------------------------------------===//

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

/// The loop over the pieces of a row; its variable is `c`.
void KernelPrinter::printColumnLoop(llvm::function_ref<void()> body) {
  std::string step = vector == 1 ? "" : " * " + std::to_string(vector);
  bool whole = !ragged && cols % (threads * vector) == 0;
  bool once = pieces == 1;
  if (once) {
    os << "{\n";
    os.indent();
    os << "[[maybe_unused]] constexpr int k = 0;\n";
    os << "[[maybe_unused]] const int c = ";
    if (tiles > 1)
      os << "(" << block() << " % " << tiles << " * " << threads << " + int("
         << thread() << "))" << step << ";\n";
    else
      os << thread() << step << ";\n";
  } else {
    if (pieces <= 16)
      os << "#pragma unroll\n";
    else
      os << "#pragma unroll " << (vector == 1 ? 8 : 4) << "\n";
    os << "for (int k = 0; k < " << pieces << "; ++k) {\n";
    os.indent();
    os << "[[maybe_unused]] const int c = (k * " << threads << " + int("
       << thread() << "))" << step << ";\n";
  }
  if (!whole) {
    os << "if (c < " << (ragged ? "columns" : std::to_string(cols)) << ") {\n";
    os.indent();
  }
  body();
  if (!whole) {
    os.unindent();
    os << "}\n";
  }
  os.unindent();
  os << "}\n";
}

/// The body of a pass for the piece at `c`: vector reads and writes around a
/// loop over its elements.
LogicalResult KernelPrinter::printColumns(Block &body) {
  inPass = true;
  struct Write {
    StoreOp store;
    std::string lanes;
    int64_t bytes;
    /// The row in shared memory that begins with it, or null.
    Held *row;
  };
  SmallVector<Write> writes;
  llvm::DenseSet<Operation *> done;
  auto lanes = [&](Type type) {
    std::string id = "v" + std::to_string(counter++);
    os << memoryName(type) << " " << id << "[" << vector << "];\n";
    return id;
  };
  for (Operation &op : body) {
    if (auto load = dyn_cast<LoadOp>(op)) {
      auto arg = dyn_cast<BlockArgument>(load.getMemory());
      Held *again = readsHeld(load);
      if (again && again->sharedAt && vector > 1) {
        Type type = load.getValue().getType();
        std::string id = lanes(type);
        os << "loadVector(" << id << ", " << again->name << " + c);\n";
        names[load.getValue()] =
            type.isInteger(1) ? "(" + id + "[j] != 0)" : id + "[j]";
        done.insert(&op);
        continue;
      }
      if (!arg || arg.getArgNumber() >= kernel.getNumInputs() ||
          load.getWhere() || again)
        continue;
      int64_t bytes = accessBytes(arg, load.getMap(), load.getIndices());
      if (!bytes)
        continue;
      Type type = load.getValue().getType();
      Held *row = beginsHeld(&op);
      std::string id = row && !row->sharedAt ? row->name + "[k]" : lanes(type);
      os << "loadVector<" << bytes << ">(" << id << ", " << name(arg) << " + "
         << offset(load.getMap(), load.getIndices(), "c") << ");\n";
      if (row && row->sharedAt)
        os << "storeVector(" << row->name << " + c, " << id << ");\n";
      names[load.getValue()] =
          type.isInteger(1) ? "(" + id + "[j] != 0)" : id + "[j]";
      done.insert(&op);
    } else if (auto store = dyn_cast<StoreOp>(op)) {
      int64_t bytes = accessBytes(store.getMemory(), store.getMap(), {});
      if (!bytes)
        continue;
      Held *row = beginsHeld(&op);
      bool inShared = row && row->sharedAt;
      writes.push_back({store,
                        row && !inShared ? row->name + "[k]"
                                         : lanes(store.getValue().getType()),
                        bytes, inShared ? row : nullptr});
      done.insert(&op);
    } else if (auto philox = dyn_cast<PhiloxOp>(op)) {
      // The key and the base must be known before the loop over elements.
      bool outside = llvm::all_of(op.getOperands(), [&](Value operand) {
        Operation *def = operand.getDefiningOp();
        return !def || def->getBlock() != &body;
      });
      if (!outside || !isCooperative(philox))
        continue;
      printDraws(philox);
      done.insert(&op);
    }
  }
  if (!softmaxSum.empty())
    softmaxTerms = lanes(Float32Type::get(kernel.getContext()));
  if (vector > 1) {
    os << "#pragma unroll\n";
    os << "for (int j = 0; j < " << vector << "; ++j) {\n";
    os.indent();
  } else if (!held.empty() || !softmaxSum.empty()) {
    os << "[[maybe_unused]] constexpr int j = 0;\n";
  }
  LogicalResult result = success();
  for (Operation &op : body) {
    if (done.contains(&op)) {
      auto write =
          llvm::find_if(writes, [&](Write &w) { return w.store == &op; });
      if (write != writes.end())
        os << write->lanes << "[j] = " << name(write->store.getValue())
           << ";\n";
      continue;
    }
    if (succeeded(result))
      result = printOp(op);
  }
  if (vector > 1) {
    os.unindent();
    os << "}\n";
  }
  if (!softmaxSum.empty())
    os << "addExponentials(" << softmaxMost << ", " << softmaxSum << ", "
       << softmaxTerms << ", " << (fast ? "FastExp" : "Exp") << "());\n";
  for (Write &write : writes)
    os << ifOwn() << "storeVector<" << write.bytes << ">("
       << name(write.store.getMemory()) << " + "
       << offset(write.store.getMap(), {}, "c") << ", " << write.lanes
       << ");\n";
  for (Write &write : writes)
    if (write.row)
      os << "storeVector(" << write.row->name << " + c, " << write.lanes
         << ");\n";
  inPass = false;
  return result;
}

/// The function of a reduction.
static const char *nameOf(Reduction kind) {
  return kind == Reduction::Sum   ? "Sum"
         : kind == Reduction::Max ? "Max"
                                  : "Min";
}

/// Reductions of the threads are combined for the row; those of one kind and
/// type have their barriers in common.
void KernelPrinter::printPassResults(PassOp pass) {
  auto yield = cast<YieldOp>(pass.getBody().front().getTerminator());
  llvm::MapVector<std::pair<Reduction, Type>, SmallVector<unsigned>> alike;
  for (auto [i, value] : llvm::enumerate(yield.getValues()))
    alike[{value.getDefiningOp<ReduceOp>().getKind(), value.getType()}]
        .push_back(i);
  for (auto &[key, numbers] : alike) {
    auto [kind, type] = key;
    std::string id = "v" + std::to_string(counter++);
    os << typeName(type) << " " << id << "[" << numbers.size() << "] = {"
       << llvm::join(llvm::map_range(numbers,
                                     [&](unsigned i) {
                                       return name(yield.getValues()[i]);
                                     }),
                     ", ")
       << "};\nreduceAll<" << rowShape() << ">(" << id << ", " << nameOf(kind)
       << "(), turn);\n";
    for (auto [at, i] : llvm::enumerate(numbers))
      names[pass.getResult(i)] = id + "[" + std::to_string(at) + "]";
  }
}

/// Rows that do not stay in registers are read once for the maximum and for the
/// sum below it: a larger element scales the sum before it. What is the same
/// sum below another value of the row follows from it.
bool KernelPrinter::printSoftmaxPass(PassOp pass) {
  if (auto [load, below] = exponentialSum(pass); load)
    for (const Softmax &known : softmaxes)
      if (readsSame(known.load, load)) {
        if (name(below) == known.most)
          names[pass.getResult(0)] = known.sum;
        else
          define(pass.getResult(0), known.sum + " * " + exponential() + "(" +
                                        known.most + " - " + name(below) + ")");
        return true;
      }
  ReduceOp max = onlyReduction(pass, Reduction::Max);
  LoadOp load = max ? loadOf(max.getValue()) : LoadOp();
  if (!load || !isa<BlockArgument>(load.getMemory()))
    return false;
  Held *row = findHeld(load.getMemory(), load.getMap(), load.getIndices());
  if (row && row->firstPass != pass)
    return false;
  bool sums = llvm::any_of(kernel.getBody().front().getOps<PassOp>(),
                           [&](PassOp other) {
                             auto [elements, below] = exponentialSum(other);
                             return elements && readsSame(elements, load) &&
                                    below == pass.getResult(0);
                           });
  if (!sums)
    return false;
  std::string most = "r" + std::to_string(counter++);
  std::string sum = "r" + std::to_string(counter++);
  names[max.getResult()] = most;
  os << "float " << most << " = " << identity(Reduction::Max, max.getType())
     << ";\nfloat " << sum << " = 0.0f;\n";
  Softmax found{load, "v" + std::to_string(counter++),
                "v" + std::to_string(counter++)};
  softmaxSum = sum;
  softmaxMost = most;
  printColumnLoop([&] { (void)printColumns(pass.getBody().front()); });
  softmaxSum.clear();
  os << "const float " << found.most << " = reduceBlock<" << rowShape() << ">("
     << most << ", Max(), turn);\n";
  os << "const float " << found.sum << " = reduceBlock<" << rowShape() << ">("
     << sum << " * " << exponential() << "(" << most << " - " << found.most
     << "), Sum(), turn);\n";
  names[pass.getResult(0)] = found.most;
  softmaxes.push_back(found);
  return true;
}

LogicalResult KernelPrinter::printPass(PassOp pass) {
  if (printSoftmaxPass(pass))
    return success();
  Block &body = pass.getBody().front();
  for (ReduceOp reduce : body.getOps<ReduceOp>()) {
    std::string id = "r" + std::to_string(counter++);
    names[reduce.getResult()] = id;
    os << typeName(reduce.getType()) << " " << id << " = "
       << identity(reduce.getKind(), reduce.getType()) << ";\n";
  }
  if (!body.getOps<ScanOp>().empty())
    return printScanPass(pass);
  LogicalResult result = success();
  printColumnLoop([&] { result = printColumns(body); });
  if (succeeded(result))
    printPassResults(pass);
  return result;
}

/// One thread computes a running sum over the row.
LogicalResult KernelPrinter::printScanPass(PassOp pass) {
  Block &body = pass.getBody().front();
  std::optional<bool> reverse;
  for (ScanOp scan : body.getOps<ScanOp>()) {
    if (reverse && *reverse != scan.getReverse())
      return scan.emitError("runs against another exec.scan of its pass");
    reverse = scan.getReverse();
    std::string id = "s" + std::to_string(counter++);
    names[scan.getResult()] = id;
    os << typeName(scan.getType()) << " " << id << " = "
       << identity(Reduction::Sum, scan.getType()) << ";\n";
  }
  std::string columns = ragged ? "columns" : std::to_string(cols);
  os << "__syncthreads();\nif (threadIdx.x == 0) {\n";
  os.indent();
  os << "for (int i = 0; i < " << columns << "; ++i) {\n";
  os.indent();
  os << "const int c = " << (*reverse ? columns + " - 1 - i" : "i") << ";\n";
  inPass = true;
  for (Operation &op : body) {
    if (auto scan = dyn_cast<ScanOp>(op))
      os << name(scan.getResult()) << " = " << name(scan.getResult()) << " + "
         << name(scan.getValue()) << ";\n";
    else if (failed(printOp(op)))
      return failure();
  }
  inPass = false;
  os.unindent();
  os << "}\n";
  os.unindent();
  os << "}\n__syncthreads();\n";
  printPassResults(pass);
  return success();
}

LogicalResult KernelPrinter::printRow() {
  if (ragged)
    os << "const int columns = min((long long)" << cols << ", "
       << *kernel.getValid() << "ll - (long long)row * " << cols << ");\n";
  softmaxes.clear();
  for (Held &row : held) {
    std::string type = memoryName(
        cast<RankedTensorType>(row.memory.getType()).getElementType());
    if (row.sharedAt)
      os << type << " *const " << row.name << " = reinterpret_cast<" << type
         << " *>(shared + " << *row.sharedAt << ");\n";
    else
      os << type << " " << row.name << "[" << pieces << "][" << vector
         << "];\n";
  }
  for (Operation &op : kernel.getBody().front()) {
    auto pass = dyn_cast<PassOp>(op);
    if (failed(pass ? printPass(pass) : printOp(op)))
      return failure();
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

LogicalResult KernelPrinter::printFlat() {
  int64_t perRow = ceilDiv(cols, vector), total = rows * perRow;
  // Small blocks, where larger ones would be fewer than multiprocessors.
  while (threads > 64 && ceilDiv(total, threads) < 148)
    threads /= 2;
  printHead(/*finish=*/false, ceilDiv(total, threads), "");
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
    at += ceilDiv(type.getNumElements() * byteSize(type.getElementType()), 16) *
          16;
  }
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
  for (auto &[op, slot] : sums) {
    auto accumulate = cast<AccumulateOp>(op);
    Type type = accumulate.getValue().getType();
    bool inside = isa<PassOp>(op->getParentOp());
    std::string initial = identity(accumulate.getKind(), type);
    int64_t bytes = ceilDiv((inside ? cols : 1) * byteSize(type), 64) * 64;
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
    StringRef again = "k > 0";
    for (auto &[op, slot] : sums) {
      os << "#pragma unroll\nfor (int k = 0; k < "
         << (isa<PassOp>(op->getParentOp()) ? pieces : 1)
         << "; ++k)\n  reduceTeams<" << rowShape() << ">(" << slot.name
         << "[k], " << nameOf(cast<AccumulateOp>(op).getKind()) << "(), "
         << again << ");\n";
      again = "true";
    }
    os << "if (team == 0) {\n";
    os.indent();
  }
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
    total += ceilDiv(widthOf(op), 32);
  threads = 32 * warps;
  teams = 1;
  idle = false;
  sharedBytes = 0;
  printHead(/*finish=*/true, total, "");
  os << "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;\n";
  os << "[[maybe_unused]] constexpr int row = 0;\n";
  int64_t each = ceilDiv(groups, warps), begin = 0;
  for (auto &[op, slot] : sums) {
    auto accumulate = cast<AccumulateOp>(op);
    Type type = accumulate.getValue().getType();
    int64_t width = widthOf(op), blocks = ceilDiv(width, 32);
    int64_t bytes = ceilDiv(width * byteSize(type), 64) * 64;
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
         << nameOf(accumulate.getKind()) << "());\n";
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
  module.walk([&](LaunchOp launch) {
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
    if (failed(KernelPrinter(
                   kernel, known == shared.end() ? all : known->second,
                   uses[kernel.getSymName()], sharedBytes, stream, launches)
                   .print()))
      return failure();
  }
  return text;
}
