# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Trigonometric and hyperbolic functions, and their inverses."""

from __future__ import annotations

import math

from .functions import in_result_type, is_negative, with_derivative
from ..registry import CONVERTERS, aten, converts


def _polynomial(c, x, coefficients):
    """Evaluates a polynomial by Horner's method; the coefficient of the highest power is
    first."""
    result = c.b.scalar(coefficients[0], x.dtype)
    for k in coefficients[1:]:
        result = c.b.binary("add", c.b.binary("mul", result, x), c.b.scalar(k, x.dtype))
    return result


# Trigonometry -------------------------------------------------------------------------


def _arctangent(c, x):
    """Returns the arctangent by the rational approximation of atan.c of the Cephes library,
    with an error of about 1e-16."""
    b, dtype = c.b, x.dtype
    number = lambda v: b.scalar(v, dtype)  # noqa: E731
    size = b.unary("abs", x)
    high = b.compare("gt", size, number(2.414213562373095))
    middle = b.compare("gt", size, number(0.66))
    t = b.select(high, b.binary("div", number(-1), size), b.select(
        middle, b.binary("div", b.binary("sub", size, number(1)), b.binary("add", size, number(1))),
        size))
    start = b.select(high, number(math.pi / 2), b.select(middle, number(math.pi / 4), number(0)))
    z = b.binary("mul", t, t)
    p = _polynomial(c, z, [-8.750608600031904122785e-1, -1.615753718733365076637e1,
                           -7.500855792314704667340e1, -1.228866684490136173410e2,
                           -6.485021904942025371773e1])
    q = _polynomial(c, z, [1.0, 2.485846490142306297962e1, 1.650270098316988542046e2,
                           4.328810604912902668951e2, 4.853903996359136964868e2,
                           1.945506571482613964425e2])
    series = b.binary("mul", t, b.binary("div", b.binary("mul", z, p), q))
    result = b.binary("add", start, b.binary("add", series, t))
    return b.select(b.compare("lt", x, number(0)), b.unary("neg", result),
                    b.select(b.compare("eq", x, number(0)), x, result))


def _unit(c, x):
    """Returns the number 1 in the type of `x`."""
    return c.b.scalar(1, x.dtype)


@converts(aten.atan.default)
def atan(c, x):
    b, (x,) = c.b, in_result_type(c, x)
    slope = b.binary("div", _unit(c, x), b.binary("add", b.binary("mul", x, x), _unit(c, x)))
    return with_derivative(c, _arctangent(c, x), (x, slope))


def _circle(c, x):
    """Returns 1 / sqrt(1 - x^2), the derivative of the arcsine."""
    b, one = c.b, _unit(c, x)
    return b.unary("rsqrt", b.binary("mul", b.binary("sub", one, x), b.binary("add", one, x)))


@converts(aten.asin.default)
def asin(c, x):
    (x,) = in_result_type(c, x)
    slope = _circle(c, x)
    return with_derivative(c, _arctangent(c, c.b.binary("mul", x, slope)), (x, slope))


@converts(aten.acos.default)
def acos(c, x):
    b, (x,) = c.b, in_result_type(c, x)
    ratio = b.binary("div", b.binary("sub", _unit(c, x), x), b.binary("add", _unit(c, x), x))
    value = b.binary("mul", b.scalar(2, x.dtype), _arctangent(c, b.unary("sqrt", ratio)))
    return with_derivative(c, value, (x, b.unary("neg", _circle(c, x))))


@converts(aten.atan2.default)
def atan2(c, y, x):
    b, (y, x) = c.b, in_result_type(c, y, x)
    dtype, one = y.dtype, _unit(c, y)
    below, left = b.unary("abs", x), b.unary("abs", y)
    same = b.compare("eq", below, left)
    zero = b.compare("eq", left, b.scalar(0, dtype))
    ratio = b.select(b.binary("and", same, b.unary("not", zero)), one,
                     b.binary("div", left, below))
    ratio = b.select(zero, b.select(b.compare("eq", x, x), b.scalar(0, dtype), x), ratio)
    angle = _arctangent(c, ratio)
    angle = b.select(is_negative(c, x), b.binary("sub", b.scalar(math.pi, dtype), angle), angle)
    angle = b.select(is_negative(c, y), b.unary("neg", angle), angle)
    # The derivatives are x / (x^2 + y^2) and -y / (x^2 + y^2), and 0 at the origin.
    square = b.binary("add", b.binary("mul", x, x), b.binary("mul", y, y))
    none = b.compare("eq", square, b.scalar(0, dtype))
    share = b.select(none, b.scalar(0, dtype), b.binary("div", one, square))
    return with_derivative(c, angle, (y, b.binary("mul", x, share)),
                           (x, b.unary("neg", b.binary("mul", y, share))))


