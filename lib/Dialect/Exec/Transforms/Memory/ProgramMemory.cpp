//===- ProgramMemory.cpp - The memory of one entry ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ProgramMemory.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

//===----------------------------------------------------------------------===//
// Analysis
//===----------------------------------------------------------------------===//

ProgramMemory::ProgramMemory(ProgramOp program, PartTable &parts)
    : program(program), parts(parts) {}

const PartFacts &PartTable::factsOf(func::FuncOp part) {
  auto [it, fresh] = facts.try_emplace(part);
  PartFacts *known = &it->second;
  if (!fresh)
    return *known;
  unsigned arguments = part.getNumArguments(), results = part.getNumResults();
  for (llvm::BitVector *each : {&known->argumentTier, &known->dies})
    each->resize(arguments);
  for (llvm::BitVector *each : {&known->resultTier, &known->kept})
    each->resize(results);
  for (unsigned i = 0; i < arguments; ++i) {
    known->argumentTier[i] = part.getArgAttr(i, kTierAttr) != nullptr;
    known->dies[i] = part.getArgAttr(i, kDiesAttr) != nullptr;
  }
  for (unsigned i = 0; i < results; ++i) {
    known->resultTier[i] = part.getResultAttr(i, kTierAttr) != nullptr;
    known->kept[i] = part.getResultAttr(i, kKeptAttr) != nullptr;
    known->aliases.push_back(aliasOf(part, i));
  }
  return *known;
}

unsigned ProgramMemory::leader(Value value) {
  unsigned i = index.lookup(value);
  while (parent[i] != i)
    i = parent[i] = parent[parent[i]];
  return i;
}

LogicalResult ProgramMemory::analyse() {
  Block &body = program.getBody().front();
  auto add = [&](Value value) {
    index[value] = parent.size();
    parent.push_back(parent.size());
  };
  auto unite = [&](Value a, Value b) { parent[leader(b)] = leader(a); };
  for (BlockArgument argument : body.getArguments())
    add(argument);
  for (Operation &op : body) {
    for (Value result : op.getResults())
      add(result);
    if (auto view = dyn_cast<ViewOp>(op)) {
      unite(view.getInput(), view.getOutput());
    } else if (auto whole = dyn_cast<JoinOp>(op)) {
      for (Value input : whole.getInputs())
        unite(whole.getOutput(), input);
    } else if (auto run = dyn_cast<RunOp>(op)) {
      auto part = parts.functions.lookup(run.getCallee());
      if (!part)
        return run.emitOpError("'") << run.getCallee() << "' is not a part";
      runs.push_back(run);
      functions.push_back(part);
      memories.push_back(&parts.memories[run.getCallee()]);
      facts.push_back(&parts.factsOf(part));
      for (auto [i, alias] : llvm::enumerate(facts.back()->aliases))
        if (alias)
          unite(run.getInputs()[*alias], run.getResult(i));
    } else if (!isa<ConstantOp, ReturnOp>(op)) {
      return op.emitOpError("is not allowed in a program");
    }
  }
  buffers.resize(parent.size());
  // In the order of the program, so that the name of a buffer is deterministic.
  auto measure = [&](Value value) {
    if (!index.contains(value))
      return;
    ProgramBuffer &buffer = buffers[leader(value)];
    buffer.bytes = std::max(buffer.bytes, extentBytes(tensorTypeOf(value)));
    if (!buffer.value)
      buffer.value = value;
  };
  llvm::for_each(body.getArguments(), measure);
  for (Operation &op : body)
    llvm::for_each(op.getResults(), measure);
  for (Value value : body.getTerminator()->getOperands())
    bufferOf(value).returned = true;
  for (BlockArgument argument : body.getArguments())
    bufferOf(argument).tier =
        program.getArgAttr(argument.getArgNumber(), kTierAttr) != nullptr;
  for (auto [run, known] : llvm::zip_equal(runs, facts))
    for (unsigned i : known->resultTier.set_bits())
      bufferOf(run.getResult(i)).tier = true;
  for (auto [run, known] : llvm::zip_equal(runs, facts))
    for (auto [i, value] : llvm::enumerate(run.getInputs()))
      if (bufferOf(value).tier != known->argumentTier.test(i))
        return run.emitOpError()
               << graph::nameOperand(run->getOpOperand(i))
               << (bufferOf(value).tier ? " is" : " is not")
               << " in the second tier, other than the part's argument";

  // An argument's memory that a part overwrites must be passed to it only once.
  for (auto [a, run] : llvm::enumerate(runs)) {
    if (facts[a]->dies.none())
      continue;
    DenseMap<unsigned, unsigned> passed;
    for (Value value : run.getInputs())
      ++passed[leader(value)];
    for (auto [i, value] : llvm::enumerate(run.getInputs())) {
      if (!facts[a]->dies.test(i))
        continue;
      if (passed[leader(value)] > 1)
        return run.emitOpError()
               << graph::nameOperand(run->getOpOperand(i))
               << " is overwritten, but its memory is another operand, too";
      bool read = llvm::any_of(value.getUsers(), [&](Operation *user) {
        return user != run && (user->getBlock() != run->getBlock() ||
                               run->isBeforeInBlock(user));
      });
      if (read)
        return run.emitOpError() << graph::nameOperand(run->getOpOperand(i))
                                 << " is overwritten, but is read again later";
    }
  }

  SmallVector<StringRef> names;
  for (RunOp run : runs)
    names.push_back(run.getCallee());
  SmallVector<RepeatAttr> known;
  if (ArrayAttr attr = program.getRepeatsAttr())
    llvm::append_range(known, attr.getAsRange<RepeatAttr>());
  repeats = findRepeats(names, known);
  return success();
}

