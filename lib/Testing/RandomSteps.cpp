//===- RandomSteps.cpp - The ops of a random model ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Generator.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

//===----------------------------------------------------------------------===//
// Element-wise ops
//===----------------------------------------------------------------------===//

void Generator::addUnary() {
  Item item = pick();
  Value x = item.value, y;
  switch (rng.integer(0, 10)) {
  case 0:
    y = NegOp::create(builder, loc, x);
    break;
  case 1:
    y = AbsOp::create(builder, loc, x);
    break;
  case 2:
    y = SinOp::create(builder, loc, x);
    break;
  case 3:
    y = CosOp::create(builder, loc, x);
    break;
  case 4:
    y = TanhOp::create(builder, loc, x);
    break;
  case 5:
    y = ErfOp::create(builder, loc, x);
    break;
  case 6:
    y = SigmoidOp::create(builder, loc, x);
    break;
  case 7:
    y = SiluOp::create(builder, loc, x);
    break;
  case 8:
    y = ReluOp::create(builder, loc, x);
    break;
  default:
    y = GeluOp::create(builder, loc, x, rng.chance(0.5));
    break;
  }
  keep(y, item.batchDim);
}

/// Ops whose operand must be in some range, after ops that bring it there.
void Generator::addGuarded() {
  Item item = pick();
  Value x = item.value, y;
  auto positive = [&]() -> Value {
    return AddOp::create(builder, loc, MulOp::create(builder, loc, x, x),
                         splat(0.5));
  };
  switch (rng.integer(0, 6)) {
  case 0:
    y = ExpOp::create(builder, loc, TanhOp::create(builder, loc, x));
    break;
  case 1:
    y = LogOp::create(builder, loc, positive());
    break;
  case 2:
    y = SqrtOp::create(builder, loc, positive());
    break;
  case 3:
    y = RsqrtOp::create(builder, loc, positive());
    break;
  case 4:
    y = PowOp::create(builder, loc, positive(), splat(rng.uniform(-1, 1)));
    break;
  case 5:
    y = DivOp::create(builder, loc, partner(item), positive());
    break;
  default:
    y = SubOp::create(builder, loc, x, FloorOp::create(builder, loc, x));
    break;
  }
  keep(y, item.batchDim);
}

void Generator::addBinary() {
  Item item = pick();
  Value a = item.value, b = partner(item), y;
  if (rng.chance(0.3))
    std::swap(a, b);
  switch (rng.integer(0, 6)) {
  case 0:
  case 1:
    y = AddOp::create(builder, loc, a, b);
    break;
  case 2:
    y = SubOp::create(builder, loc, a, b);
    break;
  case 3:
    // Products grow: one factor is bounded.
    y = MulOp::create(builder, loc, a, TanhOp::create(builder, loc, b));
    break;
  case 4:
    y = MulOp::create(builder, loc, SigmoidOp::create(builder, loc, a), b);
    break;
  case 5:
    y = MaximumOp::create(builder, loc, a, b);
    break;
  default:
    y = MinimumOp::create(builder, loc, a, b);
    break;
  }
  keep(y, item.batchDim);
}

/// A residual connection around a small branch.
void Generator::addSkip() {
  Item item = pick();
  if (item.batchDim == item.rank() - 1)
    return;
  int64_t inner = rng.integer(1, 8);
  if (size(item.shape()) / item.last() * inner > kLargest)
    return;
  Value up = LinearOp::create(builder, loc, item.value,
                              weight(inner, item.last()), Value());
  Value active = GeluOp::create(builder, loc, up, rng.chance(0.5));
  Value down = LinearOp::create(builder, loc, active,
                                weight(item.last(), inner), Value());
  keep(AddOp::create(builder, loc, item.value, down), item.batchDim);
}

void Generator::addSelect() {
  Item item = pick();
  Value other = partner(item);
  Value condition = CompareOp::create(
      builder, loc, rng.chance(0.5) ? Predicate::lt : Predicate::ge, item.value,
      partner(item));
  if (rng.chance(0.4))
    condition = NotOp::create(builder, loc, condition);
  if (rng.chance(0.3))
    condition = OrOp::create(
        builder, loc, condition,
        CompareOp::create(builder, loc, Predicate::gt, other, splat(0.3)));
  keep(SelectOp::create(builder, loc, condition, item.value, other),
       item.batchDim);
}

void Generator::addDropout() {
  if (!options.dropout)
    return;
  Item item = pick();
  keep(DropoutOp::create(builder, loc, item.value, rngArgument(), Value(),
                         Value(),
                         builder.getF64FloatAttr(rng.uniform(0.05, 0.6)),
                         builder.getI64IntegerAttr(dropouts++),
                         DenseI64ArrayAttr(), IntegerAttr()),
       item.batchDim);
}

