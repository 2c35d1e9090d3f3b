//===- Offload.cpp - Values in the second tier ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Offloading to a second tier, as ZeRO-Offload does (Ren et al., arXiv
/// 2101.06840). The pass decides which values are in the tier, and where they
/// are fetched and evicted; memory planning gives them their places in it.
///
//===----------------------------------------------------------------------===//

#include "PartMemory.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Scheduling/Timeline/Timeline.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"

namespace cleave::exec {
#define GEN_PASS_DEF_OFFLOAD
#include "cleave/Dialect/Exec/Transforms/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

struct Offload : exec::impl::OffloadBase<Offload> {
  using OffloadBase::OffloadBase;

  void runOnOperation() override {
    functions.clear();
    runsOf.clear();
    state = masters = saved = false;
    if (failed(readKinds()))
      return signalPassFailure();
    if (!state && !masters && !saved)
      return;
    ModuleOp module = getOperation();
    for (auto function : module.getOps<func::FuncOp>())
      functions[function.getName()] = function;
    for (auto program : module.getOps<ProgramOp>())
      for (auto run : program.getBody().getOps<RunOp>())
        runsOf[run.getCallee()].push_back(run);
    if (failed(markArguments()))
      return signalPassFailure();
    if (saved)
      markSaved();
    for (auto function : module.getOps<func::FuncOp>())
      if (runsOf.contains(function.getName()) && failed(rewrite(function)))
        return signalPassFailure();
  }

private:
  LogicalResult readKinds() {
    StringRef all = kinds.getValue();
    for (StringRef kind : llvm::split(all, ",")) {
      bool *flag = llvm::StringSwitch<bool *>(kind)
                       .Case("state", &state)
                       .Case("masters", &masters)
                       .Case("saved", &saved)
                       .Default(nullptr);
      if (flag)
        *flag = true;
      else if (!all.empty())
        return getOperation().emitError("offload: unknown kind '")
               << kind << "'; known are state, masters and saved";
    }
    return success();
  }

  //===--- Arguments of entries -------------------------------------------===//

  static std::string roleOf(ProgramOp program, unsigned i) {
    auto role = program.getArgAttrOfType<StringAttr>(i, graph::kRoleAttr);
    return role ? role.str() : "";
  }

  LogicalResult markArguments() {
    ModuleOp module = getOperation();
    // Arguments of one name are one tensor.
    llvm::DenseSet<StringAttr> chosen, narrowed, read;
    for (auto program : module.getOps<ProgramOp>())
      for (BlockArgument argument : program.getBody().getArguments()) {
        unsigned i = argument.getArgNumber();
        auto name = program.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
        std::string role = roleOf(program, i);
        // Forward reads state that belongs to no parameter.
        if (role == "state" && state && program.getArgAttr(i, graph::kOfAttr))
          chosen.insert(name);
        if (role == "parameter" && masters)
          switch (useOf(argument)) {
          case Use::None:
            break;
          case Use::Narrowed:
            narrowed.insert(name);
            break;
          case Use::Read:
            read.insert(name);
          }
      }
    for (StringAttr name : read)
      narrowed.erase(name);
    if (masters && narrowed.empty())
      return module.emitError("offload: there are no masters: parameters of "
                              "which forward and backward read copies of a "
                              "narrower type, as with --precision=bf16");
    chosen.insert_range(narrowed);
    for (auto program : module.getOps<ProgramOp>())
      for (BlockArgument argument : program.getBody().getArguments()) {
        unsigned i = argument.getArgNumber();
        auto name = program.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
        if (!chosen.contains(name))
          continue;
        program.setArgAttr(i, kTierAttr, UnitAttr::get(&getContext()));
        if (failed(mark(argument)))
          return graph::emitArgumentError(program, i)
                 << " cannot be offloaded: an op reads a part of it";
      }
    return success();
  }

  /// Calls `visit` with each run that reads the memory of `value`, its part and
  /// the index of the argument; results of runs may take that memory.
  template <typename F> LogicalResult forEachRun(Value value, const F &visit) {
    SmallVector<Value> stack{value};
    while (!stack.empty())
      for (OpOperand &use : stack.pop_back_val().getUses()) {
        if (isa<ReturnOp>(use.getOwner()))
          continue;
        auto run = dyn_cast<RunOp>(use.getOwner());
        if (!run)
          return failure();
        unsigned index = use.getOperandNumber();
        func::FuncOp part = functions.lookup(run.getCallee());
        if (failed(visit(run, part, index)))
          return failure();
        for (OpResult result : run.getResults())
          if (aliasOf(part, result.getResultNumber()) == index)
            stack.push_back(result);
      }
    return success();
  }

  LogicalResult mark(BlockArgument argument) {
    return forEachRun(argument, [&](RunOp, func::FuncOp part, unsigned i) {
      part.setArgAttr(i, kTierAttr, UnitAttr::get(&getContext()));
      return success();
    });
  }

