//===- Annotator.cpp - Annotations of recipes -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Annotator.h"
#include "cleave/Dialect/Graph/Analysis/LinearLayers.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

static StringRef nameOf(BlockArgument argument) {
  return graph::getArgString(
      cast<func::FuncOp>(argument.getOwner()->getParentOp()),
      argument.getArgNumber(), graph::kNameAttr);
}

Annotator::Annotator(ModuleOp module, MeshOp meshOp, int64_t grains)
    : module(module), meshName(FlatSymbolRefAttr::get(meshOp)),
      mesh(meshOp.getMesh()), grains(grains) {
  for (auto function : module.getOps<func::FuncOp>()) {
    if (function.isExternal())
      continue;
    functions.push_back(function);
    for (BlockArgument argument : function.getArguments())
      for (StringRef attribute : {graph::kNameAttr, graph::kOfAttr})
        if (StringRef name = graph::getArgString(
                function, argument.getArgNumber(), attribute);
            !name.empty())
          named[name].push_back(argument);
    for (unsigned i = 0; i < function.getNumArguments() && !train; ++i)
      if (graph::isOptimizerState(function, i))
        train = function;
  }
  // Without optimizer state, the entry that updates parameters trains.
  for (func::FuncOp function : functions)
    for (unsigned i = 0; i < function.getNumResults() && !train; ++i)
      if (function.getResultAttr(i, graph::kUpdatesAttr))
        train = function;
}

const DimensionClasses &Annotator::classesOf(func::FuncOp function) {
  auto &known = classes[function];
  if (!known)
    known = std::make_unique<DimensionClasses>(function);
  return *known;
}

Sharding Annotator::given(BlockArgument argument) const {
  auto function = cast<func::FuncOp>(argument.getOwner()->getParentOp());
  if (auto attribute = function.getArgAttrOfType<ShardingAttr>(
          argument.getArgNumber(), kShardingAttr))
    return attribute.getSharding();
  return Sharding::replicated(
      cast<RankedTensorType>(argument.getType()).getRank());
}

SmallVector<BlockArgument>
Annotator::followersOf(BlockArgument argument) const {
  StringRef name = nameOf(argument);
  if (name.empty())
    return {argument};
  return named.lookup(name);
}

/// The dimension of `follower`, one of the followers of `argument`, that is
/// dimension `dim` of `argument`, if it has it.
static std::optional<int64_t> dimIn(BlockArgument argument,
                                    BlockArgument follower, unsigned dim) {
  if (nameOf(follower) == nameOf(argument))
    return dim;
  return graph::dimOfParameter(
      cast<func::FuncOp>(follower.getOwner()->getParentOp()), follower, dim);
}

static int64_t sizeOf(BlockArgument argument, unsigned dim) {
  return cast<RankedTensorType>(argument.getType()).getDimSize(dim);
}

void Annotator::split(BlockArgument argument, unsigned dim,
                      const AxisRef &axis) {
  // The name stored in the mesh outlives this call.
  AxisRef added{mesh.find(axis.name)->name, axis.pre, axis.size};
  for (BlockArgument other : followersOf(argument)) {
    Sharding sharding = given(other);
    std::optional<int64_t> at = dimIn(argument, other, dim);
    if (!at || sharding.splits(mesh, added))
      continue;
    // State of blocks has fewer elements; positions are not left without one.
    int64_t size = sizeOf(other, *at);
    int64_t parts = mesh.size(sharding.dims[*at]) * mesh.size(added);
    if (size != sizeOf(argument, dim) && size % parts != 0)
      continue;
    sharding.dims[*at].push_back(added);
    give(other, sharding);
  }
}

void Annotator::give(BlockArgument argument, const Sharding &sharding) {
  cast<func::FuncOp>(argument.getOwner()->getParentOp())
      .setArgAttr(argument.getArgNumber(), kShardingAttr, attribute(sharding));
}

void Annotator::place(BlockArgument argument, const Sharding &sharding) {
  placed.insert(nameOf(argument));
  for (BlockArgument other : followersOf(argument)) {
    Sharding own =
        Sharding::replicated(cast<RankedTensorType>(other.getType()).getRank());
    for (auto [dim, axes] : llvm::enumerate(sharding.dims))
      if (std::optional<int64_t> at = dimIn(argument, other, dim);
          at && (sizeOf(other, *at) == sizeOf(argument, dim) ||
                 sizeOf(other, *at) % mesh.size(axes) == 0)) {
        own.dims[*at] = axes;
        own.open[*at] = sharding.open[dim];
      }
    give(other, own);
  }
}

bool Annotator::isPlaced(BlockArgument argument) const {
  return placed.contains(nameOf(argument));
}

