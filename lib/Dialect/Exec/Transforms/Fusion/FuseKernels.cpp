//===- FuseKernels.cpp - The kernel of a group of ops ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FuseGroups.h"
#include "cleave/Dialect/Exec/IR/OrderedReduce.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// Elements of a row when a kernel may divide its space anywhere: 16 KiB of
/// f32.
static constexpr int64_t kBlock = 4096;
/// The largest number of row groups of a two-stage reduction on a processor; a
/// constant, so that results do not depend on the number of threads.
static constexpr int64_t kMaxGroups = 64;

FailureOr<FusionNode> cleave::exec::probe(Operation *op) {
  FusionNode node;
  node.op = op;
  auto lowering = dyn_cast<KernelLoweringInterface>(op);
  if (!lowering)
    return node;
  node.space = lowering.getKernelSpace();
  Block scratch;
  KernelBuilder builder(op->getLoc(), scratch, node.space.rows,
                        node.space.cols);
  if (failed(builder.emit(op, Level::Element)))
    return failure();
  node.fusable = true;
  node.reducesRows =
      !scratch.getOps<ReduceOp>().empty() || !scratch.getOps<ScanOp>().empty();
  for (ScanOp scan : scratch.getOps<ScanOp>())
    (scan.getReverse() ? node.scansBackward : node.scansForward) = true;
  node.sumsColumns =
      llvm::any_of(scratch.getOps<AccumulateOp>(), [](AccumulateOp op) {
        return op.getMap().isFunctionOfDim(1);
      });
  node.reads.assign(builder.getReads().begin(), builder.getReads().end());
  node.definitions.assign(builder.getDefinitions().begin(),
                          builder.getDefinitions().end());
  return node;
}

//===----------------------------------------------------------------------===//
// Rows and columns of a flexible space
//===----------------------------------------------------------------------===//

/// Chooses rows and columns so that all accesses have step 0 or 1 along columns
/// if possible, with long rows, though not fewer than the processors of a GPU.
/// `valid` is set if the last row is short.
static KernelSpace chooseRows(ArrayRef<FusionNode> nodes,
                              const FusionGroup &group, TargetTraits target,
                              std::optional<int64_t> &valid) {
  int64_t n = group.space.numElements();
  SmallVector<SmallVector<Stride, 4>> nests;
  SmallVector<int64_t> cuts = {n};
  auto consider = [&](const Access &access) {
    nests.push_back(access.joinedMemory());
    int64_t product = 1;
    for (Stride loop : llvm::reverse(nests.back()))
      if (product *= loop.size; n % product == 0 && product > 1)
        cuts.push_back(product);
  };
  for (unsigned m : group.nodes) {
    for (const auto &read : nodes[m].reads)
      consider(read.access);
    for (const auto &definition : nodes[m].definitions)
      consider(definition.access);
  }
  llvm::sort(cuts);
  cuts.erase(llvm::unique(cuts), cuts.end());

  int64_t best = n, fewest = INT64_MAX;
  for (int64_t cut : cuts) {
    int64_t unclean = 0;
    for (ArrayRef<Stride> nest : nests) {
      if (nest.empty())
        continue;
      Stride last = nest.back();
      bool simple = last.size % cut == 0 && (last.step == 0 || last.step == 1);
      // A single loop may be divided anywhere.
      if (!simple)
        ++unclean;
    }
    if (unclean < fewest || (unclean == fewest && cut > best)) {
      fewest = unclean;
      best = cut;
    }
  }
  if (best != n || n <= kBlock) {
    // Few long rows would leave threads idle.
    int64_t cols = best;
    while (cols > 2 * kBlock && n / cols < 64) {
      int64_t part = 0;
      for (int64_t d = 2; d <= 64 && part == 0; ++d)
        if (cols % (d * 16) == 0)
          part = d;
      if (part == 0)
        break;
      cols /= part;
    }
    return KernelSpace::fixed(n / cols, cols);
  }
  int64_t block = kBlock;
  while (block > 512 && n / block < target.getMultiprocessors())
    block /= 2;
  int64_t rows = (n + block - 1) / block;
  if (n % block != 0)
    valid = n;
  return KernelSpace::fixed(rows, block);
}

//===----------------------------------------------------------------------===//
// Attributes of the finished kernel
//===----------------------------------------------------------------------===//

