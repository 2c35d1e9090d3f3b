//===- Elementwise.cpp - Element-wise ops ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Models.h"
#include "cleave/Interpreter/Philox.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

//===----------------------------------------------------------------------===//
// Scalar functions
//===----------------------------------------------------------------------===//

// Selects the overloads for doubles of functions of the standard library.
static double absolute(double x) { return std::fabs(x); }
static double exponential(double x) { return std::exp(x); }
static double logarithm(double x) { return std::log(x); }
static double exponentialLess1(double x) { return std::expm1(x); }
static double logarithmOf1Plus(double x) { return std::log1p(x); }
static double squareRoot(double x) { return std::sqrt(x); }
static double sine(double x) { return std::sin(x); }
static double cosine(double x) { return std::cos(x); }
static double tangentH(double x) { return std::tanh(x); }
static double errorFunction(double x) { return std::erf(x); }
static double roundDown(double x) { return std::floor(x); }
static double power(double a, double b) { return std::pow(a, b); }

static double same(double x) { return x; }
static double neg(double x) { return -x; }
static double rsqrt(double x) { return 1.0 / std::sqrt(x); }
static double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }
static double relu(double x) { return std::isnan(x) || x > 0 ? x : 0.0; }
static double add(double a, double b) { return a + b; }
static double sub(double a, double b) { return a - b; }
static double mul(double a, double b) { return a * b; }
static double div(double a, double b) { return a / b; }
static double rest(double a, double b) { return std::fmod(a, b); }
static double maximum(double a, double b) {
  return std::isnan(a) ? a : std::isnan(b) ? b : std::max(a, b);
}
static double minimum(double a, double b) {
  return std::isnan(a) ? a : std::isnan(b) ? b : std::min(a, b);
}

// Integers are computed modulo 2^64, without undefined overflow.
static int64_t negInt(int64_t x) { return int64_t(0 - uint64_t(x)); }
static int64_t absInt(int64_t x) { return x < 0 ? negInt(x) : x; }
static int64_t addInt(int64_t a, int64_t b) {
  return int64_t(uint64_t(a) + uint64_t(b));
}
static int64_t subInt(int64_t a, int64_t b) {
  return int64_t(uint64_t(a) - uint64_t(b));
}
static int64_t mulInt(int64_t a, int64_t b) {
  return int64_t(uint64_t(a) * uint64_t(b));
}
static int64_t maxInt(int64_t a, int64_t b) { return std::max(a, b); }
static int64_t minInt(int64_t a, int64_t b) { return std::min(a, b); }
static int64_t andBool(int64_t a, int64_t b) { return a & b; }
static int64_t orBool(int64_t a, int64_t b) { return a | b; }

static constexpr double kSqrtHalf = 0.70710678118654752440;
static constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
static constexpr double kInverseSqrtTwoPi = 0.39894228040143267794;
static constexpr double kGeluCubic = 0.044715;

static double gelu(double x, bool tanhForm) {
  if (!tanhForm)
    return 0.5 * x * std::erfc(-x * kSqrtHalf);
  double inner = kSqrtTwoOverPi * (x + kGeluCubic * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(inner));
}

static double geluDerivative(double x, bool tanhForm) {
  if (!tanhForm)
    return 0.5 * std::erfc(-x * kSqrtHalf) +
           x * kInverseSqrtTwoPi * std::exp(-0.5 * x * x);
  double inner = kSqrtTwoOverPi * (x + kGeluCubic * x * x * x);
  double t = std::tanh(inner);
  double slope = kSqrtTwoOverPi * (1.0 + 3.0 * kGeluCubic * x * x);
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope;
}

//===----------------------------------------------------------------------===//
// Loops over elements
//===----------------------------------------------------------------------===//

/// Calls `fn(i)` for each element of the result.
template <typename Fn> static LogicalResult map(Results results, Fn fn) {
  int64_t size = results[0].size();
  for (int64_t i = 0; i < size; ++i)
    fn(i);
  return success();
}

/// Calls `fn(i, a, b)` with the offsets in both operands, broadcast.
template <typename Fn>
static LogicalResult map2(const RefArgs &args, Results results, Fn fn) {
  ArrayRef<int64_t> shape = results[0].shape;
  forEachIndex<2>(
      shape,
      {broadcastStrides(args[0], shape), broadcastStrides(args[1], shape)},
      [&](int64_t i, const std::array<int64_t, 2> &at) {
        fn(i, at[0], at[1]);
      });
  return success();
}