void Generator::addCast() {
  Item item = pick();
  auto type = cast<RankedTensorType>(item.value.getType());
  auto cast = [&](Value value, Type to) -> Value {
    return CastOp::create(builder, loc,
                          RankedTensorType::get(type.getShape(), to), value);
  };
  Value y;
  if (rng.chance(0.5)) {
    Value wide = cast(item.value, builder.getF64Type());
    y = cast(MulOp::create(builder, loc, wide, wide), element);
    y = TanhOp::create(builder, loc, y);
  } else {
    Value flag =
        CompareOp::create(builder, loc, Predicate::gt, item.value, splat(0.0));
    y = MulOp::create(builder, loc, cast(flag, element), item.value);
  }
  keep(y, item.batchDim);
}

//===----------------------------------------------------------------------===//
// Contractions, norms
//===----------------------------------------------------------------------===//

void Generator::addLinear() {
  Item item = pick();
  if (item.batchDim == item.rank() - 1)
    return;
  int64_t outputs = rng.integer(1, 8);
  if (size(item.shape()) / item.last() * outputs > kLargest)
    return;
  Value bias = rng.chance(0.5) ? parameter({outputs}) : Value();
  keep(LinearOp::create(builder, loc, item.value, weight(outputs, item.last()),
                        bias),
       item.batchDim);
}

void Generator::addContract() {
  if (rng.chance(0.5)) {
    // Two batched operands, as in attention scores and mixtures.
    Item a = sequence(pick()), b = sequence(pick());
    Value scale = splat(1.0 / std::sqrt(double(a.last())));
    if (a.last() == b.last())
      keep(ContractOp::create(builder, loc, "bsh,bth->bst",
                              MulOp::create(builder, loc, a.value, scale),
                              b.value),
           0);
    else if (a.shape()[1] == b.shape()[1] &&
             options.batch * a.last() * b.last() <= kLargest)
      keep(TanhOp::create(builder, loc,
                          ContractOp::create(builder, loc, "bsh,bsk->bhk",
                                             a.value, b.value)),
           0);
    return;
  }
  Item item = sequence(pick());
  int64_t count = rng.integer(1, 3), channels = rng.integer(1, 4);
  Value w = parameter({item.last(), count, channels}, 0,
                      1.0 / std::sqrt(double(item.last())));
  bool batchInside = rng.chance(0.3);
  keep(ContractOp::create(builder, loc,
                          batchInside ? "bsh,had->asbd" : "bsh,had->basd",
                          item.value, w),
       batchInside ? 2 : 0);
}

void Generator::addNorm() {
  Item item = pick();
  if (item.batchDim == item.rank() - 1)
    return;
  auto vector = [&](double mean) {
    return rng.chance(0.8) ? parameter({item.last()}, mean, 0.2) : Value();
  };
  auto epsilon = builder.getF64FloatAttr(rng.chance(0.5) ? 1e-2 : 1e-1);
  if (rng.chance(0.5))
    keep(LayerNormOp::create(builder, loc, item.value, vector(1), vector(0),
                             epsilon)
             .getOutput(),
         item.batchDim);
  else
    keep(RmsNormOp::create(builder, loc, item.value, vector(1), epsilon)
             .getOutput(),
         item.batchDim);
}

void Generator::addSoftmax() {
  Item item = pick();
  if (item.batchDim == item.rank() - 1)
    return;
  keep(SoftmaxOp::create(builder, loc, item.value, rng.chance(0.3)),
       item.batchDim);
}

//===----------------------------------------------------------------------===//
// Layout ops
//===----------------------------------------------------------------------===//

void Generator::addReshape() {
  Item item = pick();
  Shape shape(item.shape());
  int64_t last = item.rank() - 1, batch = item.batchDim;
  switch (rng.integer(0, 3)) {
  case 0: // split the last dimension
    if (batch == last)
      return;
    for (int64_t factor : {2, 3})
      if (shape[last] % factor == 0) {
        shape[last] /= factor;
        shape.push_back(factor);
        break;
      }
    break;
  case 1: // merge positions into the samples, which stay the major part
    if (batch == last || batch < 0)
      return;
    shape[batch] *= shape[batch + 1];
    shape.erase(shape.begin() + batch + 1);
    break;
  case 2: // merge the last two
    if (last < 1 || batch >= last - 1)
      return;
    shape[last - 1] *= shape[last];
    shape.pop_back();
    break;
  default: // a dimension of size 1
    if (shape.size() < 5)
      shape.push_back(1);
    break;
  }
  if (shape.size() <= 5)
    keep(reshape(item.value, shape), batch);
}