static Skeleton skeletonOf(Block &flat) {
  bool reduces = false, accumulates = false, gathers = false;
  for (Operation &op : flat) {
    reduces |= isa<ReduceOp, ScanOp>(op);
    accumulates |= isa<AccumulateOp>(op);
    if (auto load = dyn_cast<LoadOp>(op))
      gathers |= !load.getIndices().empty();
  }
  if (accumulates)
    return Skeleton::Column;
  if (reduces)
    return Skeleton::Row;
  return gathers ? Skeleton::Gather : Skeleton::Map;
}

/// Bytes to which the first element of `tensor` is aligned, at most 16.
static int64_t alignmentOf(Value tensor) {
  auto type = cast<RankedTensorType>(tensor.getType());
  int64_t size = std::max(1u, type.getElementTypeBitWidth() / 8);
  int64_t offset = getLayout(type).offset * size;
  return offset % 16 == 0  ? 16
         : offset % 8 == 0 ? std::max<int64_t>(8, size)
                           : size;
}

/// Outputs that may overwrite an input: pairs of argument numbers. On a device,
/// threads have the elements of a row at once: what several of them read must
/// be in all of them before one writes it, behind a reduction of the row.
static SmallVector<std::pair<unsigned, unsigned>> inplacePairs(KernelOp kernel,
                                                               bool onDevice) {
  // For each input its one map and the last top-level op that reads it; for
  // each output its one map and the op that writes it.
  struct Use {
    AffineMap map;
    bool simple = true;
    unsigned order = 0;
    /// Maps of reads at an index, each with its order.
    SmallVector<std::pair<AffineMap, unsigned>, 1> indexed;
  };
  DenseMap<Value, Use> reads, writes;
  SmallVector<unsigned> reductions;
  unsigned order = 0;
  for (Operation &top : kernel.getBody().front()) {
    ++order;
    top.walk([&](Operation *op) {
      if (auto load = dyn_cast<LoadOp>(op)) {
        Use &use = reads[load.getMemory()];
        if (!load.getIndices().empty()) {
          use.indexed.push_back({load.getMap(), order});
          return;
        }
        use.simple &=
            !load.getWhere() && (!use.map || use.map == load.getMap());
        use.map = load.getMap();
        use.order = order;
      } else if (auto store = dyn_cast<StoreOp>(op)) {
        auto [it, first] = writes.try_emplace(store.getMemory());
        it->second = {store.getMap(), first, order, {}};
      } else if (isa<ReduceOp>(op)) {
        reductions.push_back(order);
      }
    });
  }
  auto meetsBetween = [&](unsigned read, unsigned write) {
    return llvm::any_of(reductions, [&](unsigned reduction) {
      return read <= reduction && reduction < write;
    });
  };
  int64_t computed = kernel.getValid() ? int64_t(*kernel.getValid())
                                       : kernel.getRows() * kernel.getCols();
  SmallVector<std::pair<unsigned, unsigned>> pairs;
  for (auto [o, output] : llvm::enumerate(kernel.getOutputs())) {
    auto write = writes.find(output);
    if (write == writes.end() || !write->second.simple)
      continue;
    for (auto [i, input] : llvm::enumerate(kernel.getInputs())) {
      auto read = reads.find(input);
      if (read == reads.end() || !read->second.simple ||
          input.getType() != output.getType() ||
          read->second.map != write->second.map ||
          read->second.order > write->second.order)
        continue;
      // A read at an index instead of the column stays in its row: it must come
      // before the row is written.
      bool early = llvm::all_of(read->second.indexed, [&](auto &indexed) {
        auto [map, when] = indexed;
        if (map.getNumSymbols() != 1 || map.getNumDims() != 2)
          return false;
        Builder b(map.getContext());
        AffineMap inRow = map.replaceDimsAndSymbols(
            {b.getAffineDimExpr(0), b.getAffineDimExpr(1)},
            {b.getAffineDimExpr(1)}, 2, 0);
        return inRow == write->second.map && when < write->second.order &&
               (!onDevice || meetsBetween(when, write->second.order));
      });
      // One thread reads an element that no other one computes.
      if (onDevice &&
          cast<RankedTensorType>(output.getType()).getNumElements() != computed)
        early &= meetsBetween(read->second.order, write->second.order);
      if (early)
        pairs.push_back({o, i});
    }
  }
  return pairs;
}

