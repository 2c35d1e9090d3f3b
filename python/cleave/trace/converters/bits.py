# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Logical operators, and bitwise operators of integers computed by arithmetic."""

from __future__ import annotations

import torch

from ..ir import TORCH_DTYPES
from ..registry import aten, converts


@converts(aten.logical_not.default, aten.bitwise_not.default)
def logical_not(c, x):
    if x.dtype != "i1":
        if c.type.dtype != "i1":
            return c.b.binary("sub", c.b.scalar(-1, x.dtype), x)
        x = c.b.cast(x, "i1")
    return c.b.unary("not", x)


def _logic(c, name, a, b):
    if c.type.dtype != "i1":
        return _bitwise(c, name, a, b)
    return c.b.binary(name, c.operand(a, "i1"), c.operand(b, "i1"))


def _lowest_bit(c, x):
    """Returns the lowest bit, 0 or 1: the square of the remainder, which is -1 for
    negative odd numbers."""
    rest = c.b.binary("rem", x, c.b.scalar(2, x.dtype))
    return c.b.binary("mul", rest, rest)


def _shifted_right(c, x, powers):
    """Returns the quotient of `x` by powers of 2, rounded down."""
    b = c.b
    rest = b.binary("rem", x, powers)
    below = b.compare("lt", rest, b.scalar(0, x.dtype))
    rest = b.select(below, b.binary("add", rest, powers), rest)
    return b.binary("div", b.binary("sub", x, rest), powers)


def _bitwise(c, name, x, y):
    """Returns x & y, or x | y = x + y - (x & y) if `name` is "or". A boolean has one bit."""
    b, dtype = c.b, c.type.dtype
    flags = [isinstance(v, bool) or getattr(v, "dtype", None) == "i1" for v in (x, y)]
    x, y = c.operand(x, dtype), c.operand(y, dtype)
    zero = b.scalar(0, dtype)
    if any(flags):
        both = b.binary("mul", *(v if flag else _lowest_bit(c, v)
                                 for v, flag in zip((x, y), flags)))
    else:
        # Bits are along a new last dimension; the sign bit is treated separately.
        count = {"i64": 63, "i32": 31, "i8": 7}[dtype]
        powers = b.constant(torch.tensor([1 << i for i in range(count)], dtype=TORCH_DTYPES[dtype]))
        bits = [_lowest_bit(c, _shifted_right(c, b.reshape(v, (*v.shape, 1)), powers))
                for v in (x, y)]
        both = b.binary("mul", b.binary("mul", *bits), powers)
        both = b.reduce("sum", both, [both.type.rank - 1])
        sign = b.binary("and", b.compare("lt", x, zero), b.compare("lt", y, zero))
        lowest = b.constant(torch.tensor(-1 << count, dtype=TORCH_DTYPES[dtype]))
        both = b.select(sign, b.binary("add", both, lowest), both)
    if name == "and":
        return both
    return b.binary("sub", b.binary("add", x, y), both)


@converts(aten.logical_and.default, aten.bitwise_and.Tensor, aten.bitwise_and.Scalar,
          aten.__and__.Tensor, aten.__and__.Scalar)
def logical_and(c, a, b):
    return _logic(c, "and", a, b)


@converts(aten.logical_or.default, aten.bitwise_or.Tensor, aten.bitwise_or.Scalar,
          aten.__or__.Tensor, aten.__or__.Scalar)
def logical_or(c, a, b):
    return _logic(c, "or", a, b)


@converts(aten.logical_xor.default, aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar,
          aten.__xor__.Tensor, aten.__xor__.Scalar)
def logical_xor(c, a, b):
    if c.type.dtype != "i1":
        return c.b.binary("sub", _bitwise(c, "or", a, b), _bitwise(c, "and", a, b))
    either, both = _logic(c, "or", a, b), _logic(c, "and", a, b)
    return c.b.binary("and", either, c.b.unary("not", both))


@converts(aten.bitwise_left_shift.Tensor_Scalar, aten.__lshift__.Scalar)
def left_shift(c, x, bits):
    return c.b.binary("mul", x, c.b.scalar(1 << bits, x.dtype))


@converts(aten.bitwise_right_shift.Tensor_Scalar, aten.__rshift__.Scalar)
def right_shift(c, x, bits):
    return _shifted_right(c, x, c.b.scalar(1 << bits, x.dtype))
