//===- DeferUpdate.cpp - Updates in the next step -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// An update is an op that depends on gradients and reads the value that it
/// replaces. The values of this step that it reads, finished gradients and
/// values computed from all of them, are kept; the update moves to the next
/// step, in front of the first reader of its result.
///
//===----------------------------------------------------------------------===//

#include "DeferredOps.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/IR/IRMapping.h"

namespace cleave::pipe {
#define GEN_PASS_DEF_DEFERUPDATE
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {

/// Defers the updates of one entry.
class Deferral {
public:
  explicit Deferral(func::FuncOp entry)
      : entry(entry), body(entry.getBody().front()),
        builder(entry.getContext()), ops(entry) {}

  LogicalResult run(StringRef target);

private:
  StringRef argString(BlockArgument argument, StringRef name) {
    return graph::getArgString(entry, argument.getArgNumber(), name);
  }
  bool isScalar(BlockArgument argument) {
    return argString(argument, graph::kRoleAttr) == "scalar";
  }

  BlockArgument addArgument(StringRef name, Value like, StringRef role,
                            StringRef of = {});
  BlockArgument addFlag(StringRef name);
  void addScalars();
  void keep(Value value);
  Value materialize(Value value);
  Value chosen(Value value, BlockArgument old);
  bool isOldValue(Value value, BlockArgument argument);
  void setReturn();
  LogicalResult outlineUpdate(StringRef target);

  func::FuncOp entry;
  Block &body;
  OpBuilder builder;
  DeferredOps ops;
  /// The values of this step that deferred ops read, each with the argument
  /// that keeps it.
  llvm::MapVector<Value, BlockArgument> kept;
  /// The scalars of the step before.
  llvm::DenseMap<Value, Value> previous;
  /// The flag `update_pending`: whether a deferred update is due.
  BlockArgument pending;
  IRMapping mapping;
};

} // namespace

BlockArgument Deferral::addArgument(StringRef name, Value like, StringRef role,
                                    StringRef of) {
  auto text = [&](StringRef string) { return builder.getStringAttr(string); };
  SmallVector<NamedAttribute> attributes{
      builder.getNamedAttr(graph::kNameAttr, text(name)),
      builder.getNamedAttr(graph::kRoleAttr, text(role))};
  if (!of.empty())
    attributes.push_back(builder.getNamedAttr(graph::kOfAttr, text(of)));
  if (auto argument = dyn_cast<BlockArgument>(like)) {
    for (StringRef place :
         {StringRef(spmd::kShardingAttr), StringRef(spmd::kGlobalTypeAttr)})
      if (Attribute known = entry.getArgAttr(argument.getArgNumber(), place))
        attributes.push_back(builder.getNamedAttr(place, known));
  } else {
    auto result = cast<OpResult>(like);
    for (auto [ofOp, own] :
         {std::pair(spmd::kShardingsAttr, spmd::kShardingAttr),
          std::pair(spmd::kGlobalTypesAttr, spmd::kGlobalTypeAttr)})
      if (auto known = result.getOwner()->getAttrOfType<ArrayAttr>(ofOp))
        attributes.push_back(
            builder.getNamedAttr(own, known[result.getResultNumber()]));
  }
  unsigned index = entry.getNumArguments();
  // A tensor can always be inserted.
  (void)entry.insertArgument(index, like.getType(),
                             builder.getDictionaryAttr(attributes),
                             like.getLoc());
  return entry.getArgument(index);
}

/// Adds a scalar argument of the step, replicated over all devices.
BlockArgument Deferral::addFlag(StringRef name) {
  auto type = RankedTensorType::get({}, builder.getI1Type());
  SmallVector<NamedAttribute> attributes{
      builder.getNamedAttr(graph::kNameAttr, builder.getStringAttr(name)),
      builder.getNamedAttr(graph::kRoleAttr, builder.getStringAttr("scalar"))};
  if (spmd::MeshOp mesh = spmd::findMesh(entry->getParentOfType<ModuleOp>())) {
    attributes.push_back(builder.getNamedAttr(
        spmd::kShardingAttr,
        spmd::ShardingAttr::get(FlatSymbolRefAttr::get(mesh.getSymNameAttr()),
                                spmd::Sharding::replicated(0))));
    attributes.push_back(
        builder.getNamedAttr(spmd::kGlobalTypeAttr, TypeAttr::get(type)));
  }
  unsigned index = entry.getNumArguments();
  (void)entry.insertArgument(index, type, builder.getDictionaryAttr(attributes),
                             entry.getLoc());
  return entry.getArgument(index);
}

/// Adds arguments for the scalars that deferred ops read, with the values of
/// the step before.
void Deferral::addScalars() {
  SmallVector<BlockArgument> arguments(body.getArguments());
  SmallVector<Operation *> deferred(ops.deferred.begin(), ops.deferred.end());
  graph::OpSlice readers = graph::backwardSlice(
      deferred, {.reads = [&](OpOperand &use) {
        return !ops.late.contains(use.get().getDefiningOp());
      }});
  readers.insert(deferred.begin(), deferred.end());
  llvm::DenseSet<Value> read;
  for (Operation *op : readers)
    read.insert(op->operand_begin(), op->operand_end());
  for (BlockArgument argument : arguments)
    if (isScalar(argument) && read.contains(argument))
      previous[argument] = addArgument(
          (graph::kPreviousPrefix + argString(argument, graph::kNameAttr))
              .str(),
          argument, "scalar");
  pending = addFlag(graph::kPendingName);
}

/// Keeps `value`, which depends on gradients, for the next step.
void Deferral::keep(Value value) {
  auto gradient = value.getDefiningOp<graph::GradientOp>();
  if (gradient)
    kept[value] = addArgument((gradient.getParameter() + ".gradient").str(),
                              value, "gradient", gradient.getParameter());
  else
    kept[value] =
        addArgument(("update." + Twine(kept.size())).str(), value, "gradient");
}

/// Returns the value of the step before, computed at the insertion point.
Value Deferral::materialize(Value value) {
  SmallVector<Value> stack{value};
  while (!stack.empty()) {
    Value next = stack.back();
    Operation *op = next.getDefiningOp();
    if (mapping.contains(next)) {
      stack.pop_back();
      continue;
    }
    if (!op) {
      Value scalar = previous.lookup(next);
      mapping.map(next, scalar ? scalar : next);
      continue;
    }
    if (auto it = kept.find(next); it != kept.end()) {
      mapping.map(next, it->second);
      continue;
    }
    size_t before = stack.size();
    for (Value operand : op->getOperands())
      if (!mapping.contains(operand))
        stack.push_back(operand);
    if (stack.size() == before)
      builder.clone(*op, mapping);
  }
  return mapping.lookup(value);
}

/// Whether `value` depends on `argument` alone.
bool Deferral::isOldValue(Value value, BlockArgument argument) {
  if (value == argument)
    return true;
  Operation *op = value.getDefiningOp();
  return op && !ops.late.contains(op) && op->getNumOperands() == 1 &&
         isOldValue(op->getOperand(0), argument);
}

/// Selects `value`, which replaces `old`, or `old` if no update is due. The
/// choice is made before collectives.
Value Deferral::chosen(Value value, BlockArgument old) {
  Value made = value, otherwise;
  while (Operation *op = made.getDefiningOp()) {
    if (!isa<spmd::CommunicationOpInterface>(op) || op->getNumOperands() != 1 ||
        !ops.deferred.contains(op))
      break;
    made = op->getOperand(0);
  }
  if (Operation *op = made.getDefiningOp())
    for (Value operand : op->getOperands())
      if (operand.getType() == made.getType() && isOldValue(operand, old))
        otherwise = operand;
  if (!otherwise) {
    made = value;
    otherwise = old;
  }
  Value fresh = materialize(made), before = materialize(otherwise);
  auto select =
      graph::SelectOp::create(builder, fresh.getLoc(), pending, fresh, before);
  auto result = cast<OpResult>(made);
  for (StringRef name :
       {StringRef(spmd::kShardingsAttr), StringRef(spmd::kGlobalTypesAttr)})
    if (auto known = result.getOwner()->getAttrOfType<ArrayAttr>(name))
      select->setAttr(name,
                      builder.getArrayAttr({known[result.getResultNumber()]}));
  if (made == value)
    return select;
  // Collectives send the selected value.
  IRMapping sent;
  sent.map(made, select.getOutput());
  SmallVector<Operation *> chain;
  for (Value next = value; next != made;
       next = next.getDefiningOp()->getOperand(0))
    chain.push_back(next.getDefiningOp());
  for (Operation *op : llvm::reverse(chain))
    builder.clone(*op, sent);
  return sent.lookup(value);
}

void Deferral::setReturn() {
  Operation *terminator = body.getTerminator();
  SmallVector<Value> values(terminator->getOperands());
  SmallVector<DictionaryAttr> attributes;
  for (unsigned i = 0; i < entry.getNumResults(); ++i) {
    DictionaryAttr known = entry.getResultAttrDict(i);
    attributes.push_back(known ? known : builder.getDictionaryAttr({}));
  }
  for (auto &[value, argument] : kept) {
    NamedAttrList own;
    own.set(graph::kUpdatesAttr,
            builder.getStringAttr(argString(argument, graph::kNameAttr)));
    for (StringRef place :
         {StringRef(spmd::kShardingAttr), StringRef(spmd::kGlobalTypeAttr)})
      if (Attribute known = entry.getArgAttr(argument.getArgNumber(), place))
        own.set(place, known);
    values.push_back(value);
    attributes.push_back(own.getDictionary(builder.getContext()));
  }
  terminator->setOperands(values);
  entry.setFunctionType(builder.getFunctionType(body.getArgumentTypes(),
                                                ValueRange(values).getTypes()));
  entry.setAllResultAttrs(attributes);
}

/// Erases ops of `block` whose results nothing reads; with `checks`, also ops
/// without results.
static void eraseDead(Block &block, bool checks) {
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
    if (op.use_empty() && !op.hasTrait<OpTrait::IsTerminator>() &&
        (checks || op.getNumResults() != 0))
      op.erase();
}

/// Makes an entry of the updates alone, which the session runs when no step
/// follows.
LogicalResult Deferral::outlineUpdate(StringRef target) {
  auto module = entry->getParentOfType<ModuleOp>();
  if (module.lookupSymbol(target))
    return entry.emitOpError("defers updates to the next step, and the name '@")
           << target << "' of the entry for the last of them is already used";
  func::FuncOp copy = entry.clone();
  copy.setName(target);
  module.insert(std::next(entry->getIterator()), copy);
  Operation *terminator = copy.getBody().front().getTerminator();
  llvm::BitVector dropped(copy.getNumResults(), true);
  for (const DeferredOps::Update &update : ops.updates)
    dropped.reset(update.result);
  terminator->eraseOperands(dropped);
  if (failed(copy.eraseResults(dropped)))
    return failure();
  eraseDead(copy.getBody().front(), /*checks=*/true);
  llvm::BitVector unused(copy.getNumArguments());
  for (BlockArgument argument : copy.getArguments())
    if (argument.use_empty())
      unused.set(argument.getArgNumber());
  return copy.eraseArguments(unused);
}

LogicalResult Deferral::run(StringRef target) {
  if (failed(ops.find()))
    return failure();
  if (ops.updates.empty())
    return entry.emitOpError(
        "has no update that depends on a gradient and that "
        "--optimizer-fusion=forward could defer");
  for (Operation &op : llvm::make_early_inc_range(body.without_terminator()))
    if (ops.late.contains(&op) && !ops.deferred.contains(&op))
      for (Value result : op.getResults())
        if (llvm::any_of(result.getUsers(), [&](Operation *user) {
              return ops.deferred.contains(user);
            }))
          keep(result);
  addScalars();

  // Updates read the old values; all other ops read their results.
  SmallVector<Operation *> order;
  for (Operation &op : body.without_terminator())
    order.push_back(&op);
  Operation *terminator = body.getTerminator();
  SmallVector<Value> fresh;
  for (const DeferredOps::Update &update : ops.updates) {
    builder.setInsertionPoint(update.reader <=
                                      static_cast<int64_t>(order.size())
                                  ? order[update.reader - 1]
                                  : terminator);
    fresh.push_back(
        chosen(terminator->getOperand(update.result), update.argument));
  }
  llvm::DenseSet<Operation *> readers(order.begin(), order.end());
  for (auto [update, value] : llvm::zip_equal(ops.updates, fresh)) {
    terminator->setOperand(update.result, value);
    BlockArgument old = update.argument;
    old.replaceUsesWithIf(value, [&](OpOperand &use) {
      Operation *op = use.getOwner();
      return readers.contains(op) && !ops.ofUpdate.contains(op) &&
             !ops.deferred.contains(op);
    });
  }
  setReturn();
  eraseDead(body, /*checks=*/false);
  return outlineUpdate(target);
}

namespace {

struct DeferUpdatePass : cleave::pipe::impl::DeferUpdateBase<DeferUpdatePass> {
  using DeferUpdateBase::DeferUpdateBase;

  void runOnOperation() override {
    SmallVector<func::FuncOp> entries;
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (function.isPublic() && !function.isExternal() &&
          function.getBody().hasOneBlock() &&
          !function.front().getOps<graph::SeedOp>().empty())
        entries.push_back(function);
    for (func::FuncOp entry : entries)
      if (failed(Deferral(entry).run(target)))
        return signalPassFailure();
  }
};

} // namespace