/// The rows that a block of a GPU has at once, of a kernel that accumulates
/// over rows: as many as make it of `threads` threads, in at most eight warps
/// where rows have fewer threads. Blocks with long rows have one; a running sum
/// is one thread's.
static int64_t teamsOnDevice(KernelOp kernel, int64_t threads) {
  int64_t most = 8 * 32 / std::min<int64_t>(32, kernel.getThreads());
  bool one = false;
  kernel.walk([&](Operation *op) { one |= isa<ScanOp, KeepOp>(op); });
  if (one)
    return 1;
  return std::clamp<int64_t>(threads / kernel.getThreads(), 1, most);
}

/// What a kernel reads and writes, but for partial sums.
static int64_t operandBytes(KernelOp kernel) {
  int64_t bytes = 0;
  for (BlockArgument arg : kernel.getBody().getArguments()) {
    auto type = cast<RankedTensorType>(arg.getType());
    bytes += type.getNumElements() * elementBytes(type.getElementType());
  }
  return bytes;
}

/// Little work is done by few blocks.
static bool isLittle(KernelOp kernel) {
  return operandBytes(kernel) < (int64_t(1) << 18);
}

/// The most groups of rows whose partial sums, which are written and read, are
/// at most a twentieth of what the kernel reads and writes.
static int64_t groupsOfFewSums(KernelOp kernel) {
  return operandBytes(kernel) / 20 /
         (2 * std::max<int64_t>(1, kernel.getGroupBytes()));
}

/// The groups of rows of a kernel that accumulates over them on a GPU: blocks
/// for each processor, and some more, unless there were then too many partial
/// sums. Where one block fills a processor, all have as many.
static int64_t groupsOnDevice(KernelOp kernel, TargetTraits target) {
  int64_t processors = target.getMultiprocessors();
  int64_t tiles = kernel.getColumnTiles(), bytes = operandBytes(kernel);
  int64_t rows = kernel.getRows(), teams = kernel.getTeams();
  if (isLittle(kernel))
    return std::clamp<int64_t>(bytes >> 14, 1, rows);
  bool apart = kernel.hasApartColumns();
  int64_t blocksEach = apart || teams == 1 ? 8 : 2;
  int64_t least = std::min(rows, (processors + tiles - 1) / tiles);
  int64_t most = std::min({processors * blocksEach / tiles, rows / (4 * teams),
                           groupsOfFewSums(kernel)});
  // All blocks run at once, or nearly so: a last one alone would be waited for.
  int64_t each = most * (apart ? tiles : 1) / processors;
  if (each > 0)
    most = each * processors / (apart ? tiles : 1);
  return std::max(least, most);
}

/// Elements per access and threads per block, for devices.
static void setShape(KernelOp kernel, OpBuilder &b, TargetTraits target) {
  int64_t cols = kernel.getCols();
  // 16 bytes of the narrowest elements that are accessed along columns.
  int64_t narrowest = 4, vector = 1;
  kernel.walk([&](Operation *op) {
    Value memory;
    AffineMap map;
    if (auto load = dyn_cast<LoadOp>(op))
      std::tie(memory, map) = std::pair(load.getMemory(), load.getMap());
    else if (auto store = dyn_cast<StoreOp>(op))
      std::tie(memory, map) = std::pair(store.getMemory(), store.getMap());
    if (memory && isa<BlockArgument>(memory) && map.isFunctionOfDim(1))
      narrowest = std::min(
          narrowest,
          elementBytes(
              cast<RankedTensorType>(memory.getType()).getElementType()));
  });
  for (vector = 16 / narrowest; vector > 1 && cols % vector != 0;)
    vector /= 2;
  // The threads of an ordered sum depend on the number of columns alone.
  kernel.walk([&](ReduceOp reduce) {
    if (reduce->hasAttr(kOrderedAttr))
      vector = 1;
  });
  kernel.setVector(vector);
  int64_t lanes = (cols + kernel.getVector() - 1) / kernel.getVector();
  int64_t threads = kernel.getSkeleton() == Skeleton::Map
                        ? 256
                        : std::clamp<int64_t>((lanes + 31) / 32 * 32, 32, 512);
  // A row in shared memory may fill a processor, which then has no other block.
  if (target.isGpu() && kernel.getSkeleton() == Skeleton::Row && lanes > 16384)
    threads = 1024;
  // Blocks are some rows high, so that they need not be wide, and groups few.
  if (target.isGpu() && kernel.hasApartColumns())
    threads = 32;
  kernel.setThreads(threads);
  if (!kernel.accumulates())
    return;
  int64_t rows = kernel.getRows();
  if (!target.isGpu()) {
    int64_t groups =
        std::clamp<int64_t>(rows * cols / 16384, 1, std::min(rows, kMaxGroups));
    // Of as many rows each, but for the last.
    int64_t perGroup = (rows + groups - 1) / groups;
    kernel.setGroups((rows + perGroup - 1) / perGroup);
    return;
  }
  // The registers of a multiprocessor, of which a thread takes about a hundred,
  // are enough for two blocks of `few` threads, or for one of `many`.
  constexpr int64_t few = 288, many = 512;
  auto divide = [&] {
    kernel.setTeams(teamsOnDevice(kernel, few));
    kernel.setGroups(groupsOnDevice(kernel, target));
  };
  divide();
  // With two rows for a warp, as many blocks have half as many partial sums.
  if (kernel.hasApartColumns() && !isLittle(kernel) &&
      kernel.getGroups() > groupsOfFewSums(kernel) &&
      cols % (threads / 2 * kernel.getVector()) == 0) {
    kernel.setThreads(threads / 2);
    divide();
    if (rows < 2 * int64_t(kernel.getGroups())) {
      kernel.setThreads(threads);
      divide();
    }
  }
  if (!kernel.hasApartColumns() &&
      kernel.getGroups() < 2 * target.getMultiprocessors())
    kernel.setTeams(teamsOnDevice(kernel, many));
  int64_t teams =
      std::clamp<int64_t>(rows / kernel.getGroups(), 1, kernel.getTeams());
  // Blocks consist of whole warps.
  kernel.setTeams(kernel.getThreads() < 32 ? teams / 2 * 2 : teams);
}

