//===- Evaluation.cpp - The elements that an op computes ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Evaluation.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/TypeSwitch.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

using Result = std::unique_ptr<Elements>;
using Inputs = ArrayRef<const Elements *>;

std::unique_ptr<Elements> cleave::graph::elementsOf(DenseElementsAttr value) {
  ShapedType type = value.getType();
  SmallVector<int64_t> stored(type.getShape());
  if (value.isSplat() && type.getNumElements() > 0)
    llvm::fill(stored, 1);
  auto result = std::make_unique<Elements>(type.getShape(), stored,
                                           type.getElementType());
  auto isFloat = isa<FloatType>(type.getElementType());
  auto set = [&](size_t i) {
    if (isFloat) {
      APFloat number = value.getValues<APFloat>()[i];
      bool loses;
      number.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven,
                     &loses);
      result->set(i, number.convertToDouble());
    } else {
      APInt number = value.getValues<APInt>()[i];
      result->set(i, number.getBitWidth() == 1
                         ? static_cast<int64_t>(number.getZExtValue())
                         : number.getSExtValue());
    }
  };
  for (size_t i = 0; i < result->size(); ++i)
    set(i);
  return result;
}

//===----------------------------------------------------------------------===//
// Walks
//===----------------------------------------------------------------------===//

/// Calls `body` for all indices of `shape` in order, with the number of the
/// index and, for each list of strides, the sum of strides times index.
template <typename Body>
static void forEach(ArrayRef<int64_t> shape,
                    ArrayRef<SmallVector<int64_t>> strides, Body body) {
  if (llvm::is_contained(shape, 0))
    return;
  SmallVector<int64_t> index(shape.size(), 0), at(strides.size(), 0);
  for (size_t i = 0;; ++i) {
    body(i, ArrayRef<int64_t>(at));
    int64_t dim = static_cast<int64_t>(shape.size()) - 1;
    for (; dim >= 0; --dim) {
      for (auto [offset, own] : llvm::zip(at, strides))
        offset += own[dim];
      if (++index[dim] < shape[dim])
        break;
      for (auto [offset, own] : llvm::zip(at, strides))
        offset -= own[dim] * shape[dim];
      index[dim] = 0;
    }
    if (dim < 0)
      return;
  }
}

static bool fits(ArrayRef<int64_t> shape, int64_t limit) {
  int64_t count = 1;
  for (int64_t size : shape)
    if ((count *= size) > limit)
      return false;
  return true;
}

static void copy(Elements &to, size_t i, const Elements &from, size_t j) {
  if (isa<FloatType>(from.getElement()))
    to.set(i, from.number(j));
  else
    to.set(i, from.integer(j));
}

/// Elements of `x` at `strides` from `offset`.
static Result moved(const Elements &x, ArrayRef<int64_t> shape,
                    ArrayRef<int64_t> stored, SmallVector<int64_t> strides,
                    int64_t offset = 0) {
  auto result = std::make_unique<Elements>(shape, stored, x.getElement());
  forEach(stored, {std::move(strides)}, [&](size_t i, ArrayRef<int64_t> at) {
    copy(*result, i, x, offset + at[0]);
  });
  return result;
}

/// `x` with each of its elements.
static Result whole(const Elements &x, int64_t limit) {
  if (!fits(x.getShape(), limit))
    return nullptr;
  return moved(x, x.getShape(), x.getShape(), x.stridesIn(x.getShape()));
}

/// The elements that `compute` gives of those of `inputs`, which it reads as
/// `In` and whose shapes broadcast to `shape`.
template <typename In, typename Compute>
static Result pointwise(Inputs inputs, ArrayRef<int64_t> shape, Type element,
                        int64_t limit, Compute compute) {
  SmallVector<int64_t> stored(shape.size(), 1);
  for (const Elements *x : inputs)
    for (auto [i, size] : llvm::enumerate(llvm::reverse(x->getStored())))
      if (size != 1)
        stored[shape.size() - 1 - i] = size;
  if (!fits(stored, limit))
    return nullptr;
  SmallVector<SmallVector<int64_t>> strides;
  for (const Elements *x : inputs)
    strides.push_back(x->stridesIn(shape));
  auto result = std::make_unique<Elements>(shape, stored, element);
  forEach(stored, strides, [&](size_t i, ArrayRef<int64_t> at) {
    In values[3] = {};
    for (auto [j, x] : llvm::enumerate(inputs))
      if constexpr (std::is_same_v<In, double>)
        values[j] = x->number(at[j]);
      else
        values[j] = x->integer(at[j]);
    result->set(i, compute(values));
  });
  return result;
}

