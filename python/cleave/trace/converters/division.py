# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Division with and without rounding, and remainders."""

from __future__ import annotations

import math

from .elementwise import arithmetic
from .functions import trunc
from ..registry import aten, converts


@converts(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(c, a, b):
    return arithmetic(c, "div", a, b)


@converts(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(c, a, b, rounding_mode=None):
    if rounding_mode == "floor":
        return floor_divide(c, a, b)
    if rounding_mode == "trunc":
        return _truncated_quotient(c, a, b)
    return arithmetic(c, "div", a, b)


def _rounds_down(c, rest, y):
    """Returns whether the quotient rounded towards -inf is one less than the quotient rounded
    towards zero, whose remainder is `rest`: `rest` is not 0 and its sign differs from that of the
    divisor `y`."""
    b, zero = c.b, c.b.scalar(0, y.dtype)
    other = b.compare("ne", b.cast(b.compare("lt", rest, zero), "i64"),
                      b.cast(b.compare("lt", y, zero), "i64"))
    return b.binary("and", b.compare("ne", rest, zero), other)


@converts(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(c, x, y):
    b, dtype = c.b, c.type.dtype
    x, y = c.operand(x, dtype), c.operand(y, dtype)
    rest = b.binary("rem", x, y)
    more = b.cast(_rounds_down(c, rest, y), dtype)
    if not c.type.is_float:
        return b.binary("sub", b.binary("div", x, y), more)
    # The remainder is exact; x - rest is a multiple of y, up to rounding.
    quotient = b.binary("sub", b.binary("div", b.binary("sub", x, rest), y), more)
    whole = b.unary("floor", quotient)
    up = b.compare("gt", b.binary("sub", quotient, whole), b.scalar(0.5, dtype))
    whole = b.binary("add", whole, b.cast(up, dtype))
    whole = b.select(b.compare("eq", y, b.scalar(0, dtype)), b.binary("div", x, y), whole)
    return b.unary("stop_gradient", whole)


@converts(aten.remainder.Scalar, aten.remainder.Tensor)
def remainder(c, x, y):
    b, dtype = c.b, c.type.dtype
    divisor = isinstance(y, (int, float)) and y
    x, y = c.operand(x, dtype), c.operand(y, dtype)

    def regular(x, y):
        rest = b.binary("rem", x, y)
        return b.select(_rounds_down(c, rest, y), b.binary("add", rest, y), rest)

    if not c.type.is_float or divisor:
        return regular(x, y)
    none = b.compare("eq", y, b.scalar(0, dtype))
    return _remainder_of(b, x, y, none, b.binary("div", x, y), regular)


def _truncated_quotient(c, x, y):
    """Returns x / y, rounded towards zero."""
    b, dtype = c.b, c.type.dtype
    quotient = b.binary("div", c.operand(x, dtype), c.operand(y, dtype))
    return trunc(c, quotient) if c.type.is_float else quotient


def _remainder_of(b, x, y, irregular, quotient, regular):
    """Returns `regular(x, y)`, and where `irregular` holds, x - y q for the quotient q: the
    value is NaN and its gradient for y is -q. Operands of the side that is not selected are
    replaced by regular values, so that its gradient is finite."""
    zero, one = b.scalar(0, x.dtype), b.scalar(1, x.dtype)
    quotient = b.unary("stop_gradient", b.select(irregular, quotient, zero))
    nan_rest = b.binary("sub", x, b.binary("mul", b.select(irregular, y, zero), quotient))
    rest = regular(b.select(irregular, zero, x), b.select(irregular, one, y))
    return b.select(irregular, nan_rest, rest)


@converts(aten.fmod.Scalar, aten.fmod.Tensor)
def fmod(c, x, y):
    b, dtype = c.b, c.type.dtype
    divisor = isinstance(y, (int, float)) and y
    x, y = c.operand(x, dtype), c.operand(y, dtype)
    if not c.type.is_float or divisor:
        return b.binary("rem", x, y)
    finite = b.compare("lt", b.unary("abs", x), b.scalar(math.inf, dtype))
    irregular = b.binary("or", b.compare("eq", y, b.scalar(0, dtype)), b.unary("not", finite))
    # Quotients of irregular operands are infinite, 0 or NaN, and need no truncation.
    return _remainder_of(b, x, y, irregular, b.binary("div", x, y),
                         lambda x, y: b.binary("rem", x, y))
