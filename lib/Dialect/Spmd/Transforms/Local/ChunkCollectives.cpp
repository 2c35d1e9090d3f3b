//===- ChunkCollectives.cpp - Collectives that overlap with contractions --===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Ops that are cut together form a *chain*: gathers, the contractions that
/// read them, element-wise ops between contractions, and reductions of their
/// results. A chain is written out once for each chunk. All values of a chain
/// are cut along their first dimension of more than one element, so that a
/// chunk is contiguous in memory: slices are views, and results are written in
/// place.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Attributes/Clones.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "cleave/Dialect/Spmd/IR/Chunks.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/EquivalenceClasses.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include <map>

namespace cleave::spmd {
#define GEN_PASS_DEF_CHUNKCOLLECTIVES
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::tensorTypeOf;
using graph::WorkClass;

//===----------------------------------------------------------------------===//
// Ops that can be cut
//===----------------------------------------------------------------------===//

namespace {

/// How an op is cut: the operands and results that are cut along their first
/// dimension; all others are read whole by each chunk.
struct Cut {
  llvm::BitVector operands, results;
};

} // namespace

/// The first dimension of more than one element; nothing without one.
static std::optional<unsigned> firstDim(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!type || !type.hasStaticShape() || type.getNumElements() == 0)
    return std::nullopt;
  for (auto [dim, size] : llvm::enumerate(type.getShape()))
    if (size > 1)
      return dim;
  return std::nullopt;
}

/// The number of elements of the first dimension; 1 without one.
static int64_t firstSize(Value value) {
  std::optional<unsigned> dim = firstDim(value);
  return dim ? tensorTypeOf(value).getDimSize(*dim) : 1;
}

static WorkClass workOf(Operation *op) {
  auto costed = dyn_cast<graph::CostOpInterface>(op);
  return costed ? costed.getCost().work : WorkClass::View;
}

static bool isContraction(Operation *op) {
  return workOf(op) == WorkClass::Contraction;
}

/// How a collective is cut; nothing if it moves the first dimension.
static std::optional<Cut> cutOfCollective(Operation *op) {
  Value input = op->getOperand(0), output = op->getResult(0);
  std::optional<unsigned> dim = firstDim(input);
  if (!dim || firstDim(output) != dim ||
      tensorTypeOf(input).getDimSize(*dim) !=
          tensorTypeOf(output).getDimSize(*dim))
    return std::nullopt;
  return Cut{llvm::BitVector(1, true), llvm::BitVector(1, true)};
}

/// How a contraction or an element-wise op is cut along the first dimension of
/// `value`, an operand or a result of it. Nothing if its rule does not cut
/// every result there, or if its results depend on the position of an element.
static std::optional<Cut> cutOf(Operation *op, Value value) {
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  WorkClass work = workOf(op);
  std::optional<unsigned> first = firstDim(value);
  if (!ruled || !first || op->getNumRegions() != 0 ||
      (work != WorkClass::Contraction && work != WorkClass::ElementWise) ||
      isa<graph::PartitionableOpInterface, graph::RandomOpInterface,
          graph::PlacedOpInterface, CommunicationOpInterface>(op) ||
      op->hasAttr(kRingShiftAttr))
    return std::nullopt;
  graph::ShardingRule rule = ruled.getShardingRule();
  if (!rule.unused.empty() || rule.shift.steps != 0)
    return std::nullopt;
  // The factor of that dimension, the same wherever `value` is used.
  std::optional<int64_t> factor;
  auto find = [&](ValueRange values, ArrayRef<graph::FactorMapping> mappings) {
    for (auto [candidate, mapping] : llvm::zip(values, mappings)) {
      if (candidate != value)
        continue;
      if (mapping.size() <= *first || mapping[*first].size() != 1 ||
          (factor && *factor != mapping[*first][0]))
        return false;
      factor = mapping[*first][0];
    }
    return true;
  };
  if (!find(op->getOperands(), rule.operands) ||
      !find(op->getResults(), rule.results) || !factor ||
      rule.factors[*factor].kind != graph::FactorKind::Parallel)
    return std::nullopt;
  auto cut = [&](ValueRange values, ArrayRef<graph::FactorMapping> mappings,
                 llvm::BitVector &bits) {
    bits.resize(values.size());
    for (auto [i, tensor] : llvm::enumerate(values)) {
      if (i >= mappings.size())
        return false;
      for (auto [dim, factors] : llvm::enumerate(mappings[i])) {
        if (!llvm::is_contained(factors, *factor))
          continue;
        if (bits[i] || factors.size() != 1 || firstDim(tensor) != dim ||
            firstSize(tensor) != firstSize(value))
          return false;
        bits.set(i);
      }
    }
    return true;
  };
  Cut result;
  if (!cut(op->getOperands(), rule.operands, result.operands) ||
      !cut(op->getResults(), rule.results, result.results) ||
      !result.results.all() || result.operands.none())
    return std::nullopt;
  return result;
}

