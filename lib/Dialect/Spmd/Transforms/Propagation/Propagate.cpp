//===- Propagate.cpp - Propagation of shardings ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Annotations are applied in an order, and each is propagated until nothing
/// changes before the next one:
///
/// 1. samples over micro-batches;
/// 2. arguments, and `spmd.constrain` on a weight, or on a view or a copy of it
///    in another type: what a recipe says of a weight;
/// 3. gradients, which are computed as their weights are sharded;
/// 4. `spmd.constrain` on other values.
///
/// Propagation only adds axes, so that an earlier annotation wins over a later
/// one, wherever the ops are. So (case 9) a weight wins over activations, (10)
/// also where a 16-bit copy of it is read, which rests sharded otherwise. (11)
/// Until an annotation is applied, its axes are used for no other dimension of
/// the value. (12) A partial sum over an axis is not sharded over it because of
/// its readers. (13) A gradient has the axes of its parameter in no other
/// dimensions. Where the tensors of one op disagree then, MergeFactors.cpp
/// decides by cases 1 to 8, with a remark.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Spmd/IR/OpFactors.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/DimensionClasses.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/SeedOrder.h"
#include "cleave/Support/PassCounts.h"
#include "mlir/IR/AttrTypeSubElements.h"
#include "llvm/Support/Debug.h"
#include <set>

#define DEBUG_TYPE "spmd-propagate"

static cleave::PassCount
    shardedResults(DEBUG_TYPE, "Results of ops that are sharded over an axis");
static cleave::PassCount
    partialResults(DEBUG_TYPE, "Results of ops that are partial on an axis");
static cleave::PassCount
    lostShardings(DEBUG_TYPE,
                  "Shardings that a tensor of an op lost to another");

namespace cleave::spmd {
#define GEN_PASS_DEF_PROPAGATE
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// The propagation in one function.
class Propagation {
public:
  Propagation(func::FuncOp function, MeshOp meshOp)
      : function(function), meshName(FlatSymbolRefAttr::get(meshOp)),
        mesh(meshOp.getMesh()) {}

  LogicalResult run() {
    if (!function.getBody().hasOneBlock())
      return function.emitOpError("must have one block to be sharded");
    if (failed(readAnnotations()))
      return failure();
    holdGradientAxes();
    spread();
    addArgumentAxes();
    spread();
    // A weight's gradient is computed as the weight is sharded, whatever its
    // activations are.
    addGradientAxes();
    spread();
    addConstraints();
    spread();
    reduceSums();
    // Values that would have been partial may be sharded now.
    spread();
    reduceSums();
    for (Operation &op : body().without_terminator())
      finish(&op);
    writeResults();
    return success();
  }

private:
  Block &body() { return function.getBody().front(); }

  /// The state of an op, with the times at which it was found.
  struct OpState {
    graph::ShardingRule rule;
    /// The axes of its factors.
    FactorAxes axes;
    int64_t merged = -1, visited = -1, marked = -1;
  };

  /// Notes that the sharding of `value` has changed.
  void touch(Value value) { changedAt[value] = ++clock; }

  /// Whether the sharding of an operand or a result of `op` has changed since.
  bool hasChanged(Operation *op, int64_t since) {
    auto isNew = [&](Value value) { return changedAt.lookup(value) > since; };
    return since < 0 || llvm::any_of(op->getOperands(), isNew) ||
           llvm::any_of(op->getResults(), isNew);
  }

  /// Propagates forward and backward until nothing changes. Each change adds an
  /// axis to a dimension, so that this terminates. An op is only visited again
  /// if one of its tensors has changed.
  void spread() {
    bool changed = true;
    while (changed) {
      changed = false;
      for (Operation &op : body().without_terminator()) {
        changed |= visit(&op);
        markPartial(&op);
      }
      for (Operation &op : llvm::reverse(body().without_terminator()))
        changed |= visit(&op);
    }
  }

  /// Returns the sharding given for `argument`, replicated if none is.
  Sharding givenFor(BlockArgument argument) {
    auto given = function.getArgAttrOfType<ShardingAttr>(
        argument.getArgNumber(), kShardingAttr);
    return given ? given.getSharding() : Sharding::replicated(rankOf(argument));
  }

