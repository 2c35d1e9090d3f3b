//===- CollectiveOps.cpp - Collectives between positions ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Attributes/EvenRows.h"
#include "cleave/Dialect/Graph/IR/Messages/ErrorTopic.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Machines/CollectiveCost.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

#include "cleave/Dialect/Spmd/IR/SpmdInterfaces.cpp.inc"

//===----------------------------------------------------------------------===//
// Elements sent
//===----------------------------------------------------------------------===//

double CommunicationOpInterface::getBytesSent(const Mesh &mesh) {
  Type element = getElementTypeOrSelf((*this)->getResult(0).getType());
  return getElementsSent(mesh) * elementBytes(element);
}

static double elementsOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements();
}

/// What one rank sends in an exchange over `axes`.
static double elementsSent(const Mesh &mesh, ArrayRef<AxisRef> axes,
                           CollectiveKind kind, double elements) {
  return machines::elementsSent(kind, mesh.size(mesh.deviceAxes(axes)),
                                elements);
}

/// Returns the axes of all dimensions in order.
static AxisList flatten(ShardingAttr sharding) {
  AxisList axes;
  for (const DimSharding &dim : sharding.getDims())
    axes.append(dim.axes.begin(), dim.axes.end());
  return axes;
}

//===----------------------------------------------------------------------===//
// Verification
//===----------------------------------------------------------------------===//

/// Checks that no axis is sequential: its positions run one after the other on
/// one device, and exchange no data.
static LogicalResult verifyDevices(Operation *op, const Mesh &mesh,
                                   ArrayRef<AxisRef> axes) {
  for (const AxisRef &axis : axes)
    if (mesh.isSequential(axis)) {
      InFlightDiagnostic error =
          op->emitOpError("cannot move data along the sequential axis ");
      error << axis.str();
      graph::setTopic(error, graph::ErrorTopic::CoupledSamples);
      return error;
    }
  return success();
}

/// Checks that `axes` are axes of the mesh `name` that do not overlap.
static LogicalResult verifyAxes(Operation *op, FlatSymbolRefAttr name,
                                ArrayRef<AxisRef> axes) {
  MeshOp meshOp = lookupMesh(op, name);
  if (!meshOp)
    return op->emitOpError("unknown mesh ") << name;
  Mesh mesh = meshOp.getMesh();
  for (size_t i = 0; i < axes.size(); ++i) {
    if (std::optional<std::string> why = mesh.check(axes[i]))
      return op->emitOpError() << *why;
    if (mesh.overlap(axes[i], axes.take_front(i)))
      return op->emitOpError("axis ")
             << axes[i].str() << " overlaps another one";
  }
  return success();
}

/// Checks a sharding whose axes shard or join the dimensions of a value of type
/// `type`.
static LogicalResult verifyMoved(Operation *op, ShardingAttr sharding,
                                 Type type) {
  auto error = [&] { return op->emitOpError(); };
  if (failed(verifySharding(error, op, sharding, type)))
    return failure();
  if (!sharding.getPartial().empty())
    return op->emitOpError("cannot make a partial result");
  return success();
}

/// Checks that shards of type `whole` under `sharding` have type `part`.
static LogicalResult verifySplit(Operation *op, ShardingAttr sharding,
                                 Type whole, Type part, StringRef what) {
  if (failed(verifyMoved(op, sharding, whole)))
    return failure();
  auto type = cast<RankedTensorType>(whole);
  unsigned dim;
  Sharding data = sharding.getSharding();
  auto shape = localShape(lookupMesh(op, sharding.getMesh()).getMesh(), data,
                          type.getShape(), dim);
  if (!shape || RankedTensorType::get(*shape, type.getElementType()) != part)
    return op->emitOpError(what) << " type " << part << " is not " << whole
                                 << " split by " << data.str();
  return success();
}

//===----------------------------------------------------------------------===//
// spmd.all_reduce
//===----------------------------------------------------------------------===//

LogicalResult AllReduceOp::verifySymbolUses(SymbolTableCollection &) {
  return verifyAxes(*this, getMeshAttr(), getAxes().getAxes());
}

FlatSymbolRefAttr AllReduceOp::getCommunicationMesh() { return getMeshAttr(); }

AxisList AllReduceOp::getCommunicationAxes() {
  return AxisList(getAxes().getAxes());
}