//===----------------------------------------------------------------------===//
// Chains
//===----------------------------------------------------------------------===//

namespace {

/// Numbers that are different in a whole module.
struct Numbers {
  /// Of contractions that are computed again: by the number of the whole, the
  /// number of chunks, and the chunk.
  std::map<std::tuple<int64_t, int64_t, int64_t>, int64_t> twins;
  int64_t nextTwin = 0;

  int64_t twin(int64_t whole, int64_t chunks, int64_t chunk) {
    auto [it, isNew] = twins.try_emplace({whole, chunks, chunk}, nextTwin);
    nextTwin += isNew;
    return it->second;
  }
};

/// Cuts the chains of one function.
class Chunker {
public:
  Chunker(func::FuncOp function, const Mesh &mesh, int64_t chunks,
          int64_t minBytes, Numbers &numbers)
      : body(function.getBody().front()), mesh(mesh), chunks(chunks),
        minBytes(minBytes), numbers(numbers) {}

  void run() {
    SmallVector<Operation *> collectives;
    for (Operation &op : body)
      if (isa<AllGatherOp, ReduceScatterOp, AllReduceOp>(op))
        collectives.push_back(&op);
    for (Operation *op : collectives)
      if (isa<AllGatherOp>(op))
        addGather(op);
    for (Operation *op : collectives)
      if (!isa<AllGatherOp>(op))
        addReduction(op);
    for (Operation *op : contractions()) {
      addLinks(op);
      addFollowers(op);
    }
    dropCircles();
    std::vector<SmallVector<Operation *>> all = chains();
    for (SmallVector<Operation *> &chain : all) {
      // Chains written before have moved what reads them.
      llvm::sort(chain, [](Operation *a, Operation *b) {
        return a->isBeforeInBlock(b);
      });
      if (isSeparable(chain))
        write(chain);
    }
  }

private:
  //===--- What is cut ----------------------------------------------------===//

  /// The largest number of chunks of a collective.
  int64_t countOf(Operation *op) const {
    int64_t size = firstSize(op->getOperand(0)),
            bytes = bytesOf(op->getOperand(0));
    for (int64_t count = std::min(chunks, size); count > 1; --count)
      if (size % count == 0 && bytes / count >= minBytes)
        return count;
    return 1;
  }

  /// The axes of a collective are positions of other devices.
  bool isCollective(Operation *op) const {
    AxisList axes = cast<CommunicationOpInterface>(op).getCommunicationAxes();
    return mesh.size(axes) > 1 && llvm::none_of(axes, [&](const AxisRef &axis) {
             return mesh.isSequential(axis);
           });
  }

  /// Whether contractions and attention between a collective and its first
  /// reader have at least `flops`: the collective overlaps with these.
  static bool overlapsAlready(Operation *collective, int64_t flops) {
    Operation *first = nullptr;
    for (Operation *user : collective->getUsers())
      if (!first || user->isBeforeInBlock(first))
        first = user;
    int64_t between = 0;
    for (Operation *op = collective->getNextNode(); op && op != first;
         op = op->getNextNode())
      if (auto costed = dyn_cast<graph::CostOpInterface>(op)) {
        graph::OpCost cost = costed.getCost();
        if (cost.work == WorkClass::Contraction ||
            cost.work == WorkClass::Attention)
          between += cost.flops;
      }
    return between >= flops;
  }

  static int64_t flopsOf(Operation *op) {
    return cast<graph::CostOpInterface>(op).getCost().flops;
  }

