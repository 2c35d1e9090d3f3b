//===- ShardingRules.cpp - Testing sharding rules -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/ShardingRules.h"
#include "cleave/Dialect/Graph/IR/ShardingRules/PaddedForm.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Interpreter/ReferenceInterface.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using graph::FactorKind;
using graph::FactorMapping;
using graph::ShardingRule;

namespace {

/// Tests the rule of one executed op.
class RuleCheck {
public:
  RuleCheck(Operation *op, const RefArgs &args,
            ArrayRef<const RefTensor *> results, RuleTally &tally)
      : op(op), results(results), tally(tally),
        rule(cast<graph::ShardingRuleOpInterface>(op).getShardingRule()) {
    for (unsigned i = 0; i < args.size(); ++i)
      operands.push_back(args[i]);
  }

  void run() {
    ++tally.ops;
    if (!checkForm())
      return;
    for (int64_t factor = 0, e = rule.factors.size(); factor < e; ++factor) {
      int64_t size = rule.factors[factor].size;
      if (rule.factors[factor].kind == FactorKind::Replicated || size < 2)
        continue;
      if (!isOuter(factor)) {
        ++tally.inner;
        continue;
      }
      // The smallest prime factor of the size, and the size itself.
      int64_t parts = 2;
      while (size % parts != 0)
        ++parts;
      checkSplit(factor, parts);
      if (parts != size)
        checkSplit(factor, size);
      if (rule.factors[factor].padding != graph::PaddingNeed::Refused)
        checkPadding(factor);
    }
    for (ArrayRef<unsigned> set : rule.linear)
      checkLinear(set);
  }

private:
  void fail(const Twine &what) {
    ++tally.failures;
    op->emitOpError("sharding rule: ") << what;
  }

  /// The size of each dimension is the product of its factors, or it has none.
  bool checkForm() {
    if (rule.operands.size() != operands.size() ||
        rule.results.size() != results.size()) {
      fail("does not cover all operands and results");
      return false;
    }
    auto fits = [&](const FactorMapping &mapping, const RefTensor &tensor) {
      if (mapping.empty())
        return true;
      if (static_cast<int64_t>(mapping.size()) != tensor.rank())
        return false;
      for (auto [dim, factors] : llvm::enumerate(mapping)) {
        int64_t size = 1;
        for (int64_t factor : factors)
          size *= rule.factors[factor].size;
        if (!factors.empty() && size != tensor.shape[dim])
          return false;
      }
      return true;
    };
    for (auto [mapping, tensor] : llvm::zip_equal(rule.operands, operands))
      if (!fits(mapping, tensor)) {
        fail("factors of an operand do not make up its shape");
        return false;
      }
    for (auto [mapping, tensor] : llvm::zip_equal(rule.results, results))
      if (!fits(mapping, *tensor)) {
        fail("factors of a result do not make up its shape");
        return false;
      }
    return true;
  }

  /// Whether `factor` is the major one wherever it occurs.
  bool isOuter(int64_t factor) {
    for (auto *mappings : {&rule.operands})
      for (const FactorMapping &mapping : *mappings)
        if (!isOuterIn(mapping, factor))
          return false;
    for (const FactorMapping &mapping : rule.results)
      if (!isOuterIn(mapping, factor))
        return false;
    return true;
  }

  bool isOuterIn(const FactorMapping &mapping, int64_t factor) {
    for (ArrayRef<int64_t> dim : mapping)
      for (int64_t other : dim) {
        if (other == factor)
          break;
        if (rule.factors[other].size > 1 && llvm::is_contained(dim, factor))
          return false;
      }
    return true;
  }

  /// The sharding of a tensor whose `factor` is sharded over the axis "x".
  spmd::ShardingAttr shardingFor(const FactorMapping &mapping, int64_t rank,
                                 int64_t factor, FlatSymbolRefAttr mesh) {
    auto sharding = spmd::Sharding::replicated(rank);
    for (auto [dim, factors] : llvm::enumerate(mapping))
      if (llvm::is_contained(factors, factor))
        sharding.dims[dim].push_back(spmd::AxisRef{"x"});
    return spmd::ShardingAttr::get(mesh, sharding);
  }

