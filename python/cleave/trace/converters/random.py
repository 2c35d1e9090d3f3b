# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Random numbers: dropout, and distributions computed from uniform numbers."""

from __future__ import annotations

import math

from .order import sorted_indices
from ..ir import TensorType, Value
from ..randomness import COUNT, STRIDE, Randomness
from ..registry import Unsupported, aten, converts

# Dropout ------------------------------------------------------------------------------


def with_dropout(c, x, probability):
    """Applies dropout with `probability` to `x`."""
    if not probability:
        return x
    if probability == 1:
        return c.b.full(0, x.type)
    if c.random is not Randomness.DRAWN:
        return x
    rng, site = c.new_random_op()
    return c.b.dropout(x, rng, probability, site)


@converts(aten.dropout.default)
def dropout(c, x, p, train):
    return with_dropout(c, x, p if train else 0)


@converts(aten.native_dropout.default)
def native_dropout(c, x, p, train):
    return (with_dropout(c, x, p if train or train is None else 0), None)


@converts(aten.feature_dropout.default)
def feature_dropout(c, x, p, train):
    if not train or not p or (p < 1 and c.random is not Randomness.DRAWN):
        return x
    ones = c.b.full(1, TensorType(x.shape[:2] + (1,) * (x.type.rank - 2), x.dtype))
    return c.b.binary("mul", x, with_dropout(c, ones, p))


# Uniform numbers ----------------------------------------------------------------------


def _uniform(c, type=None):
    """Draws numbers uniform in [0, 1) in the shape of the result, or of `type`, at least in f32."""
    b, type = c.b, c.type if type is None else type
    type = type.with_dtype("f64" if type.dtype == "f64" else "f32")
    if c.random is Randomness.NONE:
        return b.full(0.5, type)
    if c.random is Randomness.DRAWN:
        rng, site = c.new_random_op()
        return b.uniform(type, rng, site)
    places = b.iota(TensorType((type.elements,), "i64"), 0)
    counted = b.binary("rem", b.binary("mul", places, b.scalar(STRIDE, "i64")),
                       b.scalar(COUNT, "i64"))
    number = b.binary("add", b.cast(counted, type.dtype), b.scalar(0.5, type.dtype))
    return b.reshape(b.binary("mul", number, b.scalar(1 / COUNT, type.dtype)), type.shape)


def _scaled(c, drawn, scale, offset):
    """Returns drawn * scale + offset in the type of `drawn`; both are numbers or values."""
    scaled = c.b.binary("mul", drawn, c.operand(scale, drawn.dtype))
    return c.b.binary("add", scaled, c.operand(offset, drawn.dtype))


def _result(c, value):
    return c.b.cast(value, c.type.dtype)


@converts(aten.rand.default, aten.rand_like.default)
def rand(c, *_, **__):
    return c.b.cast(_uniform(c), c.type.dtype)


@converts(aten.uniform.default)
def uniform(c, x, low=0.0, high=1.0, generator=None):
    return _result(c, _scaled(c, _uniform(c), high - low, low))


@converts(aten.bernoulli.default)
def bernoulli(c, p, generator=None):
    return _below(c, p)


@converts(aten.bernoulli.p, aten.bernoulli.Tensor)
def bernoulli_of(c, x, p=0.5, generator=None):
    return _below(c, p)


def _below(c, p):
    """Returns 1 where a uniform number is below `p`, else 0."""
    drawn = _uniform(c)
    p = c.b.unary("stop_gradient", p) if isinstance(p, Value) and p.type.is_float else p
    return c.b.cast(c.b.compare("lt", drawn, c.operand(p, drawn.dtype)), c.type.dtype)


# Integers -----------------------------------------------------------------------------


@converts(aten.randint.default, aten.randint_like.default)
def randint(c, first, second=None, *rest, **__):
    """The arguments are (high, size) or (x, high)."""
    return _integers(c, 0, second if isinstance(first, Value) else first)


@converts(aten.randint.low)
def randint_from(c, low, high, *_, **__):
    return _integers(c, low, high)


@converts(aten.randint_like.low_dtype)
def randint_like_from(c, x, low, high, **__):
    return _integers(c, low, high)


def _integers(c, low, high):
    """Draws integers from `low` to below `high`."""
    if high - low > COUNT:
        raise Unsupported(f"random integers of a range above {COUNT}")
    b, drawn = c.b, _uniform(c)
    scaled = b.binary("mul", drawn, b.scalar(high - low, drawn.dtype))
    number = b.cast(b.unary("floor", scaled), "i64")
    return b.cast(b.binary("add", number, b.scalar(low, "i64")), c.type.dtype)


@converts(aten.randint_like.Tensor)
def randint_like_of_tensor(c, x, high, **__):
    raise Unsupported("random integers below a number that a tensor has; write "
                      "(torch.rand_like(x, dtype=torch.float32) * high).floor()")


@converts(aten.randperm.default)
def randperm(c, n, **__):
    """Sorts places by uniform numbers."""
    return c.b.cast(sorted_indices(c, _uniform(c), n, 0), c.type.dtype)


# Distributions ------------------------------------------------------------------------


