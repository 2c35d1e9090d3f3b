//===- CompressGradients.cpp - Gradients summed with less data ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// At each `graph.gradient` the worker becomes a dimension; what was a sum over
/// the samples of all workers is a tensor of each worker's sum, to which a
/// compressor adds up less than all of it. What is left is the residual, state
/// that joins the terms of the next step (error feedback; Karimireddy et al.,
/// arXiv 1901.09847). The result is a program on whole tensors.
///
//===----------------------------------------------------------------------===//

#include "Compressor.h"
#include "PackedCollectives.h"
#include "Units.h"
#include "WorkerGradients.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Spmd/IR/Cause.h"
#include "cleave/Dialect/Spmd/Transforms/Compression.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Support/PassCounts.h"
#include "llvm/Support/Debug.h"
#include <map>

#define DEBUG_TYPE "spmd-compress-gradients"

static cleave::PassCount compressedGradients(DEBUG_TYPE,
                                             "Gradients that are compressed");
static cleave::PassCount
    otherGradients(DEBUG_TYPE, "Gradients that are summed as they are");

namespace cleave::spmd {
#define GEN_PASS_DEF_COMPRESSGRADIENTS
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

/// A parameter whose gradient is compressed.
struct CompressedGradient {
  graph::GradientOp gradient;
  BlockArgument parameter;
  Sharding sharding;
  /// The framework's shape, and a rank's part of it.
  SmallVector<int64_t> shape, shard;
  /// A recipe shards the gradient so.
  bool isPlaced = false;
  /// A recipe reduces the gradient into shards.
  bool isScattered = false;
};

/// Rewrites the entry that trains.
class GradientCompression {
public:
  GradientCompression(func::FuncOp step, MeshOp meshOp, StringRef axis,
                      const Compressor &compressor, StringRef text, bool packs)
      : step(step), meshName(FlatSymbolRefAttr::get(meshOp)),
        mesh(meshOp.getMesh()), axis(axis), compressor(compressor), text(text),
        packs(packs), builder(step.getContext()) {}

  LogicalResult run();

private:
  FailureOr<SampleOrder> findOrder();
  FailureOr<std::optional<CompressedGradient>> choose(graph::GradientOp op,
                                                      WorkerGradients &workers);
  void leave(graph::GradientOp op, const Twine &why);
  void listLeft(InFlightDiagnostic &diagnostic);
  void reportReceived(double share, int64_t number);
  LogicalResult compress(CompressedGradient chosen, WorkerGradients &workers);
  std::optional<AxisRef> axisWithin();
  Value cutIntoPieces(Formula &f, Value parts, const AxisRef &inner,
                      CompressedGradient &chosen);
  Sharding placeOf(const CompressedGradient &chosen, int64_t rank, int64_t dim,
                   int64_t units);
  Value constrain(Formula &f, Value value, Sharding sharding);
  BlockArgument addState(BlockArgument parameter, StringRef slot,
                         RankedTensorType type, Sharding sharding,
                         ArrayRef<int64_t> dims, const OtherWorkers &others);
  void write(BlockArgument state, Value next);

  ShardingAttr attribute(const Sharding &sharding) {
    return ShardingAttr::get(meshName, sharding);
  }

  func::FuncOp step;
  FlatSymbolRefAttr meshName;
  Mesh mesh;
  StringRef axis;
  const Compressor &compressor;
  StringRef text;
  /// Whether what several parameters exchange is one message.
  bool packs;
  OpBuilder builder;
  PackedCollectives exchanges;
  /// Over which samples are sharded, major to minor.
  AxisList sampleAxes;
  /// Parameters whose gradients are not compressed, and the bytes of these.
  struct Left {
    SmallVector<StringRef> names;
    int64_t bytes = 0;
  };
  /// By the reason.
  std::map<std::string, Left> left;
  /// Of all gradients.
  int64_t allBytes = 0;
  /// The number of the update, and the scale of losses where they are scaled.
  Value number, lossScale;
};

} // namespace

//===----------------------------------------------------------------------===//
// What is compressed
//===----------------------------------------------------------------------===//