double AllReduceOp::getElementsSent(const Mesh &mesh) {
  return elementsSent(mesh, getAxes().getAxes(), CollectiveKind::AllReduce,
                      elementsOf(getInput()));
}

//===----------------------------------------------------------------------===//
// spmd.slice
//===----------------------------------------------------------------------===//

LogicalResult SliceOp::verifySymbolUses(SymbolTableCollection &) {
  return verifySplit(*this, getSharding(), getInput().getType(),
                     getOutput().getType(), "result");
}

cleave::graph::OpCost SliceOp::getCost() {
  graph::OpCost cost;
  cost.work = graph::WorkClass::View;
  return cost;
}

//===----------------------------------------------------------------------===//
// spmd.all_gather
//===----------------------------------------------------------------------===//

LogicalResult AllGatherOp::verifySymbolUses(SymbolTableCollection &) {
  if (failed(verifySplit(*this, getSharding(), getOutput().getType(),
                         getInput().getType(), "operand")))
    return failure();
  MeshOp mesh = lookupMesh(*this, getSharding().getMesh());
  return verifyDevices(*this, mesh.getMesh(), flatten(getSharding()));
}

FlatSymbolRefAttr AllGatherOp::getCommunicationMesh() {
  return getSharding().getMesh();
}

AxisList AllGatherOp::getCommunicationAxes() { return flatten(getSharding()); }

double AllGatherOp::getElementsSent(const Mesh &mesh) {
  return elementsSent(mesh, getCommunicationAxes(), CollectiveKind::AllGather,
                      elementsOf(getOutput()));
}

//===----------------------------------------------------------------------===//
// spmd.reduce_scatter
//===----------------------------------------------------------------------===//

LogicalResult ReduceScatterOp::verifySymbolUses(SymbolTableCollection &) {
  if (failed(verifySplit(*this, getSharding(), getInput().getType(),
                         getOutput().getType(), "result")))
    return failure();
  MeshOp mesh = lookupMesh(*this, getSharding().getMesh());
  return verifyDevices(*this, mesh.getMesh(), flatten(getSharding()));
}

FlatSymbolRefAttr ReduceScatterOp::getCommunicationMesh() {
  return getSharding().getMesh();
}

AxisList ReduceScatterOp::getCommunicationAxes() {
  return flatten(getSharding());
}

double ReduceScatterOp::getElementsSent(const Mesh &mesh) {
  return elementsSent(mesh, getCommunicationAxes(),
                      CollectiveKind::ReduceScatter, elementsOf(getInput()));
}

//===----------------------------------------------------------------------===//
// spmd.all_to_all
//===----------------------------------------------------------------------===//

LogicalResult AllToAllOp::verifySymbolUses(SymbolTableCollection &) {
  if (failed(verifyAxes(*this, getMeshAttr(), getAxes().getAxes())))
    return failure();
  Mesh mesh = lookupMesh(*this, getMeshAttr()).getMesh();
  if (failed(verifyDevices(*this, mesh, getAxes().getAxes())))
    return failure();
  auto type = cast<RankedTensorType>(getInput().getType());
  int64_t from = getFrom(), to = getTo(), rank = type.getRank();
  if (from < 0 || to < 0 || from >= rank || to >= rank || from == to)
    return emitOpError("expected two different dimensions of ")
           << type << ", got " << from << " and " << to;
  int64_t parts = mesh.size(getAxes().getAxes());
  SmallVector<int64_t> shape(type.getShape());
  if (shape[to] % parts != 0)
    return emitOpError("dimension ")
           << to << " of " << type << " is not divisible by " << parts;
  shape[from] *= parts;
  shape[to] /= parts;
  auto expected = RankedTensorType::get(shape, type.getElementType());
  if (getOutput().getType() != expected)
    return emitOpError("result type ")
           << getOutput().getType() << " must be " << expected;
  return success();
}

FlatSymbolRefAttr AllToAllOp::getCommunicationMesh() { return getMeshAttr(); }

AxisList AllToAllOp::getCommunicationAxes() {
  return AxisList(getAxes().getAxes());
}

double AllToAllOp::getElementsSent(const Mesh &mesh) {
  return elementsSent(mesh, getAxes().getAxes(), CollectiveKind::AllToAll,
                      elementsOf(getInput()));
}

