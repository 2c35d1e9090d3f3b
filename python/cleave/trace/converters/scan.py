# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Scans, products and differences along a dimension."""

from __future__ import annotations

import math

import torch

from .index import take_along
from ... import recurrence  # noqa: F401 (defines the operator)
from ..ir import TensorType
from ..registry import Unsupported, aten, converts


# Scans --------------------------------------------------------------------------------


def scan(c, values, dim, combine):
    """Returns the inclusive scan along `dim` by the associative `combine(earlier, later)`, in
    log2 n steps. `values`, the operands of `combine` and the results are lists of as many
    tensors of one shape."""
    size, shift = values[0].shape[dim], 1
    while shift < size:
        earlier = [c.b.narrow(v, dim, 0, size - shift) for v in values]
        later = [c.b.narrow(v, dim, shift, size - shift) for v in values]
        values = [c.b.concat([c.b.narrow(v, dim, 0, shift), new], dim)
                  for v, new in zip(values, combine(earlier, later))]
        shift *= 2
    return values


@converts(aten.cumsum.default)
def cumsum(c, x, dim, dtype=None):
    if x.type.rank == 0:
        return c.b.cast(x, c.type.dtype)
    return c.b.cumulative_sum(c.b.cast(x, c.type.dtype), dim)


@converts(aten.cumprod.default)
def cumprod(c, x, dim, dtype=None):
    x = c.b.cast(x, c.type.dtype)
    if x.type.rank == 0:
        return x
    return scan(c, [x], dim, lambda a, b: [c.b.binary("mul", a[0], b[0])])[0]


@converts(torch.ops.cleave.linear_scan.default)
def linear_scan(c, factor, x, dim, reverse):
    return c.b.linear_scan(factor, x, dim, reverse)


@converts(aten.cummax.default)
def cummax(c, x, dim):
    return _running(c, x, dim, "ge")


@converts(aten.cummin.default)
def cummin(c, x, dim):
    return _running(c, x, dim, "le")


def _running(c, x, dim, test):
    """Returns the running maximum (`test` "ge") or minimum ("le") along `dim`, and its index;
    of equal elements, the last."""
    b = c.b
    if x.type.rank == 0:
        return x, b.scalar(0, "i64")
    dim %= x.type.rank
    if x.dtype == "i1":
        raise Unsupported("the running extreme of booleans")
    place = b.iota(TensorType(x.shape, "i64"), dim)
    fixed = b.unary("stop_gradient", x) if x.type.is_float and not x.constant else x

    def combine(a, z):
        later = b.compare(test, z[0], a[0])
        if x.type.is_float:
            later = b.binary("or", later, b.compare("ne", z[0], z[0]))
        return [b.select(later, z[0], a[0]), b.select(later, z[1], a[1])]

    _, where = scan(c, [fixed, place], dim, combine)
    return take_along(c, x, dim, where), where


@converts(aten.logcumsumexp.default)
def logcumsumexp(c, x, dim):
    b = c.b
    if x.type.rank == 0:
        return x
    top = b.unary("stop_gradient", _running(c, x, dim, "ge")[0])
    zero = b.scalar(0, x.dtype)

    def combine(a, z):
        # The state is a sum of exponentials relative to a maximum, and that maximum.
        base = b.binary("maximum", a[1], z[1])
        shift = lambda m: b.unary("exp", b.select(  # noqa: E731
            b.compare("eq", m, base), zero, b.binary("sub", m, base)))
        return [b.binary("add", b.binary("mul", a[0], shift(a[1])),
                         b.binary("mul", z[0], shift(z[1]))), base]

    fixed = b.unary("stop_gradient", x)
    one = b.unary("exp", b.binary("sub", b.select(b.compare(
        "lt", b.unary("abs", x), b.scalar(math.inf, x.dtype)), x, zero), b.select(b.compare(
            "lt", b.unary("abs", fixed), b.scalar(math.inf, x.dtype)), fixed, zero)))
    total, _ = scan(c, [one, fixed], dim, combine)
    return b.binary("add", b.unary("log", total), top)


# Products, differences ----------------------------------------------------------------


def product_along(c, x, dim):
    """Returns the product along `dim`, which is removed. Halves are multiplied repeatedly, so that
    the gradient is correct where factors are 0."""
    b = c.b
    size = x.shape[dim]
    if size == 0:
        return b.full(1, TensorType(x.shape[:dim] + x.shape[dim + 1:], x.dtype))
    rest = []
    while size > 1:
        if size % 2:
            rest.append(b.narrow(x, dim, size - 1, 1))
        half = size // 2
        x = b.binary("mul", b.narrow(x, dim, 0, half), b.narrow(x, dim, half, half))
        size = half
    for factor in rest:
        x = b.binary("mul", x, factor)
    return b.reshape(x, x.shape[:dim] + x.shape[dim + 1:])


@converts(aten.prod.default, aten.prod.dim_int)
def prod(c, x, dim=None, keepdim=False, dtype=None):
    x = c.b.cast(x, c.type.dtype)
    if dim is None or isinstance(dim, torch.dtype):
        x, dim = c.b.reshape(x, [x.type.elements]), 0
    if x.type.rank == 0:
        return x
    dim %= x.type.rank
    return c.b.reshape(product_along(c, x, dim), c.type.shape)


@converts(aten.diff.default)
def diff(c, x, n=1, dim=-1, prepend=None, append=None):
    if x.dtype == "i1":
        raise Unsupported("difference of booleans")
    if n == 0:
        return x
    parts = [v for v in (prepend, x, append) if v is not None]
    x = c.b.concat([c.b.cast(v, c.type.dtype) for v in parts], dim)
    for _ in range(n):
        size = x.shape[dim]
        if size == 0:
            break
        high, low = c.b.narrow(x, dim, 1, size - 1), c.b.narrow(x, dim, 0, size - 1)
        x = c.b.binary("sub", high, low)
    return x