@converts(aten.tan.default)
def tan(c, x):
    (x,) = in_result_type(c, x)
    return c.b.binary("div", c.b.unary("sin", x), c.b.unary("cos", x))


# Hyperbolic functions -----------------------------------------------------------------


def _log1p(c, x):
    return CONVERTERS[aten.log1p.default](c, x)


@converts(aten.cosh.default)
def cosh(c, x):
    b, (x,) = c.b, in_result_type(c, x)
    half = b.scalar(0.5, x.dtype)
    # exp(x) / 2 as exp(x / 2)^2 / 2, which is finite where the result is.
    up = b.unary("exp", b.binary("mul", x, half))
    down = b.unary("exp", b.binary("mul", b.unary("neg", x), half))
    return b.binary("add", b.binary("mul", b.binary("mul", up, half), up),
                    b.binary("mul", b.binary("mul", down, half), down))


@converts(aten.sinh.default)
def sinh(c, x):
    """Near 0, sinh is computed without cancellation as 2 t / (1 - t^2) with t = tanh(x / 2)."""
    b, (x,) = c.b, in_result_type(c, x)
    half, one = b.scalar(0.5, x.dtype), _unit(c, x)
    near = b.compare("lt", b.unary("abs", x), one)
    t = b.unary("tanh", b.binary("mul", b.select(near, x, b.scalar(0, x.dtype)), half))
    small = b.binary("div", b.binary("add", t, t), b.binary("sub", one, b.binary("mul", t, t)))
    far = b.select(near, one, x)
    up = b.unary("exp", b.binary("mul", far, half))
    down = b.unary("exp", b.binary("mul", b.unary("neg", far), half))
    large = b.binary("sub", b.binary("mul", b.binary("mul", up, half), up),
                     b.binary("mul", b.binary("mul", down, half), down))
    return b.select(near, small, large)


@converts(aten.asinh.default)
def asinh(c, x):
    b, (x,) = c.b, in_result_type(c, x)
    one, size = _unit(c, x), b.unary("abs", x)
    # Beyond the limit the result is log(2 |x|) to the last digit of the type; the square,
    # which could overflow, is not needed.
    limit = 1e4 if x.dtype != "f64" else 1e8
    far = b.compare("gt", size, b.scalar(limit, x.dtype))
    near = b.select(far, one, size)
    square = b.binary("mul", near, near)
    root = b.unary("sqrt", b.binary("add", square, one))
    value = _log1p(c, b.binary("add", near, b.binary("div", square, b.binary("add", one, root))))
    large = b.binary("add", b.unary("log", size), b.scalar(math.log(2), x.dtype))
    value = b.select(far, large, value)
    value = b.select(b.compare("eq", size, size), value, x)
    value = b.select(b.compare("lt", x, b.scalar(0, x.dtype)), b.unary("neg", value), value)
    slope = b.unary("rsqrt", b.binary("add", b.binary("mul", x, x), one))
    return with_derivative(c, value, (x, slope))


@converts(aten.acosh.default)
def acosh(c, x):
    b, (x,) = c.b, in_result_type(c, x)
    one = _unit(c, x)
    low, high = b.binary("sub", x, one), b.binary("add", x, one)
    slope = b.unary("rsqrt", b.binary("sub", b.binary("mul", x, x), one))
    root = b.binary("mul", b.unary("sqrt", low), b.unary("sqrt", high))
    return with_derivative(c, _log1p(c, b.binary("add", low, root)), (x, slope))


@converts(aten.atanh.default)
def atanh(c, x):
    b, (x,) = c.b, in_result_type(c, x)
    one = _unit(c, x)
    rest = b.binary("sub", one, x)
    value = b.binary("mul", b.scalar(0.5, x.dtype), _log1p(c, b.binary(
        "div", b.binary("add", x, x), rest)))
    slope = b.binary("div", one, b.binary("mul", rest, b.binary("add", one, x)))
    return with_derivative(c, value, (x, slope))