Elements cleave::graph::bothOf(const Elements &a, const Elements &b) {
  SmallVector<int64_t> shape;
  size_t rank = std::max(a.getShape().size(), b.getShape().size());
  for (size_t i = 0; i < rank; ++i) {
    auto sizeOf = [&](const Elements &x) {
      size_t lead = rank - x.getShape().size();
      return i < lead ? 1 : x.getShape()[i - lead];
    };
    shape.push_back(sizeOf(a) == 1 ? sizeOf(b) : sizeOf(a));
  }
  return *pointwise<int64_t>({&a, &b}, shape, a.getElement(), INT64_MAX,
                             [](int64_t *x) { return int64_t(x[0] && x[1]); });
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

static double largest(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
}
static double smallest(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
}

/// An element-wise op on numbers of floats.
static double floatOf(Operation *op, const double *x) {
  return llvm::TypeSwitch<Operation *, double>(op)
      .Case([&](NegOp) { return -x[0]; })
      .Case([&](AbsOp) { return std::abs(x[0]); })
      .Case([&](ExpOp) { return std::exp(x[0]); })
      .Case([&](Expm1Op) { return std::expm1(x[0]); })
      .Case([&](LogOp) { return std::log(x[0]); })
      .Case([&](Log1pOp) { return std::log1p(x[0]); })
      .Case([&](SqrtOp) { return std::sqrt(x[0]); })
      .Case([&](RsqrtOp) { return 1 / std::sqrt(x[0]); })
      .Case([&](SinOp) { return std::sin(x[0]); })
      .Case([&](CosOp) { return std::cos(x[0]); })
      .Case([&](TanhOp) { return std::tanh(x[0]); })
      .Case([&](ErfOp) { return std::erf(x[0]); })
      .Case([&](SigmoidOp) { return 1 / (1 + std::exp(-x[0])); })
      .Case([&](SiluOp) { return x[0] / (1 + std::exp(-x[0])); })
      .Case([&](ReluOp) { return largest(x[0], 0); })
      .Case([&](FloorOp) { return std::floor(x[0]); })
      .Case([&](StopGradientOp) { return x[0]; })
      .Case([&](AddOp) { return x[0] + x[1]; })
      .Case([&](SubOp) { return x[0] - x[1]; })
      .Case([&](MulOp) { return x[0] * x[1]; })
      .Case([&](DivOp) { return x[0] / x[1]; })
      .Case([&](RemOp) { return std::fmod(x[0], x[1]); })
      .Case([&](MaximumOp) { return largest(x[0], x[1]); })
      .Case([&](MinimumOp) { return smallest(x[0], x[1]); })
      .Case([&](PowOp) { return std::pow(x[0], x[1]); })
      .Default([](Operation *) { return NAN; });
}

/// One on integers, as two's complement; nothing divides by 0.
static int64_t integerOf(Operation *op, const int64_t *x) {
  auto wrapped = [&](auto compute) {
    return static_cast<int64_t>(
        compute(static_cast<uint64_t>(x[0]), static_cast<uint64_t>(x[1])));
  };
  return llvm::TypeSwitch<Operation *, int64_t>(op)
      .Case([&](NegOp) { return wrapped([](auto a, auto) { return -a; }); })
      .Case([&](AbsOp) {
        return x[0] < 0 ? wrapped([](auto a, auto) { return -a; }) : x[0];
      })
      .Case([&](NotOp) { return int64_t(!x[0]); })
      .Case(
          [&](AddOp) { return wrapped([](auto a, auto b) { return a + b; }); })
      .Case(
          [&](SubOp) { return wrapped([](auto a, auto b) { return a - b; }); })
      .Case(
          [&](MulOp) { return wrapped([](auto a, auto b) { return a * b; }); })
      .Case([&](DivOp) { return x[1] == -1 ? -x[0] : x[0] / x[1]; })
      .Case([&](RemOp) { return x[1] == -1 ? 0 : x[0] % x[1]; })
      .Case([&](MaximumOp) { return std::max(x[0], x[1]); })
      .Case([&](MinimumOp) { return std::min(x[0], x[1]); })
      .Case([&](AndOp) { return int64_t(x[0] && x[1]); })
      .Case([&](OrOp) { return int64_t(x[0] || x[1]); })
      .Default([](Operation *) { return int64_t(0); });
}

template <typename T> static bool holds(Predicate predicate, T a, T b) {
  bool less = a<b, equal = a == b, greater = a> b;
  bool table[] = {equal,         !equal,  less,
                  less || equal, greater, greater || equal};
  return table[static_cast<size_t>(predicate)];
}

static Result elementwise(Operation *op, Inputs inputs, RankedTensorType type,
                          int64_t limit) {
  ArrayRef<int64_t> shape = type.getShape();
  Type element = type.getElementType();
  bool floats = isa<FloatType>(inputs.back()->getElement());
  if (auto compare = dyn_cast<CompareOp>(op)) {
    auto run = [&](auto number) {
      using In = decltype(number);
      return pointwise<In>(inputs, shape, element, limit, [&](In *x) {
        return int64_t(holds<In>(compare.getPredicate(), x[0], x[1]));
      });
    };
    return floats ? run(double()) : run(int64_t());
  }
  if (isa<SelectOp>(op)) {
    auto run = [&](auto number) {
      using In = decltype(number);
      return pointwise<In>(inputs, shape, element, limit,
                           [](In *x) { return x[0] != 0 ? x[1] : x[2]; });
    };
    return floats ? run(double()) : run(int64_t());
  }
  if (isa<CastOp>(op)) {
    if (!floats)
      return pointwise<int64_t>(inputs, shape, element, limit,
                                [](int64_t *x) { return x[0]; });
    return pointwise<double>(inputs, shape, element, limit, [&](double *x) {
      return element.isInteger(1) ? double(x[0] != 0) : x[0];
    });
  }
  if (floats)
    return pointwise<double>(inputs, shape, element, limit,
                             [&](double *x) { return floatOf(op, x); });
  if (isa<DivOp, RemOp>(op))
    for (size_t i = 0; i < inputs[1]->size(); ++i)
      if (inputs[1]->integer(i) == 0)
        return nullptr;
  return pointwise<int64_t>(inputs, shape, element, limit,
                            [&](int64_t *x) { return integerOf(op, x); });
}

static Result iotaOf(IotaOp op) {
  RankedTensorType type = tensorTypeOf(op.getOutput());
  SmallVector<int64_t> stored(type.getRank(), 1);
  int64_t dim = op.getDim();
  stored[dim] = type.getDimSize(dim);
  auto result = std::make_unique<Elements>(type.getShape(), stored,
                                           type.getElementType());
  for (int64_t i = 0; i < stored[dim]; ++i)
    result->set(i, static_cast<int64_t>(op.getStart()) + i);
  return result;
}

static Result reshaped(const Elements &x, ArrayRef<int64_t> shape,
                       int64_t limit) {
  SmallVector<int64_t> sizes, stored;
  for (auto [size, own] : llvm::zip(x.getShape(), x.getStored()))
    if (size != 1) {
      sizes.push_back(size);
      stored.push_back(own);
    }
  SmallVector<int64_t> kept;
  llvm::copy_if(shape, std::back_inserter(kept),
                [](int64_t size) { return size != 1; });
  Result source;
  const Elements *from = &x;
  SmallVector<int64_t> result(shape);
  if (kept == sizes) {
    // Only dimensions of size 1 come or go.
    size_t next = 0;
    for (int64_t &size : result)
      if (size != 1)
        size = stored[next++];
  } else {
    if (!(source = whole(x, limit)))
      return nullptr;
    from = source.get();
  }
  SmallVector<int64_t> strides(result.size(), 0);
  int64_t stride = 1;
  for (size_t i = result.size(); i-- > 0; stride *= result[i])
    strides[i] = result[i] == 1 ? 0 : stride;
  return moved(*from, shape, result, strides);
}

static Result transposed(TransposeOp op, const Elements &x) {
  SmallVector<int64_t> own = x.stridesIn(x.getShape()), stored, strides;
  for (int64_t dim : op.getPermutation()) {
    stored.push_back(x.getStored()[dim]);
    strides.push_back(own[dim]);
  }
  return moved(x, tensorTypeOf(op.getOutput()).getShape(), stored, strides);
}

static Result broadcasted(BroadcastOp op, const Elements &x) {
  ArrayRef<int64_t> shape = tensorTypeOf(op.getOutput()).getShape();
  SmallVector<int64_t> stored(shape.size() - x.getStored().size(), 1);
  llvm::append_range(stored, x.getStored());
  return moved(x, shape, stored, x.stridesIn(shape));
}

static Result sliced(SliceOp op, const Elements &x) {
  SmallVector<int64_t> strides = x.stridesIn(x.getShape());
  SmallVector<int64_t> stored(op.getSizes());
  int64_t offset = 0;
  for (size_t i = 0; i < stored.size(); ++i) {
    offset += op.getOffsets()[i] * strides[i];
    if (strides[i] == 0)
      stored[i] = std::min<int64_t>(stored[i], 1);
    strides[i] *= op.getStrides()[i];
  }
  return moved(x, op.getSizes(), stored, strides, offset);
}

/// Strides of a tensor that stores all elements.
static SmallVector<int64_t> denseStrides(ArrayRef<int64_t> shape) {
  SmallVector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i])
    strides[i] = stride;
  return strides;
}