  /// A gather and the contractions that read it.
  void addGather(Operation *gather) {
    std::optional<Cut> cut = cutOfCollective(gather);
    if (!cut || !isCollective(gather) || countOf(gather) < 2)
      return;
    llvm::MapVector<Operation *, Cut> readers;
    int64_t flops = 0;
    for (Operation *user : gather->getUsers()) {
      if (!isContraction(user) || members.contains(user) ||
          readers.contains(user))
        continue;
      if (std::optional<Cut> own = cutOf(user, gather->getResult(0))) {
        readers.insert({user, std::move(*own)});
        flops += flopsOf(user);
      }
    }
    if (readers.empty() || overlapsAlready(gather, flops))
      return;
    members.insert({gather, std::move(*cut)});
    for (auto &[reader, own] : readers)
      members.insert({reader, std::move(own)});
  }

  /// A reduction and what only computes its operand: contractions, and
  /// element-wise ops behind them.
  void addReduction(Operation *reduction) {
    std::optional<Cut> cut = cutOfCollective(reduction);
    if (!cut || !isCollective(reduction) || countOf(reduction) < 2)
      return;
    llvm::MapVector<Operation *, Cut> found;
    int64_t flops = 0;
    std::function<void(Value)> visit = [&](Value value) {
      Operation *op = value.getDefiningOp();
      if (!op || found.contains(op))
        return;
      if (members.contains(op)) {
        if (isContraction(op))
          flops += flopsOf(op);
        return;
      }
      std::optional<Cut> own =
          value.hasOneUse() ? cutOf(op, value) : std::nullopt;
      if (!own)
        return;
      Cut copy = *own;
      found.insert({op, std::move(*own)});
      if (isContraction(op)) {
        flops += flopsOf(op);
        return;
      }
      for (unsigned i : copy.operands.set_bits())
        visit(op->getOperand(i));
    };
    visit(reduction->getOperand(0));
    if (flops == 0 || overlapsAlready(reduction, flops))
      return;
    members.insert({reduction, std::move(*cut)});
    for (auto &[op, own] : found)
      members.insert({op, std::move(own)});
  }

  SmallVector<Operation *> contractions() const {
    SmallVector<Operation *> result;
    for (const auto &[op, cut] : members)
      if (isContraction(op))
        result.push_back(op);
    return result;
  }

  /// The element-wise ops on the way from contractions that are cut to the
  /// contraction `op`, which is cut too.
  void addLinks(Operation *op) {
    DenseMap<Operation *, bool> visited;
    std::function<bool(Value)> visit = [&](Value value) {
      Operation *def = value.getDefiningOp();
      if (!def)
        return false;
      if (members.contains(def))
        return isContraction(def) || links.contains(def);
      if (workOf(def) != WorkClass::ElementWise)
        return false;
      std::optional<Cut> own = cutOf(def, value);
      if (!own)
        return false;
      // Each op once, however many ways lead to it.
      auto [known, isNew] = visited.try_emplace(def, false);
      if (!isNew)
        return known->second;
      bool leads = false;
      for (unsigned i : own->operands.set_bits())
        leads |= visit(def->getOperand(i));
      if (leads && members.insert({def, std::move(*own)}).second)
        links.insert(def);
      return visited[def] = leads;
    };
    for (unsigned i : Cut(members.find(op)->second).operands.set_bits())
      visit(op->getOperand(i));
  }

  /// The element-wise ops on the way from the contraction `op`, which is cut,
  /// to any other: the library may compute them with the sums of `op`.
  void addFollowers(Operation *op) {
    DenseMap<Value, bool> visited;
    std::function<bool(Value)> visit = [&](Value value) {
      // Each value once, however many ways lead to it.
      auto [known, isNew] = visited.try_emplace(value, false);
      if (!isNew)
        return known->second;
      bool leads = false;
      for (Operation *user : value.getUsers()) {
        if (members.contains(user) || isContraction(user)) {
          leads |= value.getDefiningOp() != op;
          continue;
        }
        if (workOf(user) != WorkClass::ElementWise ||
            user->getNumResults() != 1)
          continue;
        std::optional<Cut> own = cutOf(user, value);
        if (!own || !visit(user->getResult(0)))
          continue;
        leads = true;
        if (members.insert({user, std::move(*own)}).second)
          links.insert(user);
      }
      return visited[value] = leads;
    };
    visit(op->getResult(0));
  }

