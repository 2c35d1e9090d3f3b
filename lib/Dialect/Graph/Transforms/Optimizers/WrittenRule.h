//===- WrittenRule.h - Updates that a module defines ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A rule that is not in the table: a function of the module `@updates` inside
/// the model's module, which a parameter names as its rule, "@name".
/// ```mlir
/// module @updates {
///   func.func @decay(%p: tensor<4x8xf32> {graph.role = "parameter"},
///       %g: tensor<4x8xf32> {graph.role = "gradient"},
///       %m: tensor<4x8xf32> {graph.name = "mean", graph.role = "state"},
///       %rate: tensor<f32> {graph.name = "update.0", graph.role = "scalar"})
///       -> (tensor<4x8xf32>, tensor<4x8xf32>) { ... }
/// }
/// ```
/// It returns the new parameter and the new value of each state. Its shapes are
/// those of the framework. A scalar is an argument of the step by this name.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_WRITTENRULE_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_WRITTENRULE_H

#include "cleave/Dialect/Graph/Transforms/Optimizer.h"
#include "mlir/IR/BuiltinOps.h"

namespace cleave::graph {

/// The name of the module of updates.
inline constexpr llvm::StringLiteral kUpdatesModule = "updates";

class WrittenRule final : public OptimizerRule {
public:
  /// `function` is checked by `problem`.
  explicit WrittenRule(mlir::func::FuncOp function) : function(function) {}

  /// The mistake of the function itself; else "".
  std::string problem() const;
  /// The names of its scalars, in order.
  std::vector<std::string> scalars() const;

  llvm::StringRef name() const override;
  llvm::StringRef summary() const override {
    return "an update that the module defines";
  }
  llvm::ArrayRef<OptimizerSetting> settings() const override { return {}; }
  bool isScaleFree() const override { return true; }
  std::string refusal(const TrainedParameter &parameter) const override;
  llvm::SmallVector<StateSlot>
  slots(const TrainedParameter &parameter,
        const OptimizerSettings &settings) const override;
  llvm::SmallVector<mlir::Value> update(UpdateBuilder &builder) const override;

private:
  llvm::StringRef roleOf(unsigned argument) const;
  /// Whether each op computes elements of the parameter's shape side by side,
  /// or numbers: it does so in any other arrangement of them.
  bool isElementwise() const;

  mutable mlir::func::FuncOp function;
};

/// The function `name` of the updates in the module of `step`, or null.
mlir::func::FuncOp findUpdate(mlir::func::FuncOp step, llvm::StringRef name);

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_WRITTENRULE_H
