//===- UpdateEach.cpp - An update behind each micro-batch -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The parts stay those of one micro-batch. The program that invokes them
/// changes: only the loss is summed over micro-batches.
///
//===----------------------------------------------------------------------===//

#include "EachProgram.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Pipe/IR/PartFunctions.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"

namespace cleave::pipe {
#define GEN_PASS_DEF_UPDATEEACH
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

StringRef EachProgram::argumentText(Value value, StringRef attribute) const {
  auto argument = dyn_cast<BlockArgument>(value);
  ProgramOp own = program;
  auto text =
      argument
          ? own.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attribute)
          : StringAttr();
  return text ? text.getValue() : StringRef();
}

BlockArgument EachProgram::findArgument(StringRef name) {
  for (BlockArgument argument : program.getBody().getArguments())
    if (argumentText(argument, graph::kNameAttr) == name)
      return argument;
  return nullptr;
}

StringRef EachProgram::resultText(unsigned index, StringRef attribute) {
  auto text = program.getResultAttrOfType<StringAttr>(index, attribute);
  return text ? text.getValue() : StringRef();
}

//===----------------------------------------------------------------------===//
// Parts
//===----------------------------------------------------------------------===//

/// Computes the step number of each micro-batch, and of its random numbers,
/// from the number of the call.
void EachProgram::numberUpdates(InvokeOp invoke) {
  func::FuncOp part = invoke.getPartFunction();
  for (auto [value, own] :
       llvm::zip_equal(invoke.getInputs(), part.getArguments())) {
    bool random = argumentText(value, graph::kRoleAttr) == "rng";
    if (!random && (argumentText(value, graph::kRoleAttr) != "scalar" ||
                    argumentText(value, graph::kNameAttr) != "step"))
      continue;
    // Of seed and step, the second.
    OpBuilder inside = OpBuilder::atBlockBegin(&part.front());
    graph::Formula f{inside, own.getLoc()};
    auto vector = RankedTensorType::get(random ? 2 : 1, inside.getI64Type());
    spmd::Sharding split = spmd::Sharding::replicated(vector.getDimSize(0));
    split.dims.back().push_back({kUpdatesAxis});
    SmallVector<int64_t> sizes(vector.getDimSize(0), 1);
    sizes.back() = count;
    Value index = spmd::ShardOffsetOp::create(
        inside, own.getLoc(), vector, spmd::ShardingAttr::get(mesh, split),
        RankedTensorType::get(sizes, inside.getI64Type()));
    auto constant = [&](ArrayRef<int64_t> values) -> Value {
      return graph::ConstantOp::create(
          inside, own.getLoc(),
          DenseElementsAttr::get(vector, values.take_back(sizes.size())));
    };
    // (step - 1) * count + index + 1
    auto type = cast<RankedTensorType>(own.getType());
    Value number = random ? Value(own) : f.reshape(own, {1});
    Operation *last = number.getDefiningOp();
    Value scaled = f.mul(number, constant({1, count}));
    number = f.add(f.add(scaled, constant({0, 1 - count})), index);
    number = random ? number : f.reshape(number, type.getShape());
    llvm::SmallPtrSet<Operation *, 2> kept{scaled.getDefiningOp()};
    if (last)
      kept.insert(last);
    own.replaceAllUsesExcept(number, kept);
  }
}

InvokeOp EachProgram::rebuild(InvokeOp invoke, ArrayRef<Type> types) {
  builder.setInsertionPoint(invoke);
  auto made = InvokeOp::create(
      builder, invoke.getLoc(), types, invoke.getCallee(), invoke.getInputs(),
      invoke.getPart(), /*once=*/false, invoke.getSplit(),
      invoke.getResultKinds(), invoke.getStage());
  for (unsigned i = 0; i < invoke.getNumResults(); ++i)
    invoke.getResult(i).replaceAllUsesWith(made.getResult(i));
  invoke.erase();
  return made;
}