void Generator::addTranspose() {
  Item item = pick();
  Shape order;
  for (int64_t dim = 0; dim < item.rank(); ++dim)
    order.insert(order.begin() + rng.integer(0, dim), dim);
  int64_t batch = llvm::find(order, item.batchDim) - order.begin();
  keep(TransposeOp::create(builder, loc, item.value, order),
       item.batchDim < 0 ? -1 : batch);
}

void Generator::addReduce() {
  Item item = pick();
  Shape dims;
  int64_t batch = item.batchDim;
  for (int64_t dim = 0; dim < item.rank(); ++dim)
    if (dim != item.batchDim && rng.chance(0.5)) {
      dims.push_back(dim);
      batch -= dim < item.batchDim;
    }
  if (dims.empty() || static_cast<int64_t>(dims.size()) == item.rank())
    return;
  ReductionKind kind = rng.chance(0.6)   ? ReductionKind::Sum
                       : rng.chance(0.5) ? ReductionKind::Max
                                         : ReductionKind::Min;
  Value y = ReduceOp::create(builder, loc, kind, item.value, dims);
  if (kind == ReductionKind::Sum) {
    int64_t count =
        size(item.shape()) / std::max<int64_t>(1, size(Item{y, batch}.shape()));
    y = MulOp::create(builder, loc, y, splat(1.0 / double(count)));
  }
  keep(y, batch);
}

void Generator::addSliceOrPad() {
  Item item = pick();
  Shape first, second, third;
  bool slice = rng.chance(0.5);
  for (int64_t dim = 0; dim < item.rank(); ++dim) {
    int64_t n = item.shape()[dim];
    bool whole = dim == item.batchDim || rng.chance(0.4);
    if (slice) {
      int64_t offset = whole ? 0 : rng.integer(0, n - 1);
      int64_t stride = whole ? 1 : rng.integer(1, 2);
      first.push_back(offset);
      second.push_back(whole ? n
                             : rng.integer(1, (n - 1 - offset) / stride + 1));
      third.push_back(stride);
    } else {
      first.push_back(whole ? 0 : rng.integer(0, 1));
      second.push_back(whole ? 0 : rng.integer(0, 1));
      third.push_back(whole ? 0 : rng.integer(0, 1));
    }
  }
  if (slice)
    keep(SliceOp::create(builder, loc, item.value, first, second, third),
         item.batchDim);
  else if (size(item.shape()) * 4 <= kLargest)
    keep(PadOp::create(builder, loc, item.value,
                       builder.getF64FloatAttr(rng.integer(-1, 1)),
                       builder.getDenseI64ArrayAttr(first),
                       builder.getDenseI64ArrayAttr(second),
                       builder.getDenseI64ArrayAttr(third)),
         item.batchDim);
}

void Generator::addConcat() {
  Item item = pick(), other = pick();
  if (item.rank() != other.rank() || item.batchDim != other.batchDim)
    other = item;
  int64_t dim = rng.integer(0, item.rank() - 1);
  bool fits = dim != item.batchDim;
  for (int64_t i = 0; i < item.rank(); ++i)
    fits &= i == dim || item.shape()[i] == other.shape()[i];
  if (!fits || size(item.shape()) + size(other.shape()) > kLargest)
    return;
  keep(ConcatOp::create(builder, loc, ValueRange{item.value, other.value}, dim),
       item.batchDim);
}

void Generator::addCumulativeSum() {
  Item item = pick();
  int64_t dim = rng.integer(0, item.rank() - 1);
  if (dim == item.batchDim || item.shape()[dim] > 16)
    return;
  Value scaled = MulOp::create(builder, loc, item.value,
                               splat(1.0 / double(item.shape()[dim])));
  keep(CumulativeSumOp::create(builder, loc, scaled, dim, rng.chance(0.5)),
       item.batchDim);
}

/// Chosen slices along a dimension that holds no samples.
void Generator::addGather() {
  Item item = pick();
  int64_t dim = rng.integer(0, item.rank() - 1);
  if (dim == item.batchDim)
    return;
  SmallVector<int64_t> indices;
  for (int64_t i = 0, e = rng.integer(1, 4); i < e; ++i)
    indices.push_back(rng.integer(0, item.shape()[dim] - 1));
  auto type =
      RankedTensorType::get({int64_t(indices.size())}, builder.getI64Type());
  Value index = ConstantOp::create(
      builder, loc, DenseElementsAttr::get(type, ArrayRef(indices)));
  keep(GatherOp::create(builder, loc, item.value, index, /*origin=*/Value(),
                        builder.getI64IntegerAttr(dim), IntegerAttr(),
                        IntegerAttr(), builder.getI64IntegerAttr(0)),
       item.batchDim);
}

