//===- PartMemory.cpp - The buffers of one part ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PartMemory.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

//===----------------------------------------------------------------------===//
// Queries
//===----------------------------------------------------------------------===//

std::vector<Operation *> cleave::exec::commandsOf(func::FuncOp part) {
  std::vector<Operation *> commands;
  for (Operation &op : part.front())
    if (isa<CommandOpInterface>(op))
      commands.push_back(&op);
  return commands;
}

SmallVector<Operation *> cleave::exec::readersOf(Value value) {
  SmallVector<Operation *> readers;
  for (Operation *user : value.getUsers())
    if (isa<ViewOp, JoinOp>(user))
      llvm::append_range(readers, readersOf(user->getResult(0)));
    else
      readers.push_back(user);
  return readers;
}

/// True if `run` is the last to read a value made by an action.
static bool diesIn(Value value, RunOp run) {
  if (!value.getDefiningOp<RunOp>())
    return false;
  return llvm::all_of(value.getUsers(),
                      [&](Operation *user) {
                        return user == run ||
                               (isa<RunOp>(user) && user->isBeforeInBlock(run));
                      }) &&
         llvm::count(value.getUsers(), run) == 1;
}

FailureOr<llvm::StringMap<llvm::BitVector>>
cleave::exec::dyingArguments(ModuleOp module) {
  SymbolTable symbols(module);
  llvm::StringMap<llvm::BitVector> dying;
  for (auto program : module.getOps<ProgramOp>())
    for (auto run : program.getBody().getOps<RunOp>()) {
      auto part = symbols.lookup<func::FuncOp>(run.getCallee());
      if (!part || part.isExternal())
        return run.emitOpError("'") << run.getCallee() << "' is not a part";
      auto [it, first] = dying.try_emplace(
          run.getCallee(), llvm::BitVector(part.getNumArguments(), true));
      for (auto [i, value] : llvm::enumerate(run.getInputs()))
        if (!diesIn(value, run))
          it->second.reset(i);
    }
  return std::move(dying);
}

std::optional<unsigned> cleave::exec::mustShare(Operation *op, unsigned index) {
  if (auto command = dyn_cast<CommandOpInterface>(op))
    for (Share share : command.getShares())
      if (share.must && share.result == index)
        return share.operand;
  return std::nullopt;
}