  /// Executes the op alone, with `factor` in `parts` shards, one for each rank.
  void checkSplit(int64_t factor, int64_t parts) {
    ++tally.splits;
    MLIRContext *context = op->getContext();
    OpBuilder builder(context);
    Location loc = op->getLoc();
    OwningOpRef<ModuleOp> module = ModuleOp::create(loc);
    builder.setInsertionPointToEnd(module->getBody());
    spmd::MeshOp::create(builder, loc, builder.getStringAttr("mesh"),
                         builder.getStrArrayAttr({"x"}),
                         builder.getDenseI64ArrayAttr({parts}), ArrayAttr());
    auto mesh = FlatSymbolRefAttr::get(context, "mesh");
    auto function = func::FuncOp::create(
        builder, loc, "split",
        builder.getFunctionType(op->getOperandTypes(), op->getResultTypes()));
    Block *block = function.addEntryBlock();
    builder.setInsertionPointToEnd(block);
    for (auto [i, operand] : llvm::enumerate(operands))
      function.setArgAttr(
          i, spmd::kShardingAttr,
          shardingFor(rule.operands[i], operand.rank(), factor, mesh));
    Operation *copy = builder.clone(*op);
    copy->setOperands(block->getArguments());
    SmallVector<Value> values(copy->getResults());
    // A factor that no operand has is sharded as the results have it.
    if (llvm::none_of(rule.operands, [&](const FactorMapping &mapping) {
          return llvm::any_of(mapping, [&](ArrayRef<int64_t> dim) {
            return llvm::is_contained(dim, factor);
          });
        }))
      for (auto [i, value] : llvm::enumerate(values))
        value = spmd::ConstrainOp::create(
            builder, loc, value.getType(), value,
            shardingFor(rule.results[i], results[i]->rank(), factor, mesh));
    func::ReturnOp::create(builder, loc, values);

    PassManager manager(module.get()->getName());
    if (failed(parsePassPipeline("spmd-propagate,spmd-partition,spmd-verify",
                                 manager)) ||
        failed(manager.run(*module)))
      return fail("factor " + Twine(factor) + " cannot be split into " +
                  Twine(parts) + " parts");
    NamedTensors inputs;
    for (auto [i, operand] : llvm::enumerate(operands))
      inputs["arg" + std::to_string(i)] = operand;
    auto joined = Interpreter(*module, Precision::Exact).run("split", inputs);
    if (failed(joined))
      return fail("slices of factor " + Twine(factor) + " cannot be executed");
    for (auto [i, result] : llvm::enumerate(results))
      compare(*result, joined->outputs.at("result" + std::to_string(i)),
              "result " + Twine(i) + " of the slices of factor " +
                  Twine(factor));
  }

  /// Replaces the operands in `set` by two addends each.
  void checkLinear(ArrayRef<unsigned> set) {
    if (operands.empty() || results.empty())
      return;
    ++tally.sums;
    SmallVector<std::vector<RefTensor>> sides(2, operands);
    Random rng(tally.sums);
    for (unsigned i : set)
      for (int64_t j = 0, e = operands[i].floats.size(); j < e; ++j) {
        double part = rng.normal();
        sides[0][i].floats[j] = part;
        sides[1][i].floats[j] -= part;
      }
    for (unsigned i : set)
      for (int64_t j = 0, e = operands[i].ints.size(); j < e; ++j) {
        int64_t part = rng.integer(-9, 9);
        Type element = operands[i].element;
        sides[0][i].ints[j] = wrapTo(element, part);
        sides[1][i].ints[j] = wrapTo(element, operands[i].ints[j] - part);
      }
    SmallVector<std::vector<RefTensor>> outputs(2);
    ReferenceContext context;
    for (int side : {0, 1}) {
      SmallVector<const RefTensor *, 4> pointers;
      for (RefTensor &tensor : sides[side])
        pointers.push_back(&tensor);
      for (Type type : op->getResultTypes())
        outputs[side].emplace_back(cast<RankedTensorType>(type));
      // The operands may be one value: each has its own tensor here.
      OpBuilder builder(op->getContext());
      auto types = llvm::to_vector(op->getOperandTypes());
      Block block;
      for (Type type : types)
        block.addArgument(type, op->getLoc());
      Operation *copy = op->clone();
      copy->setOperands(block.getArguments());
      bool evaluated = succeeded(cast<ReferenceOpInterface>(copy).evaluate(
          RefArgs(copy, pointers), outputs[side], context));
      copy->destroy();
      if (!evaluated)
        return fail("addends of operands cannot be executed");
    }
    for (auto [i, result] : llvm::enumerate(results)) {
      RefTensor sum = outputs[0][i];
      for (auto [x, y] : llvm::zip_equal(sum.floats, outputs[1][i].floats))
        x += y;
      for (auto [x, y] : llvm::zip_equal(sum.ints, outputs[1][i].ints))
        x = wrapTo(sum.element, x + y);
      compare(*result, sum, "the sum of result " + Twine(i) + " over addends");
    }
  }

  /// The shape of a tensor with more elements along `factor`.
  SmallVector<int64_t, 4> paddedShape(const FactorMapping &mapping,
                                      const RefTensor &tensor, int64_t factor) {
    SmallVector<int64_t, 4> shape(tensor.shape);
    int64_t size = rule.factors[factor].size;
    for (auto [dim, factors] : llvm::enumerate(mapping))
      if (llvm::is_contained(factors, factor))
        shape[dim] = shape[dim] / size * (size + 3);
    return shape;
  }