void Generator::addEmbedding() {
  Item item = startItem();
  keep(item.value, item.batchDim);
}

/// A convolution of an input image by windows and a contraction.
void Generator::addPatches() {
  int64_t channels = rng.integer(1, 2), kernel = rng.integer(1, 3),
          outputs = rng.integer(1, 4);
  Value image =
      input({options.batch, channels, rng.integer(3, 6), rng.integer(3, 6)},
            element, [&] { return rng.normal(); });
  // An activation before it, so that the gradient of the windows is needed too.
  if (rng.chance(0.7))
    image = MulOp::create(builder, loc, image, parameter({channels, 1, 1}, 1));
  int64_t stride = rng.integer(1, 3), padding = rng.integer(0, 1);
  Value windows = PatchesOp::create(builder, loc, image, Shape{kernel, kernel},
                                    Shape{stride, stride},
                                    Shape{padding, padding}, Shape{1, 1});
  Value w = parameter({outputs, channels, kernel, kernel}, 0, 0.3);
  keep(ContractOp::create(builder, loc, "nhwcij,ocij->nohw", windows, w), 0);
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

void Generator::addAttention() {
  Item from = sequence(pick());
  Item to = rng.chance(0.7) ? from : sequence(pick());
  int64_t groups = rng.integer(1, 2), count = groups * rng.integer(1, 2);
  int64_t channels = 2 * rng.integer(1, 2), outer = rng.integer(1, 4);
  int64_t queries = from.shape()[1], keys = to.shape()[1];
  Value q = heads(from, count, channels), k = heads(to, groups, channels),
        v = heads(to, groups, outer);
  if (queries == keys && rng.chance(0.4)) {
    Shape table{queries, channels};
    Value cosines = argument(("c" + Twine(names++)).str(), "buffer", table,
                             element, [&] { return rng.uniform(-1, 1); });
    Value sines = argument(("c" + Twine(names++)).str(), "buffer", table,
                           element, [&] { return rng.uniform(-1, 1); });
    bool interleaved = rng.chance(0.5);
    q = RopeOp::create(builder, loc, q, cosines, sines, interleaved, false);
    k = RopeOp::create(builder, loc, k, cosines, sines, interleaved, false);
  }
  Value bias, mask, segments, state;
  if (rng.chance(0.3))
    bias = parameter(
        {rng.chance(0.5) ? count : 1, rng.chance(0.7) ? queries : 1, keys});
  if (rng.chance(0.3))
    mask = input({options.batch, 1, rng.chance(0.4) ? queries : 1, keys},
                 builder.getI1Type(), [&] { return double(rng.chance(0.8)); });
  if (queries == keys && rng.chance(0.2))
    segments = input({options.batch, queries}, builder.getI64Type(),
                     [&] { return double(rng.integer(0, 1)); });
  double dropout = 0;
  if (options.dropout && rng.chance(0.3)) {
    dropout = rng.uniform(0.05, 0.5);
    state = rngArgument();
  }
  IntegerAttr window;
  if (rng.chance(0.2))
    window = builder.getI64IntegerAttr(rng.integer(1, 4));
  Value output = AttentionOp::create(
                     builder, loc, q, k, v, bias, mask, segments, state,
                     Value(), Value(), Value(), Value(), Value(), Value(),
                     builder.getF64FloatAttr(1.0 / std::sqrt(double(channels))),
                     rng.chance(0.5) ? builder.getUnitAttr() : UnitAttr(),
                     window, builder.getF64FloatAttr(dropout),
                     builder.getI64IntegerAttr(dropouts++), DenseI64ArrayAttr(),
                     builder.getI64IntegerAttr(1), builder.getI64IntegerAttr(0),
                     TypeAttr())
                     .getOutput();
  Value merged = TransposeOp::create(builder, loc, output, Shape{0, 2, 1, 3});
  keep(reshape(merged, {options.batch, queries, count * outer}), 0);
}

/// A value that depends on parameters alone, used by broadcasting.
void Generator::addParameterOnly() {
  Item item = pick();
  if (item.batchDim < 0 || item.batchDim == item.rank() - 1)
    return;
  Value w = parameter({item.last(), item.last()}, 0, 0.5);
  if (rng.chance(0.5))
    w = SoftmaxOp::create(builder, loc, w, false);
  if (rng.chance(0.5))
    w = TransposeOp::create(builder, loc, w, Shape{1, 0});
  keep(LinearOp::create(builder, loc, item.value, w, Value()), item.batchDim);
}