/// Writes `x` to `result` at `strides` from `offset`.
static void place(Elements &result, const Elements &x,
                  SmallVector<int64_t> strides, int64_t offset) {
  forEach(x.getShape(), {std::move(strides), x.stridesIn(x.getShape())},
          [&](size_t, ArrayRef<int64_t> at) {
            copy(result, offset + at[0], x, at[1]);
          });
}

static Result padded(PadOp op, const Elements &x, int64_t limit) {
  ArrayRef<int64_t> shape = tensorTypeOf(op.getOutput()).getShape();
  if (!fits(shape, limit))
    return nullptr;
  for (auto [low, high] : llvm::zip(op.getLow(), op.getHigh()))
    if (low < 0 || high < 0)
      return nullptr;
  auto result = std::make_unique<Elements>(shape, shape, x.getElement());
  for (size_t i = 0; i < result->size(); ++i)
    result->set(i, op.getValue().convertToDouble());
  SmallVector<int64_t> strides = denseStrides(shape);
  int64_t offset = 0;
  for (size_t i = 0; i < strides.size(); ++i) {
    offset += op.getLow()[i] * strides[i];
    strides[i] *= op.getInterior()[i] + 1;
  }
  place(*result, x, strides, offset);
  return result;
}

static Result concatenated(ConcatOp op, Inputs inputs, int64_t limit) {
  ArrayRef<int64_t> shape = tensorTypeOf(op.getOutput()).getShape();
  if (!fits(shape, limit))
    return nullptr;
  auto result =
      std::make_unique<Elements>(shape, shape, inputs[0]->getElement());
  SmallVector<int64_t> strides = denseStrides(shape);
  int64_t dim = op.getDim(), begin = 0;
  for (const Elements *x : inputs) {
    place(*result, *x, strides, begin * strides[dim]);
    begin += x->getShape()[dim];
  }
  return result;
}

