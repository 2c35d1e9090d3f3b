//===- ReferenceInterface.h - Interfaces of reference semantics -*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_INTERPRETER_REFERENCEINTERFACE_H
#define CLEAVE_INTERPRETER_REFERENCEINTERFACE_H

#include "cleave/Interpreter/RefTensor.h"
#include "mlir/IR/OpDefinition.h"
#include <functional>
#include <map>
#include <string>

namespace cleave {

/// The operands of one op on one rank.
class RefArgs {
public:
  RefArgs(mlir::Operation *op, llvm::SmallVector<const RefTensor *, 4> tensors)
      : op(op), tensors(std::move(tensors)) {}

  size_t size() const { return tensors.size(); }
  const RefTensor &operator[](unsigned index) const { return *tensors[index]; }
  /// The tensor of `value`, an operand of the op.
  const RefTensor &operator[](mlir::Value value) const {
    return *lookup(value);
  }
  /// The tensor of `value`, or null for an absent operand.
  const RefTensor *lookup(mlir::Value value) const {
    for (auto [operand, tensor] : llvm::zip_equal(op->getOperands(), tensors))
      if (operand == value)
        return tensor;
    return nullptr;
  }

private:
  mlir::Operation *op;
  llvm::SmallVector<const RefTensor *, 4> tensors;
};

/// Values that the program names in addition to its results, such as finished
/// gradients: the op that has the value, and the value on each rank.
struct PublishedValue {
  mlir::Operation *op = nullptr;
  std::map<int64_t, RefTensor> ranks;
};

/// Called with an op, its operands and its final results.
using ReferenceObserver = std::function<void(
    mlir::Operation *, const RefArgs &, llvm::ArrayRef<const RefTensor *>)>;

/// Changes a result of an op before other ops read it.
using ReferenceDisturbance =
    std::function<void(mlir::Operation *, RefTensor &)>;

/// What the evaluation of an op can query and report.
struct ReferenceContext {
  Precision precision = Precision::Exact;
  /// The rank that evaluates: its index among the mesh positions.
  int64_t rank = 0;
  std::map<std::string, PublishedValue> published;
  /// Called after each op on each rank, if set.
  ReferenceObserver observer;
  /// Called on each result of each op, if set, before it is rounded.
  ReferenceDisturbance disturbance;

  void publish(mlir::Operation *op, llvm::StringRef name,
               const RefTensor &value) {
    PublishedValue &entry = published[name.str()];
    entry.op = op;
    entry.ranks[rank] = value;
  }
};

} // namespace cleave

#include "cleave/Interpreter/ReferenceInterface.h.inc"

#endif // CLEAVE_INTERPRETER_REFERENCEINTERFACE_H