/// The order of samples: all inputs have the same one.
FailureOr<SampleOrder> GradientCompression::findOrder() {
  std::optional<SampleOrder> order;
  for (BlockArgument argument : step.getArguments()) {
    auto dim = step.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(),
                                                  graph::kBatchDimAttr);
    if (!dim)
      continue;
    SampleOrder own;
    bool found = false;
    AxisList axes = givenSharding(step, argument).dims[dim.getInt()];
    for (const AxisRef &entry : axes) {
      found = entry.isWhole() && entry.name == axis;
      if (found)
        break;
      own.outer *= mesh.size(entry);
    }
    if (!found)
      return emitError(argument.getLoc())
             << "compressed gradients: samples are not sharded over \"" << axis
             << "\"; choose an axis that the recipe 'dp' shards them over";
    own.workers = mesh.size(AxisRef{axis});
    int64_t samples = tensorTypeOf(argument).getDimSize(dim.getInt());
    if (samples % mesh.size(axes) != 0)
      return emitError(argument.getLoc())
             << "compressed gradients: " << samples
             << " samples are not divisible by " << mesh.size(axes)
             << ", the shards of the batch in all micro-batches";
    if (order && (order->outer != own.outer || order->workers != own.workers))
      return emitError(argument.getLoc())
             << "compressed gradients: inputs are sharded in different orders";
    order = own;
    sampleAxes = axes;
  }
  if (!order)
    return step.emitError("compressed gradients: no input has samples");
  return *order;
}

/// The part of the framework's shape that a rank holds. One dimension of the
/// framework may be stored as several, of which the first is sharded.
static SmallVector<int64_t> shardOf(const Mesh &mesh, const Sharding &sharding,
                                    ArrayRef<int64_t> stored,
                                    ArrayRef<int64_t> shape) {
  SmallVector<int64_t> shard(shape);
  size_t at = 0;
  int64_t left = shape.empty() ? 1 : shape[0];
  for (auto [size, axes] : llvm::zip(stored, sharding.dims)) {
    while (left == 1 && at + 1 < shape.size())
      left = shape[++at];
    if (!shape.empty())
      shard[at] /= mesh.size(axes);
    left /= std::max<int64_t>(size, 1);
  }
  return shard;
}

static int64_t bytesOf(graph::GradientOp op) {
  RankedTensorType type = tensorTypeOf(op.getOutput());
  return type.getNumElements() * type.getElementTypeBitWidth() / 8;
}

/// Notes that a gradient is summed as it is, or not at all.
void GradientCompression::leave(graph::GradientOp op, const Twine &why) {
  ++otherGradients;
  LLVM_DEBUG(llvm::dbgs() << "gradient of \"" << op.getParameter()
                          << "\" is not compressed: " << why << "\n");
  Left &group = left[why.str()];
  group.names.push_back(op.getParameter());
  group.bytes += bytesOf(op);
}

/// Lists, by the reason, the gradients that are left as they are, of which
/// there may be hundreds.
void GradientCompression::listLeft(InFlightDiagnostic &diagnostic) {
  constexpr size_t kNames = 3;
  for (const auto &[why, group] : left) {
    diagnostic << "; " << group.names.size() << " (" << group.bytes
               << " bytes): " << why << ": ";
    llvm::interleaveComma(
        ArrayRef(group.names).take_front(kNames), diagnostic,
        [&](StringRef name) { diagnostic << '"' << name << '"'; });
    if (group.names.size() > kNames)
      diagnostic << " and " << group.names.size() - kNames << " more";
  }
}

/// Says whether less is received than of a dense sum, of which a rank receives
/// twice the elements, whatever the number of ranks (HiTopKComm, arXiv
/// 2010.10458): of a sparse one an element and its index of each worker.
void GradientCompression::reportReceived(double share, int64_t number) {
  double received = share * static_cast<double>(number);
  std::string said = llvm::formatv(
      "a rank receives {0:F2} times the data of a dense sum over \"{1}\"",
      received, axis);
  if (received < 1) {
    step.emitRemark("compression '") << text << "': " << said;
    return;
  }
  step.emitWarning("compression '")
      << text << "': " << said
      << llvm::formatv(": the share of elements that a worker sends, {0}, must "
                       "be below 1 / {1}",
                       share, number)
             .str();
}