std::optional<unsigned> Annotator::bestDim(RankedTensorType type,
                                           const Sharding &sharding,
                                           StringRef axis) const {
  std::optional<unsigned> best;
  std::tuple<bool, bool, int64_t> most;
  int64_t parts = mesh.size(AxisRef{axis});
  for (int64_t dim = 0; dim < type.getRank(); ++dim) {
    int64_t before = mesh.size(sharding.dims[dim]);
    int64_t size = type.getDimSize(dim) / before;
    std::tuple now(grains > 0 && type.getDimSize(dim) % (before * grains) == 0,
                   type.getDimSize(dim) % (before * parts) == 0, size);
    if (size >= parts && (!best || now > most)) {
      best = dim;
      most = now;
    }
  }
  return best;
}

AxisList Annotator::sampleAxes() const {
  AxisList axes;
  for (func::FuncOp function : functions)
    for (BlockArgument argument : function.getArguments())
      if (auto dim = function.getArgAttrOfType<IntegerAttr>(
              argument.getArgNumber(), graph::kBatchDimAttr)) {
        Sharding sharding = given(argument);
        for (const AxisRef &axis : sharding.dims[dim.getInt()])
          if (!mesh.overlap(axis, axes))
            axes.push_back(axis);
      }
  return axes;
}

ConstrainOp Annotator::constrain(OpBuilder &builder, Value value,
                                 const Sharding &sharding, bool reduced) {
  return ConstrainOp::create(builder, value.getLoc(), value.getType(), value,
                             ShardingAttr::get(meshName, sharding), reduced);
}

void Annotator::send(OpBuilder &builder, Value value, FloatType narrow,
                     ArrayRef<Sharding> shardings,
                     ArrayRef<OpOperand *> readers) {
  Location loc = value.getLoc();
  auto type = cast<RankedTensorType>(value.getType());
  if (narrow)
    value = graph::CastOp::create(builder, loc, type.clone(narrow), value);
  Value sent = value;
  for (const Sharding &sharding : shardings)
    sent = constrain(builder, sent, sharding);
  Value wide = sent;
  if (narrow)
    wide = graph::CastOp::create(builder, loc, type, sent);
  graph::readRounded(readers, sent, wide);
}

/// Returns the annotation for all readers of `value`, or null.
static ConstrainOp annotationOf(Value value) {
  return value.hasOneUse() ? dyn_cast<ConstrainOp>(*value.user_begin())
                           : ConstrainOp();
}

void Annotator::splitValue(Value value, unsigned dim, StringRef axis) {
  AxisRef added{mesh.find(axis)->name};
  ConstrainOp known = annotationOf(value);
  Sharding sharding =
      known ? known.getSharding().getSharding()
            : Sharding::replicated(
                  cast<RankedTensorType>(value.getType()).getRank(),
                  /*open=*/true);
  // As of an argument, one of several dimensions that a recipe finds.
  if (sharding.splits(mesh, added))
    return;
  sharding.dims[dim].push_back(added);
  sharding.open[dim] = false;
  if (known) {
    known.setShardingAttr(attribute(sharding));
    return;
  }
  OpBuilder builder(value.getContext());
  builder.setInsertionPointAfterValue(value);
  ConstrainOp constrained = constrain(builder, value, sharding);
  value.replaceAllUsesExcept(constrained, constrained);
}

int64_t Annotator::shardSize(Value value, unsigned dim) const {
  int64_t size = cast<RankedTensorType>(value.getType()).getDimSize(dim);
  if (ConstrainOp known = annotationOf(value))
    size /= mesh.size(known.getSharding().getSharding().dims[dim]);
  return size;
}

std::optional<unsigned> cleave::spmd::bestSlicedDim(RankedTensorType type,
                                                    ArrayRef<int64_t> parts,
                                                    int64_t grains) {
  std::optional<unsigned> best;
  int64_t most = 0;
  for (auto [dim, size] : llvm::enumerate(type.getShape()))
    if (size % (parts[dim] * grains) == 0 && size / parts[dim] > most) {
      best = dim;
      most = size / parts[dim];
    }
  return best;
}

std::string cleave::spmd::partsThatFit(ArrayRef<int64_t> parts) {
  std::string text;
  for (auto [i, n] : llvm::enumerate(parts)) {
    if (i)
      text += i + 1 == parts.size() ? " or " : ", ";
    text += std::to_string(n);
  }
  return text.empty() ? text : text + " positions";
}

std::string cleave::spmd::partsThatFit(int64_t divisor) {
  SmallVector<int64_t> parts;
  for (int64_t n = 2; n <= divisor; ++n)
    if (divisor % n == 0)
      parts.push_back(n);
  return partsThatFit(parts);
}