  //===--- Chains ---------------------------------------------------------===//

  /// Whether the member `from` passes chunks of a value to another member.
  bool isJoined(Operation *from, OpOperand &use) const {
    auto it = members.find(use.getOwner());
    return members.contains(from) && it != members.end() &&
           it->second.operands[use.getOperandNumber()];
  }

  /// Members that pass values to each other, in the order of the function.
  std::vector<SmallVector<Operation *>> chains() const {
    llvm::EquivalenceClasses<Operation *> classes;
    for (const auto &[op, cut] : members) {
      classes.insert(op);
      for (OpOperand &use : op->getUses())
        if (isJoined(op, use))
          classes.unionSets(op, use.getOwner());
    }
    llvm::MapVector<Operation *, SmallVector<Operation *>> byLeader;
    for (Operation &op : body)
      if (members.contains(&op))
        byLeader[classes.getLeaderValue(&op)].push_back(&op);
    std::vector<SmallVector<Operation *>> result;
    for (auto &[leader, chain] : byLeader)
      result.push_back(std::move(chain));
    return result;
  }

  /// The ops behind the first op of a chain that depend on the chain.
  static llvm::SetVector<Operation *> dependents(ArrayRef<Operation *> chain) {
    llvm::SmallPtrSet<Operation *, 16> own(chain.begin(), chain.end());
    llvm::SetVector<Operation *> result;
    for (Operation *op = chain.front(); op; op = op->getNextNode())
      if (!own.contains(op) &&
          llvm::any_of(op->getOperands(), [&](Value value) {
            Operation *def = value.getDefiningOp();
            return def && (own.contains(def) || result.contains(def));
          }))
        result.insert(op);
    return result;
  }

  /// Whether no op of a chain depends on all chunks of another one, directly or
  /// through ops outside of the chain.
  bool isSeparable(ArrayRef<Operation *> chain) const {
    llvm::SmallPtrSet<Operation *, 16> own(chain.begin(), chain.end());
    llvm::SetVector<Operation *> behind = dependents(chain);
    return llvm::none_of(chain, [&](Operation *op) {
      return llvm::any_of(op->getOpOperands(), [&](OpOperand &use) {
        Operation *def = use.get().getDefiningOp();
        return behind.contains(def) ||
               (own.contains(def) && !isJoined(def, use));
      });
    });
  }

  /// Element-wise ops by which a chain depends on itself are not cut.
  void dropCircles() {
    for (const SmallVector<Operation *> &chain : chains())
      if (!isSeparable(chain))
        for (Operation *op : chain)
          if (links.contains(op))
            members.erase(op);
  }

  //===--- Chunks ---------------------------------------------------------===//

  static Value sliceOf(OpBuilder &builder, Value value, int64_t chunk,
                       int64_t count) {
    RankedTensorType type = tensorTypeOf(value);
    unsigned dim = *firstDim(value);
    SmallVector<int64_t> offsets(type.getRank(), 0), sizes(type.getShape()),
        strides(type.getRank(), 1);
    sizes[dim] /= count;
    offsets[dim] = chunk * sizes[dim];
    return graph::SliceOp::create(
        builder, value.getLoc(),
        RankedTensorType::get(sizes, type.getElementType()), value, offsets,
        sizes, strides);
  }