FailureOr<std::optional<CompressedGradient>>
GradientCompression::choose(graph::GradientOp op, WorkerGradients &workers) {
  auto argument = llvm::find_if(step.getArguments(), [&](BlockArgument other) {
    return graph::getArgString(step, other.getArgNumber(), graph::kNameAttr) ==
           op.getParameter();
  });
  if (argument == step.getArguments().end())
    return op.emitOpError("has no parameter");
  // What a step before has kept, for an update of this one, was compressed
  // then.
  if (graph::hasRole(step, argument->getArgNumber(), "state"))
    return std::optional<CompressedGradient>();
  CompressedGradient chosen{op, *argument, givenSharding(step, *argument)};
  auto framework = step.getArgAttrOfType<DenseI64ArrayAttr>(
      argument->getArgNumber(), graph::kFrameworkShapeAttr);
  ArrayRef<int64_t> stored = tensorTypeOf(*argument).getShape();
  chosen.shape = llvm::to_vector(framework ? framework.asArrayRef() : stored);
  auto refuse = [&](const Twine &why) {
    return emitError(argument->getLoc()) << "compression '" << text << "' of \""
                                         << op.getParameter() << "\": " << why;
  };
  allBytes += bytesOf(op);
  if (std::string why = compressor.whyNot(chosen.shape); !why.empty()) {
    leave(op, why);
    return std::optional<CompressedGradient>();
  }
  if (auto placed = op.getInput().getDefiningOp<ConstrainOp>()) {
    // A recipe may reduce the gradient into the shards of the state, and keep
    // the parameter in them: the gradient itself is whole on each rank.
    bool isWhole = placed.getReduced();
    if (!isWhole && placed.getSharding().getSharding().splits(mesh, {axis}))
      return refuse("no rank has the whole gradient, which a recipe shards "
                    "over \"" +
                    axis + "\": use '" + recipesThat(keepsGradientsWhole) +
                    "', or compress over another axis");
    chosen.sharding = placed.getSharding().getSharding();
    chosen.isPlaced = !isWhole;
    chosen.isScattered = isWhole;
    if (isWhole)
      for (AxisList &axes : chosen.sharding.dims)
        llvm::erase_if(axes, [&](const AxisRef &own) {
          return mesh.overlap(own, sampleAxes);
        });
    op.getInputMutable().assign(placed.getInput());
  }
  for (auto [size, axes] : llvm::zip(stored, chosen.sharding.dims))
    if (size % mesh.size(axes) != 0)
      return refuse("a dimension of " + Twine(size) +
                    " elements is not divisible by its " +
                    Twine(mesh.size(axes)) + " shards");
  // What is sharded over the axis itself, as experts are, has no sum over it.
  if (chosen.sharding.splits(mesh, {axis})) {
    leave(op, "sharded over \"" + axis + "\", not summed over it");
    return std::optional<CompressedGradient>();
  }
  if (!workers.isSum(op.getInput())) {
    leave(op, "no sum over samples");
    return std::optional<CompressedGradient>();
  }
  chosen.shard = shardOf(mesh, chosen.sharding, stored, chosen.shape);
  if (std::string why = compressor.refusal(chosen.shape, chosen.shard);
      !why.empty())
    return refuse(why);
  return std::optional(chosen);
}

//===----------------------------------------------------------------------===//
// The rewrite
//===----------------------------------------------------------------------===//

/// Dimension `dim` over the workers, and `units` over what shards units.
Sharding GradientCompression::placeOf(const CompressedGradient &chosen,
                                      int64_t rank, int64_t dim,
                                      int64_t units) {
  Sharding place = Sharding::replicated(rank);
  if (dim >= 0)
    place.dims[dim] = {AxisRef{axis}};
  if (units >= 0)
    for (const AxisList &axes : chosen.sharding.dims)
      llvm::append_range(place.dims[units], axes);
  return place;
}

Value GradientCompression::constrain(Formula &f, Value value,
                                     Sharding sharding) {
  return ConstrainOp::create(
      f.builder,
      withCause(f.loc, ("gradients are compressed by '" + text + "'").str()),
      value, attribute(sharding));
}

/// Adds a tensor of state that belongs to a parameter. `dims` are the
/// parameter's dimensions that its own are, or -1.
BlockArgument GradientCompression::addState(
    BlockArgument parameter, StringRef slot, RankedTensorType type,
    Sharding sharding, ArrayRef<int64_t> dims, const OtherWorkers &others) {
  StringRef name =
      graph::getArgString(step, parameter.getArgNumber(), graph::kNameAttr);
  auto string = [&](const Twine &value) {
    return builder.getStringAttr(value);
  };
  SmallVector<NamedAttribute> attributes{
      builder.getNamedAttr(graph::kNameAttr, string(name + "." + slot)),
      builder.getNamedAttr(graph::kRoleAttr, string("state")),
      builder.getNamedAttr(graph::kOfAttr, string(name)),
      builder.getNamedAttr(graph::kSlotAttr, string(slot)),
      builder.getNamedAttr(graph::kParameterDimsAttr,
                           builder.getDenseI64ArrayAttr(dims)),
      builder.getNamedAttr(graph::kOptionalAttr, string("compression")),
      builder.getNamedAttr(kShardingAttr, attribute(sharding))};
  if (others.summed)
    attributes.push_back(
        builder.getNamedAttr(graph::kSummedAttr, builder.getUnitAttr()));
  if (others.elements > 0)
    attributes.push_back(builder.getNamedAttr(
        graph::kElementsAttr, builder.getI64IntegerAttr(others.elements)));
  unsigned index = step.getNumArguments();
  // Inserting an argument of tensor type cannot fail.
  (void)step.insertArgument(index, type, builder.getDictionaryAttr(attributes),
                            parameter.getLoc());
  return step.getArgument(index);
}