//===----------------------------------------------------------------------===//
// spmd.all_to_all_rows
//===----------------------------------------------------------------------===//

LogicalResult AllToAllRowsOp::verifySymbolUses(SymbolTableCollection &) {
  if (failed(verifyAxes(*this, getMeshAttr(), getAxes().getAxes())))
    return failure();
  Mesh mesh = lookupMesh(*this, getMeshAttr()).getMesh();
  if (failed(verifyDevices(*this, mesh, getAxes().getAxes())))
    return failure();
  auto type = cast<RankedTensorType>(getInput().getType()),
       result = cast<RankedTensorType>(getOutput().getType());
  if (type.getRank() == 0 || result.getRank() != type.getRank() ||
      result.getElementType() != type.getElementType() ||
      result.getShape().drop_front() != type.getShape().drop_front())
    return emitOpError("result type ")
           << result << " must have rows like those of " << type;
  int64_t parts = mesh.size(getAxes().getAxes()), count = parts + 1;
  int64_t given =
      cast<RankedTensorType>(getSendOffsets().getType()).getDimSize(0);
  if (given == count)
    return success();
  if (given != parts * count)
    return emitOpError("needs ") << count << " offsets, or as many for each of "
                                 << parts << " positions, not " << given;
  if (type.getDimSize(0) % parts != 0 || result.getDimSize(0) % parts != 0)
    return emitOpError("dimension 0 of ")
           << type << " or " << result << " is not divisible by " << parts;
  return success();
}

FlatSymbolRefAttr AllToAllRowsOp::getCommunicationMesh() {
  return getMeshAttr();
}

AxisList AllToAllRowsOp::getCommunicationAxes() {
  return AxisList(getAxes().getAxes());
}

/// One of the two may have room for more than even shares.
double AllToAllRowsOp::getElementsSent(const Mesh &mesh) {
  return elementsSent(mesh, getAxes().getAxes(), CollectiveKind::AllToAllRows,
                      graph::evenElements(*this, getInput(), getOutput()));
}

//===----------------------------------------------------------------------===//
// spmd.permute
//===----------------------------------------------------------------------===//

Permutation PermuteOp::getPermutation() {
  Permutation result;
  llvm::append_range(result.from, getFrom().getSharding().dims);
  llvm::append_range(result.to, getTo().getSharding().dims);
  return result;
}

LogicalResult PermuteOp::verifySymbolUses(SymbolTableCollection &) {
  if (getFrom().getMesh() != getTo().getMesh())
    return emitOpError("names two meshes, ")
           << getFrom().getMesh() << " and " << getTo().getMesh();
  for (ShardingAttr sharding : {getFrom(), getTo()})
    if (failed(verifyMoved(*this, sharding, getInput().getType())))
      return failure();
  Mesh mesh = lookupMesh(*this, getFrom().getMesh()).getMesh();
  for (ShardingAttr sharding : {getFrom(), getTo()})
    if (failed(verifyDevices(*this, mesh, flatten(sharding))))
      return failure();
  if (std::optional<std::string> why = getPermutation().check(mesh))
    return emitOpError() << *why;
  return success();
}

FlatSymbolRefAttr PermuteOp::getCommunicationMesh() {
  return getFrom().getMesh();
}

AxisList PermuteOp::getCommunicationAxes() {
  MeshOp mesh = lookupMesh(*this, getFrom().getMesh());
  return getPermutation().axes(mesh.getMesh());
}

double PermuteOp::getElementsSent(const Mesh &mesh) {
  // A nontrivial permutation sends at least one shard.
  Permutation permutation = getPermutation();
  bool moves = llvm::any_of(llvm::zip_equal(permutation.from, permutation.to),
                            [&](auto pair) {
                              return mesh.normalize(std::get<0>(pair)) !=
                                     mesh.normalize(std::get<1>(pair));
                            });
  return moves ? elementsOf(getInput()) : 0;
}

double PermuteOp::getElementsSentBy(const Mesh &mesh,
                                    ArrayRef<int64_t> coordinates) {
  bool keeps = ArrayRef<int64_t>(getPermutation().source(mesh, coordinates)) ==
               coordinates;
  return keeps ? 0 : elementsOf(getInput());
}

//===----------------------------------------------------------------------===//
// spmd.rotate
//===----------------------------------------------------------------------===//