/// Sets the kinds of results: values of the micro-batch for other parts; for
/// the program, a mean, a concatenation of samples, or the newest version.
LogicalResult EachProgram::giveKinds(InvokeOp invoke) {
  func::FuncOp part = invoke.getPartFunction();
  Operation *gives = part.front().getTerminator();
  SmallVector<Attribute> kinds(invoke.getNumResults(),
                               builder.getStringAttr(kSaved));
  SmallVector<Type> types(invoke.getResultTypes());
  SmallVector<std::pair<OpOperand *, unsigned>> moved;
  for (OpOperand &operand : terminator()->getOpOperands()) {
    if (operand.get().getDefiningOp() != invoke)
      continue;
    unsigned i = cast<OpResult>(operand.get()).getResultNumber();
    unsigned index = operand.getOperandNumber();
    bool read = llvm::any_of(operand.get().getUsers(), [](Operation *user) {
      return isa<InvokeOp>(user);
    });
    Location loc = gives->getOperand(i).getLoc();
    StringRef updated = resultText(index, graph::kUpdatesAttr);
    bool isNew = !updated.empty();
    std::optional<int64_t> dim = invoke.getConcatDim(i);
    auto type = cast<RankedTensorType>(operand.get().getType());
    if (read && (isNew || dim))
      return emitError(loc)
             << graph::nameResult(program, index) << " of '"
             << program.getName()
             << "' is also read by other parts, which asynchronous schedules "
                "do not support";
    if (isNew) {
      BlockArgument argument = findArgument(updated);
      if (!argument || argument.getType() != type)
        return emitError(loc) << "a result of '" << program.getName()
                              << "' updates '" << updated
                              << "', but there is no argument of this name and "
                                 "type";
      kinds[i] = builder.getStringAttr(kVersionPrefix +
                                       Twine(argument.getArgNumber()));
      continue;
    }
    if (dim) {
      kinds[i] = invoke.getResultKinds()[i];
      types[i] = widen(type, *dim);
      NamedAttrList attributes;
      if (failed(widenPlacement(program.getResultAttrDict(index), *dim, type,
                                attributes)))
        return failure();
      program.setResultAttrs(index,
                             attributes.getDictionary(builder.getContext()));
      continue;
    }
    bool isSum = weight && (index == 0 || index == *weight);
    if (type.getRank() != 0 ||
        (!isSum && !isa<FloatType>(type.getElementType())))
      return emitError(loc) << graph::nameResult(program, index) << " of '"
                            << program.getName() << "' (" << type
                            << ") must be a number: an asynchronous schedule "
                               "returns its mean over micro-batches";
    OpBuilder inside(gives);
    graph::Formula f{inside, loc};
    Value value = gives->getOperand(i);
    if (!isSum)
      value = f.mul(value, f.scalar(value, 1.0 / static_cast<double>(count)));
    if (!read) {
      gives->setOperand(i, value);
      kinds[i] = builder.getStringAttr(kAccumulate);
      continue;
    }
    gives->insertOperands(gives->getNumOperands(), value);
    moved.push_back({&operand, static_cast<unsigned>(kinds.size())});
    kinds.push_back(builder.getStringAttr(kAccumulate));
    types.push_back(type);
  }
  part.setFunctionType(FunctionType::get(
      part.getContext(), part.getArgumentTypes(), gives->getOperandTypes()));
  invoke.setResultKindsAttr(builder.getArrayAttr(kinds));
  InvokeOp made = rebuild(invoke, types);
  for (auto [operand, result] : moved)
    operand->set(made.getResult(result));
  return success();
}

//===----------------------------------------------------------------------===//
// The program
//===----------------------------------------------------------------------===//

RankedTensorType EachProgram::widen(Type type, int64_t dim) const {
  auto tensor = cast<RankedTensorType>(type);
  SmallVector<int64_t> shape(tensor.getShape());
  shape[dim] *= count;
  return RankedTensorType::get(shape, tensor.getElementType());
}

