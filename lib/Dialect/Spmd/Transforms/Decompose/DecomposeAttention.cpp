//===- DecomposeAttention.cpp - The steps of ring attention ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Liu et al., "Ring Attention" (arXiv 2310.01889). In step `t` a block of
/// queries attends to the block of keys `t` positions before its own. The
/// rotation for the next step comes before the attention of this step. A mask
/// or a bias with a value for each key is passed around with the keys; of one
/// for pairs of positions a step reads the columns of its keys. 16-bit keys and
/// values travel as they are; what the steps compute is joined in f32 and
/// rounded at the end.
///
//===----------------------------------------------------------------------===//

#include "DecomposeTwoRings.h"
#include "ScoreExtras.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/Cause.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "llvm/ADT/TypeSwitch.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_DECOMPOSEATTENTION
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

/// The rotated values: keys, values and their documents, and what a mask and a
/// bias say of keys, after `step` rotations.
struct RotatedValues {
  Value key, value, segments, bias, mask;
  int64_t step = 0;
};

/// The rotations of each value, and the barriers of backward, which all
/// gradients of one attention share.
struct SharedRotations {
  llvm::DenseMap<Value, Value> rotated;
  llvm::DenseMap<std::pair<Value, Value>, Value> barriers;
};

/// The ring of one attention op, forward or backward.
template <typename Op> class Ring {
public:
  Ring(Op op, MeshOp mesh, StringRef axis, SharedRotations &shared)
      : op(op), builder(op), f{builder, op.getLoc()}, mesh(mesh), axis(axis),
        parts(mesh.getMesh().size(AxisRef{axis})), shared(shared) {}

  LogicalResult run() {
    if (failed(readStarts()))
      return failure();
    replace();
    return success();
  }

private:
  void replace();

  Value rotate(Value value, int64_t dim) {
    if (!value)
      return value;
    Value &rotated = shared.rotated[value];
    if (rotated)
      return rotated;
    auto axes = AxesAttr::get(builder.getContext(), {AxisRef{axis}});
    return rotated = RotateOp::create(
               builder,
               withCause(op.getLoc(),
                         ("the ring of keys over \"" + axis + "\"").str()),
               value.getType(), value, mesh.getSymName(), axes, dim);
  }
  /// Keys are the last dimension of a mask or bias.
  Value rotateExtra(Value value) {
    return value ? rotate(value, graph::tensorTypeOf(value).getRank() - 1)
                 : value;
  }
  RotatedValues rotate(const RotatedValues &from) {
    return {rotate(from.key, 2),      rotate(from.value, 2),
            rotate(from.segments, 1), rotateExtra(from.bias),
            rotateExtra(from.mask),   from.step + 1};
  }
  RotatedValues own() {
    Value segments = op.getKeySegments();
    return {op.getKey(), op.getValue(), segments ? segments : op.getSegments(),
            travels(op.getBias()) ? op.getBias() : Value(),
            travels(op.getMask()) ? op.getMask() : Value()};
  }
  /// Backward rotates again, so that the values that forward received are not
  /// kept.
  Value again(Value value, Value gradient) {
    if (!value)
      return value;
    Value &barrier = shared.barriers[{value, gradient}];
    if (!barrier)
      barrier = BarrierOp::create(builder, op.getLoc(), value.getType(), value,
                                  gradient);
    return barrier;
  }
  RotatedValues again(const RotatedValues &of, Value gradient) {
    return {again(of.key, gradient), again(of.value, gradient),
            again(of.segments, gradient), again(of.bias, gradient),
            again(of.mask, gradient)};
  }
  /// Returns a mask or bias in step `step`, of which `rotated` is what was
  /// passed around.
  Value inStep(Value extra, Value rotated, int64_t step) {
    if (scoreExtra(extra) == ScoreExtra::Pairs)
      return columnsOfStep(f, extra, parts, step);
    return rotated ? rotated : extra;
  }
  Value plus(Value sum, Value more) { return sum ? f.add(sum, more) : more; }

  /// The type of the results of a step: sums of products of 16 bits are f32.
  TypeAttr stepElement() {
    Type element = graph::tensorTypeOf(op.getQuery()).getElementType();
    return element.getIntOrFloatBitWidth() < 32
               ? TypeAttr::get(builder.getF32Type())
               : TypeAttr();
  }
  Value castLike(Value value, Value like) {
    return f.cast(value, graph::tensorTypeOf(like).getElementType());
  }
  /// Adds `more` to what was passed on of the sum, in the type of `like`.
  Value addTo(Value passed, Value more, Value like) {
    if (passed)
      more = f.add(castLike(passed, more), more);
    return castLike(more, like);
  }

  /// The op of a gradient in the step of `here`; `last` are the operands that
  /// not all of these ops have.
  template <typename... Last>
  Op gradientIn(const RotatedValues &here, Value queries, Last... last) {
    return Op::create(builder, op.getLoc(), op.getGradient(), op.getQuery(),
                      here.key, here.value, op.getOutput(), op.getLse(),
                      inStep(op.getBias(), here.bias, here.step),
                      inStep(op.getMask(), here.mask, here.step),
                      op.getSegments(), op.getRng(), Value(), here.segments,
                      queries, table(keyStarts, here.step), op.getScaleAttr(),
                      op.getCausalAttr(), op.getWindowAttr(),
                      op.getDropoutAttr(), op.getDropoutIdAttr(),
                      DenseI64ArrayAttr(), builder.getI64IntegerAttr(parts),
                      builder.getI64IntegerAttr(here.step), last...);
  }

  //===--- Starts of pieces -----------------------------------------------===//

  /// Reads the starts of queries and keys, if the op masks or draws by
  /// positions in the sequence.
  LogicalResult readStarts() {
    if (!op.getCausal() && !op.getWindow() && op.getDropout().isZero())
      return success();
    return success(
        succeeded(
            readStarts(op.getQueryStarts(), op.getQuery(), queryStarts)) &&
        succeeded(readStarts(op.getKeyStarts(), op.getKey(), keyStarts)));
  }

  /// Reads constant starts of the op. Without them each block is one piece.
  LogicalResult readStarts(Value given, Value places,
                           SmallVectorImpl<int64_t> &starts) {
    int64_t size = cast<RankedTensorType>(places.getType()).getDimSize(2);
    if (!given) {
      for (int64_t i = 0; i < parts; ++i)
        starts.push_back(i * (size / parts));
      return success();
    }
    auto constant = given.getDefiningOp<graph::ConstantOp>();
    auto values = constant ? dyn_cast<DenseElementsAttr>(constant.getValue())
                           : DenseElementsAttr();
    if (!values || values.getNumElements() % parts != 0)
      return op.emitOpError("needs constant starts in ")
             << parts << " blocks for ring attention";
    llvm::append_range(starts, values.getValues<int64_t>());
    return success();
  }

  /// Returns the table of starts, rotated by `step` blocks.
  Value table(ArrayRef<int64_t> starts, int64_t step) {
    if (starts.empty())
      return {};
    SmallVector<int64_t> rotated(starts);
    std::rotate(rotated.begin(),
                rotated.end() - step * (rotated.size() / parts), rotated.end());
    auto type = RankedTensorType::get(rotated.size(), builder.getI64Type());
    return graph::ConstantOp::create(
        builder, op.getLoc(), DenseElementsAttr::get(type, ArrayRef(rotated)));
  }

  Op op;
  OpBuilder builder;
  graph::Formula f;
  MeshOp mesh;
  StringRef axis;
  int64_t parts;
  SharedRotations &shared;
  SmallVector<int64_t> queryStarts, keyStarts;
};