def _normal(c):
    """Draws normal numbers by the Box-Muller transform. In evaluation, where both uniform numbers
    are 0.5, they are 0."""
    b = c.b
    radius, angle = _uniform(c), _uniform(c)
    dtype = radius.dtype
    # 1 - u is never 0.
    left = b.binary("sub", b.scalar(1, dtype), radius)
    length = b.unary("sqrt", b.binary("mul", b.unary("log", left), b.scalar(-2, dtype)))
    turned = b.unary("sin", b.binary("mul", angle, b.scalar(2 * math.pi, dtype)))
    return b.binary("mul", length, turned)


@converts(aten.randn.default, aten.randn_like.default)
def randn(c, *_, **__):
    return c.b.cast(_normal(c), c.type.dtype)


@converts(aten.normal_functional.default)
def normal_like(c, x, mean=0.0, std=1.0, generator=None):
    return _result(c, _scaled(c, _normal(c), std, mean))


@converts(aten.normal.float_float, aten.normal.Tensor_Tensor, aten.normal.Tensor_float,
          aten.normal.float_Tensor)
def normal(c, mean=0.0, std=1.0, *_, **__):
    mean, std = (c.b.unary("stop_gradient", v) if isinstance(v, Value) else v for v in (mean, std))
    return _result(c, _scaled(c, _normal(c), std, mean))


def _exponential(c, rate=1.0, type=None):
    """Draws exponential numbers, which are neither 0 nor infinite, since both would be infinite in
    their logarithm."""
    b, drawn = c.b, _uniform(c, type)
    dtype = drawn.dtype
    left = b.binary("sub", b.scalar(1, dtype), drawn)
    least = 2.0 ** -24 if dtype == "f32" else 2.0 ** -53
    near = b.compare("ge", left, b.scalar(1 - least, dtype))
    log = b.select(near, b.scalar(-least, dtype), b.unary("log", left))
    return b.binary("mul", log, b.scalar(-1 / rate, dtype))


@converts(aten.exponential.default)
def exponential(c, x, rate=1.0, generator=None):
    return _result(c, _exponential(c, rate))


@converts(aten.multinomial.default)
def multinomial(c, weights, count, replacement=False, generator=None):
    """Without replacement, the classes of the largest weights divided by exponential numbers; with
    it, those in which uniform numbers are in the cumulative sum of the weights."""
    b = c.b
    weights = b.unary("stop_gradient", b.cast(weights, "f64" if weights.dtype == "f64" else "f32"))
    if not replacement or count == 1:
        keys = b.binary("div", weights, _exponential(c, type=weights.type))
        return sorted_indices(c, keys, count, weights.type.rank - 1, descending=True)
    rows, classes = weights.shape[:-1], weights.shape[-1]
    sums = b.cumulative_sum(weights, weights.type.rank - 1)
    total = b.narrow(sums, -1, classes - 1, 1)
    drawn = b.binary("mul", _uniform(c, weights.type.with_shape((*rows, count))), b.broadcast(total, (*rows, count)))
    pairs = (*rows, count, classes)

    sums = b.reshape(sums, (*rows, 1, classes))
    passed = b.binary("and", b.compare("le", sums, b.reshape(drawn, (*rows, count, 1))),
                      b.broadcast(b.compare("lt", sums, b.reshape(total, (*rows, 1, 1))), pairs))
    return b.reduce("sum", b.cast(passed, "i64"), [len(pairs) - 1])


@converts(aten.rrelu_with_noise_functional.default)
def rrelu(c, x, noise, lower=1 / 8, upper=1 / 3, training=False, generator=None):
    """Returns the result and the slopes: those of elements up to 0 are uniform numbers."""
    b = c.b
    if not training:
        slope = b.full((lower + upper) / 2, x.type)
    else:
        slope = b.cast(_scaled(c, _uniform(c, x.type), upper - lower, lower), x.dtype)
    slope = b.select(b.compare("le", x, b.full(0, x.type)), slope, b.full(1, x.type))
    return b.binary("mul", x, slope), slope


@converts(aten.poisson.default, aten.binomial.default, aten._standard_gamma.default,
          aten._sample_dirichlet.default)
def by_rejection(c, *_, **__):
    """Draws whose number of uniform numbers depends on values."""
    raise Unsupported("random numbers of this distribution take a number of draws that depends on "
                      "values, and a compiled step draws a fixed number; give them as an input, or "
                      "draw them by torch.normal, rand, bernoulli, exponential_ or multinomial: a "
                      "binomial of n is the sum of n of bernoulli, a Poisson distribution of a large "
                      "rate is near torch.normal(rate, rate.sqrt())")


@converts(aten.geometric.default)
def geometric(c, x, p, generator=None):
    b, drawn = c.b, _uniform(c)
    dtype = drawn.dtype
    log = b.unary("log1p", b.unary("neg", drawn))
    count = b.unary("floor", b.binary("div", log, b.scalar(math.log1p(-p), dtype)))
    return b.cast(b.binary("add", count, b.scalar(1, dtype)), c.type.dtype)


@converts(aten.cauchy.default)
def cauchy(c, x, median=0.0, sigma=1.0, generator=None):
    b, drawn = c.b, _uniform(c)
    angle = b.binary("mul", b.binary("sub", drawn, b.scalar(0.5, drawn.dtype)),
                     b.scalar(math.pi, drawn.dtype))
    tangent = b.binary("div", b.unary("sin", angle), b.unary("cos", angle))
    return _result(c, _scaled(c, tangent, sigma, median))


@converts(aten.log_normal.default)
def log_normal(c, x, mean=1.0, std=2.0, generator=None):
    return _result(c, c.b.unary("exp", _scaled(c, _normal(c), std, mean)))