template <typename OpTy, double (*fn)(double)>
static LogicalResult unary(OpTy, const RefArgs &args, Results results,
                           ReferenceContext &) {
  return map(results,
             [&](int64_t i) { results[0].floats[i] = fn(args[0].floats[i]); });
}

/// A unary op of floats and of integers.
template <typename OpTy, double (*fn)(double), int64_t (*intFn)(int64_t)>
static LogicalResult unaryNumber(OpTy op, const RefArgs &args, Results results,
                                 ReferenceContext &context) {
  if (args[0].isFloat())
    return unary<OpTy, fn>(op, args, results, context);
  return map(results,
             [&](int64_t i) { results[0].ints[i] = intFn(args[0].ints[i]); });
}

template <typename OpTy, double (*fn)(double, double)>
static LogicalResult binary(OpTy, const RefArgs &args, Results results,
                            ReferenceContext &) {
  return map2(args, results, [&](int64_t i, int64_t a, int64_t b) {
    results[0].floats[i] = fn(args[0].floats[a], args[1].floats[b]);
  });
}

template <typename OpTy, int64_t (*fn)(int64_t, int64_t)>
static LogicalResult binaryInt(OpTy, const RefArgs &args, Results results,
                               ReferenceContext &) {
  return map2(args, results, [&](int64_t i, int64_t a, int64_t b) {
    results[0].ints[i] = fn(args[0].ints[a], args[1].ints[b]);
  });
}

/// A binary op of floats and of integers.
template <typename OpTy, double (*fn)(double, double),
          int64_t (*intFn)(int64_t, int64_t)>
static LogicalResult binaryNumber(OpTy op, const RefArgs &args, Results results,
                                  ReferenceContext &context) {
  if (args[0].isFloat())
    return binary<OpTy, fn>(op, args, results, context);
  return binaryInt<OpTy, intFn>(op, args, results, context);
}

//===----------------------------------------------------------------------===//
// Other ops
//===----------------------------------------------------------------------===//

static LogicalResult divide(DivOp op, const RefArgs &args, Results results,
                            ReferenceContext &context) {
  if (args[0].isFloat())
    return binary<DivOp, div>(op, args, results, context);
  if (results[0].size() != 0 && llvm::is_contained(args[1].ints, 0))
    return op.emitOpError("divides an integer by zero");
  return map2(args, results, [&](int64_t i, int64_t a, int64_t b) {
    int64_t x = args[0].ints[a], y = args[1].ints[b];
    results[0].ints[i] = y == -1 ? negInt(x) : x / y;
  });
}

static LogicalResult evaluateRem(RemOp op, const RefArgs &args, Results results,
                                 ReferenceContext &context) {
  if (args[0].isFloat())
    return binary<RemOp, rest>(op, args, results, context);
  if (results[0].size() != 0 && llvm::is_contained(args[1].ints, 0))
    return op.emitOpError("divides an integer by zero");
  return map2(args, results, [&](int64_t i, int64_t a, int64_t b) {
    int64_t x = args[0].ints[a], y = args[1].ints[b];
    results[0].ints[i] = y == -1 ? 0 : x % y;
  });
}

static LogicalResult evaluateNot(NotOp, const RefArgs &args, Results results,
                                 ReferenceContext &) {
  return map(results,
             [&](int64_t i) { results[0].ints[i] = !args[0].ints[i]; });
}

static LogicalResult evaluateGelu(GeluOp op, const RefArgs &args,
                                  Results results, ReferenceContext &) {
  return map(results, [&](int64_t i) {
    results[0].floats[i] = gelu(args[0].floats[i], op.getTanh());
  });
}

static LogicalResult evaluateGeluGrad(GeluGradOp op, const RefArgs &args,
                                      Results results, ReferenceContext &) {
  return map(results, [&](int64_t i) {
    results[0].floats[i] =
        args[0].floats[i] * geluDerivative(args[1].floats[i], op.getTanh());
  });
}

template <typename T> static bool compare(Predicate predicate, T a, T b) {
  switch (predicate) {
  case Predicate::eq:
    return a == b;
  case Predicate::ne:
    return a != b;
  case Predicate::lt:
    return a < b;
  case Predicate::le:
    return a <= b;
  case Predicate::gt:
    return a > b;
  case Predicate::ge:
    return a >= b;
  }
  return false;
}

static LogicalResult evaluateCompare(CompareOp op, const RefArgs &args,
                                     Results results, ReferenceContext &) {
  return map2(args, results, [&](int64_t i, int64_t a, int64_t b) {
    results[0].ints[i] =
        args[0].isFloat()
            ? compare(op.getPredicate(), args[0].floats[a], args[1].floats[b])
            : compare(op.getPredicate(), args[0].ints[a], args[1].ints[b]);
  });
}