  static int64_t rankOf(Value value) {
    return cast<RankedTensorType>(value.getType()).getRank();
  }

  /// Sets the state before propagation: only the sequential axes of arguments.
  /// Micro-batches are propagated before axes of devices, since there is no
  /// choice in them, and annotations of intermediate values do not name them.
  LogicalResult readAnnotations() {
    for (BlockArgument argument : body().getArguments()) {
      auto given = function.getArgAttrOfType<ShardingAttr>(
          argument.getArgNumber(), kShardingAttr);
      if (!isa<RankedTensorType>(argument.getType()))
        return graph::emitArgumentError(function, argument.getArgNumber())
               << " is not a tensor";
      if (given && given.getMesh() != meshName)
        return graph::emitArgumentError(function, argument.getArgNumber())
               << " is sharded on another mesh, " << given.getMesh();
      Sharding &sharding = shardings[argument] = givenFor(argument);
      for (AxisList &axes : sharding.dims)
        llvm::erase_if(axes, [&](const AxisRef &axis) {
          return !mesh.isSequential(axis);
        });
    }
    states.reserve(llvm::range_size(body()));
    for (Operation &op : body().without_terminator()) {
      auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(&op);
      if (!ruled)
        return op.emitOpError("has no sharding rule");
      states[&op].rule = ruled.getShardingRule();
      for (Value result : op.getResults())
        shardings[result] = Sharding::replicated(rankOf(result), /*open=*/true);
    }
    return success();
  }

  /// Arguments are closed unless annotated otherwise.
  void addArgumentAxes() {
    for (BlockArgument argument : body().getArguments()) {
      Sharding given = givenFor(argument);
      Sharding &known = shardings.find(argument)->second;
      for (auto [axes, found] : llvm::zip_equal(given.dims, known.dims)) {
        llvm::erase_if(found, [&](const AxisRef &axis) {
          return given.splits(mesh, axis);
        });
        axes.insert(axes.begin(), found.begin(), found.end());
      }
      known = std::move(given);
      touch(argument);
    }
    // Annotations on weights are applied with the shardings of arguments.
    for (auto op : body().getOps<ConstrainOp>())
      if (isOfWeight(op)) {
        addConstraint(op);
      } else {
        Sharding given = op.getSharding().getSharding();
        shardings.find(op.getOutput())->second.open = given.open;
        touch(op.getOutput());
        for (const AxisList &axes : given.dims)
          llvm::append_range(reserved[op.getOutput()], axes);
      }
  }

  /// Whether `op` annotates an argument, or a view or a copy of a parameter in
  /// another type: the compute sharding of a weight that is gathered.
  bool isOfWeight(ConstrainOp op) {
    if (isa<BlockArgument>(op.getInput()))
      return true;
    BlockArgument argument = viewedArgument(op.getInput());
    return argument &&
           graph::hasRole(function, argument.getArgNumber(), "parameter");
  }

  /// Holds the axes of a parameter, where the model reads it, for the same
  /// dimensions of its gradient, back to the op that computes it.
  void holdGradientAxes() {
    for (auto gradient : body().getOps<graph::GradientOp>()) {
      const Sharding *compute = computeSharding(gradient.getParameter());
      Value value = gradient->getOperand(0);
      if (!compute || rankOf(value) != int64_t(compute->dims.size()) ||
          llvm::all_of(compute->dims,
                       [](const AxisList &axes) { return axes.empty(); }))
        continue;
      gradientAxes[gradient->getResult(0)] = compute->dims;
      while (gradientAxes.try_emplace(value, compute->dims).second) {
        Operation *op = value.getDefiningOp();
        if (!isa_and_nonnull<ConstrainOp, graph::CastOp>(op))
          break;
        value = op->getOperand(0);
      }
    }
  }

