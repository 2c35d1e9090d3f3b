//===- OrderCommands.cpp - An order of commands with a lower peak ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Starts from the given order. A command that releases more than it takes runs
/// as early as possible (an update, when its gradient is complete); one that
/// only takes memory runs when it is needed (recomputation in backward). The
/// result is used if its peak is lower. Collectives that were cut into chunks
/// to overlap with contractions stay where they overlap with them. While rows
/// are on their way to other ranks, contractions run that do not need them.
/// Ranks begin to add up what only their inputs decide, such as a number of
/// labels, before all else: it is there when it is needed, whatever else is on
/// the network.
///
//===----------------------------------------------------------------------===//

#include "PartMemory.h"
#include "cleave/Dialect/Spmd/IR/Chunks.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include <functional>
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

class Orderer {
public:
  Orderer(func::FuncOp part, const llvm::BitVector &dying,
          const ScratchMemory &scratch)
      : part(part), dying(dying), scratch(scratch), commands(commandsOf(part)) {
  }

  LogicalResult run() {
    std::vector<unsigned> original;
    for (;;) {
      number.clear();
      for (auto [i, op] : llvm::enumerate(commands))
        number[op] = i;
      before.assign(commands.size(), {});
      after.assign(commands.size(), {});
      addDependencies();
      original = sorted();
      if (original.size() == commands.size())
        break;
      if (!breakCircle(original))
        return part.emitOpError(
            "has results that overwrite each other's operands in a circle");
      commands = commandsOf(part);
    }
    std::vector<Operation *> best = toCommands(original);
    PartMemory memory = assignBuffers(part, best, dying, scratch);
    measure(memory);
    int64_t peak = memory.peak;
    std::vector<std::vector<unsigned>> tried{original};
    for (bool delay : {false, true}) {
      std::vector<unsigned> order = build(original, delay);
      if (llvm::is_contained(tried, order))
        continue;
      std::vector<Operation *> ordered = toCommands(order);
      int64_t next = assignBuffers(part, ordered, dying, scratch).peak;
      if (next < peak) {
        peak = next;
        best = std::move(ordered);
      }
      tried.push_back(std::move(order));
    }
    if (best != commands)
      arrange(part, best);
    return success();
  }

private:
  void edge(Operation *from, Operation *to) {
    auto a = number.find(from), b = number.find(to);
    if (a == number.end() || b == number.end() || a == b)
      return;
    after[a->second].push_back(b->second);
    before[b->second].push_back(a->second);
  }

  /// Commands that compute the content of `value`.
  void writers(Value value, Operation *reader) {
    Operation *def = value.getDefiningOp();
    if (!def)
      return;
    if (isa<ViewOp, JoinOp>(def)) {
      for (Value operand : def->getOperands())
        writers(operand, reader);
      return;
    }
    edge(def, reader);
  }

  void addDependencies() {
    for (Operation *op : commands) {
      for (Value operand : op->getOperands())
        writers(operand, op);
      for (Value result : op->getResults())
        if (std::optional<unsigned> operand =
                mustShare(op, cast<OpResult>(result).getResultNumber()))
          overwrites(op, op->getOperand(*operand));
    }
    // A result in an argument's memory is written after all readers of that
    // argument, and when no check can stop the step any more.
    Operation *terminator = part.front().getTerminator();
    llvm::SetVector<Operation *> overwriting;
    for (auto [i, value] : llvm::enumerate(terminator->getOperands()))
      if (std::optional<unsigned> alias = aliasOf(part, i)) {
        overwrites(chainHead(value), part.getArgument(*alias));
        overwriting.insert(chainHead(value));
      }
    for (Operation *op : commands)
      if (auto check = dyn_cast<CheckOp>(op); check && !check.getDeferred()) {
        llvm::BitVector needed = neededFor(number[op]);
        for (Operation *head : overwriting)
          if (auto it = number.find(head);
              it != number.end() && !needed.test(it->second))
            edge(op, head);
      }
    keepOverlap();
    overlapRows();
    beginEarly();
  }

  /// A few numbers that are exchanged, with the few kernels that compute them
  /// from arguments of the part, run first.
  void beginEarly() {
    constexpr int64_t fewBytes = 64, fewCommands = 4;
    llvm::BitVector early(commands.size());
    for (auto [i, op] : llvm::enumerate(commands)) {
      auto collective = dyn_cast<CollectiveOp>(op);
      if (!collective ||
          extentBytes(tensorTypeOf(collective.getOutput())) > fewBytes)
        continue;
      llvm::BitVector needed = neededFor(i);
      if (needed.none() || needed.count() > fewCommands ||
          !llvm::all_of(needed.set_bits(),
                        [&](unsigned n) { return isa<LaunchOp>(commands[n]); }))
        continue;
      early |= needed;
      early.set(i);
    }
    for (unsigned i : early.set_bits())
      for (unsigned n = 0; n < commands.size(); ++n)
        if (!early.test(n))
          edge(commands[i], commands[n]);
  }

