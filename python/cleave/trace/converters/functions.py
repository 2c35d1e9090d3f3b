# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Element-wise functions composed of other ops."""

from __future__ import annotations

import math

import torch

from .elementwise import maximum, minimum
from ..registry import Unsupported, aten, converts


def with_derivative(c, value, *pairs):
    """Returns `value` with the given derivatives in place of its own: for each (x, d) of `pairs`, d
    is the derivative with respect to x. Differentiating an approximation would be less accurate. A
    d that is not finite is also passed on, and does not change the value. Where x is not finite and
    the value is not NaN, the gradient is NaN for a d that is not finite, else 0."""
    b, dtype = c.b, value.dtype
    zero, one, infinity = b.scalar(0, dtype), b.scalar(1, dtype), b.scalar(math.inf, dtype)
    result = b.unary("stop_gradient", value)
    known = b.compare("eq", result, result)
    for x, d in pairs:
        d = b.unary("stop_gradient", d)
        regular = b.compare("lt", b.unary("abs", d), infinity)
        beyond = b.unary("not", b.compare("lt", b.unary("abs", x), infinity))
        beyond = b.binary("and", known, beyond)
        # The step is 0 (or NaN where x is), with derivative 1; its root's is infinite.
        finite = b.select(beyond, zero, x)
        step = b.binary("sub", finite, b.unary("stop_gradient", finite))
        inside = b.binary("or", regular, beyond)
        root = b.select(inside, zero, b.unary("sqrt", b.select(inside, one, step)))
        # The sign of NaN is 0, which makes the gradient 0 times infinity.
        sign = b.binary("sub", b.cast(b.compare("gt", d, zero), dtype),
                        b.cast(b.compare("lt", d, zero), dtype))
        flow = b.binary("mul", b.select(regular, d, zero), step)
        result = b.binary("add", result, b.binary("add", flow, b.binary("mul", sign, root)))
        # The side that is not selected has a gradient of 0, and 0 times NaN is NaN.
        lost = b.binary("and", beyond, b.unary("not", regular))
        product = b.binary("mul", b.select(lost, x, zero),
                           b.select(lost, b.scalar(math.nan, dtype), zero))
        result = b.binary("add", result, b.select(lost, zero, product))
    return result


def in_result_type(c, *values):
    """Returns the operands as a list of values in the result's type."""
    return [c.operand(v, c.type.dtype) for v in values]


def is_negative(c, x):
    """Returns whether the sign bit of `x` is set, also for -0; false for NaN."""
    b, zero = c.b, c.b.scalar(0, x.dtype)
    if not x.type.is_float:
        return b.compare("lt", x, zero)
    one = b.scalar(1, x.dtype)
    below = b.binary("div", one, b.select(b.compare("eq", x, zero), x, one))
    return b.binary("or", b.compare("lt", x, zero), b.compare("lt", below, zero))


@converts(aten.signbit.default)
def signbit(c, x):
    return is_negative(c, x)


# Logarithms and others ---------------------------------------------------------------


@converts(aten.log10.default)
def log10(c, x):
    (x,) = in_result_type(c, x)
    return c.b.binary("mul", c.b.unary("log", x), c.b.scalar(1 / math.log(10), x.dtype))


@converts(aten.erfc.default)
def erfc(c, x):
    (x,) = in_result_type(c, x)
    return c.b.binary("sub", c.b.scalar(1, x.dtype), c.b.unary("erf", x))


# Rounding -----------------------------------------------------------------------------


@converts(aten.trunc.default, aten.fix.default)
def trunc(c, x):
    if not x.type.is_float:
        return x
    b = c.b
    up = b.unary("neg", b.unary("floor", b.unary("neg", x)))
    return b.select(b.compare("lt", x, b.scalar(0, x.dtype)), up, b.unary("floor", x))


@converts(aten.frac.default)
def frac(c, x):
    return c.b.binary("sub", x, trunc(c, x))


def rounded(c, x):
    """Returns `x` rounded to the nearest integer, ties to even, without a gradient."""
    b = c.b
    x = b.unary("stop_gradient", x)
    low = b.unary("floor", x)
    rest = b.binary("sub", x, low)
    half = b.scalar(0.5, x.dtype)
    twice = b.unary("floor", b.binary("mul", low, half))
    odd = b.compare("ne", low, b.binary("add", twice, twice))
    up = b.binary("or", b.compare("gt", rest, half),
                  b.binary("and", b.compare("eq", rest, half), odd))
    return b.select(up, b.binary("add", low, b.scalar(1, x.dtype)), low)