/// Makes `next` the value of `state` after the step.
void GradientCompression::write(BlockArgument state, Value next) {
  unsigned index = state.getArgNumber();
  Operation *terminator = step.getBody().front().getTerminator();
  terminator->insertOperands(terminator->getNumOperands(), next);
  (void)step.insertResult(
      step.getNumResults(), next.getType(),
      builder.getDictionaryAttr(
          {builder.getNamedAttr(graph::kUpdatesAttr,
                                step.getArgAttr(index, graph::kNameAttr)),
           builder.getNamedAttr(kShardingAttr,
                                step.getArgAttr(index, kShardingAttr))}));
}

/// The axis inside of the workers over which samples are sharded too, of the
/// ranks of a node; nothing if there is not exactly one.
std::optional<AxisRef> GradientCompression::axisWithin() {
  std::optional<AxisRef> inner;
  bool isInside = false;
  for (const AxisRef &own : sampleAxes) {
    if (isInside && mesh.size(own) > 1) {
      if (inner)
        return std::nullopt;
      inner = own;
    }
    isInside |= own.isWhole() && own.name == axis;
  }
  return inner;
}

/// Cuts the terms of each worker into a piece for each of its ranks, over which
/// they are reduced into pieces. `chosen` becomes that of a parameter
/// `[ranks, elements]`, which is sharded by rows.
Value GradientCompression::cutIntoPieces(Formula &f, Value parts,
                                         const AxisRef &inner,
                                         CompressedGradient &chosen) {
  Units pieces = Units::pieces(chosen.shape, mesh.size(inner));
  SmallVector<int64_t> shape{tensorTypeOf(parts).getDimSize(0)};
  llvm::append_range(shape, chosen.shape);
  Value cut = pieces.split(f, f.reshape(parts, shape));
  chosen.shape = {pieces.count(), pieces.size()};
  chosen.shard = {1, pieces.size()};
  chosen.sharding = Sharding::replicated(2);
  chosen.sharding.dims[0] = {inner};
  chosen.isPlaced = true;
  return cut;
}

LogicalResult GradientCompression::compress(CompressedGradient chosen,
                                            WorkerGradients &workers) {
  graph::GradientOp old = chosen.gradient;
  FailureOr<Value> parts = workers.partsOf(old.getInput());
  if (failed(parts))
    return failure();
  builder.setInsertionPoint(old);
  Formula f{builder, old.getLoc()};
  RankedTensorType whole = tensorTypeOf(old.getOutput());
  SmallVector<int64_t> dims =
      llvm::to_vector(llvm::seq<int64_t>(-1, whole.getRank()));
  std::optional<Units> pieces;
  Value own = *parts;
  std::optional<AxisRef> inner = axisWithin();
  if (inner && compressor.choosesFromPieces() && !chosen.isPlaced &&
      chosen.shape == chosen.shard) {
    pieces = Units::pieces(chosen.shape, mesh.size(*inner));
    own = cutIntoPieces(f, own, *inner, chosen);
    dims.assign(3, -1);
  }
  // The residual has the shape and the place of the terms.
  Sharding place = chosen.sharding;
  place.dims.insert(place.dims.begin(), AxisList{AxisRef{axis}});
  place.open.assign(place.dims.size(), false);
  if (chosen.isPlaced)
    own = constrain(f, own, place);
  Value gradient =
      graph::GradientOp::create(builder, f.loc, own, old.getParameterAttr());
  RankedTensorType type = tensorTypeOf(gradient);
  BlockArgument residual = addState(
      chosen.parameter, kResidualSlot, type, place, dims,
      OtherWorkers{.summed = true, .elements = whole.getNumElements()});
  SmallVector<int64_t> shape{type.getDimSize(0)};
  shape.append(chosen.shape);
  WorkerTerms terms{
      f,
      Value(),
      chosen.shard,
      [&](StringRef slot, RankedTensorType stateType, int64_t dim,
          int64_t units, const OtherWorkers &others) -> Value {
        return addState(chosen.parameter, slot, stateType,
                        placeOf(chosen, stateType.getRank(), dim, units),
                        SmallVector<int64_t>(stateType.getRank(), -1), others);
      },
      [&](Value state, Value next) { write(cast<BlockArgument>(state), next); },
      [&](Value value, int64_t dim, int64_t units) {
        Value placed = constrain(
            f, value,
            placeOf(chosen, tensorTypeOf(value).getRank(), dim, units));
        if (dim != 0)
          exchanges.add(placed.getDefiningOp());
        return placed;
      },
      [&](Value value) {
        Value sum = f.sum(value, {0});
        // Parts of sharded factors are in different places.
        if (chosen.sharding.isReplicated())
          exchanges.add(sum.getDefiningOp());
        return sum;
      },
      number,
      lossScale ? f.cast(lossScale, type.getElementType()) : Value()};
  // It is not scaled with the loss, whose scale changes.
  terms.terms = f.reshape(f.add(gradient, terms.scaled(residual)), shape);
  CompressedSum sum = compressor.build(terms);
  write(residual, terms.unscaled(f.reshape(sum.kept, type.getShape())));
  Value result =
      f.reshape(pieces ? pieces->join(f, sum.sum) : sum.sum, whole.getShape());
  // Gathered once, not the results of each update of a piece.
  if (pieces && !chosen.isScattered)
    result = constrain(f, result, Sharding::replicated(whole.getRank()));
  exchanges.begin(gradient.getDefiningOp());
  old.getOutput().replaceAllUsesWith(result);
  old.erase();
  return success();
}