  /// Gives annotated gradients the axes of their parameters. The other axes of
  /// an annotation, those of optimizer state, come with the annotations of
  /// activations: these may shard what is summed over them.
  void addGradientAxes() {
    for (auto op : body().getOps<ConstrainOp>()) {
      auto gradient =
          llvm::find_if(op->getUsers(), llvm::IsaPred<graph::GradientOp>);
      if (gradient == op->getUsers().end())
        continue;
      const Sharding *compute =
          computeSharding(cast<graph::GradientOp>(*gradient).getParameter());
      if (!compute || rankOf(op.getOutput()) != int64_t(compute->dims.size()))
        continue;
      for (auto [axes, own, given] :
           llvm::zip_equal(shardings.find(op.getOutput())->second.dims,
                           compute->dims, op.getSharding().getSharding().dims))
        if (axes.empty() && mesh.isPrefix(own, given))
          axes = own;
      touch(op.getOutput());
    }
  }

  /// Returns the sharding of parameter `name` where the model reads it: that of
  /// an annotation of it or of its copy, or else its own; null if there is no
  /// such parameter.
  const Sharding *computeSharding(StringRef name) {
    if (computed.empty()) {
      llvm::DenseMap<Value, ConstrainOp> annotations;
      for (auto op : body().getOps<ConstrainOp>())
        if (isOfWeight(op))
          if (BlockArgument argument = viewedArgument(op.getInput());
              argument &&
              op.getInput().getType().getShape() ==
                  cast<RankedTensorType>(argument.getType()).getShape())
            annotations.try_emplace(argument, op);
      for (BlockArgument argument : body().getArguments()) {
        ConstrainOp annotation = annotations.lookup(argument);
        computed.try_emplace(graph::getArgString(function,
                                                 argument.getArgNumber(),
                                                 graph::kNameAttr),
                             annotation ? annotation.getSharding().getSharding()
                                        : givenFor(argument));
      }
    }
    auto known = computed.find(name);
    return known == computed.end() ? nullptr : &known->second;
  }

  /// Applies the annotations of intermediate values, after the shardings of
  /// arguments: those of weights have more effect than those of activations.
  /// Until then the annotated dimensions are closed, and their axes are not
  /// used for other dimensions of the value.
  void addConstraints() {
    for (auto op : body().getOps<ConstrainOp>())
      if (!isOfWeight(op))
        addConstraint(op);
    for (const auto &held : reserved)
      touch(held.first);
    reserved.clear();
  }

  void addConstraint(ConstrainOp op) {
    Sharding given = op.getSharding().getSharding();
    Sharding &known = shardings.find(op.getOutput())->second;
    for (auto [axes, own] : llvm::zip_equal(given.dims, known.dims)) {
      for (const AxisRef &axis : axes)
        if (!known.splits(mesh, axis))
          own.push_back(axis);
      axes = own;
    }
    known = std::move(given);
    touch(op.getOutput());
  }

  SmallVector<const Sharding *> shardingsOf(ValueRange values) {
    SmallVector<const Sharding *> result;
    for (Value value : values)
      result.push_back(&shardings.find(value)->second);
    return result;
  }

  FactorAxes merge(Operation *op,
                   function_ref<void(const std::string &)> conflict) {
    return mergeFactors(mesh, ruleOf(op), shardingsOf(op->getOperands()),
                        shardingsOf(op->getResults()), conflict);
  }

  const graph::ShardingRule &ruleOf(Operation *op) {
    return states.find(op)->second.rule;
  }

  /// Returns the axes of the factors of `op` under the current shardings.
  const FactorAxes &axesOf(Operation *op) {
    OpState &state = states.find(op)->second;
    if (hasChanged(op, state.merged)) {
      state.merged = clock;
      state.axes = merge(op, [](const std::string &) {});
    }
    return state.axes;
  }