//===----------------------------------------------------------------------===//
// Packing
//===----------------------------------------------------------------------===//

std::string ProgramMemory::nameOf(Value value) const {
  std::string text;
  llvm::raw_string_ostream os(text);
  Location loc = value.getLoc();
  if (auto result = dyn_cast<OpResult>(value)) {
    // A value of the entry has the line of the op that computes it in a part.
    if (auto run = dyn_cast<RunOp>(result.getOwner())) {
      func::FuncOp part = parts.functions.lookup(run.getCallee());
      loc = part.front()
                .getTerminator()
                ->getOperand(result.getResultNumber())
                .getLoc();
    }
    os << result.getOwner()->getName().getStringRef();
  } else {
    os << graph::nameArgument(cast<BlockArgument>(value));
  }
  os << " " << value.getType();
  if (std::string line = sourceLine(loc); !line.empty())
    os << " at " << line;
  return text;
}

std::vector<int64_t> ProgramMemory::startActions(int64_t &time) {
  // Time counts the commands of representative actions.
  time = 0;
  std::vector<int64_t> length;
  for (auto [a, run] : llvm::enumerate(runs)) {
    const PartMemory &memory = *memories[a];
    length.push_back(std::max<int64_t>(memory.commands.size(), 1) + 1);
    start.push_back(repeats.representative[a] == a
                        ? time
                        : start[repeats.representative[a]]);
    if (repeats.representative[a] == a)
      time += length.back();
  }
  return length;
}

ProgramMemory::Touches ProgramMemory::touchBuffers() {
  Touches touches(buffers.size());
  auto touch = [&](Value value, unsigned a, int64_t first, int64_t last) {
    unsigned root = leader(value);
    ProgramBuffer &buffer = buffers[root];
    Interval &life = buffer.life;
    int64_t begin = start[a] + first, end = start[a] + last;
    life.begin = life.begin < 0 ? begin : std::min(life.begin, begin);
    life.end = std::max(life.end, end);
    SmallVector<Touch, 2> &seen = touches[root];
    if (seen.empty() || seen.back().repetition != repeats.repetition[a])
      seen.push_back(
          {repeats.repetition[a], repeats.region[a], repeats.repeats[a]});
  };
  for (auto [a, run] : llvm::enumerate(runs)) {
    const PartMemory &memory = *memories[a];
    for (const PartBuffer &buffer : memory.buffers) {
      if (buffer.first < 0 && buffer.results.empty())
        continue;
      int64_t first = std::max<int64_t>(buffer.first, 0);
      if (buffer.argument >= 0) {
        touch(run.getInputs()[buffer.argument], a, first, buffer.last);
        bufferOf(run.getInputs()[buffer.argument]).gradient |= buffer.gradient;
      }
      for (unsigned i : buffer.results) {
        bool used = !run.getResult(i).use_empty();
        touch(run.getResult(i), a, first,
              used ? buffer.last : std::max(first, buffer.last - 1));
        ProgramBuffer &whole = buffers[leader(run.getResult(i))];
        whole.accumulates |= buffer.argument >= 0;
        whole.gradient |= buffer.gradient;
        whole.kept |= facts[a]->kept.test(i);
      }
    }
  }
  return touches;
}