//===----------------------------------------------------------------------===//
// Kernel and launch
//===----------------------------------------------------------------------===//

/// True if an op uses `value`, possibly through views that kernels read
/// through, where node `from` that defines it does not run: in a group without
/// that node, or in none.
static bool usedOutside(Value value, unsigned from,
                        const GroupsOfOps &groupsOf) {
  for (Operation *user : value.getUsers()) {
    if (auto groups = groupsOf.find(user); groups != groupsOf.end()) {
      if (llvm::all_of(groups->second, [&](const FusionGroup *group) {
            return llvm::is_contained(group->nodes, from);
          }))
        continue;
      return true;
    }
    auto view = dyn_cast<ViewOp>(user);
    if (!view || throughViews(view.getOutput()) == view.getOutput() ||
        usedOutside(view.getOutput(), from, groupsOf))
      return true;
  }
  return false;
}

/// A name composed of the ops of the kernel.
static std::string nameOf(ArrayRef<FusionNode> nodes,
                          const FusionGroup &group) {
  SmallVector<StringRef> words;
  for (unsigned m : group.nodes) {
    StringRef word = nodes[m].op->getName().stripDialect();
    if (!llvm::is_contained(words, word))
      words.push_back(word);
  }
  std::string name;
  for (StringRef word : ArrayRef(words).take_front(4))
    name += (name.empty() ? "" : "_") + word.str();
  return name;
}

namespace {
/// Properties of code, as bytes that are equal only for equal code of one
/// context: locations are left out. This is much cheaper than its text.
class Content {
public:
  void addNumber(uint64_t number) {
    bytes.append(reinterpret_cast<const char *>(&number), sizeof(number));
  }
  void define(ValueRange values) {
    addNumber(values.size());
    for (Value value : values) {
      numbers.try_emplace(value, numbers.size());
      add(value.getType().getAsOpaquePointer());
    }
  }
  void add(Operation *code) {
    code->walk<WalkOrder::PreOrder>([&](Operation *op) {
      add(op->getName().getAsOpaquePointer());
      add(op->getAttrDictionary().getAsOpaquePointer());
      addNumber(op->getNumOperands());
      for (Value operand : op->getOperands())
        addNumber(numbers.lookup(operand));
      define(op->getResults());
      for (Region &region : op->getRegions())
        for (Block &block : region) {
          define(block.getArguments());
          addNumber(block.getOperations().size());
        }
    });
  }

  std::string bytes;

private:
  void add(const void *unique) {
    addNumber(reinterpret_cast<uintptr_t>(unique));
  }

  DenseMap<Value, uint64_t> numbers;
};
} // namespace

