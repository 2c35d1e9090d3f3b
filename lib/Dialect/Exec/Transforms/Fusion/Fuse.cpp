//===- Fuse.cpp - Fusion of graph ops into kernels ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "../Memory/PartMemory.h"
#include "FuseGroups.h"
#include "cleave/Dialect/Exec/IR/Views.h"
#include "cleave/Dialect/Exec/Transforms/AlikeParts.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Support/PassCounts.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/SymbolTable.h"
#include "llvm/Support/Debug.h"

#define DEBUG_TYPE "exec-fuse"

static cleave::PassCount fusedKernels(DEBUG_TYPE,
                                      "Kernels that were generated");
static cleave::PassCount kernelLaunches(DEBUG_TYPE, "Launches of them");
static cleave::PassCount fusedGraphOps(DEBUG_TYPE,
                                       "Graph ops that they compute");

namespace cleave::exec {
#define GEN_PASS_DEF_FUSE
#include "cleave/Dialect/Exec/Transforms/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

/// True if `node` reads one tensor and returns as many elements in its order,
/// each computed from one.
bool isInOrder(const FusionNode &node) {
  if (!node.fusable || node.reads.size() != 1 || node.definitions.size() != 1)
    return false;
  const auto &read = node.reads[0];
  const auto &definition = node.definitions[0];
  auto from = dyn_cast<RankedTensorType>(read.tensor.getType());
  auto to = cast<RankedTensorType>(definition.result.getType());
  if (read.indexed || !definition.plain || definition.level != read.level ||
      from.getNumElements() != to.getNumElements() ||
      read.access.logicalOffset != 0)
    return false;
  auto loops = read.access.joinedLogical();
  return loops.empty() ||
         (loops.size() == 1 && loops[0] == Stride{from.getNumElements(), 1});
}

/// The element types of what an op in order reads and returns.
std::pair<Type, Type> elementTypes(const FusionNode &node) {
  auto type = [](Value value) {
    return cast<RankedTensorType>(value.getType()).getElementType();
  };
  return {type(node.reads[0].tensor), type(node.definitions[0].result)};
}

/// True if nothing is computed between the read and the definition but a float
/// that is widened, as kernels do where they load narrow ones.
bool computesNothing(Operation *op) {
  Block scratch;
  auto space = cast<KernelLoweringInterface>(op).getKernelSpace();
  KernelBuilder code(op->getLoc(), scratch, space.rows, space.cols);
  if (failed(code.emit(op, Level::Element)))
    return false;
  return !scratch.empty() && isa<LoadOp>(scratch.front()) &&
         llvm::all_of(llvm::drop_begin(scratch), llvm::IsaPred<arith::ExtFOp>);
}

/// True if `node` returns its operand's elements unchanged and in order.
bool isForwarding(const FusionNode &node) {
  if (!isInOrder(node))
    return false;
  auto [from, to] = elementTypes(node);
  return from == to && computesNothing(node.op);
}

/// See `FusionNode::widens`.
bool widensFloats(const FusionNode &node) {
  if (!isInOrder(node))
    return false;
  auto [from, to] = elementTypes(node);
  return isa<FloatType>(from) && isa<FloatType>(to) &&
         from.getIntOrFloatBitWidth() < to.getIntOrFloatBitWidth() &&
         computesNothing(node.op);
}

/// Whether elements of `type` are in the order of a dense tensor, with a row of
/// the last dimension in one place.
bool isInRows(RankedTensorType type) {
  ArrayRef<int64_t> strides = getLayout(type).strides;
  return type.getRank() > 0 && strides.back() == 1 &&
         llvm::is_sorted(llvm::reverse(strides));
}

struct Fuse : cleave::exec::impl::FuseBase<Fuse> {
  using FuseBase::FuseBase;

  using Nodes = DenseMap<Operation *, FusionNode>;

  /// Rewrites ops that need several kernels, removes identities, and clones
  /// each op without operands in memory for each use. Adds the nodes of ops
  /// that are in their final form.
  LogicalResult prepare(Block &block, Nodes &nodes) {
    for (Operation &op : llvm::make_early_inc_range(block)) {
      auto decomposition = dyn_cast<KernelDecompositionInterface>(op);
      if (!decomposition)
        continue;
      OpBuilder b(&op);
      op.replaceAllUsesWith(decomposition.decompose(b));
      op.erase();
    }
    for (Operation &op : llvm::make_early_inc_range(block)) {
      auto node = probe(&op);
      if (failed(node))
        return failure();
      if (!node->fusable)
        continue;
      if (isForwarding(*node)) {
        Value from = node->reads[0].tensor, to = op.getResult(0);
        if (from.getType() == to.getType()) {
          to.replaceAllUsesWith(from);
          op.erase();
        } else if (isDense(cast<RankedTensorType>(from.getType())) &&
                   isDense(cast<RankedTensorType>(to.getType()))) {
          OpBuilder b(&op);
          to.replaceAllUsesWith(
              ViewOp::create(b, op.getLoc(), to.getType(), from));
          op.erase();
        }
        continue;
      }
      if (node->reads.empty() && op.getNumResults() == 1)
        for (OpOperand &use : llvm::make_early_inc_range(
                 llvm::drop_begin(op.getResult(0).getUses()))) {
          OpBuilder b(&op);
          use.set(b.clone(op)->getResult(0));
        }
      nodes.try_emplace(&op, std::move(*node));
    }
    return success();
  }