void ProgramMemory::spanRepetitions(ArrayRef<unsigned> roots,
                                    const DenseMap<unsigned, unsigned> &sameAs,
                                    Touches &touches, ArrayRef<int64_t> length,
                                    int64_t time) {
  for (unsigned root : roots) {
    if (sameAs.contains(root))
      continue;
    ProgramBuffer &buffer = buffers[root];
    // A value used in more than one repetition, or outside, is live during all
    // of them.
    SmallVector<Touch, 2> &seen = touches[root];
    if (seen.size() > 1)
      for (const Touch &t : seen) {
        if (!t.repeats)
          continue;
        unsigned last = t.region.second;
        buffer.life.begin = std::min(buffer.life.begin, start[t.region.first]);
        buffer.life.end =
            std::max(buffer.life.end, start[last] + length[last] - 1);
      }
    if (buffer.returned)
      buffer.life.end = time;
    buffer.life.bytes = buffer.bytes;
  }
}

std::vector<std::pair<unsigned, unsigned>> ProgramMemory::addInternal() {
  std::vector<std::pair<unsigned, unsigned>> owners;
  for (auto [a, run] : llvm::enumerate(runs)) {
    if (repeats.representative[a] != a)
      continue;
    const PartMemory &memory = *memories[a];
    internal[a].assign(memory.buffers.size(), -1);
    for (auto [b, buffer] : llvm::enumerate(memory.buffers)) {
      if (!buffer.isInternal() || buffer.first < 0)
        continue;
      intervals.push_back(
          {start[a] + buffer.first, start[a] + buffer.last, buffer.bytes});
      owners.push_back({a, b});
      items.push_back(
          {buffer.bytes, kindOf(buffer), buffer.value, buffer.scratchOf});
    }
  }
  return owners;
}

