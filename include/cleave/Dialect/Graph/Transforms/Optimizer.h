//===- Optimizer.h - The update of a training step --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Update rules (AdamW, Muon, ...) and the settings of a step's optimizer. A
/// rule is one file in lib/Dialect/Graph/Transforms/Optimizers/ and a row of
/// its table (Rules.cpp): flags, options from JSON, settings of single
/// parameters, state arguments, checkpoints and random tests read what it
/// declares here.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_TRANSFORMS_OPTIMIZER_H
#define CLEAVE_DIALECT_GRAPH_TRANSFORMS_OPTIMIZER_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <limits>
#include <map>
#include <vector>

namespace mlir {
class Pass;
} // namespace mlir

namespace cleave::graph {

class TrainedParameter;
class UpdateBuilder;

/// A number that a person can set; its name is torch.optim's where that has it.
struct OptimizerSetting {
  llvm::StringLiteral name;
  /// The default.
  double value;
  /// What it is, for help texts.
  llvm::StringLiteral text;
  /// At least `least` and below `below`.
  double least = 0.0, below = std::numeric_limits<double>::infinity();
  /// 0 or 1, given as a flag.
  bool isFlag = false;
  /// Values that random tests draw; empty leaves the default.
  std::vector<double> drawn = {};
  /// Added to a divisor: random tests draw multiples of a bound below which a
  /// gradient is zero up to rounding.
  bool isDivisorFloor = false;
};

/// A setting's value by its name.
using OptimizerSettings = std::map<std::string, double>;

/// One tensor of a parameter's state.
struct StateSlot {
  llvm::StringRef name;
  /// The dimensions of the (stored) parameter that it has, in order.
  llvm::SmallVector<int64_t> dims;
  /// Null: the parameter's element type.
  mlir::Type element = {};
  /// The sizes of its dimensions; empty: the parameter's.
  llvm::SmallVector<int64_t> sizes = {};
};

/// How a parameter is updated from its gradient.
class OptimizerRule {
public:
  virtual ~OptimizerRule();

  virtual llvm::StringRef name() const = 0;
  /// One line: the update, and its source.
  virtual llvm::StringRef summary() const = 0;
  virtual llvm::ArrayRef<OptimizerSetting> settings() const = 0;

  /// Why settings that are each in range contradict each other; else "".
  virtual std::string contradiction(const OptimizerSettings &settings) const {
    return "";
  }
  /// Why the rule cannot update `parameter`; else "".
  virtual std::string refusal(const TrainedParameter &parameter) const {
    return "";
  }
  virtual llvm::SmallVector<StateSlot>
  slots(const TrainedParameter &parameter,
        const OptimizerSettings &settings) const = 0;
  /// Builds the new parameter, then the new value of each slot.
  virtual llvm::SmallVector<mlir::Value>
  update(UpdateBuilder &builder) const = 0;

  /// Whether the size of an update hardly depends on the gradient's: a gradient
  /// that is zero up to rounding then moves its parameter all the same, if
  /// there is no state yet. Random tests begin with state for such a rule.
  virtual bool isScaleFree() const { return false; }

  const OptimizerSetting *find(llvm::StringRef setting) const;
};

/// All rules, the default first.
llvm::ArrayRef<const OptimizerRule *> optimizerRules();
/// The rule `name`, or null.
const OptimizerRule *findOptimizerRule(llvm::StringRef name);
/// "adamw, sgd and lion".
std::string optimizerRuleNames();

/// The optimizer of a step. The learning rate is an argument of the step.
struct OptimizerOptions {
  std::string rule = "adamw";
  /// Settings other than the rule's defaults.
  OptimizerSettings settings;
  /// Clip the gradients' global norm to this; 0 does not clip.
  double maxGradNorm = 0.0;
  /// Stop a step whose loss or gradients are not finite. With clipping, the
  /// norm is checked in any case.
  bool checkFinite = false;
  /// Scale the loss by the argument "loss_scale", and skip a step of which the
  /// checks of `checkFinite` or of a clip fail.
  bool scaleLoss = false;

  /// The value of `setting`: given, or the rule's default; 0 if the rule does
  /// not have it.
  double get(llvm::StringRef setting) const;
};

/// All settings of `rule`: the given ones, and its defaults.
OptimizerSettings completeSettings(const OptimizerRule &rule,
                                   const OptimizerSettings &given);

/// Why `rule` does not take these settings: one that it does not have, is out
/// of range or contradicts another; else "".
std::string checkSettings(const OptimizerRule &rule,
                          const OptimizerSettings &settings);

/// The shortest text that reads as `value`.
std::string settingText(double value);
/// Reads a setting as a person writes it: a number, or true or false.
std::optional<double> parseSetting(llvm::StringRef text);

/// Why `rule` cannot update `parameter`, an argument of `entry`; else "".
std::string whyRefused(const OptimizerRule &rule, mlir::func::FuncOp entry,
                       mlir::BlockArgument parameter);

/// Every setting that a rule has, once, with a text that names the rules; in
/// the order of rules.
struct NamedSetting {
  llvm::StringRef name;
  bool isFlag;
  std::string text;
};
std::vector<NamedSetting> allOptimizerSettings();

/// Rewrites `step`, which computes gradients, into a whole training step;
/// reports at its location an option that is out of range.
llvm::LogicalResult applyOptimizer(mlir::func::FuncOp step,
                                   const OptimizerOptions &options);

/// The pass --graph-apply-optimizer with `options`.
std::unique_ptr<mlir::Pass>
createApplyOptimizerWith(const OptimizerOptions &options);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_TRANSFORMS_OPTIMIZER_H
