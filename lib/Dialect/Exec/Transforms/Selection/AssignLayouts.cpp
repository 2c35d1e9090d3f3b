//===- AssignLayouts.cpp - Results in the layout of their readers ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/Views.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "llvm/ADT/EquivalenceClasses.h"
#include <map>
#include <numeric>

namespace cleave::exec {
#define GEN_PASS_DEF_ASSIGNLAYOUTS
#include "cleave/Dialect/Exec/Transforms/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

/// Values that all parts share and that therefore have one layout: a result,
/// the operand whose memory it takes, and the arguments of other parts that
/// receive it.
struct Class {
  SmallVector<Value> values;
  /// Whether its layout is visible outside of the program.
  bool pinned = false;
  /// Whether it is passed from one part to another.
  bool crosses = false;
};

struct AssignLayouts : exec::impl::AssignLayoutsBase<AssignLayouts> {
  llvm::EquivalenceClasses<void *> ties;
  DenseSet<void *> pins, crossings;
  std::map<void *, Class> classes;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    SmallVector<JoinOp> joins;
    SmallVector<CopyOp> copies;
    module.walk([&](Operation *op) {
      if (auto join = dyn_cast<JoinOp>(op))
        joins.push_back(join);
      else if (auto copy = dyn_cast<CopyOp>(op))
        copies.push_back(copy);
    });
    // Most programs have neither, and all values are looked at.
    if (!joins.empty() || !copies.empty())
      collect(module);
    for (JoinOp join : joins)
      tryJoin(join);
    for (CopyOp copy : copies)
      if (!copy.getInto() && !tryCopy(copy))
        tryReaders(copy);
    updateSignatures(module);
  }

  //===--- Classes --------------------------------------------------------===//

  void tie(Value a, Value b) {
    ties.unionSets(a.getAsOpaquePointer(), b.getAsOpaquePointer());
  }
  void pin(Value value) { pins.insert(value.getAsOpaquePointer()); }

  void collect(ModuleOp module) {
    DenseSet<Operation *> called;
    SymbolTableCollection symbols;
    for (auto program : module.getOps<ProgramOp>())
      for (auto run : program.getBody().getOps<RunOp>()) {
        auto part = symbols.lookupNearestSymbolFrom<func::FuncOp>(
            run, run.getCalleeAttr());
        if (!part || part.isExternal())
          continue;
        called.insert(part);
        tieRun(run, part);
      }
    for (auto program : module.getOps<ProgramOp>()) {
      for (BlockArgument argument : program.getBody().getArguments())
        pin(argument);
      program.walk([&](Operation *op) {
        if (isa<ReturnOp, JoinOp>(op))
          for (Value operand : op->getOperands())
            pin(rootOf(operand));
      });
    }
    for (auto function : module.getOps<func::FuncOp>()) {
      if (!called.contains(function) && !function.isExternal()) {
        for (BlockArgument argument : function.getArguments())
          pin(argument);
        for (Value value : function.front().getTerminator()->getOperands())
          pin(rootOf(value));
      }
      function.walk([&](Operation *op) { collectOp(op); });
    }
  }

  /// The class of all that is tied to `leader`, which is made when it is first
  /// asked for: few are.
  Class &classAt(void *leader) {
    auto [it, fresh] = classes.try_emplace(leader);
    Class &group = it->second;
    if (fresh)
      for (auto member = ties.findLeader(leader); member != ties.member_end();
           ++member) {
        group.values.push_back(Value::getFromOpaquePointer(*member));
        group.pinned |= pins.contains(*member);
        group.crosses |= crossings.contains(*member);
      }
    return group;
  }

  /// Results with the operands whose memory they always take.
  void collectOp(Operation *op) {
    for (Value result : op->getResults())
      ties.insert(result.getAsOpaquePointer());
    auto command = dyn_cast<CommandOpInterface>(op);
    if (!command)
      return;
    for (Share share : command.getShares())
      if (share.must)
        tie(op->getResult(share.result), op->getOperand(share.operand));
  }