void ProgramMemory::packBuffers(Packings &packings) {
  markSaved();
  int64_t time;
  std::vector<int64_t> length = startActions(time);
  Touches touches = touchBuffers();

  internal.resize(runs.size());
  std::vector<unsigned> roots;
  for (auto [root, buffer] : llvm::enumerate(buffers))
    if (buffer.fixed < 0 && buffer.life.begin >= 0)
      roots.push_back(root);
  // The position in the representative action where a value is made.
  DenseMap<unsigned, std::pair<unsigned, unsigned>> producer;
  for (auto [a, run] : llvm::enumerate(runs))
    for (OpResult result : run.getResults())
      producer.try_emplace(leader(result), std::pair(repeats.representative[a],
                                                     result.getResultNumber()));
  DenseMap<std::pair<unsigned, unsigned>, unsigned> firstAtPlace;
  DenseMap<unsigned, unsigned> sameAs = shareSlots(roots);
  for (auto [root, slot] : sameAs) {
    touches[slot].append(touches[root]);
    Interval &life = buffers[slot].life;
    life.begin = std::min(life.begin, buffers[root].life.begin);
    life.end = std::max(life.end, buffers[root].life.end);
  }
  spanRepetitions(roots, sameAs, touches, length, time);
  settleSlots();
  std::vector<unsigned> packedRoots, tierRoots;
  std::vector<Interval> tierIntervals;
  for (unsigned root : roots) {
    if (sameAs.contains(root))
      continue;
    ProgramBuffer &buffer = buffers[root];
    SmallVector<Touch, 2> &seen = touches[root];
    // A value that is local to a repetition has its offset in the first one.
    if (seen.size() == 1 && seen.front().repeats && !buffer.returned) {
      auto [it, fresh] = firstAtPlace.try_emplace(producer.lookup(root), root);
      const Interval &like = buffers[it->second].life;
      if (!fresh && like.begin == buffer.life.begin &&
          like.end == buffer.life.end && like.bytes == buffer.life.bytes &&
          touches[it->second].size() == 1) {
        sameAs[root] = it->second;
        continue;
      }
    }
    if (buffer.tier) {
      tierRoots.push_back(root);
      tierIntervals.push_back(buffer.life);
      continue;
    }
    packedRoots.push_back(root);
    intervals.push_back(buffer.life);
    items.push_back({buffer.bytes, kindOf(buffer), buffer.value, nullptr});
  }
  std::vector<std::pair<unsigned, unsigned>> owners = addInternal();
  packing = packings.pack(intervals);
  tierPacking = packings.pack(tierIntervals);
  for (auto [i, root] : llvm::enumerate(tierRoots))
    buffers[root].packed = tierPacking.offsets[i];
  for (auto [i, root] : llvm::enumerate(packedRoots))
    buffers[root].packed = packing.offsets[i];
  for (auto [root, like] : sameAs)
    buffers[root].packed = buffers[like].packed;
  for (auto [i, owner] : llvm::enumerate(owners))
    internal[owner.first][owner.second] =
        packing.offsets[packedRoots.size() + i];
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

int64_t ProgramMemory::address(Value value, int64_t base, int64_t tierBase) {
  const ProgramBuffer &buffer = bufferOf(value);
  if (buffer.tier)
    base = tierBase;
  RankedTensorType type = tensorTypeOf(value);
  int64_t at = buffer.fixed >= 0    ? buffer.fixed
               : buffer.packed >= 0 ? base + buffer.packed
                                    : base;
  return at + getLayout(type).offset * elementBytes(type.getElementType());
}

void ProgramMemory::write(int64_t base, int64_t tierBase, bool profile) {
  for (auto [a, run] : llvm::enumerate(runs)) {
    const PartMemory &memory = *memories[a];
    const std::vector<int64_t> &own = internal[repeats.representative[a]];
    SmallVector<int64_t> row;
    for (auto [b, buffer] : llvm::enumerate(memory.buffers)) {
      if (buffer.constant)
        row.push_back(
            buffer.constant->getAttrOfType<IntegerAttr>(kOffsetAttr).getInt());
      else if (buffer.argument >= 0)
        row.push_back(
            address(run.getInputs()[buffer.argument], base, tierBase));
      else if (!buffer.results.empty())
        row.push_back(
            address(run.getResult(buffer.results.front()), base, tierBase));
      else
        row.push_back(own[b] < 0 ? base : base + own[b]);
    }
    run.setOffsetsAttr(DenseI64ArrayAttr::get(run.getContext(), row));
  }
  Builder builder(program.getContext());
  graph::EntryAttributes attributes(program);
  for (BlockArgument argument : program.getBody().getArguments())
    attributes.setArg(
        argument.getArgNumber(), kOffsetAttr,
        builder.getI64IntegerAttr(address(argument, base, tierBase)));
  Operation *terminator = program.getBody().front().getTerminator();
  for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
    attributes.setResult(
        i, kOffsetAttr,
        builder.getI64IntegerAttr(address(value, base, tierBase)));
    if (bufferOf(value).tier)
      attributes.setResult(i, kTierAttr, builder.getUnitAttr());
  }
  attributes.write();
  program->setAttr(kPeakAttr, builder.getI64IntegerAttr(packing.peak));
  program->setAttr(kLowerBoundAttr,
                   builder.getI64IntegerAttr(packing.lowerBound));
  SmallVector<Attribute> live;
  for (const LiveItem &item : liveAtPeak())
    live.push_back(builder.getDictionaryAttr(
        {builder.getNamedAttr("bytes", builder.getI64IntegerAttr(item.bytes)),
         builder.getNamedAttr("kind",
                              builder.getStringAttr(memoryKindName(item.kind))),
         builder.getNamedAttr("name", builder.getStringAttr(item.name))}));
  program->setAttr(kLiveAttr, builder.getArrayAttr(live));
  if (DictionaryAttr when = describePeakTime())
    program->setAttr(kPeakTimeAttr, when);
  if (DictionaryAttr bytes = profile ? describeProfile() : DictionaryAttr())
    program->setAttr(kMemoryProfileAttr, bytes);
  if (int64_t bytes = gradientPeak())
    program->setAttr(kGradientPeakAttr, builder.getI64IntegerAttr(bytes));
}
