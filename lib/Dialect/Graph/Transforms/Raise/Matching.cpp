//===- Matching.cpp - What patterns ask of operands -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Matching.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "mlir/IR/TypeUtilities.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

/// The shortest decimal that rounds to `number`, as an f64.
static double shortestDecimal(const APFloat &number) {
  if (number.isFinite() && !number.isZero())
    // 17 digits tell all f64 apart.
    for (unsigned digits = 1; digits <= 17; ++digits) {
      SmallString<32> text;
      number.toString(text, digits);
      if (APFloat(number.getSemantics(), text).bitwiseIsEqual(number))
        return APFloat(APFloat::IEEEdouble(), text).convertToDouble();
    }
  APFloat wide = number;
  bool loses;
  wide.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &loses);
  return wide.convertToDouble();
}

/// The value that `value` repeats, reshapes or casts between floats.
static Value elementsOfNumber(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (auto cast = dyn_cast<CastOp>(op)) {
      if (isa<FloatType>(getElementTypeOrSelf(cast.getInput())) !=
          isa<FloatType>(getElementTypeOrSelf(cast.getOutput())))
        break;
    } else if (!isa<BroadcastOp, ReshapeOp>(op)) {
      break;
    }
    value = op->getOperand(0);
  }
  return value;
}

std::optional<double> cleave::graph::numberOf(Value value) {
  value = elementsOfNumber(value);
  if (auto constant = value.getDefiningOp<ConstantOp>())
    if (auto elements = dyn_cast<DenseElementsAttr>(constant.getValue());
        elements && elements.isSplat() &&
        isa<FloatType>(elements.getElementType()))
      return shortestDecimal(elements.getSplatValue<APFloat>());
  return getSplatValue(value);
}

std::optional<double> cleave::graph::scalarOf(Value value) {
  if (tensorTypeOf(elementsOfNumber(value)).getNumElements() != 1)
    return std::nullopt;
  return numberOf(value);
}

SmallVector<int64_t> cleave::graph::withoutUnits(ArrayRef<int64_t> shape) {
  SmallVector<int64_t> kept;
  llvm::copy_if(shape, std::back_inserter(kept),
                [](int64_t size) { return size != 1; });
  return kept;
}

Value cleave::graph::withoutUnits(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<ReshapeOp, BroadcastOp>(op))
      break;
    Value inner = op->getOperand(0);
    if (isa<ReshapeOp>(op) && withoutUnits(tensorTypeOf(inner).getShape()) !=
                                  withoutUnits(tensorTypeOf(value).getShape()))
      break;
    value = inner;
  }
  return value;
}

void cleave::graph::eraseUnread(ArrayRef<Operation *> ops) {
  llvm::SetVector<Operation *> pending(ops.begin(), ops.end());
  while (!pending.empty()) {
    Operation *op = pending.pop_back_val();
    if (!isOpTriviallyDead(op))
      continue;
    for (Value operand : op->getOperands())
      if (Operation *source = operand.getDefiningOp())
        pending.insert(source);
    op->erase();
  }
}
