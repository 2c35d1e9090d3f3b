//===- PostValidate.cpp - Updates before what says that they are right ----===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The update of a stage depends on other stages only through a few scalars,
/// such as the factor of clipping. It first runs as if the scalars of other
/// stages were 0. When these have arrived, the scalars that tensors are updated
/// with are computed again: if they are unchanged, the update was right;
/// otherwise it is repeated from the old values. Qi et al., "Zero Bubble
/// Pipeline Parallelism", arXiv 2401.10241, section 4.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Pipe/IR/PartFunctions.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SetVector.h"

namespace cleave::pipe {
#define GEN_PASS_DEF_POSTVALIDATE
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
/// A part of the computation of an update, outlined as a function.
struct Piece {
  func::FuncOp function;
  SmallVector<Value> operands;
};

/// The update of one stage.
class Update {
public:
  Update(InvokeOp invoke, SymbolTable &symbols)
      : invoke(invoke), function(invoke.getPartFunction()), symbols(symbols),
        builder(invoke) {}

  /// Splits the update if something must be validated, and returns whether it
  /// did. All validations come before `first`, the first repeated update, so
  /// that an update whose checks fail can still be undone.
  bool split(InvokeOp &first);

private:
  bool isTensor(Value value) const {
    return cast<RankedTensorType>(value.getType()).getNumElements() != 1;
  }
  void analyze();
  Piece take(StringRef part, ArrayRef<Value> values, bool withChecks,
             IRMapping &map);
  InvokeOp call(const Piece &piece, StringRef part, DenseI64ArrayAttr unless);
  Value makeFlag(Operation *before, ArrayRef<Value> made,
                 ArrayRef<Value> assumed);
  InvokeOp makeAssumed();
  InvokeOp makeValidation(InvokeOp assumed);
  InvokeOp makeAgain(InvokeOp assumed, Value flag);

  InvokeOp invoke;
  func::FuncOp function;
  SymbolTable &symbols;
  OpBuilder builder;
  /// The values that other stages send.
  SmallVector<BlockArgument> remote;
  bool checks = false;
  /// The results that are updates; those of them that depend on other stages;
  /// and the other results, which are only reported.
  SmallVector<unsigned> updating, dependent, reporting;
  /// The scalars that depend on other stages and that tensors are updated with.
  llvm::SetVector<Value> scalars;
};
} // namespace

/// Whether the program returns `result` as the new value of an argument.
static bool updatesSomething(OpResult result) {
  return !updatedArgument(result).empty();
}

/// Finds the dependencies within the part.
void Update::analyze() {
  Block &body = function.front();
  for (auto [value, argument] :
       llvm::zip_equal(invoke.getInputs(), body.getArguments())) {
    auto from = value.getDefiningOp<InvokeOp>();
    // A tensor of another stage is a gradient, which cannot be assumed.
    if (!from || !from.getOnce() || from.getStage() == invoke.getStage() ||
        isTensor(argument))
      continue;
    remote.push_back(argument);
  }
  DenseSet<Value> depends = graph::dependentValues(
      body, [&](Value value) { return llvm::is_contained(remote, value); });
  checks |= !body.getOps<graph::CheckOp>().empty();
  SmallVector<Operation *> makers;
  Operation *terminator = body.getTerminator();
  for (OpResult result : invoke->getOpResults()) {
    unsigned i = result.getResultNumber();
    if (!updatesSomething(result)) {
      reporting.push_back(i);
      continue;
    }
    Value value = terminator->getOperand(i);
    updating.push_back(i);
    if (Operation *op = value.getDefiningOp())
      makers.push_back(op);
    if (!depends.contains(value))
      continue;
    dependent.push_back(i);
    if (!isTensor(value))
      scalars.insert(value);
  }
  graph::OpSlice live = graph::backwardSlice(makers);
  live.insert(makers.begin(), makers.end());
  for (Operation &op : body.without_terminator())
    if (live.contains(&op) && llvm::any_of(op.getResults(), [&](Value result) {
          return isTensor(result);
        }))
      for (Value operand : op.getOperands())
        if (depends.contains(operand) && !isTensor(operand))
          scalars.insert(operand);
}