  /// Extends the open dimensions of `value` by the axes of its factors.
  bool extend(Value value, ArrayRef<AxisList> dims) {
    Sharding &sharding = shardings.find(value)->second;
    auto held = reserved.find(value);
    auto own = gradientAxes.find(value);
    bool changed = false;
    for (auto [i, axes] : llvm::enumerate(dims)) {
      AxisList &known = sharding.dims[i];
      if (!sharding.open[i] || known == axes || !mesh.isPrefix(known, axes))
        continue;
      // An axis that shards another dimension already cannot shard this one,
      // and ends the list. A partial sum over an axis is not sharded over it,
      // so that partial sums are added before they are reduced.
      auto used = [&](const AxisRef &axis) {
        return llvm::any_of(sharding.partial,
                            [&](const PartialAxis &partial) {
                              return mesh.overlap(axis, partial.axis);
                            }) ||
               llvm::any_of(llvm::enumerate(sharding.dims),
                            [&](auto other) {
                              return other.index() != i &&
                                     mesh.overlap(axis, other.value());
                            }) ||
               (held != reserved.end() && mesh.overlap(axis, held->second)) ||
               (own != gradientAxes.end() &&
                llvm::any_of(llvm::enumerate(own->second), [&](auto other) {
                  return other.index() != i &&
                         mesh.overlap(axis, other.value());
                }));
      };
      // The known axes may end in the major digits of an axis.
      AxisList list = axes;
      if (ArrayRef(list).take_front(known.size()) != ArrayRef(known)) {
        list = known;
        llvm::append_range(list, mesh.split(axes, mesh.size(known))->second);
      }
      auto end = std::find_if(list.begin() + known.size(), list.end(), used);
      if (end == list.begin() + known.size())
        continue;
      list.erase(end, list.end());
      known = mesh.normalize(list);
      changed = true;
    }
    if (changed)
      touch(value);
    return changed;
  }

  bool visit(Operation *op) {
    OpState &state = states.find(op)->second;
    if (!hasChanged(op, state.visited))
      return false;
    state.visited = clock;
    const graph::ShardingRule &rule = state.rule;
    const FactorAxes &axes = axesOf(op);
    bool changed = false;
    for (auto [i, operand] : llvm::enumerate(op->getOperands()))
      if (!llvm::is_contained(rule.unused, i))
        changed |=
            extend(operand, projectFactors(mesh, rule, rule.operands[i], axes));
    for (auto [i, result] : llvm::enumerate(op->getResults()))
      changed |=
          extend(result, projectFactors(mesh, rule, rule.results[i], axes));
    return changed;
  }

  /// Sets the partial axes of the results of `op` under the current shardings.
  void markPartial(Operation *op) {
    OpState &state = states.find(op)->second;
    if (!hasChanged(op, state.marked))
      return;
    state.marked = clock;
    PartialPlan plan = planFor(op, axesOf(op));
    for (auto [result, partial] : llvm::zip(op->getResults(), plan.results)) {
      Sharding &sharding = shardings.find(result)->second;
      PartialList kept = staysPartial(mesh, sharding, partial);
      auto known = reduced.find(result);
      if (known != reduced.end())
        llvm::erase_if(kept, [&](const PartialAxis &entry) {
          return mesh.overlap(entry.axis, known->second);
        });
      if (kept == sharding.partial)
        continue;
      sharding.partial = std::move(kept);
      touch(result);
    }
  }

  /// Decides where each partial sum is reduced.
  void reduceSums() {
    SeedOrder seedOrder(body());
    for (Operation &op : body().without_terminator()) {
      markPartial(&op);
      reduceForAll(&op, seedOrder);
    }
  }

  /// Reduces a partial sum at its producer if its readers would reduce at least
  /// as many elements: one of them needs the sum of all elements, or their
  /// results are larger, or as large while another reader needs the sum anyway.
  /// A reader that needs shards of the sum has them reduced beside, half of
  /// what it takes to reduce all. A reader of smaller shards reduces those,
  /// after it scatters the value over another axis. A sum over micro-batches is
  /// reduced after the last one.
  void reduceForAll(Operation *op, const SeedOrder &seedOrder) {
    for (Value result : op->getResults()) {
      Sharding &sharding = shardings.find(result)->second;
      if (llvm::any_of(sharding.partial, [&](const PartialAxis &partial) {
            return mesh.isSequential(partial.axis) &&
                   mesh.size(partial.axis) > 1;
          }))
        continue;
      auto isReducedHere = [&](const PartialAxis &partial) {
        if (mesh.isSequential(partial.axis))
          return false;
        int64_t readers = 0, elements = 0;
        bool scattered = false;
        for (OpOperand &use : result.getUses()) {
          if (seedOrder.of(use.getOwner()) != seedOrder.of(op))
            continue;
          std::optional<int64_t> made = partialElements(use, partial.axis);
          if (!made) {
            scattered |= isSplitIn(use, partial.axis);
            continue;
          }
          if (*made == 0)
            return true;
          ++readers;
          elements += *made;
        }
        int64_t own = elementsOf(result);
        return own < elements || (own == elements && readers > 1) ||
               (readers && scattered && own < 2 * elements);
      };
      PartialList kept;
      for (const PartialAxis &partial : sharding.partial)
        if (isReducedHere(partial))
          reduced[result].push_back(partial.axis);
        else
          kept.push_back(partial);
      if (kept.size() != sharding.partial.size())
        touch(result);
      sharding.partial = std::move(kept);
    }
  }

