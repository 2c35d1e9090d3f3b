//===- CheckReshard.cpp - Executes a reshard on virtual ranks -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/CheckReshard.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/Resharding/Reshard.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Interpreter/Interpreter.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

class Check {
public:
  Check(MLIRContext *context, const RandomReshard &reshard, uint64_t seed)
      : reshard(reshard), mesh(reshard.mesh), random(Random(seed).next()),
        builder(context), loc(builder.getUnknownLoc()),
        module(ModuleOp::create(loc)) {
    meshName = FlatSymbolRefAttr::get(context, "mesh");
    Type element = random.chance(0.5) ? Type(builder.getF32Type())
                                      : Type(builder.getI64Type());
    global = RankedTensorType::get(reshard.shape, element);
  }

  std::string run() {
    addMesh();
    if (reshard.isUneven())
      return runPadded();
    // The planned reshard, and the one through the whole tensor.
    Sharding last = reshard.to, summed = reshard.from;
    last.partial.clear();
    summed.partial = reshard.to.partial;
    Sharding whole = Sharding::replicated(reshard.shape.size());
    whole.partial = reshard.to.partial;
    for (auto &[name, way] :
         {std::pair("planned", std::vector{reshard.to, last}),
          std::pair("stepwise", std::vector{summed, whole, reshard.to, last})})
      if (std::string error = addFunction(name, way); !error.empty())
        return error;
    if (std::string error = execute(); !error.empty())
      return error;
    PassManager manager(module.get()->getName());
    manager.addPass(createOptimizeCollectives());
    if (failed(manager.run(*module)))
      return "the collectives cannot be optimized" + text();
    return execute();
  }

private:
  /// Only whole tensors may have sizes that are not divisible: their
  /// collectives follow from annotations.
  std::string runPadded() {
    addWholeFunction();
    PassManager lower(module.get()->getName());
    lower.addPass(createPad());
    lower.addPass(createPropagate());
    lower.addPass(createPartition());
    if (failed(verify(*module)) || failed(lower.run(*module)))
      return "the annotations cannot be lowered" + text();
    if (std::string error = execute({"padded"}); !error.empty())
      return error;
    PassManager optimize(module.get()->getName());
    optimize.addPass(createOptimizeCollectives());
    if (failed(optimize.run(*module)))
      return "the collectives cannot be optimized" + text();
    return execute({"padded"});
  }

  /// Verifies and executes the current functions.
  std::string execute(ArrayRef<StringRef> names = {"planned", "stepwise"}) {
    PassManager manager(module.get()->getName());
    manager.addPass(createVerifyLocal());
    if (failed(verify(*module)) || failed(manager.run(*module)))
      return "the collectives are invalid" + text();
    RefTensor expected = combined();
    for (StringRef name : names) {
      auto result =
          Interpreter(*module, Precision::Typed).run(name, {{"x", input()}});
      if (failed(result))
        return "the collectives cannot be executed" + text();
      const RefTensor &moved = result->outputs.at("result0");
      if (moved.floats != expected.floats || moved.ints != expected.ints)
        return "elements differ in '" + name.str() + "'" + text();
      if (auto sums = result->outputs.find("result1");
          sums != result->outputs.end() && !isSumOf(sums->second, expected))
        return "sums include padding" + text();
    }
    return "";
  }

  void addMesh() {
    builder.setInsertionPointToEnd(module->getBody());
    SmallVector<StringRef> names;
    SmallVector<int64_t> sizes;
    for (const MeshAxis &axis : mesh.axes) {
      names.push_back(axis.name);
      sizes.push_back(axis.size);
    }
    MeshOp::create(builder, loc, builder.getStringAttr("mesh"),
                   builder.getStrArrayAttr(names),
                   builder.getDenseI64ArrayAttr(sizes), ArrayAttr());
  }

  ShardingAttr attribute(const Sharding &sharding) {
    return ShardingAttr::get(meshName, sharding);
  }
  RankedTensorType localType(const Sharding &sharding, RankedTensorType type) {
    unsigned dim;
    return RankedTensorType::get(
        *localShape(mesh, sharding, type.getShape(), dim),
        type.getElementType());
  }

  /// The argument: for a partial source, its addends along dimension 0.
  std::pair<Sharding, RankedTensorType> source() {
    Sharding sharding = reshard.from;
    if (sharding.partial.empty())
      return {sharding, global};
    AxisList parts;
    for (const PartialAxis &entry : sharding.partial)
      parts.push_back(entry.axis);
    parts = mesh.normalize(parts);
    sharding.partial.clear();
    sharding.dims.insert(sharding.dims.begin(), parts);
    sharding.open.push_back(false);
    SmallVector<int64_t> shape(global.getShape());
    shape.insert(shape.begin(), mesh.size(parts));
    return {sharding, RankedTensorType::get(shape, global.getElementType())};
  }