/// Outlines the ops that `values` depend on, and with `withChecks` the checks.
Piece Update::take(StringRef part, ArrayRef<Value> values, bool withChecks,
                   IRMapping &map) {
  Piece piece;
  piece.function = cast<func::FuncOp>(function->clone(map));
  std::string name = function.getName().str();
  name.replace(name.size() - 1, 1, part);
  piece.function.setName(name);
  symbols.insert(piece.function);
  piece.function.removeResAttrsAttr();
  Block &body = piece.function.front();
  SmallVector<Value> returned;
  for (Value value : values)
    returned.push_back(map.lookup(value));
  body.getTerminator()->setOperands(returned);
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (isOpTriviallyDead(&op) || (!withChecks && isa<graph::CheckOp>(op)))
      op.erase();
  return piece;
}

/// Invokes the piece, without the operands that it does not read.
InvokeOp Update::call(const Piece &piece, StringRef part,
                      DenseI64ArrayAttr unless) {
  func::FuncOp own = piece.function;
  Block &body = own.front();
  llvm::BitVector unused(body.getNumArguments());
  SmallVector<Value> kept;
  SmallVector<int64_t> moved(body.getNumArguments());
  for (BlockArgument argument : body.getArguments()) {
    unsigned i = argument.getArgNumber();
    bool named = unless && llvm::is_contained(unless.asArrayRef(), int64_t(i));
    moved[i] = kept.size();
    if (argument.use_empty() && !named)
      unused.set(i);
    else
      kept.push_back(piece.operands[i]);
  }
  if (unless)
    unless = builder.getDenseI64ArrayAttr(llvm::map_to_vector(
        unless.asArrayRef(), [&](int64_t i) { return moved[i]; }));
  SmallVector<Type> results(body.getTerminator()->getOperandTypes());
  own.setFunctionType(
      builder.getFunctionType(body.getArgumentTypes(), results));
  (void)own.eraseArguments(unused);
  SmallVector<Attribute> kinds(results.size(), builder.getStringAttr(kValue));
  return InvokeOp::create(
      builder, invoke.getLoc(), results,
      FlatSymbolRefAttr::get(own.getSymNameAttr()), kept,
      builder.getStringAttr(part), builder.getUnitAttr(),
      builder.getDenseI64ArrayAttr(SmallVector<int64_t>(kept.size(), -1)),
      builder.getArrayAttr(kinds), invoke.getStageAttr(), unless);
}

/// Makes the first update, as if the scalars of other stages were 0; it also
/// returns the scalars that it was computed with.
InvokeOp Update::makeAssumed() {
  IRMapping map;
  SmallVector<Value> values;
  for (unsigned i : updating)
    values.push_back(function.front().getTerminator()->getOperand(i));
  llvm::append_range(values, scalars);
  Piece piece = take("U", values, /*withChecks=*/false, map);
  llvm::append_range(piece.operands, invoke.getInputs());
  OpBuilder inside = OpBuilder::atBlockBegin(&piece.function.front());
  for (BlockArgument argument : remote) {
    Value own = map.lookup(argument);
    if (own.use_empty())
      continue;
    auto type = cast<RankedTensorType>(own.getType());
    Value zero = graph::ConstantOp::create(
        inside, own.getLoc(), type,
        DenseElementsAttr::get(type,
                               inside.getZeroAttr(type.getElementType())));
    own.replaceAllUsesWith(zero);
  }
  return call(piece, "U", DenseI64ArrayAttr());
}

/// Compares scalars with the assumed ones bit by bit, because zeros may differ
/// in sign.
Value Update::makeFlag(Operation *before, ArrayRef<Value> made,
                       ArrayRef<Value> assumed) {
  OpBuilder inside(before);
  graph::Formula f{inside, invoke.getLoc()};
  Value flag;
  for (auto [own, other] : llvm::zip_equal(made, assumed)) {
    Value a = f.reshape(own, {}), b = f.reshape(other, {});
    SmallVector<Value> same = {f.compare(graph::Predicate::eq, a, b)};
    if (isa<FloatType>(graph::tensorTypeOf(a).getElementType()))
      same.push_back(f.compare(graph::Predicate::ne, a, f.scalar(a, 0.0)));
    for (Value holds : same)
      flag = flag ? graph::AndOp::create(inside, f.loc, flag, holds).getResult()
                  : holds;
  }
  return flag;
}