  /// Whether the reader at `use` computes on shards along `axis`.
  bool isSplitIn(OpOperand &use, const AxisRef &axis) {
    auto state = states.find(use.getOwner());
    return state != states.end() &&
           !llvm::is_contained(state->second.rule.unused,
                               use.getOperandNumber()) &&
           llvm::any_of(axesOf(use.getOwner()), [&](const AxisList &list) {
             return mesh.overlap(axis, list);
           });
  }

  /// Returns the number of elements of the results that the reader at `use`
  /// makes partial on `axis`, or of its operand where it only adds several; 0
  /// where it needs the sum, or the elements of a shard where its shards are
  /// smaller. Returns nothing where it is sharded over `axis`.
  std::optional<int64_t> partialElements(OpOperand &use, const AxisRef &axis) {
    Operation *reader = use.getOwner();
    auto state = states.find(reader);
    if (state == states.end() ||
        llvm::is_contained(state->second.rule.unused, use.getOperandNumber()))
      return std::nullopt;
    const FactorAxes &axes = axesOf(reader);
    if (llvm::any_of(axes, [&](const AxisList &list) {
          return mesh.overlap(axis, list);
        }))
      return std::nullopt;
    PartialPlan plan = planFor(reader, axes);
    for (const PartialPlan::Reduction &reduction : plan.reductions)
      if (reduction.operand == use.getOperandNumber() &&
          mesh.overlap(axis, reduction.partial.axis)) {
        int64_t fewer = furtherShards(use, axes);
        return fewer > 1 ? elementsOf(use.get()) / fewer : 0;
      }
    auto isPartial = [&](ArrayRef<PartialAxis> partial) {
      return llvm::any_of(partial, [&](const PartialAxis &entry) {
        return mesh.overlap(axis, entry.axis);
      });
    };
    int64_t elements = 0, summands = 0;
    for (auto [result, partial] : llvm::zip(reader->getResults(), plan.results))
      if (isPartial(partial))
        elements += elementsOf(result);
    for (Value operand : reader->getOperands())
      if (isPartial(shardings.find(operand)->second.partial))
        summands += elementsOf(operand);
    // A reduce into a part reduces its operand itself.
    if (elements <= summands || !summedByItself(reader).empty())
      elements = std::min(elements, elementsOf(use.get()));
    return elements ? std::optional(elements) : std::nullopt;
  }

  /// Returns into how many shards the reader at `use`, whose factors have
  /// `axes`, takes a shard of its operand.
  int64_t furtherShards(OpOperand &use, const FactorAxes &axes) {
    auto shards = [&](ArrayRef<AxisList> dims) {
      int64_t count = 1;
      for (const AxisList &list : dims)
        count *= mesh.size(list);
      return count;
    };
    const graph::ShardingRule &rule = ruleOf(use.getOwner());
    return shards(projectFactors(mesh, rule,
                                 rule.operands[use.getOperandNumber()], axes)) /
           shards(shardings.find(use.get())->second.dims);
  }

  static int64_t elementsOf(Value value) {
    return cast<RankedTensorType>(value.getType()).getNumElements();
  }

  PartialPlan planFor(Operation *op, const FactorAxes &axes) {
    SmallVector<int64_t> elements;
    for (Type type : op->getOperandTypes())
      elements.push_back(cast<RankedTensorType>(type).getNumElements());
    return planPartials(mesh, ruleOf(op), axes, shardingsOf(op->getOperands()),
                        elements, summedByItself(op));
  }