/// Combines the elements of the same `group` by `join`, in their order.
template <typename Number, typename Join>
static void accumulate(Elements &result, const Elements &x,
                       SmallVector<int64_t> group, Join join) {
  std::vector<bool> begun(result.size());
  std::vector<Number> sums(result.size());
  forEach(x.getShape(), {std::move(group), x.stridesIn(x.getShape())},
          [&](size_t, ArrayRef<int64_t> at) {
            Number own;
            if constexpr (std::is_same_v<Number, double>)
              own = x.number(at[1]);
            else
              own = x.integer(at[1]);
            sums[at[0]] = begun[at[0]] ? join(sums[at[0]], own) : own;
            begun[at[0]] = true;
          });
  for (size_t i = 0; i < result.size(); ++i)
    result.set(i, sums[i]);
}

static Result reduced(ReduceOp op, const Elements &x, int64_t limit) {
  ArrayRef<int64_t> shape = tensorTypeOf(op.getOutput()).getShape();
  if (!fits(x.getShape(), limit))
    return nullptr;
  auto result = std::make_unique<Elements>(shape, shape, x.getElement());
  SmallVector<int64_t> kept = denseStrides(shape), group;
  for (size_t i = 0, next = 0; i < x.getShape().size(); ++i)
    group.push_back(llvm::is_contained(op.getDims(), static_cast<int64_t>(i))
                        ? 0
                        : kept[next++]);
  ReductionKind kind = op.getKind();
  auto join = [kind](auto a, auto b) {
    if (kind == ReductionKind::Sum)
      return a + b;
    if constexpr (std::is_same_v<decltype(a), double>)
      return kind == ReductionKind::Max ? largest(a, b) : smallest(a, b);
    else
      return kind == ReductionKind::Max ? std::max(a, b) : std::min(a, b);
  };
  if (isa<FloatType>(x.getElement()))
    accumulate<double>(*result, x, group, join);
  else
    accumulate<int64_t>(*result, x, group, join);
  return result;
}