  /// Writes a chain out, chunk by chunk, in the place of its last op.
  void write(ArrayRef<Operation *> chain) {
    int64_t count = chunks;
    for (Operation *op : chain)
      if (isa<CommunicationOpInterface>(op))
        count = std::min(count, countOf(op));
    llvm::SmallPtrSet<Operation *, 16> own(chain.begin(), chain.end());
    llvm::SetVector<Operation *> behind = dependents(chain);
    OpBuilder builder(chain.back());
    // Of each chunk: its part of each value that is cut.
    std::vector<DenseMap<Value, Value>> parts(count);
    DenseMap<Operation *, int64_t> numberOf;
    for (Operation *op : chain)
      if (isa<CommunicationOpInterface>(op))
        numberOf[op] = nextCollective++;

    auto build = [&](Operation *op, int64_t i) {
      const Cut &cut = members.find(op)->second;
      SmallVector<Value> operands(op->getOperands());
      for (unsigned index : cut.operands.set_bits()) {
        Value &part = parts[i][operands[index]];
        if (!part)
          part = sliceOf(builder, operands[index], i, count);
        operands[index] = part;
      }
      Operation *clone = builder.clone(*op);
      clone->setOperands(operands);
      for (auto [index, result] : llvm::enumerate(clone->getResults())) {
        parts[i][op->getResult(index)] = result;
        RankedTensorType type = tensorTypeOf(result);
        SmallVector<int64_t> shape(type.getShape());
        shape[*firstDim(op->getResult(index))] /= count;
        result.setType(RankedTensorType::get(shape, type.getElementType()));
      }
      clone->removeAttr(kShardingsAttr);
      clone->removeAttr(kGlobalTypesAttr);
      if (auto it = numberOf.find(op); it != numberOf.end())
        clone->setAttr(kChunkAttr,
                       builder.getDenseI64ArrayAttr({it->second, i}));
      if (auto twin = op->getAttrOfType<IntegerAttr>(graph::kTwinAttr))
        clone->setAttr(graph::kTwinAttr, builder.getI64IntegerAttr(numbers.twin(
                                             twin.getInt(), count, i)));
    };
    // Gathers of values that the chain does not compute run one chunk ahead.
    auto isAhead = [&](Operation *op) {
      return isa<AllGatherOp>(op) &&
             !own.contains(op->getOperand(0).getDefiningOp());
    };
    for (int64_t i = -1; i < count; ++i) {
      if (i + 1 < count)
        for (Operation *op : chain)
          if (isAhead(op))
            build(op, i + 1);
      if (i >= 0)
        for (Operation *op : chain)
          if (!isAhead(op))
            build(op, i);
    }

    for (Operation *op : chain)
      for (OpResult result : op->getResults()) {
        auto isOutside = [&](OpOperand &use) {
          return !own.contains(use.getOwner());
        };
        if (llvm::none_of(result.getUses(), isOutside))
          continue;
        SmallVector<Value> all;
        for (const DenseMap<Value, Value> &chunk : parts)
          all.push_back(chunk.lookup(result));
        auto whole =
            graph::ConcatOp::create(builder, op->getLoc(), tensorTypeOf(result),
                                    all, *firstDim(result));
        for (StringRef name : {kShardingsAttr, kGlobalTypesAttr})
          if (auto list = op->getAttrOfType<ArrayAttr>(name))
            whole->setAttr(
                name, builder.getArrayAttr({list[result.getResultNumber()]}));
        result.replaceUsesWithIf(whole.getOutput(), isOutside);
      }
    // Readers between the ops of the chain follow behind it.
    Operation *last = chain.back();
    Operation *after = last;
    for (Operation *op : behind)
      if (op->isBeforeInBlock(last)) {
        op->moveAfter(after);
        after = op;
      }
    for (Operation *op : llvm::reverse(chain))
      op->erase();
  }

  Block &body;
  const Mesh &mesh;
  int64_t chunks, minBytes;
  Numbers &numbers;
  llvm::MapVector<Operation *, Cut> members;
  /// Members that only join contractions, or follow them.
  llvm::SmallPtrSet<Operation *, 16> links;
  int64_t nextCollective = 0;
};

struct ChunkCollectives
    : cleave::spmd::impl::ChunkCollectivesBase<ChunkCollectives> {
  using ChunkCollectivesBase::ChunkCollectivesBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (chunks < 1 || minBytes < 0) {
      module.emitError("collectives are cut into at least 1 chunk, of at least "
                       "0 bytes: not ")
          << chunks.getValue() << " of " << minBytes.getValue();
      return signalPassFailure();
    }
    MeshOp meshOp = findMesh(module);
    if (!meshOp || chunks == 1)
      return;
    Mesh mesh = meshOp.getMesh();
    Numbers numbers;
    module.walk([&](Operation *op) {
      if (auto twin = op->getAttrOfType<IntegerAttr>(graph::kTwinAttr))
        numbers.nextTwin = std::max(numbers.nextTwin, twin.getInt() + 1);
    });
    for (auto function : module.getOps<func::FuncOp>())
      if (!function.isExternal() && function.getBody().hasOneBlock())
        Chunker(function, mesh, chunks, minBytes, numbers).run();
  }
};

} // namespace