std::optional<unsigned> cleave::exec::aliasOf(func::FuncOp part,
                                              unsigned index) {
  if (auto alias = part.getResultAttrOfType<IntegerAttr>(index, kAliasAttr))
    return alias.getInt();
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

/// The first command that writes the memory of `value`, and its result; null if
/// the memory is a part's argument or not written by one command.
static OpResult firstWriter(Value value) {
  for (;;) {
    auto result = dyn_cast<OpResult>(rootOf(value));
    if (!result || !isa<CommandOpInterface>(result.getOwner()))
      return nullptr;
    std::optional<unsigned> operand =
        mustShare(result.getOwner(), result.getResultNumber());
    if (!operand)
      return result;
    value = result.getOwner()->getOperand(*operand);
  }
}

/// The argument whose memory `value` already has, through commands that always
/// reuse memory.
static BlockArgument sharedArgument(Value value) {
  for (;;) {
    value = rootOf(value);
    if (auto argument = dyn_cast<BlockArgument>(value))
      return argument;
    auto result = cast<OpResult>(value);
    std::optional<unsigned> operand =
        mustShare(result.getOwner(), result.getResultNumber());
    if (!operand)
      return nullptr;
    value = result.getOwner()->getOperand(*operand);
  }
}

/// True if `value` can be computed in the memory of `argument`: every other
/// reader of the argument can run before it is first written.
static bool canTake(Value value, BlockArgument argument) {
  if (value != rootOf(value) || value.getType() != argument.getType())
    return false;
  OpResult writer = firstWriter(value);
  if (!writer || writer.getType() != argument.getType())
    return false;
  Operation *op = writer.getOwner();
  for (Operation *reader : readersOf(argument)) {
    if (reader == op) {
      // It overwrites the elements that it reads, each at the same index.
      bool inPlace = true;
      for (OpOperand &operand : op->getOpOperands())
        if (rootOf(operand.get()) == argument)
          inPlace &=
              operand.get() == argument &&
              llvm::any_of(cast<CommandOpInterface>(op).getShares(),
                           [&](Share share) {
                             return share.result == writer.getResultNumber() &&
                                    share.operand == operand.getOperandNumber();
                           });
      if (!inPlace)
        return false;
      continue;
    }
    if (reader->hasTrait<OpTrait::IsTerminator>() ||
        graph::dependsOn(reader, op))
      return false;
  }
  return true;
}

/// True if the result that `op` writes to the memory of its operand `index`
/// becomes `value`, possibly through further commands that always overwrite it.
static bool becomes(Operation *op, unsigned index, Value value) {
  for (;;) {
    auto result = dyn_cast<OpResult>(rootOf(value));
    if (!result)
      return false;
    Operation *owner = result.getOwner();
    std::optional<unsigned> operand =
        mustShare(owner, result.getResultNumber());
    if (!operand)
      return false;
    if (owner == op && *operand == index)
      return true;
    value = owner->getOperand(*operand);
  }
}

/// Copies an operand that a command overwrites if something else reads it, now
/// or later. Also copies an overwritten argument in whose memory the part
/// leaves another result: `targets` are these, by argument.
static void separate(func::FuncOp part, Operation *op, unsigned index,
                     const DenseMap<unsigned, Value> &targets) {
  Value operand = op->getOperand(index), root = rootOf(operand);
  bool copy = root.getDefiningOp<ConstantOp>() != nullptr;
  if (auto argument = dyn_cast<BlockArgument>(root)) {
    copy |= !part.getArgAttr(argument.getArgNumber(), kDiesAttr);
    if (Value target = targets.lookup(argument.getArgNumber()))
      copy |= !becomes(op, index, target);
  }
  for (Operation *reader : readersOf(root)) {
    if (copy)
      break;
    if (reader == op) {
      // Through another operand the command would read overwritten memory.
      copy |= llvm::count_if(op->getOperands(), [&](Value other) {
                return rootOf(other) == root;
              }) != 1;
      continue;
    }
    copy |= reader->hasTrait<OpTrait::IsTerminator>() ||
            graph::dependsOn(reader, op);
    // Of two results that overwrite it, one must use other memory.
    for (OpResult result : reader->getResults())
      if (std::optional<unsigned> shared =
              mustShare(reader, result.getResultNumber()))
        copy |= rootOf(reader->getOperand(*shared)) == root;
  }
  if (!copy)
    return;
  OpBuilder builder(op);
  op->setOperand(index, CopyOp::create(builder, op->getLoc(), operand.getType(),
                                       operand, Value()));
}

LogicalResult cleave::exec::settleResults(func::FuncOp part) {
  for (Operation &op : part.front())
    if (!isa<CommandOpInterface, ViewOp, JoinOp, ConstantOp>(op) &&
        !op.hasTrait<OpTrait::IsTerminator>())
      return op.emitOpError("has no native form here: neither a kernel nor a "
                            "command computes it");
  Operation *terminator = part.front().getTerminator();
  DenseMap<unsigned, Value> targets;
  for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
    std::optional<unsigned> alias = aliasOf(part, i);
    if (!alias)
      continue;
    if (*alias >= part.getNumArguments() ||
        part.getArgument(*alias).getType() != value.getType())
      return graph::emitResultError(part, i)
             << " cannot take the memory of argument " << *alias
             << ": there is none of its type";
    if (!targets.try_emplace(*alias, value).second)
      return graph::emitResultError(part, i)
             << " takes the memory of " << graph::nameArgument(part, *alias)
             << ", which another result takes, too";
  }
  for (Operation *op : commandsOf(part))
    for (OpResult result : op->getResults())
      if (std::optional<unsigned> operand =
              mustShare(op, result.getResultNumber()))
        separate(part, op, *operand, targets);
  OpBuilder builder(terminator);
  SmallPtrSet<Value, 16> roots;
  for (OpOperand &use : terminator->getOpOperands()) {
    Value value = use.get();
    unsigned index = use.getOperandNumber();
    std::optional<unsigned> alias = aliasOf(part, index);
    if (alias) {
      BlockArgument argument = part.getArgument(*alias);
      BlockArgument already = sharedArgument(value);
      if (already == argument && value.getType() == argument.getType()) {
        if (!roots.insert(rootOf(value)).second)
          return graph::emitResultError(part, index)
                 << " is another result too";
        continue;
      }
      if (!roots.contains(rootOf(value)) && !already &&
          canTake(value, argument)) {
        roots.insert(value);
        continue;
      }
      use.set(CopyOp::create(builder, value.getLoc(), argument.getType(), value,
                             argument));
      continue;
    }
    Value root = rootOf(value);
    bool own = !sharedArgument(value) && !root.getDefiningOp<ConstantOp>() &&
               roots.insert(root).second;
    if (!own)
      use.set(CopyOp::create(builder, value.getLoc(), value.getType(), value,
                             Value()));
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Buffers
//===----------------------------------------------------------------------===//

/// A value up to this size keeps its memory for two commands after it is
/// evicted: less would be waited for at once.
static constexpr int64_t kEvictedBehind = int64_t(16) << 20;

namespace {

class Assigner {
public:
  Assigner(func::FuncOp part, ArrayRef<Operation *> commands,
           const llvm::BitVector &dying, const ScratchMemory &scratch)
      : part(part), commands(commands), dying(dying), scratch(scratch) {}

  PartMemory run() {
    collect();
    unite();
    measure();
    takeInPlace();
    return finish();
  }

private:
  unsigned indexOf(Value value) { return index.lookup(value); }
  unsigned leader(Value value) { return find(indexOf(value)); }
  unsigned find(unsigned i) {
    while (parent[i] != i)
      i = parent[i] = parent[parent[i]];
    return i;
  }
  void join(Value a, Value b) { parent[find(indexOf(b))] = find(indexOf(a)); }

  void add(Value value) {
    index[value] = values.size();
    values.push_back(value);
    parent.push_back(parent.size());
  }

  void collect() {
    for (BlockArgument argument : part.getArguments())
      add(argument);
    for (Operation &op : part.front())
      for (Value result : op.getResults())
        add(result);
    lives.resize(values.size());
  }

  /// Values that share memory in every order.
  void unite() {
    for (Operation &op : part.front()) {
      if (auto view = dyn_cast<ViewOp>(op))
        join(view.getInput(), view.getOutput());
      else if (auto whole = dyn_cast<JoinOp>(op))
        for (Value input : whole.getInputs())
          join(whole.getOutput(), input);
      for (Value result : op.getResults())
        if (std::optional<unsigned> operand =
                mustShare(&op, cast<OpResult>(result).getResultNumber()))
          join(op.getOperand(*operand), result);
    }
    Operation *terminator = part.front().getTerminator();
    for (auto [i, value] : llvm::enumerate(terminator->getOperands()))
      if (std::optional<unsigned> alias = aliasOf(part, i))
        join(part.getArgument(*alias), value);
  }

  struct Life {
    int64_t bytes = 0, first = -1, last = -1, argument = -1;
    SmallVector<unsigned, 1> results;
    ConstantOp constant;
    Value value;
    bool tier = false;
  };

  void touch(Value value, int64_t time) {
    Life &life = lives[leader(value)];
    if (life.first < 0 || time < life.first)
      life.first = time;
    life.last = std::max(life.last, time);
  }

  void measure() {
    for (Value value : values) {
      Life &life = lives[leader(value)];
      life.bytes = std::max(life.bytes, extentBytes(tensorTypeOf(value)));
      if (auto argument = dyn_cast<BlockArgument>(value)) {
        life.argument = argument.getArgNumber();
        life.value = value;
        life.tier |= part.getArgAttr(life.argument, kTierAttr) != nullptr;
      }
      life.tier |= value.getDefiningOp<EvictOp>() != nullptr;
      if (auto constant = value.getDefiningOp<ConstantOp>())
        life.constant = constant;
      if (!life.value && value.getDefiningOp<CommandOpInterface>())
        life.value = value;
    }
    for (auto [time, op] : llvm::enumerate(commands)) {
      for (Value operand : op->getOperands())
        touch(operand, time);
      for (Value result : op->getResults())
        touch(result, time);
      // An eviction runs beside the next commands.
      if (auto evict = dyn_cast<EvictOp>(op);
          evict && extentBytes(evict.getType()) <= kEvictedBehind)
        touch(evict.getInput(),
              std::min<int64_t>(time + 2, commands.size() - 1));
    }
    for (auto [i, value] :
         llvm::enumerate(part.front().getTerminator()->getOperands())) {
      Life &life = lives[leader(value)];
      life.results.push_back(i);
      life.last = commands.size();
    }
    for (Life &life : lives)
      if (life.argument >= 0 && dying.test(life.argument))
        life.first = 0;
  }

  /// Gives a result the memory of an operand that is dead after the command.
  void takeInPlace() {
    for (auto [time, op] : llvm::enumerate(commands))
      for (Share share : cast<CommandOpInterface>(op).getShares()) {
        if (share.must)
          continue;
        Value result = op->getResult(share.result),
              operand = op->getOperand(share.operand);
        unsigned to = leader(operand), from = leader(result);
        if (to == from || result.getType() != operand.getType())
          continue;
        Life &old = lives[to], &fresh = lives[from];
        bool mine = old.argument < 0 || dying.test(old.argument);
        if (!mine || old.constant || !old.results.empty() ||
            fresh.argument >= 0 || fresh.first != static_cast<int64_t>(time) ||
            old.last != static_cast<int64_t>(time) || old.bytes != fresh.bytes)
          continue;
        // Another operand in the same memory is read elsewhere too.
        if (llvm::count_if(op->getOperands(), [&](Value other) {
              return leader(other) == to;
            }) != 1)
          continue;
        if (!fresh.results.empty() && old.argument >= 0)
          continue; // an argument's memory is not a result's
        old.last = fresh.last;
        old.results = fresh.results;
        parent[from] = to;
      }
  }

  PartMemory finish() {
    PartMemory memory;
    memory.commands.assign(commands.begin(), commands.end());
    // By leader, one more than the number of its buffer.
    std::vector<unsigned> numbers(values.size(), 0);
    memory.bufferOf.reserve(values.size());
    for (Value value : values) {
      unsigned root = leader(value);
      if (numbers[root] == 0) {
        numbers[root] = memory.buffers.size() + 1;
        Life &life = lives[root];
        PartBuffer buffer;
        buffer.bytes = life.bytes;
        buffer.first = life.first;
        buffer.last = life.last;
        buffer.argument = life.argument;
        buffer.results = life.results;
        buffer.constant = life.constant;
        buffer.tier = life.tier;
        buffer.value = life.value ? life.value : value;
        memory.buffers.push_back(buffer);
      }
      memory.bufferOf[value] = numbers[root] - 1;
    }
    markGradients(part, dying, memory);
    for (auto [time, op] : llvm::enumerate(commands)) {
      int64_t bytes = scratch.bytesOf(op);
      if (bytes <= 0)
        continue;
      PartBuffer buffer;
      buffer.bytes = bytes;
      buffer.first = buffer.last = time;
      buffer.scratchOf = op;
      memory.scratchOf[op] = memory.buffers.size();
      memory.buffers.push_back(buffer);
    }
    // The peak bytes in use.
    std::vector<int64_t> change(commands.size() + 2, 0);
    for (const PartBuffer &buffer : memory.buffers) {
      if (buffer.tier)
        continue;
      bool counts = buffer.argument < 0
                        ? !buffer.constant
                        : dying.test(buffer.argument) && buffer.results.empty();
      if (!counts || buffer.first < 0)
        continue;
      change[buffer.first] += buffer.bytes;
      change[buffer.last + 1] -= buffer.bytes;
    }
    int64_t live = 0;
    for (int64_t bytes : change)
      memory.peak = std::max(memory.peak, live += bytes);
    return memory;
  }

  func::FuncOp part;
  ArrayRef<Operation *> commands;
  const llvm::BitVector &dying;
  const ScratchMemory &scratch;
  DenseMap<Value, unsigned> index;
  std::vector<Value> values;
  std::vector<unsigned> parent;
  /// By the leader of the values.
  std::vector<Life> lives;
};

} // namespace

ScratchMemory::ScratchMemory(ModuleOp module, int64_t threads)
    : threads(threads) {
  for (auto kernel : module.getOps<KernelOp>())
    kernels[kernel.getSymNameAttr()] = kernel;
}

int64_t ScratchMemory::bytesOf(Operation *command) const {
  if (auto launch = dyn_cast<LaunchOp>(command))
    if (KernelOp kernel = kernels.lookup(launch.getKernelAttr().getAttr()))
      return static_cast<int64_t>(launch.getUses()) * kernel.getScratchBytes();
  return cast<CommandOpInterface>(command).getScratchBytes(threads);
}

PartMemory cleave::exec::assignBuffers(func::FuncOp part,
                                       ArrayRef<Operation *> commands,
                                       const llvm::BitVector &dying,
                                       const ScratchMemory &scratch) {
  return Assigner(part, commands, dying, scratch).run();
}