/// Erases what only the uncompressed gradients needed.
static void eraseUnused(Block &block) {
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
    if (isOpTriviallyDead(&op))
      op.erase();
}

LogicalResult GradientCompression::run() {
  if (!mesh.find(axis)) {
    InFlightDiagnostic error =
        step.emitError("compressed gradients: the mesh has no axis \"")
        << axis << "\"; it has ";
    llvm::interleaveComma(mesh.axes, error,
                          [&](const MeshAxis &known) { error << known.name; });
    return error;
  }
  FailureOr<SampleOrder> order = findOrder();
  if (failed(order))
    return failure();
  if (order->workers == 1) {
    step.emitWarning("compression '") << text << "': axis \"" << axis
                                      << "\" has one position, so that no "
                                         "gradient is exchanged over it: none "
                                         "is compressed";
    return success();
  }
  for (BlockArgument argument : step.getArguments()) {
    if (!graph::hasRole(step, argument.getArgNumber(), "scalar"))
      continue;
    StringRef name =
        graph::getArgString(step, argument.getArgNumber(), graph::kNameAttr);
    if (name == "loss_scale")
      lossScale = argument;
    else if (name == "step")
      number = argument;
  }
  WorkerGradients workers(step, *order);
  std::vector<CompressedGradient> chosen;
  for (auto op : step.getBody().front().getOps<graph::GradientOp>()) {
    FailureOr<std::optional<CompressedGradient>> one = choose(op, workers);
    if (failed(one))
      return failure();
    if (*one)
      chosen.push_back(std::move(**one));
  }
  if (chosen.empty()) {
    InFlightDiagnostic error = step.emitError("compression '")
                               << text << "' compresses no gradient of '@"
                               << step.getSymName() << "'";
    listLeft(error);
    return error;
  }
  if (!left.empty()) {
    size_t count = 0;
    int64_t bytes = 0;
    for (const auto &[why, group] : left) {
      count += group.names.size();
      bytes += group.bytes;
    }
    InFlightDiagnostic remark = step.emitRemark("compression '")
                                << text << "': " << count << " of "
                                << count + chosen.size()
                                << " gradients are not compressed, " << bytes
                                << " of " << allBytes << " bytes";
    listLeft(remark);
  }
  compressedGradients += chosen.size();
  if (std::optional<double> share = compressor.sharedSparsely())
    reportReceived(*share, order->workers);
  for (CompressedGradient &one : chosen)
    if (failed(compress(one, workers)))
      return failure();
  exchanges.pack(builder, meshName, packs);
  eraseUnused(step.getBody().front());
  return success();
}

namespace {
struct CompressGradientsPass final
    : spmd::impl::CompressGradientsBase<CompressGradientsPass> {
  using CompressGradientsBase::CompressGradientsBase;

  void runOnOperation() override {
    std::string error;
    std::unique_ptr<Compressor> compressor = createCompressor(compress, error);
    MeshOp mesh = findMesh(getOperation());
    if (!compressor || !mesh) {
      getOperation().emitError(compressor ? "compressed gradients need a mesh"
                                          : error);
      return signalPassFailure();
    }
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() &&
          !function.getBody().front().getOps<graph::GradientOp>().empty() &&
          failed(GradientCompression(function, mesh, over, *compressor,
                                     compress, pack)
                     .run()))
        return signalPassFailure();
  }
};
} // namespace