  void tieRun(RunOp run, func::FuncOp part) {
    for (auto [operand, argument] :
         llvm::zip_equal(run.getInputs(), part.getArguments())) {
      tie(operand, argument);
      if (operand.getDefiningOp<ViewOp>() ||
          part.getArgAttr(argument.getArgNumber(), kDiesAttr))
        pin(operand);
      crossings.insert(operand.getAsOpaquePointer());
    }
    Operation *terminator = part.front().getTerminator();
    for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
      tie(run.getResult(i), value);
      crossings.insert(value.getAsOpaquePointer());
      if (rootOf(value) != value) {
        pin(value);
        pin(rootOf(value));
      }
      if (part.getResultAttr(i, kAliasAttr))
        pin(value);
    }
  }

  //===--- One copy -------------------------------------------------------===//

  Class *classOf(Value value) {
    void *key = value.getAsOpaquePointer();
    auto it = ties.findLeader(key);
    return it == ties.member_end() ? nullptr : &classAt(*it);
  }

  /// The value of a copy takes the buffer of the copy: a slice of a larger
  /// buffer cannot be passed to other parts, and a result needs its own.
  static bool leaves(CopyOp copy) {
    return llvm::any_of(transitiveUsers(copy.getOutput()), [](Operation *user) {
      return isa<JoinOp>(user) || user->hasTrait<OpTrait::IsTerminator>();
    });
  }

  /// The type with which the op that makes the copied value writes it as
  /// `target`; null if it cannot.
  RankedTensorType placeOf(CopyOp copy, RankedTensorType target) {
    Value root = rootOf(copy.getInput());
    Class *group = classOf(root);
    if (!group || group->pinned)
      return nullptr;
    RankedTensorType old = tensorTypeOf(root);
    std::optional<Strided> layout =
        rebase(tensorTypeOf(copy.getInput()), old, getLayout(target));
    if (!layout || (group->crosses && (layout->offset != 0 || leaves(copy))))
      return nullptr;
    RankedTensorType moved = withLayout(old, *layout);
    for (Value value : group->values)
      if (!canMove(value, old, moved, copy))
        return nullptr;
    return moved;
  }

  /// Lets a join have the layout in which what it joins is made, if the copies
  /// into it disappear then.
  void tryJoin(JoinOp join) {
    Class *group = classOf(join.getOutput());
    RankedTensorType old = join.getType();
    if (!group || group->pinned || join.getInputs().empty() || !isDense(old))
      return;
    auto first = join.getInputs()[0].getDefiningOp<CopyOp>();
    if (!first || tensorTypeOf(first.getInput()).getRank() != old.getRank())
      return;
    // The dimensions of what is joined, from the outermost in memory.
    SmallVector<int64_t> strides(
        getLayout(tensorTypeOf(first.getInput())).strides);
    SmallVector<int64_t> order(strides.size());
    std::iota(order.begin(), order.end(), 0);
    llvm::stable_sort(
        order, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
    Strided layout;
    layout.strides.resize(order.size());
    int64_t elements = 1;
    for (int64_t dim : llvm::reverse(order)) {
      layout.strides[dim] = elements;
      elements *= old.getDimSize(dim);
    }
    RankedTensorType moved = withLayout(old, layout);
    if (moved == old)
      return;
    SmallVector<std::pair<CopyOp, RankedTensorType>> copies;
    for (Value input : join.getInputs()) {
      auto copy = input.getDefiningOp<CopyOp>();
      if (!copy || copy.getInto() || !copy->hasOneUse() ||
          copy.getType().getRank() != old.getRank())
        return;
      std::optional<Box> box = boxWithin(old, copy.getType());
      if (!box || ArrayRef(box->size) != copy.getType().getShape())
        return;
      Strided slice = layout;
      for (auto [start, stride] : llvm::zip(box->start, layout.strides))
        slice.offset += start * stride;
      RankedTensorType target = withLayout(copy.getType(), slice);
      if (!placeOf(copy, target))
        return;
      copies.push_back({copy, target});
    }
    for (Value value : group->values)
      if (value == join.getOutput()
              ? !canRead(value, old, moved, old, moved, first)
              : !canMove(value, old, moved, first))
        return;
    for (Value value : group->values)
      move(value, old, moved);
    for (auto [copy, target] : copies)
      copy.getOutput().setType(target);
  }

  /// Lets the op that makes the copied value write the copy's layout.
  bool tryCopy(CopyOp copy) {
    RankedTensorType moved = placeOf(copy, copy.getType());
    if (!moved)
      return false;
    Value root = rootOf(copy.getInput());
    Class *group = classOf(root);
    RankedTensorType old = tensorTypeOf(root);
    bool isSlice = leaves(copy);
    for (Value value : group->values)
      move(value, old, moved);
    Value view = copy.getInput();
    if (view.getType() != copy.getType()) {
      OpBuilder builder(copy);
      view = viewAs(builder, copy.getLoc(), root, copy.getType());
    }
    group->pinned |= isSlice;
    replace(copy, view);
    return true;
  }

  /// Lets the readers of the copy, in all parts, read the original in its
  /// layout.
  bool tryReaders(CopyOp copy) {
    Class *group = classOf(copy.getOutput());
    Value root = rootOf(copy.getInput());
    Class *source = classOf(root);
    RankedTensorType old = copy.getType(),
                     moved = tensorTypeOf(copy.getInput());
    if (!group || group->pinned || !source || isa<BlockArgument>(root) ||
        getLayout(moved).offset != 0 || getLayout(old).offset != 0 ||
        extentBytes(moved) != extentBytes(old) ||
        extentBytes(tensorTypeOf(root)) != extentBytes(old))
      return false;
    // One value of a part is one of its results at most.
    for (Operation *user : transitiveUsers(root))
      if (isa<JoinOp>(user) || (user->hasTrait<OpTrait::IsTerminator>()))
        return false;
    for (Value value : group->values)
      if (value == copy.getOutput()
              ? !canRead(value, old, moved, old, moved, copy)
              : !canMove(value, old, moved, copy))
        return false;
    for (Value value : group->values)
      move(value, old, moved);
    source->pinned = true;
    replace(copy, copy.getInput());
    return true;
  }

  /// Values tied to the copy are now tied to a view, whose type is fixed.
  void replace(CopyOp copy, Value with) {
    if (Class *other = classOf(copy.getOutput())) {
      llvm::erase(other->values, copy.getOutput());
      other->pinned = true;
    }
    copy.getOutput().replaceAllUsesWith(with);
    copy.erase();
  }

  static SmallVector<Operation *> transitiveUsers(Value value) {
    SmallVector<Operation *> users;
    for (Operation *user : value.getUsers()) {
      if (isa<ViewOp>(user))
        llvm::append_range(users, transitiveUsers(user->getResult(0)));
      users.push_back(user);
    }
    return users;
  }

  /// True if the op that makes `value` can write it as `moved`, and all readers
  /// but `copy` can read it in that layout.
  bool canMove(Value value, RankedTensorType old, RankedTensorType moved,
               CopyOp copy) {
    if (tensorTypeOf(value) != old)
      return false;
    if (auto result = dyn_cast<OpResult>(value)) {
      Operation *op = result.getOwner();
      if (auto command = dyn_cast<CommandOpInterface>(op)) {
        if (!command.canWriteResult(result.getResultNumber(), moved))
          return false;
      } else if (!isa<RunOp>(op)) {
        return false;
      }
    }
    return canRead(value, old, moved, old, moved, copy);
  }

  /// Checks the readers of `value`, which changes from `before` to `after` when
  /// its root changes from `old` to `moved`.
  bool canRead(Value value, RankedTensorType before, RankedTensorType after,
               RankedTensorType old, RankedTensorType moved, CopyOp copy) {
    for (OpOperand &use : value.getUses()) {
      Operation *user = use.getOwner();
      if (auto view = dyn_cast<ViewOp>(user)) {
        std::optional<Strided> layout =
            rebase(old, view.getType(), getLayout(moved));
        if (!layout ||
            !canRead(view.getOutput(), view.getType(),
                     withLayout(view.getType(), *layout), old, moved, copy))
          return false;
      } else if (isa<RunOp>(user) || user->hasTrait<OpTrait::IsTerminator>()) {
        if (value != rootOf(value))
          return false; // a view crosses: its type is fixed
      } else if (isa<JoinOp>(user)) {
        return false;
      } else if (auto command = dyn_cast<CommandOpInterface>(user)) {
        if (isMust(command, use.getOperandNumber()))
          continue; // the result is of the same class
        if (!command.canReadOperand(use.getOperandNumber(), after))
          return false;
      }
    }
    return true;
  }

  static bool isMust(CommandOpInterface command, unsigned operand) {
    return llvm::any_of(command.getShares(), [&](Share share) {
      return share.must && share.operand == operand;
    });
  }

  static void move(Value value, RankedTensorType old, RankedTensorType moved) {
    value.setType(moved);
    moveViews(value, old, moved);
  }

  static void moveViews(Value value, RankedTensorType old,
                        RankedTensorType moved) {
    for (Operation *user : value.getUsers())
      if (auto view = dyn_cast<ViewOp>(user)) {
        std::optional<Strided> layout =
            rebase(old, view.getType(), getLayout(moved));
        view.getOutput().setType(withLayout(view.getType(), *layout));
        moveViews(view.getOutput(), old, moved);
      }
  }

  static void updateSignatures(ModuleOp module) {
    module.walk([](func::FuncOp function) {
      if (function.isExternal())
        return;
      function.setFunctionType(FunctionType::get(
          function.getContext(), function.front().getArgumentTypes(),
          function.front().getTerminator()->getOperandTypes()));
    });
  }
};

} // namespace