  /// What forward and backward of an entry read of a parameter: nothing but for
  /// its update; narrower copies; or itself.
  enum class Use : uint8_t { None, Narrowed, Read };

  Use useOf(BlockArgument argument) {
    bool narrowed = false;
    auto reads = [&](RunOp run, func::FuncOp part, unsigned i) {
      BlockArgument own = part.getArgument(i);
      bool computes = isCompute(part);
      for (Operation *reader : readersOf(own)) {
        bool narrows = llvm::any_of(reader->getResultTypes(), [&](Type type) {
          return isNarrower(type, own.getType());
        });
        narrowed |= narrows;
        if (computes && !narrows && !updates(reader, run, part, i) &&
            !reader->hasTrait<OpTrait::IsTerminator>())
          return failure();
      }
      return success();
    };
    if (failed(forEachRun(argument, reads)))
      return Use::Read;
    return narrowed ? Use::Narrowed : Use::None;
  }

  static bool isNarrower(Type type, Type of) {
    auto copy = dyn_cast<RankedTensorType>(type),
         whole = cast<RankedTensorType>(of);
    return copy && copy.getNumElements() == whole.getNumElements() &&
           copy.getElementTypeBitWidth() < whole.getElementTypeBitWidth();
  }

  /// The argument of the program whose memory `value` has.
  BlockArgument argumentOf(Value value) {
    while (auto result = dyn_cast<OpResult>(value)) {
      auto run = dyn_cast<RunOp>(result.getOwner());
      std::optional<unsigned> alias =
          run ? aliasOf(functions.lookup(run.getCallee()),
                        result.getResultNumber())
              : std::nullopt;
      if (!alias)
        return {};
      value = run.getOperand(*alias);
    }
    return cast<BlockArgument>(value);
  }

  /// Whether what `op` computes is only read to update the parameter that is
  /// argument `index` of the part, and its state.
  bool updates(Operation *op, RunOp run, func::FuncOp part, unsigned index) {
    auto attribute = [&](unsigned operand, StringRef name) {
      BlockArgument argument = argumentOf(run.getOperand(operand));
      auto program = cast<ProgramOp>(run->getParentOp());
      return argument ? program.getArgAttrOfType<StringAttr>(
                            argument.getArgNumber(), name)
                      : StringAttr();
    };
    StringAttr own = attribute(index, graph::kNameAttr);
    SmallVector<Operation *> work{op};
    llvm::DenseSet<Operation *> seen;
    bool any = false;
    while (!work.empty()) {
      Operation *next = work.pop_back_val();
      if (!seen.insert(next).second)
        continue;
      for (OpOperand &use : next->getUses()) {
        if (!use.getOwner()->hasTrait<OpTrait::IsTerminator>()) {
          work.push_back(use.getOwner());
          continue;
        }
        std::optional<unsigned> alias = aliasOf(part, use.getOperandNumber());
        if (!alias || (*alias != index &&
                       (!own || attribute(*alias, graph::kOfAttr) != own)))
          return false;
        any = true;
      }
    }
    return any;
  }

  //===--- Saved values ---------------------------------------------------===//

  static std::optional<scheduling::EventKind> kindOf(func::FuncOp part) {
    auto action = part->getAttrOfType<DictionaryAttr>(kActionAttr);
    auto kind = action ? action.getAs<StringAttr>("kind") : nullptr;
    return kind ? scheduling::parseEventKind(kind.getValue()) : std::nullopt;
  }
  static bool isBackward(func::FuncOp part) {
    auto kind = kindOf(part);
    return kind == scheduling::EventKind::Backward ||
           kind == scheduling::EventKind::InputGradient ||
           kind == scheduling::EventKind::WeightGradient;
  }
  /// Whether it is forward or backward.
  static bool isCompute(func::FuncOp part) {
    return isBackward(part) || kindOf(part) == scheduling::EventKind::Forward;
  }

  /// A result or an argument of a part.
  using Place = std::pair<Operation *, unsigned>;

  /// Whether all that a run of a part gives as that result is only saved.
  bool isSaved(func::FuncOp part, unsigned index) {
    auto type = dyn_cast<RankedTensorType>(part.getResultTypes()[index]);
    Value value = part.front().getTerminator()->getOperand(index);
    if (!type || getLayout(type).offset != 0 ||
        extentBytes(type) != extentBytes(denseType(type)) ||
        extentBytes(type) < minSavedBytes || aliasOf(part, index) ||
        !rootOf(value).getDefiningOp<CommandOpInterface>())
      return false;
    return llvm::all_of(runsOf[part.getName()], [&](RunOp run) {
      Value result = run.getResult(index);
      return !result.use_empty() &&
             llvm::all_of(result.getUses(), [&](OpOperand &use) {
               auto reader = dyn_cast<RunOp>(use.getOwner());
               return reader && takesSaved(functions.lookup(reader.getCallee()),
                                           use.getOperandNumber());
             });
    });
  }