/// Makes part V: the results to report, and whether the update was right.
InvokeOp Update::makeValidation(InvokeOp assumed) {
  IRMapping map;
  SmallVector<Value> values;
  for (unsigned i : reporting)
    values.push_back(function.front().getTerminator()->getOperand(i));
  llvm::append_range(values, scalars);
  Piece piece = take("V", values, /*withChecks=*/true, map);
  llvm::append_range(piece.operands, invoke.getInputs());
  Block &body = piece.function.front();
  SmallVector<Value> made, others;
  for (auto [k, value] : llvm::enumerate(scalars)) {
    made.push_back(map.lookup(value));
    others.push_back(body.addArgument(value.getType(), value.getLoc()));
    piece.operands.push_back(assumed.getResult(updating.size() + k));
  }
  Operation *terminator = body.getTerminator();
  SmallVector<Value> returned(
      terminator->getOperands().take_front(reporting.size()));
  if (!scalars.empty())
    returned.push_back(makeFlag(terminator, made, others));
  terminator->setOperands(returned);
  return call(piece, "V", DenseI64ArrayAttr());
}

/// Makes part A: the update with the scalars of all stages, unless `flag`
/// holds.
InvokeOp Update::makeAgain(InvokeOp assumed, Value flag) {
  IRMapping map;
  SmallVector<Value> values, passed = {flag};
  for (auto [k, i] : llvm::enumerate(updating))
    if (llvm::is_contained(dependent, i)) {
      values.push_back(function.front().getTerminator()->getOperand(i));
      passed.push_back(assumed.getResult(k));
    }
  Piece piece = take("A", values, /*withChecks=*/false, map);
  llvm::append_range(piece.operands, invoke.getInputs());
  SmallVector<int64_t> unless;
  for (Value value : passed) {
    unless.push_back(piece.operands.size());
    piece.function.front().addArgument(value.getType(), value.getLoc());
    piece.operands.push_back(value);
  }
  return call(piece, "A", builder.getDenseI64ArrayAttr(unless));
}

bool Update::split(InvokeOp &first) {
  analyze();
  if (updating.empty() || (remote.empty() && !checks))
    return false;
  // The new parts come after all others, so that no update waits for them.
  symbols.remove(function);
  InvokeOp assumed = makeAssumed();
  Operation *end = invoke->getBlock()->getTerminator();
  builder.setInsertionPoint(first ? first.getOperation() : end);
  InvokeOp validation = makeValidation(assumed), again;
  if (!scalars.empty()) {
    builder.setInsertionPoint(end);
    again = makeAgain(assumed, validation.getResults().back());
    first = first ? first : again;
  }
  for (auto [k, i] : llvm::enumerate(reporting))
    invoke.getResult(i).replaceAllUsesWith(validation.getResult(k));
  unsigned next = 0;
  for (auto [k, i] : llvm::enumerate(updating))
    invoke.getResult(i).replaceAllUsesWith(llvm::is_contained(dependent, i)
                                               ? again.getResult(next++)
                                               : assumed.getResult(k));
  invoke.erase();
  function.erase();
  return true;
}

namespace {
struct PostValidatePass
    : cleave::pipe::impl::PostValidateBase<PostValidatePass> {
  using PostValidateBase::PostValidateBase;

  LogicalResult run(ProgramOp program, SymbolTable &symbols) {
    if (program->hasAttr(kEarlyUpdateAttr))
      return program.emitOpError("updates in the next step, after its checks; "
                                 "remove --post-validation or "
                                 "--optimizer-fusion=forward");
    SmallVector<InvokeOp> updates;
    bool any = false, checks = false;
    for (auto invoke : program.getBody().getOps<InvokeOp>()) {
      invoke.getPartFunction().walk([&](graph::CheckOp) { checks = true; });
      if (llvm::any_of(invoke->getOpResults(), updatesSomething)) {
        any = true;
        if (!invoke.getOnce())
          return invoke.emitOpError(
              "updates after each micro-batch, and has no update after all of "
              "them to validate; remove --post-validation");
        updates.push_back(invoke);
      }
    }
    if (!any)
      return success();
    bool split = false;
    InvokeOp first;
    for (InvokeOp invoke : updates)
      split |= Update(invoke, symbols).split(first);
    if (split || checks)
      program->setAttr(kPostValidatedAttr, UnitAttr::get(program.getContext()));
    else
      program.emitRemark(
          "updates depend on no values of other stages: there is "
          "nothing to validate");
    return success();
  }

  void runOnOperation() override {
    SymbolTable symbols(getOperation());
    for (auto program : getOperation().getOps<ProgramOp>()) {
      auto stages = program->getAttrOfType<IntegerAttr>(kStagesAttr);
      if (!stages || stages.getInt() < 2) {
        program.emitError("has one stage: post-validation needs a pipeline, a "
                          "mesh with an axis \"pp\"");
        return signalPassFailure();
      }
      if (failed(verifyPartFunctions(program)) || failed(run(program, symbols)))
        return signalPassFailure();
    }
  }
};
} // namespace
