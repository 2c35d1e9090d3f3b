//===- CollectiveOp.cpp - Exchanges between ranks -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/Attributes/EvenRows.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

int64_t CollectiveOp::getMembers() {
  spmd::MeshOp mesh = spmd::lookupMesh(*this, getMeshAttr());
  return mesh ? mesh.getMesh().size(getAxes().getAxes()) : 1;
}

/// Blocks may have any strides, up to the number of dimensions that
/// communicators support.
bool CollectiveOp::canReadOperand(unsigned, RankedTensorType type) {
  return type.getRank() <= 8;
}
bool CollectiveOp::canWriteResult(unsigned, RankedTensorType type) {
  return type.getRank() <= 8;
}

bool SendOp::canReadOperand(unsigned, RankedTensorType type) {
  return type.getRank() <= 8;
}
bool ReceiveOp::canWriteResult(unsigned, RankedTensorType type) {
  return type.getRank() <= 8;
}
bool AwaitOp::canReadOperand(unsigned, RankedTensorType) { return true; }

/// An all-reduce works in place; a reduce into a value works in that value's
/// memory.
SmallVector<Share> CollectiveOp::getShares() {
  if (getInto())
    return {{0, 1, /*must=*/true}};
  if (getKind() == CollectiveKind::AllReduce &&
      getInput().getType() == getType())
    return {{0, 0, /*must=*/false}};
  return {};
}

/// Checks that the blocks of `member` at `starts` lie in a tensor of type
/// `type`.
static LogicalResult verifyStarts(CollectiveOp op, StringRef name,
                                  ArrayRef<int64_t> starts, bool wanted,
                                  RankedTensorType type) {
  size_t rank = op.getBlock().size();
  size_t count = wanted ? op.getMembers() * rank : 0;
  if (starts.size() != count)
    return op.emitOpError(name)
           << " needs " << count << " indices, not " << starts.size();
  if (type.getRank() != static_cast<int64_t>(rank))
    return op.emitOpError("block needs one size for each dimension of ")
           << type;
  for (size_t i = 0; i < std::max(count, rank); ++i) {
    int64_t start = wanted ? starts[i] : 0, size = op.getBlock()[i % rank];
    if (start < 0 || size < 0 || start > type.getDimSize(i % rank) - size)
      return op.emitOpError("block at ")
             << start << " of dimension " << i % rank << " is not inside "
             << type;
  }
  return success();
}

/// The reductions of communicators; see Communicator.h.
static bool canReduce(Type type, ReductionKind reduction) {
  if (isa<FloatType>(type) || type.isInteger(64) || type.isInteger(32))
    return true;
  return reduction != ReductionKind::Sum &&
         (type.isInteger(8) || type.isInteger(1));
}

/// Checks that a collective can run along `axes`.
static LogicalResult verifyAxes(Operation *op, const spmd::Mesh &mesh,
                                ArrayRef<spmd::AxisRef> axes) {
  for (const spmd::AxisRef &axis : axes) {
    if (std::optional<std::string> why = mesh.check(axis))
      return op->emitOpError() << *why;
    if (mesh.isSequential(axis))
      return op->emitOpError("cannot run along the sequential axis ")
             << axis.str();
  }
  return success();
}

LogicalResult CollectiveOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto meshOp =
      symbols.lookupNearestSymbolFrom<spmd::MeshOp>(*this, getMeshAttr());
  if (!meshOp)
    return emitOpError("unknown mesh ") << getMeshAttr();
  spmd::Mesh mesh = meshOp.getMesh();
  if (failed(verifyAxes(*this, mesh, getAxes().getAxes())))
    return failure();
  using Kind = CollectiveKind;
  Kind kind = getKind();
  auto from = cast<RankedTensorType>(getInput().getType());
  RankedTensorType to = getType();
  if (from.getElementType() != to.getElementType())
    return emitOpError("changes the element type");
  if (failed(verifyStarts(*this, "src_starts", getSrcStarts(),
                          kind == Kind::ReduceScatter || kind == Kind::AllToAll,
                          from)) ||
      failed(verifyStarts(*this, "dst_starts", getDstStarts(),
                          kind == Kind::AllGather || kind == Kind::AllToAll,
                          to)))
    return failure();
  if ((kind == Kind::AllReduce || kind == Kind::ReduceScatter ||
       kind == Kind::Reduce) &&
      !canReduce(from.getElementType(), getReduction()))
    return emitOpError("cannot combine elements of type ")
           << from.getElementType() << " in this reduction";
  if (getInto() && kind != Kind::Reduce)
    return emitOpError("must not have 'into': only a reduce has it");
  if (getInto() && getInto().getType() != to)
    return emitOpError("result must have the type of 'into'");
  if (int64_t root = getRoot(); root < 0 || root >= getMembers())
    return emitOpError("root ") << root << " is not a member of the group";
  size_t sources = kind == Kind::Permute ? getMembers() : 0;
  if (getSources().size() != sources ||
      llvm::any_of(getSources(), [&](int64_t source) {
        return source < 0 || source >= getMembers();
      }))
    return emitOpError("sources needs ") << sources << " members of the group";
  return success();
}

//===----------------------------------------------------------------------===//
// exec.all_to_all_rows
//===----------------------------------------------------------------------===//

int64_t AllToAllRowsOp::getMembers() {
  spmd::MeshOp mesh = spmd::lookupMesh(*this, getMeshAttr());
  return mesh ? mesh.getMesh().size(getAxes().getAxes()) : 1;
}

bool AllToAllRowsOp::canReadOperand(unsigned, RankedTensorType type) {
  return isDense(type);
}

double AllToAllRowsOp::getEvenElements() {
  return graph::evenElements(*this, getInput(), getOutput());
}

LogicalResult AllToAllRowsOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto meshOp =
      symbols.lookupNearestSymbolFrom<spmd::MeshOp>(*this, getMeshAttr());
  if (!meshOp)
    return emitOpError("unknown mesh ") << getMeshAttr();
  if (failed(verifyAxes(*this, meshOp.getMesh(), getAxes().getAxes())))
    return failure();
  auto from = cast<RankedTensorType>(getInput().getType());
  RankedTensorType to = getType();
  if (from.getRank() == 0 || from.getRank() > 8 ||
      to.getRank() != from.getRank() ||
      to.getElementType() != from.getElementType() ||
      to.getShape().drop_front() != from.getShape().drop_front())
    return emitOpError("result type ")
           << to << " must have rows like those of " << from;
  if (!isDense(from) || !isDense(to) || !isDense(getSendOffsets().getType()) ||
      !isDense(getReceiveOffsets().getType()))
    return emitOpError("needs dense operands and a dense result");
  int64_t count = getMembers() + 1;
  if (getSendOffsets().getType().getDimSize(0) != count)
    return emitOpError("needs ") << count << " offsets, not "
                                 << getSendOffsets().getType().getDimSize(0);
  return success();
}