LogicalResult RotateOp::verifySymbolUses(SymbolTableCollection &) {
  if (failed(verifyAxes(*this, getMeshAttr(), getAxes().getAxes())))
    return failure();
  Mesh mesh = lookupMesh(*this, getMeshAttr()).getMesh();
  if (failed(verifyDevices(*this, mesh, getAxes().getAxes())))
    return failure();
  int64_t rank = cast<RankedTensorType>(getType()).getRank();
  if (static_cast<int64_t>(getDim()) >= rank)
    return emitOpError("has no dimension ") << getDim() << " in " << getType();
  return success();
}

FlatSymbolRefAttr RotateOp::getCommunicationMesh() { return getMeshAttr(); }

AxisList RotateOp::getCommunicationAxes() {
  return AxisList(getAxes().getAxes());
}

double RotateOp::getElementsSent(const Mesh &mesh) {
  return mesh.size(getAxes().getAxes()) > 1 ? elementsOf(getInput()) : 0;
}

/// Returns the rule in which each dimension is one factor, and dimension `dim`
/// is the factor of its `parts` (the first of the rule) and a minor one.
static cleave::graph::FactorMapping
factorsBehind(cleave::graph::ShardingRule &rule, RankedTensorType whole,
              uint64_t dim, int64_t parts) {
  bool cut = parts > 1 && whole.getDimSize(dim) % parts == 0;
  if (cut)
    rule.addFactor(parts, cleave::graph::FactorKind::Parallel,
                   cleave::graph::ReductionKind::Sum,
                   cleave::graph::PaddingNeed::Refused);
  cleave::graph::FactorMapping mapping;
  for (auto [i, size] : llvm::enumerate(whole.getShape())) {
    auto &factors = mapping.emplace_back();
    if (int64_t rest = cut && i == dim ? size / parts : size; rest != 1)
      factors.push_back(rule.addFactor(rest));
  }
  return mapping;
}

/// Returns `mapping` with the factor of the parts.
static cleave::graph::FactorMapping
withParts(const cleave::graph::ShardingRule &rule,
          cleave::graph::FactorMapping mapping, uint64_t dim) {
  if (!rule.factors.empty() &&
      rule.factors.front().padding == cleave::graph::PaddingNeed::Refused)
    mapping[dim].insert(mapping[dim].begin(), 0);
  return mapping;
}

template <typename Op> static int64_t partsOf(Op op) {
  MeshOp mesh = lookupMesh(op, op.getMeshAttr());
  return mesh ? mesh.getMesh().size(op.getAxes().getAxes()) : 1;
}

cleave::graph::ShardingRule RotateOp::getShardingRule() {
  graph::ShardingRule rule;
  auto type = cast<RankedTensorType>(getType());
  graph::FactorMapping mapping = withParts(
      rule, factorsBehind(rule, type, getDim(), partsOf(*this)), getDim());
  rule.operands = {mapping};
  rule.results = {mapping};
  rule.linear = {{0}};
  return rule;
}

//===----------------------------------------------------------------------===//
// The rule of spmd.all_to_all_rows
//===----------------------------------------------------------------------===//

/// The parts of unsharded tensors are the first factor; the rows of a part stay
/// together.
cleave::graph::ShardingRule AllToAllRowsOp::getShardingRule() {
  graph::ShardingRule rule;
  auto offsets = cast<RankedTensorType>(getSendOffsets().getType()),
       type = cast<RankedTensorType>(getInput().getType()),
       result = cast<RankedTensorType>(getOutput().getType());
  int64_t parts = partsOf(*this);
  bool whole = parts > 1 && offsets.getDimSize(0) != parts + 1;
  if (whole)
    rule.addFactor(parts, graph::FactorKind::Parallel,
                   graph::ReductionKind::Sum, graph::PaddingNeed::Refused);
  // The first dimension of a tensor.
  auto first = [&](RankedTensorType tensor) {
    llvm::SmallVector<int64_t, 2> factors;
    if (whole)
      factors.push_back(0);
    int64_t size = tensor.getDimSize(0) / (whole ? parts : 1);
    if (size != 1)
      factors.push_back(rule.addFactor(size, graph::FactorKind::Replicated));
    return factors;
  };
  graph::FactorMapping input{first(type)}, list{first(offsets)},
      output{first(result)};
  for (int64_t size : type.getShape().drop_front()) {
    llvm::SmallVector<int64_t, 2> factors;
    if (size != 1)
      factors.push_back(rule.addFactor(size));
    input.push_back(factors);
    output.push_back(factors);
  }
  rule.operands = {input, list, list};
  rule.results = {output};
  rule.linear = {{0}};
  return rule;
}