/// Widens the inputs to all micro-batches, concatenated. The new axis is major
/// to the axes that shard a micro-batch.
LogicalResult EachProgram::widenPlacement(DictionaryAttr attributes,
                                          int64_t dim, Type local,
                                          NamedAttrList &result) {
  result = NamedAttrList(attributes);
  auto placed =
      dyn_cast_or_null<spmd::ShardingAttr>(result.get(spmd::kShardingAttr));
  auto global = dyn_cast_or_null<TypeAttr>(result.get(spmd::kGlobalTypeAttr));
  if (!placed || !global)
    return success();
  spmd::Sharding sharding = placed.getSharding();
  spmd::MeshOp op = spmd::lookupMesh(program, placed.getMesh());
  int64_t whole = cast<RankedTensorType>(global.getValue()).getDimSize(dim);
  int64_t own = cast<RankedTensorType>(local).getDimSize(dim);
  if (own * op.getMesh().size(sharding.dims[dim]) != whole)
    return program.emitOpError("has ")
           << whole << " samples in a micro-batch, which are not divisible by "
           << "its devices; an asynchronous schedule needs equal shards";
  spmd::AxisList &axes = sharding.dims[dim];
  axes.insert(axes.begin(), {kUpdatesAxis});
  result.set(spmd::kShardingAttr,
             spmd::ShardingAttr::get(placed.getMesh(), sharding));
  result.set(spmd::kGlobalTypeAttr,
             TypeAttr::get(widen(global.getValue(), dim)));
  return success();
}

LogicalResult EachProgram::widenArguments() {
  for (BlockArgument argument : program.getBody().getArguments()) {
    unsigned i = argument.getArgNumber();
    auto dim = program.getArgAttrOfType<IntegerAttr>(i, graph::kBatchDimAttr);
    if (!dim)
      continue;
    NamedAttrList attributes;
    if (failed(widenPlacement(program.getArgAttrDict(i), dim.getInt(),
                              argument.getType(), attributes)))
      return failure();
    program.setArgAttrs(i, attributes.getDictionary(builder.getContext()));
    argument.setType(widen(argument.getType(), dim.getInt()));
    for (OpOperand &use : argument.getUses())
      if (auto invoke = dyn_cast<InvokeOp>(use.getOwner())) {
        SmallVector<int64_t> split(invoke.getSplit());
        split[use.getOperandNumber()] = dim.getInt();
        invoke.setSplit(split);
      }
  }
  return success();
}

/// Finds the result that is the number of elements that the loss is the mean
/// of. If another part computes it, the part of the loss passes it through.
std::optional<unsigned> EachProgram::findWeight() {
  ReturnOp returned = terminator();
  unsigned i = 0, results = returned.getNumOperands();
  while (i < results &&
         resultText(i, graph::kNameAttr) != graph::kLossWeightName)
    ++i;
  if (i == 0 || i == results)
    return std::nullopt;
  Value value = returned.getOperand(i);
  auto loss = returned.getOperand(0).getDefiningOp<InvokeOp>();
  auto from = value.getDefiningOp<InvokeOp>();
  if (!loss || !from || loss.getOnce() || from.getOnce())
    return std::nullopt;
  if (loss == from)
    return i;
  if (!from->isBeforeInBlock(loss))
    return std::nullopt;
  func::FuncOp part = loss.getPartFunction();
  Operation *gives = part.front().getTerminator();
  BlockArgument own = part.front().addArgument(value.getType(), value.getLoc());
  gives->insertOperands(gives->getNumOperands(), own);
  SmallVector<Type> types(loss.getResultTypes());
  types.push_back(value.getType());
  SmallVector<Attribute> kinds(loss.getResultKinds().getValue());
  kinds.push_back(builder.getStringAttr(kValue));
  SmallVector<int64_t> split(loss.getSplit());
  split.push_back(-1);
  loss.getInputsMutable().append(value);
  loss.setSplit(split);
  loss.setResultKindsAttr(builder.getArrayAttr(kinds));
  part.setFunctionType(FunctionType::get(part.getContext(),
                                         part.front().getArgumentTypes(),
                                         gives->getOperandTypes()));
  InvokeOp made = rebuild(loss, types);
  returned.setOperand(i, made.getResults().back());
  return i;
}