static LogicalResult evaluateSelect(SelectOp op, const RefArgs &args,
                                    Results results, ReferenceContext &) {
  ArrayRef<int64_t> shape = results[0].shape;
  forEachIndex<3>(shape,
                  {broadcastStrides(args[0], shape),
                   broadcastStrides(args[1], shape),
                   broadcastStrides(args[2], shape)},
                  [&](int64_t i, const std::array<int64_t, 3> &at) {
                    bool condition = args[0].ints[at[0]];
                    results[0].copyElement(i, args[condition ? 1 : 2],
                                           at[condition ? 1 : 2]);
                  });
  return success();
}

static LogicalResult evaluateCast(CastOp op, const RefArgs &args,
                                  Results results, ReferenceContext &) {
  const RefTensor &from = args[0];
  RefTensor &to = results[0];
  return map(results, [&](int64_t i) {
    if (from.isFloat() && to.isFloat())
      to.floats[i] = from.floats[i];
    else if (from.isFloat())
      to.ints[i] = truncateTo(to.element, from.floats[i]);
    else if (to.isFloat())
      to.floats[i] = static_cast<double>(from.ints[i]);
    else
      to.ints[i] = to.element.isInteger(1) ? from.ints[i] != 0 : from.ints[i];
  });
}

static LogicalResult evaluateIota(IotaOp op, const RefArgs &, Results results,
                                  ReferenceContext &) {
  RefTensor &output = results[0];
  int64_t inner = output.strides()[op.getDim()];
  int64_t count = output.shape[op.getDim()];
  return map(results, [&](int64_t i) {
    int64_t value = addInt(op.getStart(), i / inner % count);
    if (output.isFloat())
      output.floats[i] = static_cast<double>(value);
    else
      output.ints[i] = value;
  });
}

static double toDouble(const APFloat &value) {
  APFloat copy = value;
  bool losesInfo;
  copy.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &losesInfo);
  return copy.convertToDouble();
}

static int64_t toInt(const APInt &value) {
  return value.getBitWidth() == 1 ? value.getZExtValue() : value.getSExtValue();
}

static LogicalResult evaluateConstant(ConstantOp op, const RefArgs &,
                                      Results results, ReferenceContext &) {
  RefTensor &output = results[0];
  auto elements = dyn_cast<ElementsAttr>(op.getValue());
  if (output.isFloat()) {
    if (auto values = elements.tryGetValues<APFloat>()) {
      for (auto [i, value] : llvm::enumerate(*values))
        output.floats[i] = toDouble(value);
      return success();
    }
  } else if (auto values = elements.tryGetValues<APInt>()) {
    for (auto [i, value] : llvm::enumerate(*values))
      output.ints[i] = toInt(value);
    return success();
  }
  return op.emitOpError("holds its elements in a form that cannot be read (")
         << op.getValue().getAbstractAttribute().getName()
         << "); use dense<...>";
}

double cleave::dropoutFactor(const RefTensor &rng, int64_t id,
                             double probability, int64_t index) {
  bool kept = randomDraw(rng.ints[0], rng.ints[1], id, index) >=
              dropThreshold(probability);
  return kept ? 1.0 / (1.0 - probability) : 0.0;
}

/// Calls `fn` with the index of each element in the result and in the global
/// tensor. The result is a slice that begins at `origin`; along `dim`, each
/// piece begins at its own index if `starts` is given.
template <typename Op, typename Fn>
static void forEachDraw(Op op, const RefArgs &args, const RefTensor &result,
                        const RefTensor *starts, int64_t dim, Fn fn) {
  SmallVector<int64_t, 4> global = result.strides();
  if (op.getGlobalShape())
    global =
        RefTensor(*op.getGlobalShape(), args[op.getRng()].element).strides();
  int64_t first = 0, piece = 1;
  if (Value origin = op.getOrigin())
    for (auto [offset, stride] : llvm::zip_equal(args[origin].ints, global))
      first += offset * stride;
  SmallVector<int64_t, 4> along(result.shape.size(), 0), own = global;
  if (starts) {
    piece = result.shape[dim] / starts->shape[0];
    along[dim] = 1;
    own[dim] = 0;
  }
  forEachIndex<2>(result.shape, {own, along},
                  [&](int64_t i, const std::array<int64_t, 2> &at) {
                    int64_t index = first + at[0];
                    if (starts)
                      index += (starts->ints[at[1] / piece] + at[1] % piece) *
                               global[dim];
                    fn(i, index);
                  });
}