  /// Whether a part can fetch that argument.
  static bool takesSaved(func::FuncOp part, unsigned index) {
    if (!isBackward(part) || part.getArgAttr(index, kUnlessAttr))
      return false;
    for (unsigned i = 0; i < part.getNumResults(); ++i)
      if (aliasOf(part, i) == index)
        return false;
    return true;
  }

  /// All runs of a part give it a value of the tier in one place, or none does.
  void markSaved() {
    llvm::SetVector<Place> results;
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (runsOf.contains(function.getName()) &&
          kindOf(function) == scheduling::EventKind::Forward)
        for (unsigned i = 0; i < function.getNumResults(); ++i)
          if (isSaved(function, i))
            results.insert({function, i});
    auto isChosen = [&](Value value) {
      auto result = dyn_cast<OpResult>(value);
      auto run = result ? dyn_cast<RunOp>(result.getOwner()) : nullptr;
      return run && results.contains({functions.lookup(run.getCallee()),
                                      result.getResultNumber()});
    };
    auto mixed = [&](Place place) {
      for (RunOp run : runsOf[cast<func::FuncOp>(place.first).getName()])
        for (OpOperand &use : run.getResult(place.second).getUses()) {
          auto reader = cast<RunOp>(use.getOwner());
          for (RunOp other : runsOf[reader.getCallee()])
            if (!isChosen(other.getInputs()[use.getOperandNumber()]))
              return true;
        }
      return false;
    };
    for (bool changed = true; changed;) {
      size_t before = results.size();
      results.remove_if(mixed);
      changed = results.size() != before;
    }
    auto unit = UnitAttr::get(&getContext());
    for (auto [op, index] : results) {
      auto part = cast<func::FuncOp>(op);
      part.setResultAttr(index, kTierAttr, unit);
      for (RunOp run : runsOf[part.getName()])
        for (OpOperand &use : run.getResult(index).getUses())
          functions.lookup(cast<RunOp>(use.getOwner()).getCallee())
              .setArgAttr(use.getOperandNumber(), kTierAttr, unit);
    }
  }

  //===--- Parts ----------------------------------------------------------===//

  /// Evicts result `use` of a part, to the place of `into` if there is one.
  static void evict(OpOperand &use, Value into) {
    Value value = use.get();
    OpBuilder builder(use.getOwner());
    if (Operation *op = value.getDefiningOp())
      builder.setInsertionPointAfter(op);
    if (into)
      value = denseOf(builder, value.getLoc(), value);
    use.set(
        EvictOp::create(builder, value.getLoc(), value.getType(), value, into));
  }

  LogicalResult rewrite(func::FuncOp part) {
    Operation *terminator = part.front().getTerminator();
    for (OpOperand &use : terminator->getOpOperands()) {
      unsigned i = use.getOperandNumber();
      std::optional<unsigned> alias = aliasOf(part, i);
      if (alias && part.getArgAttr(*alias, kTierAttr)) {
        if (rootOf(use.get()) != part.getArgument(*alias))
          evict(use, part.getArgument(*alias));
      } else if (part.getResultAttr(i, kTierAttr)) {
        evict(use, nullptr);
      }
    }
    for (BlockArgument argument : part.getArguments())
      if (part.getArgAttr(argument.getArgNumber(), kTierAttr) &&
          failed(fetch(part, argument)))
        return failure();
    return success();
  }

  /// Lets readers of `argument` read a copy in memory, which is fetched before
  /// the first of them.
  static LogicalResult fetch(func::FuncOp part, BlockArgument argument) {
    SmallVector<OpOperand *> reads;
    Operation *first = nullptr;
    for (OpOperand &use : argument.getUses()) {
      Operation *op = use.getOwner();
      if (auto evict = dyn_cast<EvictOp>(op);
          evict && evict.getInto() == argument && use.getOperandNumber() == 1)
        continue;
      if (op->hasTrait<OpTrait::IsTerminator>() &&
          aliasOf(part, use.getOperandNumber()) == argument.getArgNumber())
        continue;
      reads.push_back(&use);
      // A view is no reader by itself, but stands before its readers.
      if (!first || op->isBeforeInBlock(first))
        first = op;
    }
    if (reads.empty())
      return success();
    auto type = cast<RankedTensorType>(argument.getType());
    if (!isDense(type) && extentBytes(type) != extentBytes(denseType(type)))
      return emitError(first->getLoc())
             << graph::nameArgument(argument) << " of type " << type
             << " cannot be fetched: it has gaps in memory";
    OpBuilder builder(first);
    Value fetched = FetchOp::create(builder, argument.getLoc(), type, argument);
    for (OpOperand *use : reads)
      use->set(fetched);
    return success();
  }

  bool state = false, masters = false, saved = false;
  llvm::StringMap<func::FuncOp> functions;
  llvm::StringMap<SmallVector<RunOp>> runsOf;
};

} // namespace
