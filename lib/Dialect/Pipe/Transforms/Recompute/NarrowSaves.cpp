//===- NarrowSaves.cpp - Saved values in fewer bits -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Delayed precision reduction (Jain et al., Gist, ISCA 2018, section 4.3):
/// forward computes with what it has, and backward reads a rounded copy of what
/// was saved. Flags, which take a byte each, are packed to a bit each (4.1).
///
//===----------------------------------------------------------------------===//

#include "RecordSaved.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Pipe/IR/PartFunctions.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include <cmath>

namespace cleave::pipe {
#define GEN_PASS_DEF_NARROWSAVES
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// Whether `value` is a statistic of rows, much smaller than what it is
/// computed from: rounding it saves little, and changes whole rows.
static bool isStatistic(Value value) {
  auto costed = dyn_cast_or_null<graph::CostOpInterface>(value.getDefiningOp());
  if (!costed)
    return false;
  graph::OpCost cost = costed.getCost();
  return cost.work != graph::WorkClass::Contraction &&
         bytesOf(value) * 8 < cost.bytesRead;
}

namespace {
/// Finds what outputs of the step depend on other than by gradients: the loss,
/// which is computed in backward where the head is one op with its gradient.
class Outputs {
public:
  bool reachedFrom(Value value) {
    auto [it, fresh] = known.try_emplace(value, false);
    if (!fresh)
      return it->second;
    bool reached = llvm::any_of(value.getUses(), [&](OpOperand &use) {
      return isa<ReturnOp>(use.getOwner()) ? !isUpdate(use)
                                           : reachedThrough(use);
    });
    return known[value] = reached;
  }

private:
  static bool isUpdate(OpOperand &use) {
    auto program = cast<ProgramOp>(use.getOwner()->getParentOp());
    return program.getResultAttr(use.getOperandNumber(), graph::kUpdatesAttr) !=
           nullptr;
  }
  /// By the results of the part that reads it.
  bool reachedThrough(OpOperand &use) {
    auto invoke = dyn_cast<InvokeOp>(use.getOwner());
    if (!invoke)
      return true;
    Block &part = invoke.getPartFunction().front();
    llvm::DenseSet<Value> reached{part.getArgument(use.getOperandNumber())};
    for (Operation &op : part.without_terminator())
      if (!isa<graph::GradientOp>(op) &&
          llvm::any_of(op.getOperands(), [&](Value operand) {
            return reached.contains(operand);
          }))
        reached.insert(op.result_begin(), op.result_end());
    for (auto [result, value] : llvm::zip_equal(
             invoke->getResults(), part.getTerminator()->getOperands()))
      if (reached.contains(value) && reachedFrom(result))
        return true;
    return false;
  }
  llvm::DenseMap<Value, bool> known;
};
} // namespace

/// Whether only backward parts of the same stage read `result`, for each
/// micro-batch.
static bool isForBackward(InvokeOp forward, OpResult result) {
  if (result.use_empty() || !forward.isSaved(result.getResultNumber()))
    return false;
  return llvm::all_of(result.getUsers(), [&](Operation *user) {
    auto reader = dyn_cast<InvokeOp>(user);
    return reader && reader.getPart() != "F" && !reader.getOnce() &&
           !reader.isConditional() && reader.getStage() == forward.getStage();
  });
}

/// Whether `result` is a value of floats wider than `element` that only
/// gradients are computed from.
static bool isNarrowed(InvokeOp forward, OpResult result, FloatType element,
                       Outputs &outputs) {
  auto own = dyn_cast<FloatType>(
      cast<RankedTensorType>(result.getType()).getElementType());
  if (!own || own.getWidth() <= element.getWidth())
    return false;
  Value value = forward.getPartFunction().front().getTerminator()->getOperand(
      result.getResultNumber());
  return value.getDefiningOp() && !isStatistic(value) &&
         !outputs.reachedFrom(result);
}

/// Flags in a packed number, an i32.
static constexpr int64_t kPackedFlags = 32;

/// Whether `result` has flags that fill numbers of kPackedFlags.
static bool isPacked(OpResult result) {
  auto type = cast<RankedTensorType>(result.getType());
  return type.getElementType().isInteger(1) && type.getNumElements() > 0 &&
         type.getNumElements() % kPackedFlags == 0;
}

static void setSignature(func::FuncOp function) {
  Block &block = function.front();
  function.setFunctionType(
      FunctionType::get(function.getContext(), block.getArgumentTypes(),
                        block.getTerminator()->getOperandTypes()));
}

namespace {
/// Another form of a value, which takes fewer bytes.
struct SavedForm {
  llvm::function_ref<Value(graph::Formula, Value)> encode;
  /// The value itself, of the type given.
  llvm::function_ref<Value(graph::Formula, Value, RankedTensorType)> decode;
};
} // namespace

/// Saves `result` in another form; what reads it converts it back before its
/// first use.
static void saveAs(InvokeOp forward, OpResult result, const SavedForm &form) {
  func::FuncOp function = forward.getPartFunction();
  OpOperand &returned =
      function.front().getTerminator()->getOpOperand(result.getResultNumber());
  auto type = cast<RankedTensorType>(result.getType());
  OpBuilder builder(returned.getOwner());
  Value encoded =
      form.encode({builder, returned.get().getLoc()}, returned.get());
  returned.set(encoded);
  setSignature(function);
  result.setType(encoded.getType());
  for (OpOperand &use : result.getUses()) {
    func::FuncOp reader = cast<InvokeOp>(use.getOwner()).getPartFunction();
    BlockArgument argument = reader.getArgument(use.getOperandNumber());
    argument.setType(encoded.getType());
    Operation *first = nullptr;
    for (Operation *user : argument.getUsers()) {
      user = reader.front().findAncestorOpInBlock(*user);
      if (!first || user->isBeforeInBlock(first))
        first = user;
    }
    if (first) {
      SmallVector<OpOperand *> readers(
          llvm::make_pointer_range(argument.getUses()));
      builder.setInsertionPoint(first);
      Value decoded = form.decode({builder, argument.getLoc()}, argument, type);
      for (OpOperand *operand : readers)
        operand->set(decoded);
    }
    setSignature(reader);
  }
}

/// Marks the ops that make `value` of `from` by their first operands.
static Value markNarrowed(Value value, Value from) {
  for (Value own = value; own != from; own = own.getDefiningOp()->getOperand(0))
    own.getDefiningOp()->setAttr(kNarrowedAttr,
                                 UnitAttr::get(value.getContext()));
  return value;
}

static void narrow(InvokeOp forward, OpResult result, FloatType element) {
  saveAs(forward, result,
         {[&](graph::Formula f, Value value) {
            return markNarrowed(f.cast(value, element), value);
          },
          [](graph::Formula f, Value saved, RankedTensorType type) {
            return f.cast(saved, type.getElementType());
          }});
}

/// 2 to the power of `sign` k for each flag k of a number, as f64.
static Value powersOfTwo(graph::Formula f, int sign) {
  SmallVector<double> powers;
  for (int k = 0; k < kPackedFlags; ++k)
    powers.push_back(std::ldexp(1.0, sign * k));
  return graph::ConstantOp::create(
      f.builder, f.loc,
      DenseElementsAttr::get(
          RankedTensorType::get({kPackedFlags}, f.builder.getF64Type()),
          ArrayRef(powers)));
}

/// Numbers of 32 flags, the first flag in the lowest bit, less 2^31: sums and
/// quotients of them are exact in f64.
static void pack(InvokeOp forward, OpResult result) {
  double offset = std::ldexp(1.0, kPackedFlags - 1);
  saveAs(forward, result,
         {[&](graph::Formula f, Value flags) {
            int64_t count =
                graph::tensorTypeOf(flags).getNumElements() / kPackedFlags;
            Value powers = powersOfTwo(f, 1);
            Value number =
                f.sum(f.select(f.reshape(flags, {count, kPackedFlags}), powers,
                               f.scalar(powers, 0)),
                      {1});
            number = f.sub(number, f.scalar(number, offset));
            return markNarrowed(f.cast(number, f.builder.getI32Type()), flags);
          },
          [&](graph::Formula f, Value saved, RankedTensorType type) {
            Value number = f.cast(saved, f.builder.getF64Type());
            number = f.add(number, f.scalar(number, offset));
            number =
                f.reshape(number, {type.getNumElements() / kPackedFlags, 1});
            Value shifted = f.mul(number, powersOfTwo(f, -1));
            auto floor = [&](Value a) -> Value {
              return graph::FloorOp::create(f.builder, f.loc, a);
            };
            Value above = floor(f.mul(shifted, f.scalar(shifted, 0.5)));
            Value flag = f.sub(floor(shifted), f.add(above, above));
            flag = f.compare(graph::Predicate::ne, flag, f.scalar(flag, 0));
            return f.reshape(flag, type.getShape());
          }});
}

namespace {
struct NarrowSaves final : cleave::pipe::impl::NarrowSavesBase<NarrowSaves> {
  using NarrowSavesBase::NarrowSavesBase;

  void runOnOperation() override {
    MLIRContext *context = &getContext();
    FloatType element;
    if (type == "bf16")
      element = BFloat16Type::get(context);
    else if (type == "fp16")
      element = Float16Type::get(context);
    else if (type == "fp8")
      element = Float8E4M3FNType::get(context);
    if (!element) {
      getOperation().emitError("unknown type of saved values '")
          << type << "'; there are bf16, fp16 and fp8";
      return signalPassFailure();
    }
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (failed(verifyPartFunctions(program)))
        return signalPassFailure();
      SmallVector<InvokeOp> forward;
      for (auto invoke : program.getBody().getOps<InvokeOp>())
        if (invoke.getPart() == "F")
          forward.push_back(invoke);
      Blocks blocks(forward);
      Outputs outputs;
      for (InvokeOp invoke : forward)
        for (OpResult result : invoke->getResults())
          if (!isForBackward(invoke, result))
            continue;
          else if (isPacked(result))
            pack(invoke, result);
          else if (isNarrowed(invoke, result, element, outputs))
            narrow(invoke, result, element);
      if (program->hasAttr(kSavedAttr))
        recordSaved(program, blocks);
    }
  }
};
} // namespace
