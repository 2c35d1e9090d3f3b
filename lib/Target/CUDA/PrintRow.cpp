//===- PrintRow.cpp - A row of a kernel as CUDA C++ -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelPrinter.h"
#include "SoftmaxParts.h"
#include "cleave/Dialect/Exec/IR/OrderedReduce.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::cuda;
using namespace cleave::exec;

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

/// Reductions of the threads are combined for the row; those of one kind and
/// type have their barriers in common.
void KernelPrinter::printPassResults(PassOp pass) {
  auto yield = cast<YieldOp>(pass.getBody().front().getTerminator());
  llvm::MapVector<std::pair<ReductionKind, Type>, SmallVector<unsigned>> alike;
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
       << "};\nreduceAll<" << rowShape() << ">(" << id << ", "
       << reductionName(kind) << "(), turn);\n";
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
  ReduceOp max = onlyReduction(pass, ReductionKind::Max);
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
  os << "float " << most << " = " << identity(ReductionKind::Max, max.getType())
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
       << identity(ReductionKind::Sum, scan.getType()) << ";\n";
  }
  std::string columns = ragged ? "columns" : std::to_string(cols);
  os << "__syncthreads();\nif (threadIdx.x == 0) {\n";
  os.indent();
  os << "for (int i = 0; i < " << columns << "; ++i) {\n";
  os.indent();
  os << "const int c = " << (*reverse ? columns + " - 1 - i" : "i") << ";\n";
  inPass = true;
  for (Operation &op : body) {
    if (auto scan = dyn_cast<ScanOp>(op)) {
      std::string sum = name(scan.getResult());
      os << sum << " = ";
      if (Value factor = scan.getFactor())
        os << name(factor) << " * ";
      os << sum << " + " << name(scan.getValue()) << ";\n";
    } else if (failed(printOp(op))) {
      return failure();
    }
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