static Result cumulated(CumulativeSumOp op, const Elements &x, int64_t limit) {
  Result result = op.getReverse() ? nullptr : whole(x, limit);
  if (!result)
    return nullptr;
  SmallVector<int64_t> strides = denseStrides(x.getShape());
  int64_t dim = op.getDim(), stride = strides[dim], size = x.getShape()[dim];
  for (size_t i = 0; i < result->size(); ++i) {
    if (static_cast<int64_t>(i) / stride % size == 0)
      continue;
    if (isa<FloatType>(x.getElement()))
      result->set(i, result->number(i - stride) + result->number(i));
    else
      result->set(i, result->integer(i - stride) + result->integer(i));
  }
  return result;
}

static Result gathered(GatherOp op, Inputs inputs, int64_t limit) {
  ArrayRef<int64_t> shape = tensorTypeOf(op.getOutput()).getShape();
  const Elements &x = *inputs[0], &indices = *inputs[1];
  if (inputs.size() != 2 || op.getGlobalSize() || !fits(shape, limit))
    return nullptr;
  size_t dim = op.getDim(), batch = op.getBatch();
  size_t own = indices.getShape().size() - batch;
  SmallVector<int64_t> from = x.stridesIn(x.getShape()),
                       at = indices.stridesIn(indices.getShape());
  // Of the dimensions of the result: those before `dim` are of `x`, and the
  // first `batch` of them of the indices too; then come those of the indices.
  SmallVector<int64_t> ofInput(shape.size(), 0), ofIndex(shape.size(), 0);
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i < dim)
      ofInput[i] = from[i];
    else if (i >= dim + own)
      ofInput[i] = from[i - own + 1];
    if (i < batch)
      ofIndex[i] = at[i];
    else if (i >= dim && i < dim + own)
      ofIndex[i] = at[batch + i - dim];
  }
  auto result = std::make_unique<Elements>(shape, shape, x.getElement());
  bool inside = true;
  forEach(shape, {ofInput, ofIndex}, [&](size_t i, ArrayRef<int64_t> offset) {
    int64_t index = indices.integer(offset[1]);
    if (index < 0 || index >= x.getShape()[dim])
      inside = false;
    else
      copy(*result, i, x, offset[0] + index * from[dim]);
  });
  return inside ? std::move(result) : nullptr;
}

Result cleave::graph::evaluate(Operation *op, Inputs inputs, int64_t limit) {
  auto type = dyn_cast<RankedTensorType>(op->getResult(0).getType());
  if (!type || !type.hasStaticShape())
    return nullptr;
  if (isa<NegOp, AbsOp, ExpOp, Expm1Op, LogOp, Log1pOp, SqrtOp, RsqrtOp, SinOp,
          CosOp, TanhOp, ErfOp, SigmoidOp, SiluOp, ReluOp, FloorOp,
          StopGradientOp, NotOp, AddOp, SubOp, MulOp, DivOp, RemOp, MaximumOp,
          MinimumOp, PowOp, AndOp, OrOp, CompareOp, SelectOp, CastOp>(op))
    return elementwise(op, inputs, type, limit);
  return llvm::TypeSwitch<Operation *, Result>(op)
      .Case([&](ConstantOp constant) -> Result {
        auto value = dyn_cast<DenseElementsAttr>(constant.getValue());
        return value ? elementsOf(value) : nullptr;
      })
      .Case([&](IotaOp iota) { return iotaOf(iota); })
      .Case([&](ReshapeOp) {
        return reshaped(*inputs[0], type.getShape(), limit);
      })
      .Case([&](TransposeOp op) { return transposed(op, *inputs[0]); })
      .Case([&](BroadcastOp op) { return broadcasted(op, *inputs[0]); })
      .Case([&](SliceOp op) { return sliced(op, *inputs[0]); })
      .Case([&](PadOp op) { return padded(op, *inputs[0], limit); })
      .Case([&](ConcatOp op) { return concatenated(op, inputs, limit); })
      .Case([&](ReduceOp op) { return reduced(op, *inputs[0], limit); })
      .Case(
          [&](CumulativeSumOp op) { return cumulated(op, *inputs[0], limit); })
      .Case([&](GatherOp op) { return gathered(op, inputs, limit); })
      .Default([](Operation *) { return Result(); });
}