/// Combines the means of micro-batches, weighted by their numbers of elements,
/// into the mean of all elements.
void EachProgram::joinMeans(unsigned weight) {
  ReturnOp returned = terminator();
  auto loss = returned.getOperand(0).getDefiningOp<InvokeOp>();
  func::FuncOp part = loss.getPartFunction();
  Operation *gives = part.front().getTerminator();
  unsigned first = cast<OpResult>(returned.getOperand(0)).getResultNumber();
  unsigned second =
      cast<OpResult>(returned.getOperand(weight)).getResultNumber();
  // The mean of no elements counts as 0, whatever its value.
  OpBuilder inside(gives);
  graph::Formula f{inside, gives->getOperand(first).getLoc()};
  Value mean = gives->getOperand(first), number = gives->getOperand(second);
  Value none = f.compare(graph::Predicate::eq, number, f.scalar(number, 0.0));
  Value sum =
      f.mul(mean, f.cast(number, graph::tensorTypeOf(mean).getElementType()));
  gives->setOperand(first, f.select(none, f.scalar(mean, 0.0), sum));

  OpBuilder outside(part);
  SmallVector<Type> types = {returned.getOperand(0).getType(),
                             returned.getOperand(weight).getType()};
  auto join = func::FuncOp::create(
      outside, part.getLoc(), (program.getName() + ".mean").str(),
      outside.getFunctionType(types, types.front()));
  join.setPrivate();
  Block *block = join.addEntryBlock();
  inside.setInsertionPointToEnd(block);
  Value joined =
      f.div(block->getArgument(0),
            f.cast(block->getArgument(1),
                   cast<RankedTensorType>(types[0]).getElementType()));
  func::ReturnOp::create(inside, part.getLoc(), joined);
  builder.setInsertionPoint(returned);
  auto made = InvokeOp::create(
      builder, loss.getLoc(), types.front(), join.getSymName(),
      {returned.getOperand(0), returned.getOperand(weight)}, "U", /*once=*/true,
      {-1, -1}, builder.getStrArrayAttr(StringRef(kValue)), loss.getStage());
  returned.setOperand(0, made.getResult(0));
}

LogicalResult EachProgram::run() {
  if (program.getMicroBatches() != 1)
    return program.emitOpError("has ")
           << program.getMicroBatches()
           << " micro-batches already; place it with one";
  if (failed(checkShared()) || failed(verifyPartFunctions(program)))
    return failure();
  auto invokes = [&] {
    return llvm::to_vector(program.getBody().getOps<InvokeOp>());
  };
  for (InvokeOp invoke : invokes()) {
    if ((invoke.getOnce() || isUpdate(invoke)) && failed(checkWaits(invoke)))
      return failure();
  }
  for (InvokeOp invoke : invokes())
    if (failed(moveChecks(invoke)))
      return failure();
  if (failed(widenArguments()))
    return failure();
  weight = findWeight();
  for (InvokeOp invoke : invokes()) {
    numberUpdates(invoke);
    if (failed(giveKinds(invoke)))
      return failure();
  }
  if (weight)
    joinMeans(*weight);
  program.setMicroBatches(count);
  program.setFunctionType(builder.getFunctionType(
      program.getBody().getArgumentTypes(), terminator().getOperandTypes()));
  return success();
}

namespace {
struct UpdateEachPass : cleave::pipe::impl::UpdateEachBase<UpdateEachPass> {
  using UpdateEachBase::UpdateEachBase;

  /// Adds a sequential axis to the mesh, as its most significant one.
  FailureOr<spmd::MeshOp> addAxis() {
    spmd::MeshOp old = spmd::findMesh(getOperation());
    if (!old) {
      getOperation().emitError("has no mesh; run --spmd-seed-shardings first");
      return failure();
    }
    OpBuilder builder(old);
    SmallVector<Attribute> axes{builder.getStringAttr(kUpdatesAxis)};
    if (llvm::is_contained(old.getAxes(), axes.front()))
      return old.emitOpError("already has an axis \"")
             << kUpdatesAxis << "\"; rename it";
    SmallVector<Attribute> sequential = axes;
    SmallVector<int64_t> sizes{microBatches};
    llvm::append_range(axes, old.getAxes());
    llvm::append_range(sizes, old.getSizes());
    if (ArrayAttr more = old.getSequentialAttr())
      llvm::append_range(sequential, more);
    auto mesh = spmd::MeshOp::create(
        builder, old.getLoc(), old.getSymName(), builder.getArrayAttr(axes),
        builder.getDenseI64ArrayAttr(sizes), builder.getArrayAttr(sequential));
    old.erase();
    return mesh;
  }

  void runOnOperation() override {
    if (microBatches < 1) {
      getOperation().emitError(
          "the number of micro-batches must be positive, got ")
          << microBatches.getValue();
      return signalPassFailure();
    }
    FailureOr<spmd::MeshOp> mesh = addAxis();
    if (failed(mesh))
      return signalPassFailure();
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(EachProgram(program, *mesh, microBatches).run()))
        return signalPassFailure();
  }
};
} // namespace