@converts(aten.round.default, aten.round.decimals)
def round_(c, x, decimals=0):
    if not x.type.is_float:
        if decimals < 0:
            raise Unsupported("rounding of integers to a multiple of ten")
        return x
    scale = c.b.scalar(10.0 ** abs(decimals), x.dtype)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return c.b.binary(back, rounded(c, c.b.binary(there, x, scale)), scale)


# Two operands -------------------------------------------------------------------------


@converts(aten.fmax.default)
def fmax(c, a, b):
    return _without_nan(c, a, b, "ge")


@converts(aten.fmin.default)
def fmin(c, a, b):
    return _without_nan(c, a, b, "le")


def _without_nan(c, a, b, test):
    """Returns the larger (`test` "ge") or smaller ("le") operand, ignoring NaN; of equal
    operands, the first."""
    a, b = in_result_type(c, a, b)
    if not c.type.is_float:
        return (maximum if test == "ge" else minimum)(c, a, b)
    first = c.b.binary("or", c.b.compare(test, a, b), c.b.compare("ne", b, b))
    return c.b.select(first, a, b)


@converts(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(c, x, sign):
    """At 0 the gradient is 0."""
    b, (x, sign) = c.b, in_result_type(c, x, sign)
    size = b.unary("abs", x)
    value = b.select(is_negative(c, sign), b.unary("neg", size), size)
    zero = b.scalar(0, x.dtype)
    ratio = b.select(b.compare("eq", x, zero), zero, b.binary("div", value, x))
    return with_derivative(c, value, (x, ratio))


@converts(aten.hypot.default)
def hypot(c, x, y):
    b, (x, y) = c.b, in_result_type(c, x, y)
    dtype, infinity = x.dtype, b.scalar(math.inf, x.dtype)
    first, second = b.unary("abs", x), b.unary("abs", y)
    # The smaller magnitude is divided by the larger one, so that squares do not overflow.
    large, small = b.binary("maximum", first, second), b.binary("minimum", first, second)
    none = b.compare("eq", large, b.scalar(0, dtype))
    ratio = b.binary("div", small, b.select(none, b.scalar(1, dtype), large))
    value = b.binary("mul", large, b.unary("sqrt", b.binary(
        "add", b.binary("mul", ratio, ratio), b.scalar(1, dtype))))
    # The result is infinite if either operand is, even if the other one is NaN.
    infinite = b.binary("or", b.compare("eq", first, infinity), b.compare("eq", second, infinity))
    value = b.select(infinite, infinity, value)
    return with_derivative(c, value, (x, b.binary("div", x, value)), (y, b.binary("div", y, value)))


@converts(aten.xlogy.Tensor, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self)
def xlogy(c, x, y):
    b, (x, y) = c.b, in_result_type(c, x, y)
    zero, one = b.scalar(0, x.dtype), b.scalar(1, x.dtype)
    # For x that is not finite, the result is the product x log y; elsewhere, where it is not
    # selected, its factors are 1.
    beyond = b.unary("not", b.compare("lt", b.unary("abs", x), b.scalar(math.inf, x.dtype)))
    product = b.binary("mul", b.select(beyond, x, one), b.unary("log", b.select(beyond, y, one)))
    x, y = b.select(beyond, one, x), b.select(beyond, one, y)
    none = b.compare("eq", x, zero)
    outside = b.binary("and", none, b.compare("le", y, zero))
    slope = b.unary("log", b.select(outside, one, y))
    value = b.binary("mul", x, b.select(none, zero, b.unary("log", b.select(none, one, y))))
    value = b.select(b.compare("eq", y, y), value, b.binary("add", x, y))
    value = with_derivative(c, value, (x, slope), (y, b.binary("div", x, y)))
    return b.select(beyond, product, value)


@converts(aten.logit.default)
def logit(c, x, eps=None):
    """The gradient outside of [0, 1] is NaN, or 0 where `eps` clamps x."""
    b, (x,) = c.b, in_result_type(c, x)
    dtype, one = x.dtype, b.scalar(1, x.dtype)
    low = 0.0 if eps is None else eps
    outside = b.binary("or", b.compare("lt", x, b.scalar(low, dtype)),
                       b.compare("gt", x, b.scalar(1 - low, dtype)))
    inner = x if eps is None else b.binary("minimum", b.binary(
        "maximum", x, b.scalar(low, dtype)), b.scalar(1 - low, dtype))
    value = b.unary("log", b.binary("div", inner, b.binary("sub", one, inner)))
    slope = b.binary("div", one, b.binary("mul", x, b.binary("sub", one, x)))
    slope = b.select(outside, b.scalar(math.nan if eps is None else 0, dtype), slope)
    return with_derivative(c, value, (x, slope))


@converts(aten._prelu_kernel.default)
def prelu(c, x, weight):
    scaled = c.b.binary("mul", x, weight)
    return c.b.select(c.b.compare("gt", x, c.b.scalar(0, x.dtype)), x, scaled)


@converts(aten.prelu.default)
def prelu_by_channel(c, x, weight):
    if weight.type.elements > 1:
        weight = c.b.reshape(weight, [weight.type.elements] + [1] * max(x.type.rank - 2, 0))
    else:
        weight = c.b.reshape(weight, [])
    return prelu(c, x, weight)


@converts(aten.softshrink.default)
def softshrink(c, x, width=0.5):
    b, width = c.b, c.b.scalar(width, x.dtype)
    # 0 between the bounds; NaN is propagated.
    still = b.select(b.compare("eq", x, x), b.scalar(0, x.dtype), x)
    below = b.select(b.compare("lt", x, b.unary("neg", width)), b.binary("add", x, width), still)
    return b.select(b.compare("gt", x, width), b.binary("sub", x, width), below)


@converts(aten.sinc.default)
def sinc(c, x):
    b, (x,) = c.b, in_result_type(c, x)
    nothing, one = b.scalar(0, x.dtype), b.scalar(1, x.dtype)
    zero = b.compare("eq", x, nothing)
    turn = b.binary("mul", b.select(zero, one, x), b.scalar(math.pi, x.dtype))
    value = b.select(zero, one, b.binary("div", b.unary("sin", turn), turn))
    # The quotient rule cancels to rounding errors near 0; this form of the derivative does not.
    above = b.binary("sub", b.binary("mul", turn, b.unary("cos", turn)), b.unary("sin", turn))
    below = b.binary("mul", turn, x)
    flat = b.compare("eq", below, nothing)
    slope = b.select(flat, nothing, b.binary("div", above, b.select(flat, one, below)))
    return with_derivative(c, value, (x, slope))


@converts(aten.angle.default)
def angle(c, x):
    b, dtype = c.b, c.type.dtype
    x = b.cast(x, dtype)
    x = b.unary("stop_gradient", x) if not x.constant else x
    right = b.select(b.compare("eq", x, x), b.scalar(0, dtype), x)
    return b.select(b.compare("lt", x, b.scalar(0, dtype)), b.scalar(math.pi, dtype), right)


@converts(aten.isfinite.default)
def isfinite(c, x):
    if not x.type.is_float:
        return c.b.full(True, c.type)
    return c.b.compare("lt", c.b.unary("abs", x), c.b.scalar(math.inf, x.dtype))


@converts(aten.isinf.default)
def isinf(c, x):
    if not x.type.is_float:
        return c.b.full(False, c.type)
    return c.b.compare("eq", c.b.unary("abs", x), c.b.scalar(math.inf, x.dtype))


@converts(aten.positive.default, aten.resolve_conj.default, aten.resolve_neg.default,
          aten.conj.default, aten._conj.default, aten.conj_physical.default, aten.real.default)
def real(c, x):
    """The identity on real numbers."""
    return x


@converts(aten._cdist_forward.default)
def cdist(c, x, y, p, compute_mode=None):
    """Returns the distances [..., n, m] between rows of x [..., n, d] and y [..., m, d]; where a
    distance is 0, its gradient is 0."""
    b = c.b
    x = b.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    y = b.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    return b.reshape(_norm(c, b.binary("sub", x, y), p), c.type.shape)


@converts(aten._pdist_forward.default)
def pdist(c, x, p=2.0):
    """Returns the distances between each row and each later row, as a vector."""
    b, n = c.b, x.shape[0]
    first, second = torch.triu_indices(n, n, 1)
    if not first.numel():
        return b.full(0, c.type)
    rows = [b.gather(x, b.constant(i.contiguous()), 0) for i in (first, second)]
    return _norm(c, b.binary("sub", *rows), p)


def _norm(c, x, p):
    """Returns the p-norm along the last dimension; where it is 0, its gradient is 0."""
    b, dtype = c.b, x.dtype
    zero, one, last = b.scalar(0, dtype), b.scalar(1, dtype), [x.type.rank - 1]
    if not x.shape[-1]:
        return b.full(0, x.type.with_shape(x.shape[:-1]))
    size = b.unary("abs", x)
    if p == 0:
        return b.reduce("sum", b.cast(b.compare("ne", x, zero), dtype), last)
    if p == 1:
        return b.reduce("sum", size, last)
    if p == math.inf:
        return b.reduce("max", size, last)

    def power(v, exponent):
        none = b.compare("eq", v, zero)
        v = b.select(none, one, v)
        v = b.unary("sqrt", v) if exponent == 0.5 else b.binary("pow", v, b.scalar(exponent, dtype))
        return b.select(none, zero, v)

    powers = b.binary("mul", x, x) if p == 2 else power(size, p)
    return power(b.reduce("sum", powers, last), 1 / p)
