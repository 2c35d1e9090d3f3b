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


def _uniform(c, shape=None):
    """Draws numbers uniform in [0, 1) in the result's shape, at least in f32."""
    b, shape = c.b, c.type.shape if shape is None else shape
    type = TensorType(tuple(shape), c.type.dtype if c.type.dtype == "f64" else "f32")
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


@converts(aten.exponential.default)
def exponential(c, x, rate=1.0, generator=None):
    """The result is neither 0 nor infinite, since both would be infinite in its logarithm."""
    b, drawn = c.b, _uniform(c)
    dtype = drawn.dtype
    left = b.binary("sub", b.scalar(1, dtype), drawn)
    least = 2.0 ** -24 if dtype == "f32" else 2.0 ** -53
    near = b.compare("ge", left, b.scalar(1 - least, dtype))
    log = b.select(near, b.scalar(-least, dtype), b.unary("log", left))
    return b.cast(b.binary("mul", log, b.scalar(-1 / rate, dtype)), c.type.dtype)


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