  /// A function that reshards the tensor from one sharding of `way` to the
  /// next.
  std::string addFunction(StringRef name, ArrayRef<Sharding> way) {
    auto [sharding, type] = source();
    const Sharding &last = way.back();
    builder.setInsertionPointToEnd(module->getBody());
    auto function = func::FuncOp::create(
        builder, loc, name,
        builder.getFunctionType({localType(sharding, type)},
                                {localType(last, global)}));
    function.setArgAttr(0, graph::kNameAttr, builder.getStringAttr("x"));
    function.setArgAttr(0, kShardingAttr, attribute(sharding));
    function.setArgAttr(0, kGlobalTypeAttr, TypeAttr::get(type));
    function.setResultAttr(0, kShardingAttr, attribute(last));
    function.setResultAttr(0, kGlobalTypeAttr, TypeAttr::get(global));
    Block *block = function.addEntryBlock();
    builder.setInsertionPointToEnd(block);
    Value value = combine(block->getArgument(0));
    const Sharding *from = &reshard.from;
    for (const Sharding &to : way) {
      ReshardPlan plan = planReshard(mesh, *from, to, reshard.shape,
                                     global.getElementTypeBitWidth() / 8);
      if (!plan.error.empty())
        return "there is no plan: " + plan.error;
      for (const Collective &move : plan.moves)
        value =
            buildCollective(builder, loc, value, move, meshName, mesh, global);
      from = &to;
    }
    func::ReturnOp::create(builder, loc, value);
    return "";
  }

  /// Reshards the whole tensor from one sharding to the other, and sums it
  /// along a dimension, after its padding has been set to a nonzero value.
  void addWholeFunction() {
    auto [sharding, type] = source();
    int64_t dim = random.integer(0, global.getRank() - 1);
    SmallVector<int64_t> shape(global.getShape());
    shape.erase(shape.begin() + dim);
    builder.setInsertionPointToEnd(module->getBody());
    auto function = func::FuncOp::create(
        builder, loc, "padded",
        builder.getFunctionType({type}, {global, global.clone(shape)}));
    function.setArgAttr(0, graph::kNameAttr, builder.getStringAttr("x"));
    function.setArgAttr(0, kShardingAttr, attribute(sharding));
    Block *block = function.addEntryBlock();
    builder.setInsertionPointToEnd(block);
    Sharding from = reshard.from;
    from.partial.clear();
    Value value = combine(block->getArgument(0));
    for (const Sharding &next : {from, reshard.to})
      value = ConstrainOp::create(builder, loc, value, attribute(next));
    Value one = graph::ConstantOp::create(
        builder, loc,
        DenseElementsAttr::get(
            RankedTensorType::get({}, global.getElementType()),
            Attribute(builder.getOneAttr(global.getElementType()))));
    Value more = graph::AddOp::create(builder, loc, value, one);
    summed = dim;
    func::ReturnOp::create(
        builder, loc,
        ValueRange{value, graph::ReduceOp::create(
                              builder, loc, graph::ReductionKind::Sum, more,
                              ArrayRef<int64_t>(dim))});
  }

  /// Whether `sums` is one more than the sum of the elements of `whole`.
  bool isSumOf(const RefTensor &sums, const RefTensor &whole) {
    int64_t inner = 1, size = reshard.shape[summed];
    for (int64_t dim : ArrayRef(reshard.shape).drop_front(summed + 1))
      inner *= dim;
    auto test = [&](const auto &found, const auto &elements) {
      auto expected = found;
      llvm::fill(expected, size);
      for (size_t i = 0; i < elements.size(); ++i)
        expected[i / (inner * size) * inner + i % inner] += elements[i];
      return found == expected;
    };
    return test(sums.floats, whole.floats) && test(sums.ints, whole.ints);
  }

  /// The source as a value of the function: partial, if it is.
  Value combine(Value value) {
    if (reshard.isPartial()) {
      auto reduce = graph::ReduceOp::create(builder, loc,
                                            reshard.from.partial.front().kind,
                                            value, ArrayRef<int64_t>(0));
      // For whole tensors, propagation finds it.
      if (!reshard.isUneven())
        annotate(reduce, attribute(reshard.from), global);
      value = reduce;
    }
    return value;
  }

  /// Small numbers, whose sums are exact, with different addends.
  RefTensor input() {
    RefTensor tensor(source().second);
    Random numbers = random;
    for (double &x : tensor.floats)
      x = numbers.integer(-9999, 9999);
    for (int64_t &x : tensor.ints)
      x = numbers.integer(-9999, 9999);
    return tensor;
  }

  /// The result on whole tensors.
  RefTensor combined() {
    RefTensor whole = input(), result(global);
    auto combine = [&](auto &to, const auto &from) {
      size_t size = to.size();
      for (size_t i = 0; i < from.size(); ++i) {
        auto &x = to[i % size];
        if (i < size)
          x = from[i];
        else if (reshard.from.partial.front().kind == ReductionKind::Sum)
          x += from[i];
        else
          x = reshard.from.partial.front().kind == ReductionKind::Max
                  ? std::max(x, from[i])
                  : std::min(x, from[i]);
      }
    };
    combine(result.floats, whole.floats);
    combine(result.ints, whole.ints);
    return result;
  }

  std::string text() {
    std::string result = "\n";
    llvm::raw_string_ostream(result) << *module;
    return result;
  }

  const RandomReshard &reshard;
  const Mesh &mesh;
  Random random;
  OpBuilder builder;
  Location loc;
  OwningOpRef<ModuleOp> module;
  FlatSymbolRefAttr meshName;
  RankedTensorType global;
  /// The dimension along which a padded tensor is summed.
  int64_t summed = 0;
};

} // namespace

std::string cleave::checkReshard(MLIRContext *context,
                                 const RandomReshard &reshard, uint64_t seed) {
  context->loadDialect<func::FuncDialect, graph::GraphDialect, SpmdDialect>();
  return Check(context, reshard, seed).run();
}