  /// Lets a kernel write what is a part of a larger value in its place, if all
  /// other readers can read it there. Nodes are found again after a change.
  LogicalResult writeInPlace(Block &block, Nodes &nodes) {
    for (auto copy : llvm::make_early_inc_range(block.getOps<CopyOp>())) {
      auto value = dyn_cast<OpResult>(copy.getInput());
      if (!value || copy.getInto() || !copy->hasOneUse() ||
          !isa<JoinOp>(*copy->user_begin()) || !isDense(tensorTypeOf(value)) ||
          !isInRows(copy.getType()) ||
          !llvm::all_of(value.getUses(), [&](OpOperand &use) {
            return use.getOwner() == copy || canRead(use, copy.getType());
          }))
        continue;
      auto node = probe(value.getOwner());
      if (failed(node))
        return failure();
      if (!node->fusable ||
          llvm::none_of(node->definitions, [&](const auto &definition) {
            return definition.result == value && definition.plain;
          }))
        continue;
      nodes.clear();
      value.setType(copy.getType());
      copy.replaceAllUsesWith(value);
      copy.erase();
    }
    return success();
  }

  /// Whether the reader can read its operand as `type`.
  static bool canRead(OpOperand &use, RankedTensorType type) {
    Operation *user = use.getOwner();
    if (isa<KernelLoweringInterface>(user))
      return true;
    auto command = dyn_cast<CommandOpInterface>(user);
    return command && command.canReadOperand(use.getOperandNumber(), type) &&
           llvm::none_of(command.getShares(), [&](const Share &share) {
             return share.must && share.operand == use.getOperandNumber();
           });
  }

  /// Launches of kernels, and the ops that they compute.
  struct Fused {
    uint64_t launches = 0, ops = 0;
  };

  LogicalResult fuse(func::FuncOp func, SymbolTable &symbols,
                     KnownKernels &known, Fused &fused) {
    Block &block = func.getBody().front();
    Nodes prepared;
    prepared.reserve(llvm::range_size(block));
    if (failed(prepare(block, prepared)) ||
        failed(writeInPlace(block, prepared)))
      return failure();
    std::vector<FusionNode> nodes;
    for (Operation &op : block.without_terminator()) {
      auto done = prepared.find(&op);
      auto node = done == prepared.end()
                      ? probe(&op)
                      : FailureOr<FusionNode>(std::move(done->second));
      if (failed(node))
        return failure();
      auto check = dyn_cast<CheckOp>(op);
      node->stops = check && !check.getDeferred();
      node->widens = widensFloats(*node);
      nodes.push_back(std::move(*node));
    }
    Operation *end = block.getTerminator();
    llvm::SmallPtrSet<Operation *, 16> overwriting;
    for (auto [i, value] : llvm::enumerate(end->getOperands()))
      if (aliasOf(func, i))
        overwriting.insert(throughViews(value).getDefiningOp());
    for (FusionNode &node : nodes)
      node.overwrites = overwriting.contains(node.op);
    OpBuilder builder(end);
    TargetTraits target = TargetTraits::withMultiprocessors(processors);
    SmallVector<FusionGroup> groups = groupOps(nodes, target);
    GroupsOfOps groupsOf;
    for (const FusionGroup &group : groups)
      if (group.fusable)
        for (unsigned node : group.nodes)
          groupsOf[nodes[node].op].push_back(&group);
    for (const FusionGroup &group : groups) {
      if (!group.fusable) {
        nodes[group.nodes.front()].op->moveBefore(end);
        continue;
      }
      if (failed(buildKernel(nodes, group, groupsOf, target, builder, symbols,
                             known)))
        return failure();
      ++fused.launches;
      fused.ops += group.nodes.size();
      LLVM_DEBUG({
        llvm::dbgs() << "@" << func.getSymName() << ": one kernel of";
        for (unsigned node : group.nodes)
          llvm::dbgs() << " " << nodes[node].op->getName().stripDialect();
        llvm::dbgs() << "\n";
      });
    }
    // Ops computed by kernels, views that kernels read through, and constants
    // that are part of their code are dead. A moved view may come after the op
    // that read it, so that one walk does not erase all.
    for (bool erased = true; erased;) {
      erased = false;
      for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
        if (&op != end && isOpTriviallyDead(&op)) {
          op.erase();
          erased = true;
        }
    }
    return success();
  }

  void runOnOperation() override {
    ModuleOp module = getOperation();
    SymbolTable symbols(module);
    KnownKernels known;
    SmallVector<func::FuncOp> parts(module.getOps<func::FuncOp>());
    AlikeParts alike(parts);
    DenseMap<Operation *, Fused> fused;
    for (func::FuncOp part : parts) {
      if (part.isDeclaration())
        continue;
      func::FuncOp like = alike.firstLike(part);
      if (like != part) {
        alike.copyBodyTo(part);
        LLVM_DEBUG(llvm::dbgs() << "@" << part.getSymName() << ": as @"
                                << like.getSymName() << "\n");
      } else if (failed(fuse(part, symbols, known, fused[part]))) {
        return signalPassFailure();
      }
      kernelLaunches += fused[like].launches;
      fusedGraphOps += fused[like].ops;
    }
    fusedKernels += known.finished.size();
  }
};

} // namespace
