//===- UpdateBuilder.h - What an update rule builds with --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_UPDATEBUILDER_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_UPDATEBUILDER_H

#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/Transforms/Optimizer.h"

namespace cleave::graph {

/// A parameter as its framework has it. Cleave may store one dimension as
/// several (heads and their size), and several parameters as a stack, along
/// dimension 0: rules speak of the framework's dimensions, of one parameter.
class TrainedParameter {
public:
  TrainedParameter(mlir::func::FuncOp step, mlir::BlockArgument argument);

  mlir::BlockArgument argument() const { return value; }
  mlir::RankedTensorType type() const { return tensorTypeOf(value); }
  llvm::StringRef name() const { return ownName; }
  /// The number of dimensions in the framework.
  unsigned rank() const { return groups.size(); }
  /// The stored dimensions that are dimension `dim` of the framework.
  llvm::ArrayRef<int64_t> stored(unsigned dim) const { return groups[dim]; }
  /// The size of dimension `dim` of the framework.
  int64_t size(unsigned dim) const;
  /// The framework's shape, for messages: 4x8.
  std::string shapeText() const;

  /// All stored dimensions.
  llvm::SmallVector<int64_t> all() const;
  /// Those of one parameter of a stack: all of them, if it is none.
  llvm::SmallVector<int64_t> own() const;
  /// All stored dimensions but those of dimension `dim` of the framework.
  llvm::SmallVector<int64_t> without(unsigned dim) const;
  /// The framework's shape of a tensor of the stored dimensions `dims`, which
  /// have the sizes `sizes`: those that are one dimension of the framework are
  /// one.
  llvm::SmallVector<int64_t>
  frameworkShape(llvm::ArrayRef<int64_t> dims,
                 llvm::ArrayRef<int64_t> sizes) const;
  /// The number of elements of one parameter.
  int64_t elements() const;

private:
  mlir::BlockArgument value;
  llvm::StringRef ownName;
  llvm::SmallVector<llvm::SmallVector<int64_t>> groups;
};

/// Values that are computed once in a step, by a key that says what they are.
using StepScalars = std::map<std::string, llvm::SmallVector<mlir::Value>>;

/// Builds the update of one parameter as formulas. Values are computed in f32,
/// or in f64 for a parameter of that type.
class UpdateBuilder : public Formula {
public:
  UpdateBuilder(mlir::OpBuilder &builder, const TrainedParameter &parameter,
                const OptimizerSettings &settings, StepScalars &scalars)
      : Formula{builder, parameter.argument().getLoc()}, parameter(parameter),
        settings(settings), scalars(scalars) {}

  const TrainedParameter &parameter;
  const OptimizerSettings &settings;
  /// As arguments of the step have them, without casts. The learning rate is
  /// the parameter's own; the scale of clipped gradients may be null.
  mlir::Value gradient, lr, number, gradientScale;
  llvm::SmallVector<mlir::Value> state;
  /// Further numbers that are arguments of the step, by name.
  llvm::StringMap<mlir::Value> given;

  double setting(llvm::StringRef name) const { return settings.at(name.str()); }
  /// The setting as an attribute.
  llvm::APFloat attribute(llvm::StringRef name) const {
    return llvm::APFloat(setting(name));
  }

  mlir::Type computeType() const;
  /// `value` in the type of the computation.
  mlir::Value wide(mlir::Value value) { return cast(value, computeType()); }
  /// A scalar in the type of the computation.
  mlir::Value constant(double value);
  mlir::Value wideParameter() { return wide(parameter.argument()); }
  /// The gradient times the scale of a clip.
  mlir::Value scaledGradient();
  /// Sums over the stored dimensions `dims`, which are removed.
  using Formula::sum;
  /// The mean over `dims`, which are removed.
  mlir::Value mean(mlir::Value value, llvm::ArrayRef<int64_t> dims);
  /// Repeats a value without the dimensions `dims` to the parameter's shape.
  mlir::Value expand(mlir::Value value, llvm::ArrayRef<int64_t> dims) {
    return expandTo(value, dims, parameter.type().getShape());
  }
  mlir::Value sqrt(mlir::Value value);
  mlir::Value maximum(mlir::Value a, mlir::Value b);
  mlir::Value minimum(mlir::Value a, mlir::Value b);
  /// `old` moved to `towards` by the fraction `weight`.
  mlir::Value lerp(mlir::Value old, mlir::Value towards, double weight) {
    return add(old, mul(sub(towards, old), constant(weight)));
  }
  /// The 2-norm of one parameter, without its dimensions.
  mlir::Value norm(mlir::Value value);

  /// What `build` computes from the number of the update, an f64 scalar, at the
  /// beginning of the step; computed once for each `key`.
  llvm::ArrayRef<mlir::Value> once(
      const std::string &key,
      llvm::function_ref<llvm::SmallVector<mlir::Value>(Formula &, mlir::Value)>
          build);

  /// `value` in the type of `like`.
  mlir::Value stored(mlir::Value value, mlir::Value like) {
    return cast(value, tensorTypeOf(like).getElementType());
  }

private:
  StepScalars &scalars;
};

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_UPDATEBUILDER_H