  /// A chunk of a gather begins before the readers of the previous one, and one
  /// of a reduction before the operand of the next one is computed, as in the
  /// given order.
  void keepOverlap() {
    llvm::MapVector<int64_t, SmallVector<CollectiveOp>> collectives;
    for (Operation *op : commands)
      if (auto collective = dyn_cast<CollectiveOp>(op))
        if (auto chunk = op->getAttrOfType<DenseI64ArrayAttr>(spmd::kChunkAttr))
          collectives[chunk[0]].push_back(collective);
    auto keep = [&](Operation *from, Operation *to) {
      auto a = number.find(from), b = number.find(to);
      if (a != number.end() && b != number.end() && a->second < b->second)
        edge(from, to);
    };
    for (auto &[n, chunks] : collectives)
      for (size_t i = 0; i + 1 < chunks.size(); ++i) {
        CollectiveOp chunk = chunks[i], next = chunks[i + 1];
        keep(chunk, next);
        if (chunk.getKind() == CollectiveKind::AllGather)
          for (Operation *reader : readersOf(chunk.getOutput()))
            keep(next, reader);
        else if (Operation *writer = rootOf(next.getInput()).getDefiningOp())
          keep(chunk, writer);
      }
  }

  /// Contractions that do not depend on rows which are on their way, and whose
  /// results are soon joined with what does, run between the collective and the
  /// first reader of the rows: experts that all tokens have, forward and
  /// backward.
  void overlapRows() {
    for (auto [i, op] : llvm::enumerate(commands)) {
      auto exchange = dyn_cast<AllToAllRowsOp>(op);
      if (!exchange)
        continue;
      SmallVector<unsigned> beside = besideRows(i);
      for (unsigned n : beside) {
        edge(exchange, commands[n]);
        for (Operation *reader : readersOf(exchange.getOutput()))
          edge(commands[n], reader);
      }
    }
  }

  /// The commands that run beside the collective of rows `i`, with those that
  /// they need, none of them before what the rows are made of. They read a
  /// value that the rows are made of, as what is computed again for other
  /// layers does not.
  SmallVector<unsigned> besideRows(unsigned i) const {
    constexpr unsigned fewSteps = 4, fewJoins = 64;
    llvm::BitVector needed = reachable(i, before),
                    depends = reachable(i, after);
    llvm::DenseSet<Value> sources;
    SmallVector<unsigned, 8> level{i};
    unsigned begin = i;
    for (unsigned step = 0; step < fewSteps; ++step) {
      llvm::SmallSetVector<unsigned, 8> next;
      for (unsigned n : level) {
        for (Value operand : commands[n]->getOperands())
          sources.insert(rootOf(operand));
        next.insert(before[n].begin(), before[n].end());
        begin = std::min(begin, n);
      }
      level = next.takeVector();
    }
    unsigned joins = 0;
    for (unsigned join = i + 1; join < commands.size() && joins < fewJoins;
         ++join) {
      if (!depends.test(join))
        continue;
      ++joins;
      SmallVector<unsigned> found, work{join};
      llvm::SmallDenseSet<unsigned> seen;
      bool contracts = false, reads = false;
      while (!work.empty())
        for (unsigned n : before[work.pop_back_val()]) {
          if (n < begin || needed.test(n) || depends.test(n) ||
              !seen.insert(n).second)
            continue;
          found.push_back(n);
          work.push_back(n);
          contracts |= isa<ContractOp>(commands[n]);
          reads |= llvm::any_of(commands[n]->getOperands(), [&](Value value) {
            return sources.contains(rootOf(value));
          });
        }
      if (contracts)
        return reads ? found : SmallVector<unsigned>();
    }
    return {};
  }

  /// The commands that have to run before command `i`.
  llvm::BitVector neededFor(unsigned i) const { return reachable(i, before); }

  /// The commands that are reached from command `i`.
  llvm::BitVector reachable(unsigned i,
                            ArrayRef<SmallVector<unsigned, 4>> next) const {
    llvm::BitVector found(commands.size());
    SmallVector<unsigned> stack{i};
    while (!stack.empty())
      for (unsigned n : next[stack.pop_back_val()])
        if (!found.test(n)) {
          found.set(n);
          stack.push_back(n);
        }
    return found;
  }