static LogicalResult evaluateDropout(DropoutOp op, const RefArgs &args,
                                     Results results, ReferenceContext &) {
  const RefTensor &input = args[op.getInput()], &rng = args[op.getRng()];
  double probability = op.getProbability().convertToDouble();
  forEachDraw(op, args, results[0], args.lookup(op.getStarts()),
              op.getStartsDim().value_or(0), [&](int64_t i, int64_t global) {
                results[0].floats[i] =
                    input.floats[i] *
                    dropoutFactor(rng, op.getId(), probability, global);
              });
  return success();
}

static LogicalResult evaluateUniform(UniformOp op, const RefArgs &args,
                                     Results results, ReferenceContext &) {
  const RefTensor &rng = args[op.getRng()];
  forEachDraw(op, args, results[0], nullptr, 0, [&](int64_t i, int64_t global) {
    uint32_t draw = randomDraw(rng.ints[0], rng.ints[1], op.getId(), global);
    results[0].floats[i] = std::ldexp(double(draw >> 8), -24);
  });
  return success();
}

void cleave::attachElementwiseModels(MLIRContext *c) {
  ReferenceModel<ConstantOp, evaluateConstant>::attach(c);
  ReferenceModel<IotaOp, evaluateIota>::attach(c);

  ReferenceModel<NegOp, unaryNumber<NegOp, neg, negInt>>::attach(c);
  ReferenceModel<AbsOp, unaryNumber<AbsOp, absolute, absInt>>::attach(c);
  ReferenceModel<ExpOp, unary<ExpOp, exponential>>::attach(c);
  ReferenceModel<Expm1Op, unary<Expm1Op, exponentialLess1>>::attach(c);
  ReferenceModel<LogOp, unary<LogOp, logarithm>>::attach(c);
  ReferenceModel<Log1pOp, unary<Log1pOp, logarithmOf1Plus>>::attach(c);
  ReferenceModel<SqrtOp, unary<SqrtOp, squareRoot>>::attach(c);
  ReferenceModel<RsqrtOp, unary<RsqrtOp, rsqrt>>::attach(c);
  ReferenceModel<SinOp, unary<SinOp, sine>>::attach(c);
  ReferenceModel<CosOp, unary<CosOp, cosine>>::attach(c);
  ReferenceModel<TanhOp, unary<TanhOp, tangentH>>::attach(c);
  ReferenceModel<ErfOp, unary<ErfOp, errorFunction>>::attach(c);
  ReferenceModel<SigmoidOp, unary<SigmoidOp, sigmoid>>::attach(c);
  ReferenceModel<SiluOp, unary<SiluOp, silu>>::attach(c);
  ReferenceModel<ReluOp, unary<ReluOp, relu>>::attach(c);
  ReferenceModel<FloorOp, unary<FloorOp, roundDown>>::attach(c);
  ReferenceModel<StopGradientOp, unary<StopGradientOp, same>>::attach(c);
  ReferenceModel<GeluOp, evaluateGelu>::attach(c);
  ReferenceModel<GeluGradOp, evaluateGeluGrad>::attach(c);
  ReferenceModel<CastOp, evaluateCast>::attach(c);

  ReferenceModel<AddOp, binaryNumber<AddOp, add, addInt>>::attach(c);
  ReferenceModel<SubOp, binaryNumber<SubOp, sub, subInt>>::attach(c);
  ReferenceModel<MulOp, binaryNumber<MulOp, mul, mulInt>>::attach(c);
  ReferenceModel<DivOp, divide>::attach(c);
  ReferenceModel<RemOp, evaluateRem>::attach(c);
  ReferenceModel<MaximumOp, binaryNumber<MaximumOp, maximum, maxInt>>::attach(
      c);
  ReferenceModel<MinimumOp, binaryNumber<MinimumOp, minimum, minInt>>::attach(
      c);
  ReferenceModel<PowOp, binary<PowOp, power>>::attach(c);
  ReferenceModel<AndOp, binaryInt<AndOp, andBool>>::attach(c);
  ReferenceModel<OrOp, binaryInt<OrOp, orBool>>::attach(c);
  ReferenceModel<CompareOp, evaluateCompare>::attach(c);
  ReferenceModel<SelectOp, evaluateSelect>::attach(c);
  ReferenceModel<DropoutOp, evaluateDropout>::attach(c);
  ReferenceModel<UniformOp, evaluateUniform>::attach(c);
  ReferenceModel<NotOp, evaluateNot>::attach(c);
}