  /// Emits remarks for disagreements, and sets the attributes.
  void finish(Operation *op) {
    merge(op, [&](const std::string &conflict) {
      op->emitRemark("shardings disagree: ") << conflict;
      ++lostShardings;
    });
    SmallVector<Attribute> attributes;
    for (Value result : op->getResults()) {
      Sharding &sharding = shardings.find(result)->second;
      sharding.open.assign(sharding.open.size(), false);
      attributes.push_back(ShardingAttr::get(meshName, sharding));
    }
    if (!attributes.empty())
      op->setAttr(kShardingsAttr, ArrayAttr::get(op->getContext(), attributes));
  }

  /// Sets the shardings of arguments and results of the function. A result that
  /// replaces an argument has its sharding; others are replicated.
  void writeResults() {
    graph::EntryAttributes attributes(function);
    for (BlockArgument argument : body().getArguments()) {
      Sharding &sharding = shardings.find(argument)->second;
      sharding.open.assign(sharding.open.size(), false);
      attributes.setArg(argument.getArgNumber(), kShardingAttr,
                        ShardingAttr::get(meshName, sharding));
    }
    for (auto [i, pair] :
         llvm::enumerate(llvm::zip_equal(body().getTerminator()->getOperands(),
                                         graph::updatedArguments(function)))) {
      auto [value, updated] = pair;
      Sharding sharding =
          shardings.find(updated ? Value(updated) : value)->second;
      sharding.partial.clear();
      if (!function.getResultAttr(i, kShardingAttr))
        attributes.setResult(i, kShardingAttr,
                             ShardingAttr::get(meshName, sharding));
    }
    attributes.write();
  }

  func::FuncOp function;
  FlatSymbolRefAttr meshName;
  Mesh mesh;
  llvm::DenseMap<Operation *, OpState> states;
  llvm::DenseMap<Value, Sharding> shardings;
  /// The number of changes of shardings, and which was the last of each value.
  int64_t clock = 0;
  llvm::DenseMap<Value, int64_t> changedAt;
  /// The axes of annotations that are not applied yet.
  llvm::DenseMap<Value, AxisList> reserved;
  /// Of gradients of parameters, the axes of each dimension of the parameter.
  llvm::DenseMap<Value, SmallVector<AxisList, 4>> gradientAxes;
  /// The shardings of parameters where the model reads them, by name.
  llvm::StringMap<Sharding> computed;
  /// The axes over which a value is reduced at its producer.
  llvm::DenseMap<Value, AxisList> reduced;
};

struct PropagatePass : spmd::impl::PropagateBase<PropagatePass> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    if (!mesh) {
      getOperation().emitError("the module has no spmd.mesh");
      return signalPassFailure();
    }
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      if (function.isExternal())
        continue;
      if (failed(Propagation(function, mesh).run()))
        return signalPassFailure();
      count(function, mesh.getMesh());
    }
    warnOfIdleAxes(mesh.getMesh());
  }

  void count(func::FuncOp function, const Mesh &mesh) {
    for (Operation &op : function.getBody().front().without_terminator())
      for (Value result : op.getResults()) {
        Sharding sharding = *writtenSharding(result);
        shardedResults +=
            llvm::any_of(sharding.dims, [&](const AxisList &axes) {
              return mesh.size(axes) > 1;
            });
        partialResults += !sharding.partial.empty();
        LLVM_DEBUG(llvm::dbgs() << "@" << function.getSymName() << ": "
                                << graph::nameValue(result) << " is "
                                << sharding.str() << "\n");
      }
  }

  /// Warns of axes over which nothing is sharded: their positions compute the
  /// same values.
  void warnOfIdleAxes(const Mesh &mesh) {
    std::set<StringRef> splitting;
    AttrTypeWalker walker;
    walker.addWalk([&](ShardingAttr attribute) {
      for (const AxisList &list : attribute.getSharding().dims)
        for (const AxisRef &axis : list)
          splitting.insert(axis.name);
    });
    getOperation().walk(
        [&](Operation *op) { walker.walk(op->getAttrDictionary()); });
    for (const MeshAxis &axis : mesh.axes)
      if (axis.size > 1 && !axis.sequential && axis.name != kPipelineAxis &&
          !splitting.count(axis.name))
        getOperation().emitWarning("axis \"")
            << axis.name << "\" shards nothing: its " << axis.size
            << " positions compute the same values; add a recipe that uses it";
  }
};
} // namespace