  /// The first command to write the memory of `value`.
  static Operation *chainHead(Value value) {
    for (;;) {
      auto result = dyn_cast<OpResult>(rootOf(value));
      if (!result)
        return nullptr;
      std::optional<unsigned> operand =
          mustShare(result.getOwner(), result.getResultNumber());
      if (!operand)
        return result.getOwner();
      Value next = result.getOwner()->getOperand(*operand);
      if (isa<BlockArgument>(rootOf(next)))
        return result.getOwner();
      value = next;
    }
  }

  void overwrites(Operation *op, Value memory) {
    if (!op)
      return;
    for (Operation *reader : readersOf(rootOf(memory)))
      if (reader != op)
        edge(reader, op);
  }

  /// Two results may each take the memory from which the other is computed, for
  /// example updates of two parameters that are each other's gradient. One of
  /// the results in such a cycle is then computed elsewhere, and copied after
  /// all reads.
  bool breakCircle(ArrayRef<unsigned> order) {
    llvm::BitVector done(commands.size());
    for (unsigned i : order)
      done.set(i);
    Operation *terminator = part.front().getTerminator();
    for (OpOperand &operand : terminator->getOpOperands()) {
      Value value = operand.get();
      std::optional<unsigned> alias = aliasOf(part, operand.getOperandNumber());
      Operation *head = alias ? chainHead(value) : nullptr;
      auto it = number.find(head);
      if (it == number.end() || done.test(it->second) ||
          isa<CopyOp, EvictOp>(head))
        continue;
      OpBuilder builder(terminator);
      operand.set(CopyOp::create(builder, value.getLoc(), value.getType(),
                                 value, Value()));
      return true;
    }
    return false;
  }

  /// The given order, with every dependency kept.
  std::vector<unsigned> sorted() {
    std::vector<unsigned> waiting(commands.size()), order;
    for (unsigned i = 0; i < commands.size(); ++i)
      waiting[i] = before[i].size();
    // Always takes the smallest command that is ready.
    std::set<unsigned> ready;
    for (unsigned i = 0; i < commands.size(); ++i)
      if (waiting[i] == 0)
        ready.insert(i);
    while (!ready.empty()) {
      unsigned i = *ready.begin();
      ready.erase(ready.begin());
      order.push_back(i);
      for (unsigned next : after[i])
        if (--waiting[next] == 0)
          ready.insert(next);
    }
    return order;
  }

  std::vector<Operation *> toCommands(ArrayRef<unsigned> order) {
    std::vector<Operation *> result;
    for (unsigned i : order)
      result.push_back(commands[i]);
    return result;
  }

  //===--- Memory that a command takes and releases -----------------------===//

  void measure(const PartMemory &memory) {
    reads.resize(commands.size());
    writes.resize(commands.size());
    size.assign(memory.buffers.size(), 0);
    uses.assign(memory.buffers.size(), 0);
    pinned.assign(memory.buffers.size(), false);
    for (auto [i, buffer] : llvm::enumerate(memory.buffers)) {
      size[i] = buffer.tier ? 0 : buffer.bytes;
      pinned[i] = buffer.constant || !buffer.results.empty() ||
                  (buffer.argument >= 0 && !dying.test(buffer.argument));
    }
    for (auto [i, op] : llvm::enumerate(commands)) {
      auto touch = [&](Value value, SmallVectorImpl<unsigned> &list) {
        unsigned buffer = memory.bufferOf.lookup(value);
        if (!llvm::is_contained(list, buffer))
          list.push_back(buffer);
      };
      for (Value operand : op->getOperands())
        touch(operand, reads[i]);
      for (Value result : op->getResults())
        touch(result, writes[i]);
      for (unsigned buffer : reads[i])
        ++uses[buffer];
      for (unsigned buffer : writes[i])
        if (!llvm::is_contained(reads[i], buffer))
          ++uses[buffer];
    }
    for (auto [i, buffer] : llvm::enumerate(memory.buffers))
      if (buffer.argument >= 0)
        pinnedFromStart.insert(i);
  }

  /// Bytes taken less bytes released if command `i` runs now.
  int64_t delta(unsigned i, ArrayRef<unsigned> left,
                const std::vector<bool> &live) {
    int64_t bytes = 0;
    for (unsigned buffer : writes[i])
      if (!live[buffer])
        bytes += size[buffer];
    SmallVector<unsigned, 8> touched(reads[i].begin(), reads[i].end());
    for (unsigned buffer : writes[i])
      if (!llvm::is_contained(touched, buffer))
        touched.push_back(buffer);
    for (unsigned buffer : touched)
      if (left[buffer] == 1 && !pinned[buffer])
        bytes -= size[buffer];
    return bytes;
  }