  /// Executes the op on operands that are padded along `factor`, with zeros or
  /// with the values that the rule requires.
  std::optional<std::vector<RefTensor>> runPadded(int64_t factor, bool zeros) {
    std::vector<RefTensor> padded;
    SmallVector<const RefTensor *, 4> pointers;
    for (auto [i, operand] : llvm::enumerate(operands)) {
      RefTensor &tensor = padded.emplace_back(
          paddedShape(rule.operands[i], operand, factor), operand.element);
      fillPadding(tensor, factor, zeros);
      pasteSlice(tensor, SmallVector<int64_t>(tensor.rank(), 0), operand);
    }
    Block block;
    for (RefTensor &tensor : padded) {
      pointers.push_back(&tensor);
      block.addArgument(tensor.type(), op->getLoc());
    }
    SmallVector<Type> types;
    std::vector<RefTensor> outputs;
    for (auto [i, result] : llvm::enumerate(results)) {
      auto shape = paddedShape(rule.results[i], *result, factor);
      types.push_back(RankedTensorType::get(shape, result->element));
      outputs.emplace_back(shape, result->element);
    }
    OpBuilder builder(op->getContext());
    builder.setInsertionPointToEnd(&block);
    Operation *copy =
        graph::buildPadded(op, builder, block.getArguments(), types);
    ReferenceContext context;
    if (!copy || failed(cast<ReferenceOpInterface>(copy).evaluate(
                     RefArgs(copy, pointers), outputs, context)))
      return std::nullopt;
    return outputs;
  }

  void fillPadding(RefTensor &tensor, int64_t factor, bool zeros) {
    TypedAttr fill = graph::paddingFill(rule.factors[factor], tensor.element);
    double real = zeros ? 0 : std::nan("");
    int64_t integer = zeros ? 0 : wrapTo(tensor.element, 77777777);
    if (fill && !zeros) {
      if (auto number = dyn_cast<FloatAttr>(fill))
        real = number.getValueAsDouble();
      else
        integer = wrapTo(tensor.element, cast<IntegerAttr>(fill).getInt());
    }
    llvm::fill(tensor.floats, real);
    llvm::fill(tensor.ints, integer);
  }

  /// Padding that holds the required values must not affect valid elements;
  /// zeros must give zeros where the rule says so.
  void checkPadding(int64_t factor) {
    ++tally.pads;
    auto outputs = runPadded(factor, /*zeros=*/false);
    if (!outputs)
      return fail("factor " + Twine(factor) + " cannot be padded");
    for (auto [i, result] : llvm::enumerate(results)) {
      SmallVector<int64_t> start(result->rank(), 0);
      compare(*result, cutSlice((*outputs)[i], start, result->shape),
              "result " + Twine(i) + " of operands padded along factor " +
                  Twine(factor));
    }
    if (!graph::staysZero(rule, factor, [](unsigned) { return true; }))
      return;
    outputs = runPadded(factor, /*zeros=*/true);
    if (!outputs)
      return fail("factor " + Twine(factor) + " cannot be padded with zeros");
    for (auto [i, result] : llvm::enumerate(results)) {
      RefTensor &found = (*outputs)[i];
      RefTensor zero(found.shape, found.element);
      SmallVector<int64_t> start(result->rank(), 0);
      pasteSlice(zero, start, cutSlice(found, start, result->shape));
      if (found.shape != result->shape && !sameElements(found, zero))
        fail("result " + Twine(i) + " is not zero where operands are along " +
             "factor " + Twine(factor));
    }
  }

  void compare(const RefTensor &whole, const RefTensor &other,
               const Twine &what) {
    if (whole.shape != other.shape)
      return fail(what + " has another shape");
    double difference = 0, norm = 0;
    for (auto [a, b] : llvm::zip_equal(whole.floats, other.floats)) {
      // Infinities and NaN must be equal.
      if (a == b || (std::isnan(a) && std::isnan(b)))
        continue;
      difference += (a - b) * (a - b);
    }
    for (double a : whole.floats)
      norm += std::isfinite(a) ? a * a : 0;
    for (auto [a, b] : llvm::zip_equal(whole.ints, other.ints))
      difference += a != b;
    double error = std::sqrt(difference) / std::max(std::sqrt(norm), 1e-3);
    tally.worst = std::max(tally.worst, error);
    if (!(error <= 1e-9))
      fail(what + " differs by " + Twine(std::to_string(error)));
  }

  Operation *op;
  std::vector<RefTensor> operands;
  ArrayRef<const RefTensor *> results;
  RuleTally &tally;
  ShardingRule rule;
};

} // namespace

LogicalResult
cleave::checkShardingRules(ModuleOp module, StringRef entry,
                           const NamedTensors &inputs,
                           std::map<std::string, RuleTally> &tallies) {
  module.getContext()->loadDialect<spmd::SpmdDialect>();
  Interpreter interpreter(module, Precision::Exact);
  bool complete = true;
  interpreter.observe([&](Operation *op, const RefArgs &args,
                          ArrayRef<const RefTensor *> results) {
    RuleTally &tally = tallies[op->getName().getStringRef().str()];
    if (!isa<graph::ShardingRuleOpInterface>(op)) {
      op->emitError("has no sharding rule");
      ++tally.failures;
      complete = false;
      return;
    }
    RuleCheck(op, args, results, tally).run();
  });
  return success(succeeded(interpreter.run(entry, inputs)) && complete);
}