/// Builds forward: each step accumulates onto the results of the previous ones.
template <> void Ring<graph::AttentionOp>::replace() {
  Value onto, ontoLse, queries = table(queryStarts, 0);
  RotatedValues here = own(), next;
  for (int64_t step = 0; step < parts; ++step, here = next) {
    if (step + 1 < parts)
      next = rotate(here);
    auto made = graph::AttentionOp::create(
        builder, op.getLoc(), op.getQuery(), here.key, here.value,
        inStep(op.getBias(), here.bias, step),
        inStep(op.getMask(), here.mask, step), op.getSegments(), op.getRng(),
        Value(), here.segments, queries, table(keyStarts, step), onto, ontoLse,
        op.getScaleAttr(), op.getCausalAttr(), op.getWindowAttr(),
        op.getDropoutAttr(), op.getDropoutIdAttr(), DenseI64ArrayAttr(),
        builder.getI64IntegerAttr(parts), builder.getI64IntegerAttr(step),
        stepElement());
    onto = made.getOutput();
    ontoLse = made.getLse();
  }
  op->replaceAllUsesWith(ValueRange{castLike(onto, op.getOutput()), ontoLse});
  op.erase();
}

/// Builds backward. The own keys come last, when the gradients from all other
/// positions have arrived.
template <> void Ring<graph::AttentionGradOp>::replace() {
  RotatedValues home = again(own(), op.getGradient());
  Value queries = table(queryStarts, 0), dQuery, dKey, dValue;
  RotatedValues here = rotate(home), next = home;
  for (int64_t step = 1; step <= parts; ++step, here = next) {
    next = step + 1 < parts ? rotate(here) : home;
    dKey = rotate(dKey, 2);
    dValue = rotate(dValue, 2);
    auto made = gradientIn(here, queries, stepElement());
    dQuery = plus(dQuery, made.getQueryGradient());
    dKey = addTo(dKey, made.getKeyGradient(), op.getKeyGradient());
    dValue = addTo(dValue, made.getValueGradient(), op.getValueGradient());
  }
  op->replaceAllUsesWith(
      ValueRange{castLike(dQuery, op.getQueryGradient()), dKey, dValue});
  op.erase();
}