  /// The same including all commands that must run before it; nothing if these
  /// are many.
  std::optional<int64_t> deltaWithNeeds(unsigned i, ArrayRef<unsigned> left,
                                        const std::vector<bool> &live,
                                        const std::vector<bool> &done) {
    SmallVector<unsigned, 8> needs{i};
    int64_t bytes = delta(i, left, live);
    for (unsigned at = 0; at < needs.size(); ++at)
      for (unsigned need : before[needs[at]]) {
        if (done[need] || llvm::is_contained(needs, need))
          continue;
        if (needs.size() == 8)
          return std::nullopt;
        needs.push_back(need);
        for (unsigned buffer : writes[need])
          if (!live[buffer])
            bytes += size[buffer];
      }
    return bytes;
  }

  /// True if running command `i` later keeps nothing alive longer.
  bool canWait(unsigned i, ArrayRef<unsigned> left) {
    return !writes[i].empty() && llvm::all_of(reads[i], [&](unsigned buffer) {
      return pinned[buffer] || left[buffer] > 1;
    });
  }

  std::vector<unsigned> build(ArrayRef<unsigned> original, bool delay) {
    std::vector<unsigned> order, left = uses;
    std::vector<unsigned> waiting(commands.size());
    for (unsigned i = 0; i < commands.size(); ++i)
      waiting[i] = before[i].size();
    std::vector<bool> done(commands.size(), false), live(size.size(), false);
    for (unsigned buffer : pinnedFromStart)
      live[buffer] = true;
    std::set<unsigned> ready;
    for (unsigned i = 0; i < commands.size(); ++i)
      if (waiting[i] == 0)
        ready.insert(i);

    std::function<void(unsigned)> emit = [&](unsigned i) {
      if (done[i])
        return;
      for (unsigned need : before[i])
        emit(need);
      if (done[i])
        return;
      done[i] = true;
      ready.erase(i);
      order.push_back(i);
      SmallVector<unsigned, 8> touched(reads[i].begin(), reads[i].end());
      for (unsigned buffer : writes[i]) {
        live[buffer] = true;
        if (!llvm::is_contained(touched, buffer))
          touched.push_back(buffer);
      }
      for (unsigned buffer : touched)
        --left[buffer];
      for (unsigned next : after[i])
        if (--waiting[next] == 0)
          ready.insert(next);
    };
    auto hoist = [&] {
      for (bool found = true; found;) {
        found = false;
        for (unsigned i : ready)
          if (delta(i, left, live) < 0) {
            emit(i);
            found = true;
            break;
          }
      }
    };
    hoist();
    for (unsigned i : original) {
      if (done[i] || (delay && canWait(i, left)))
        continue;
      emit(i);
      for (unsigned next : after[i])
        if (!done[next] &&
            deltaWithNeeds(next, left, live, done).value_or(0) < 0)
          emit(next);
      hoist();
    }
    // Commands that write results wait for nothing else; the others run when
    // they are needed.
    for (unsigned i : original)
      if (llvm::any_of(writes[i],
                       [&](unsigned buffer) { return pinned[buffer]; })) {
        emit(i);
        hoist();
      }
    for (unsigned i : original)
      emit(i);
    return order;
  }

  func::FuncOp part;
  const llvm::BitVector &dying;
  const ScratchMemory &scratch;
  std::vector<Operation *> commands;
  DenseMap<Operation *, unsigned> number;
  std::vector<SmallVector<unsigned, 4>> before, after;
  std::vector<SmallVector<unsigned, 4>> reads, writes;
  std::vector<int64_t> size;
  std::vector<unsigned> uses;
  std::vector<bool> pinned;
  std::set<unsigned> pinnedFromStart;
};

} // namespace

void cleave::exec::arrange(func::FuncOp part, ArrayRef<Operation *> order) {
  Block &block = part.front();
  Operation *terminator = block.getTerminator();
  SmallPtrSet<Operation *, 32> placed;
  std::function<void(Operation *)> place = [&](Operation *op) {
    if (!placed.insert(op).second)
      return;
    for (Value operand : op->getOperands())
      if (Operation *def = operand.getDefiningOp())
        if (!isa<CommandOpInterface>(def))
          place(def);
    op->moveBefore(terminator);
  };
  for (Operation *op : order)
    place(op);
  SmallVector<Operation *> rest;
  for (Operation &op : block.without_terminator())
    if (!placed.contains(&op))
      rest.push_back(&op);
  for (Operation *op : rest)
    place(op);
}

LogicalResult cleave::exec::orderCommands(func::FuncOp part,
                                          const llvm::BitVector &dying,
                                          const ScratchMemory &scratch) {
  return Orderer(part, dying, scratch).run();
}