//===----------------------------------------------------------------------===//
// spmd.broadcast, spmd.reduce
//===----------------------------------------------------------------------===//

/// Checks that `part` is `whole` with dimension `dim` divided by the size of
/// the axes (tensors before partitioning), or equal to it (shards).
template <typename Op>
static LogicalResult verifyPart(Op op, RankedTensorType whole,
                                RankedTensorType part) {
  if (failed(verifyAxes(op, op.getMeshAttr(), op.getAxes().getAxes())))
    return failure();
  Mesh mesh = lookupMesh(op, op.getMeshAttr()).getMesh();
  if (failed(verifyDevices(op, mesh, op.getAxes().getAxes())))
    return failure();
  int64_t dim = op.getDim(), number = op.getPart();
  int64_t parts = mesh.size(op.getAxes().getAxes());
  if (dim < 0 || dim >= whole.getRank())
    return op.emitOpError("has no dimension ") << dim << " in " << whole;
  if (number < 0 || number >= parts)
    return op.emitOpError("has no part ")
           << number << ", only " << parts << " parts";
  SmallVector<int64_t> shape(whole.getShape());
  shape[dim] /= parts;
  bool cut = whole.getDimSize(dim) % parts == 0 && part == whole.clone(shape);
  if (part != whole && !cut)
    return op.emitOpError("type ")
           << part << " is not one of the " << parts << " parts of " << whole
           << " along dimension " << dim;
  return success();
}

/// Returns the elements sent for one of N parts: the N-1 other positions
/// receive it or contribute to it.
template <typename Op>
static double partSent(Op op, const Mesh &mesh, Value part) {
  return elementsSent(mesh, op.getAxes().getAxes(), CollectiveKind::Broadcast,
                      elementsOf(part));
}

LogicalResult BroadcastOp::verifySymbolUses(SymbolTableCollection &) {
  return verifyPart(*this, cast<RankedTensorType>(getInput().getType()),
                    cast<RankedTensorType>(getOutput().getType()));
}

FlatSymbolRefAttr BroadcastOp::getCommunicationMesh() { return getMeshAttr(); }

AxisList BroadcastOp::getCommunicationAxes() {
  return AxisList(getAxes().getAxes());
}

double BroadcastOp::getElementsSent(const Mesh &mesh) {
  return partSent(*this, mesh, getOutput());
}

/// The result lacks the factor of the parts: it is equal on all positions.
cleave::graph::ShardingRule BroadcastOp::getShardingRule() {
  graph::ShardingRule rule;
  graph::FactorMapping part =
      factorsBehind(rule, cast<RankedTensorType>(getInput().getType()),
                    getDim(), partsOf(*this));
  rule.operands = {withParts(rule, part, getDim())};
  rule.results = {part};
  rule.linear = {{0}};
  return rule;
}

LogicalResult ReduceOp::verifySymbolUses(SymbolTableCollection &) {
  return verifyPart(*this, cast<RankedTensorType>(getOutput().getType()),
                    cast<RankedTensorType>(getInput().getType()));
}

FlatSymbolRefAttr ReduceOp::getCommunicationMesh() { return getMeshAttr(); }

AxisList ReduceOp::getCommunicationAxes() {
  return AxisList(getAxes().getAxes());
}

double ReduceOp::getElementsSent(const Mesh &mesh) {
  return partSent(*this, mesh, getInput());
}

cleave::graph::ShardingRule ReduceOp::getShardingRule() {
  graph::ShardingRule rule;
  graph::FactorMapping part =
      factorsBehind(rule, cast<RankedTensorType>(getOutput().getType()),
                    getDim(), partsOf(*this));
  graph::FactorMapping whole = withParts(rule, part, getDim());
  rule.operands = {part};
  rule.linear = {{0}};
  if (getInto()) {
    rule.operands.push_back(whole);
    rule.linear = {{0, 1}};
  }
  rule.results = {whole};
  return rule;
}