/// Builds the gradient of the bias, in the order of the other gradients. That
/// of a bias of keys is passed on to them.
template <> void Ring<graph::AttentionBiasGradOp>::replace() {
  RotatedValues home = again(own(), op.getGradient());
  Value queries = table(queryStarts, 0), sum;
  SmallVector<Value> steps(parts);
  RotatedValues here = rotate(home), next = home;
  for (int64_t step = 1; step <= parts; ++step, here = next) {
    next = step + 1 < parts ? rotate(here) : home;
    if (travels(op.getBias()))
      sum = rotateExtra(sum);
    auto made = gradientIn(here, queries);
    steps[here.step] = made;
    if (scoreExtra(op.getBias()) != ScoreExtra::Pairs)
      sum = plus(sum, made);
  }
  op.replaceAllUsesWith(sum ? sum : rowsOfSteps(f, steps));
  op.erase();
}

struct DecomposeAttentionPass
    : spmd::impl::DecomposeAttentionBase<DecomposeAttentionPass> {
  /// Returns the mesh if its axis `axis` has more than one position, else null.
  static FailureOr<MeshOp> meshWith(Operation *op, StringRef axis) {
    MeshOp mesh = findMesh(op->getParentOfType<ModuleOp>());
    if (!mesh || !mesh.getMesh().find(axis))
      return op->emitOpError("has a ring over axis \"")
             << axis << "\", which no mesh has";
    return mesh.getMesh().size(AxisRef{axis}) > 1 ? mesh : MeshOp();
  }

  template <typename Op>
  static LogicalResult decompose(Op op, MeshOp mesh, StringRef axis,
                                 SharedRotations &shared) {
    int64_t parts = mesh.getMesh().size(AxisRef{axis});
    if (op.getOrigin() || op.getBlocks() != 1)
      return op.emitOpError("has an origin or blocks, which ring attention "
                            "does not support");
    for (Value value : {op.getQuery(), op.getKey()})
      if (int64_t places =
              cast<RankedTensorType>(value.getType()).getDimSize(2);
          places % parts != 0)
        return op.emitOpError("has a sequence of length ")
               << places << ", not divisible by the " << parts
               << " positions of axis \"" << axis << "\"";
    return Ring<Op>(op, mesh, axis, shared).run();
  }

  /// Erases `op` and the annotations that are the only readers of its results.
  static void eraseWithReaders(Operation *op) {
    for (Operation *reader : llvm::make_early_inc_range(op->getUsers()))
      eraseWithReaders(reader);
    op->erase();
  }

  /// Calls `decompose(op, mesh, axis)` for each attention with `mark`.
  template <typename Decompose>
  LogicalResult forEach(StringRef mark, const Decompose &decompose) {
    SmallVector<Operation *> ops;
    getOperation().walk([&](Operation *op) {
      if (op->hasAttr(mark))
        ops.push_back(op);
    });
    for (Operation *op : ops) {
      // Attributes outlive their ops.
      StringRef axis = cast<StringAttr>(op->removeAttr(mark)).getValue();
      FailureOr<MeshOp> mesh = meshWith(op, axis);
      if (failed(mesh))
        return failure();
      if (!*mesh)
        continue;
      LogicalResult done =
          llvm::TypeSwitch<Operation *, LogicalResult>(op)
              .Case<graph::AttentionOp, graph::AttentionGradOp,
                    graph::AttentionBiasGradOp>(
                  [&](auto typed) { return decompose(typed, *mesh, axis); })
              .Default([](Operation *other) {
                return other->emitOpError(
                    "has no decomposition into ring steps");
              });
      if (failed(done))
        return failure();
    }
    return success();
  }

  void runOnOperation() override {
    Probabilities probabilities;
    SmallVector<Operation *> replaced;
    SharedRotations shared;
    auto oneRing = [&](auto op, MeshOp mesh, StringRef axis) {
      return decompose(op, mesh, axis, shared);
    };
    auto twoRings = [&](auto op, MeshOp mesh, StringRef axis) {
      replaced.push_back(op);
      return decomposeIntoTwoRings(op, mesh, axis, probabilities);
    };
    if (failed(forEach(kRingAttr, oneRing)) ||
        failed(forEach(kTwoRingAttr, twoRings)))
      return signalPassFailure();
    // Backward finds forward by the results that it reads.
    for (Operation *op : llvm::reverse(replaced))
      eraseWithReaders(op);
  }
};
} // namespace
