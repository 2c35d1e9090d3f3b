//===- LinearLayers.h - Linear layers and their gradients -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Finds, after mixed precision, the contractions of 16-bit operands that
/// multiply an activation by a weight, and those that compute their gradients.
/// Heads are none of them: a head is a layer whose result no other contraction
/// depends on, or a head with its loss. A layer of which a weight is also that
/// of a head counts as one.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_ANALYSIS_LINEARLAYERS_H
#define CLEAVE_DIALECT_GRAPH_ANALYSIS_LINEARLAYERS_H

#include "cleave/Dialect/Graph/Analysis/StepRoles.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "llvm/ADT/StringSet.h"

namespace cleave::graph {

/// What an operand of a contraction is.
enum class OperandKind { Input, Weight, Gradient };

/// A contraction, and the name of the parameter of its layer: the first one
/// that the weight is computed from.
struct LinearContraction {
  mlir::Operation *op;
  std::string parameter;
};

/// Whether `entry` computes numbers of 8 bits, whose scales follow from values
/// of earlier steps: what is rounded elsewhere changes them.
bool usesFloat8(mlir::func::FuncOp entry);

/// The type of 16 bits to which eager autocast rounds `value`: that of the
/// factors of the contractions, or of the attention, whose sum in f32 it is.
/// Null where it is not such a sum.
mlir::FloatType roundedType(mlir::Value value);

/// Lets `readers` read `narrow`, to which their operand is rounded: those that
/// cast to its type read it as it is, the others `wide`, which is `narrow` in
/// their own type and is erased where none does.
void readRounded(llvm::ArrayRef<mlir::OpOperand *> readers, mlir::Value narrow,
                 mlir::Value wide);

/// The contractions of one entry.
class LinearLayers {
public:
  explicit LinearLayers(mlir::func::FuncOp entry);

  /// Adds the names of the parameters of heads.
  void findHeads(llvm::StringSet<> &heads) const;
  /// The contractions of layers that are not among `heads`, forward and
  /// backward, in order.
  std::vector<LinearContraction> find(const llvm::StringSet<> &heads) const;
  OperandKind kindOf(mlir::Value operand) const;
  /// Whether the entry computes gradients.
  bool trains() const { return roles.hasBackward(); }

  /// The tensor that `value` is, rounded or in another shape.
  static mlir::Value rootOf(mlir::Value value);

private:
  /// A layer in forward.
  struct Layer {
    mlir::Operation *op;
    mlir::Value input, weight;
    llvm::SmallVector<mlir::StringRef> parameters;
  };

  bool isFromParameters(mlir::Value value) const {
    return fromParameters.contains(value);
  }
  bool isOfBackward(mlir::Value value) const {
    return roles.dependsOnSeed(value.getDefiningOp());
  }
  llvm::SmallVector<mlir::StringRef> parametersOf(mlir::Value value) const;
  llvm::SmallVector<mlir::StringRef> gradientsFrom(mlir::Value value) const;
  const Layer *layerOf(mlir::Operation *op,
                       llvm::ArrayRef<const Layer *> chosen) const;

  mlir::func::FuncOp entry;
  StepRoles roles;
  /// Values that are computed from parameters and constants alone.
  llvm::DenseSet<mlir::Value> fromParameters;
  /// Ops of which a contraction depends on a result.
  llvm::DenseSet<mlir::Operation *> feeding;
  std::vector<Layer> layers;
};

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_ANALYSIS_LINEARLAYERS_H