/// All properties of a kernel except its locations.
static std::string contentOf(KernelOp kernel) {
  Content content;
  content.add(kernel);
  return std::move(content.bytes);
}

LogicalResult cleave::exec::buildKernel(ArrayRef<FusionNode> nodes,
                                        const FusionGroup &group,
                                        const GroupsOfOps &groupsOf,
                                        TargetTraits target, OpBuilder &builder,
                                        SymbolTable &symbols,
                                        KnownKernels &known) {
  MLIRContext *context = builder.getContext();
  SmallVector<Location> locations;
  for (unsigned m : group.nodes)
    locations.push_back(nodes[m].op->getLoc());
  Location loc = FusedLoc::get(context, locations);
  std::optional<int64_t> valid;
  KernelSpace space = group.space;
  if (space.flexible)
    space = chooseRows(nodes, group, target, valid);

  Block flat;
  KernelBuilder code(loc, flat, space.rows, space.cols);
  for (unsigned m : group.nodes)
    if (failed(code.emit(nodes[m].op, *placementIn(nodes[m], group.space))))
      return failure();
  for (unsigned m : group.nodes)
    for (const auto &definition : nodes[m].definitions)
      if (definition.plain && usedOutside(definition.result, m, groupsOf))
        code.storeResult(definition.result);

  // Inputs first, then numbers, then outputs.
  OpBuilder detached(context);
  SmallVector<Value> arguments, operands, results;
  SmallVector<int64_t> alignment;
  auto addArgument = [&](BlockArgument arg, int64_t aligned) {
    arguments.push_back(arg);
    alignment.push_back(aligned);
  };
  for (auto [tensor, arg] : code.inputs()) {
    addArgument(arg, alignmentOf(tensor));
    operands.push_back(tensor);
  }
  for (auto [number, arg] : code.parameters()) {
    addArgument(arg, 16);
    auto type = cast<RankedTensorType>(arg.getType());
    operands.push_back(ConstantOp::create(
        builder, loc, type, DenseElementsAttr::get(type, Attribute(number))));
  }
  for (auto [tensor, arg] : code.outputs()) {
    addArgument(arg, alignmentOf(tensor));
    results.push_back(tensor);
  }

  // Equal kernels are built, and compiled, once.
  Content content;
  for (int64_t number :
       {space.rows, space.cols, int64_t(operands.size()), valid.value_or(-1)})
    content.addNumber(number);
  for (int64_t aligned : alignment)
    content.addNumber(aligned);
  content.define(arguments);
  for (Operation &op : flat)
    content.add(&op);
  auto [built, isFirst] = known.byCode.try_emplace(content.bytes);
  if (isFirst) {
    auto kernel = KernelOp::create(
        detached, UnknownLoc::get(context), "kernel", skeletonOf(flat),
        space.rows, space.cols, operands.size(), 1, 256, 1, 1,
        valid ? detached.getI64IntegerAttr(*valid) : IntegerAttr(),
        DenseI64ArrayAttr());
    Block &body = kernel.getBody().emplaceBlock();
    IRMapping mapping;
    for (Value arg : arguments)
      mapping.map(arg, body.addArgument(arg.getType(), kernel.getLoc()));
    kernel.setAlignment(alignment);
    scheduleKernel(flat, kernel, mapping);
    kernel.walk([&](Operation *op) { op->setLoc(kernel.getLoc()); });
    setShape(kernel, detached, target);
    built->second.inplace = inplacePairs(kernel, /*onDevice=*/target.isGpu());
    auto [it, isNew] = known.finished.try_emplace(contentOf(kernel), kernel);
    if (isNew) {
      kernel->setLoc(loc);
      kernel.setSymName(nameOf(nodes, group));
      symbols.insert(kernel);
    } else {
      kernel->erase();
    }
    built->second.kernel = it->second;
  }
  KernelOp callee = built->second.kernel;

  SmallVector<Attribute> inplace;
  for (auto [result, operand] : built->second.inplace)
    inplace.push_back(
        detached.getDenseI64ArrayAttr({(int64_t)result, (int64_t)operand}));
  auto launch = LaunchOp::create(
      builder, loc, ValueRange(results).getTypes(),
      FlatSymbolRefAttr::get(callee.getSymNameAttr()), operands,
      inplace.empty() ? ArrayAttr() : builder.getArrayAttr(inplace));
  for (auto [result, value] : llvm::zip(results, launch.getResults()))
    result.replaceAllUsesWith(value);
  return success();
}
