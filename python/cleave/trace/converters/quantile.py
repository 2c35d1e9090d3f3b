# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Medians and quantiles."""

from __future__ import annotations

import math

from .functions import rounded
from .index import take_along
from .order import ranked, sorted_indices, sorted_values
from .reduction import reduced
from ..registry import aten, converts


# Medians ------------------------------------------------------------------------------


@converts(aten.median.dim)
def median_dim(c, x, dim, keepdim=False):
    if x.type.rank == 0:
        return x, c.b.scalar(0, "i64")
    value, where = ranked(c, x, (x.shape[dim] - 1) // 2, dim, keepdim)
    if not x.type.is_float:
        return value, where
    # The median of elements with a NaN is NaN.
    b = c.b
    unknown = b.cast(b.compare("ne", x, x), "f32")
    first = sorted_indices(c, unknown, 1, dim, True)
    has_nan = b.compare("gt", reduced(c, "max", unknown, dim, keepdim), b.scalar(0, "f32"))
    first = b.reshape(first, where.shape)
    where = b.select(has_nan, first, where)
    kept = x.shape[:dim % x.type.rank] + (1,) + x.shape[dim % x.type.rank + 1:]
    value = b.reshape(take_along(c, x, dim, b.reshape(where, kept)), value.shape)
    return value, where


@converts(aten.median.default)
def median(c, x):
    """The gradient is divided equally among all elements that equal the median."""
    b = c.b
    flat = b.reshape(x, [x.type.elements])
    value, _ = median_dim(c, flat, 0)
    if not x.type.is_float:
        return value
    return _mean_of_equal(c, flat, value)


def _mean_of_equal(c, flat, value):
    """Returns `value`, an element of the vector `flat`, as the mean of all elements equal to
    it, so that they share its gradient. NaN equals NaN."""
    b = c.b
    value = b.unary("stop_gradient", value)
    equal = b.binary("or", b.compare("eq", flat, value),
                     b.binary("and", b.compare("ne", flat, flat), b.compare("ne", value, value)))
    count = reduced(c, "sum", b.cast(equal, flat.dtype), None, False)
    share = b.binary("div", b.select(equal, flat, b.scalar(0, flat.dtype)), count)
    return reduced(c, "sum", share, None, False)


@converts(aten.nanmedian.dim)
def nanmedian_dim(c, x, dim, keepdim=False):
    if not x.type.is_float:
        return median_dim(c, x, dim, keepdim)
    if x.type.rank == 0:
        return x, c.b.scalar(0, "i64")
    b = c.b
    place = sorted_indices(c, x, x.shape[dim], dim)
    count = reduced(c, "sum", b.cast(b.compare("eq", x, x), "i64"), dim, True)
    rank = b.binary("div", b.binary("maximum", b.binary("sub", count, b.scalar(1, "i64")),
                                    b.scalar(0, "i64")), b.scalar(2, "i64"))
    where = take_along(c, place, dim, rank)
    value = take_along(c, x, dim, where)
    shape = [s for d, s in enumerate(x.shape) if d != dim % x.type.rank or keepdim]
    shape = value.shape if keepdim else shape
    return b.reshape(value, shape), b.reshape(where, shape)


@converts(aten.nanmedian.default)
def nanmedian(c, x):
    flat = c.b.reshape(x, [x.type.elements])
    value, _ = nanmedian_dim(c, flat, 0)
    return _mean_of_equal(c, flat, value) if x.type.is_float else value


# Quantiles ----------------------------------------------------------------------------


def _sorted_lines(c, x, dim):
    """Returns `x` sorted in increasing order along its last dimension, which is `dim` moved to
    the end, or all elements if `dim` is None."""
    if dim is None or x.type.rank == 0:
        x = c.b.reshape(x, [x.type.elements])
        dim = 0
    x = c.b.swap(x, dim, -1)
    return sorted_values(c, x, x.shape[-1], -1, False)[0]


def _count_not_nan(c, lines):
    """Returns the number of elements of each line that are not NaN, [..., 1], in the type of
    the lines."""
    b = c.b
    return reduced(c, "sum", b.cast(b.compare("eq", lines, lines), lines.dtype), -1, True)


@converts(aten.quantile.default, aten.quantile.scalar)
def quantile(c, x, q, dim=None, keepdim=False, *, interpolation="linear"):
    b = c.b
    lines = _sorted_lines(c, x, dim)
    size = b.scalar(lines.shape[-1], x.dtype)
    values = _interpolated(c, lines, q, size, interpolation)
    has_nan = b.compare("lt", _count_not_nan(c, lines), size)
    return _quantiles_first(c, b.select(has_nan, b.scalar(math.nan, x.dtype), values), x, dim)


@converts(aten.nanquantile.default, aten.nanquantile.scalar)
def nanquantile(c, x, q, dim=None, keepdim=False, *, interpolation="linear"):
    lines = _sorted_lines(c, x, dim)
    return _quantiles_first(
        c, _interpolated(c, lines, q, _count_not_nan(c, lines), interpolation), x, dim)


def _interpolated(c, lines, q, count, interpolation):
    """Returns the quantiles `q` of the first `count` elements of each sorted line,
    [..., quantiles]."""
    b, dtype = c.b, lines.dtype
    q = c.operand(q, dtype)
    q = b.reshape(q, [1] * (lines.type.rank - 1) + [q.type.elements])
    last = b.binary("maximum", b.binary("sub", count, b.scalar(1, dtype)), b.scalar(0, dtype))
    rank = b.binary("mul", q, last)
    up = lambda r: b.unary("neg", b.unary("floor", b.unary("neg", r)))  # noqa: E731
    if interpolation in ("lower", "higher", "nearest"):
        rank = {"lower": lambda r: b.unary("floor", r), "higher": up,
                "nearest": lambda r: rounded(c, r)}[interpolation](rank)
    rank = b.broadcast(rank, (*lines.shape[:-1], rank.shape[-1]))
    low, high = (take_along(c, lines, -1, b.cast(r, "i64"))
                 for r in (b.unary("floor", rank), up(rank)))
    if interpolation in ("lower", "higher", "nearest"):
        return low
    weight = b.scalar(0.5, dtype) if interpolation == "midpoint" else b.binary(
        "sub", rank, b.unary("floor", rank))
    return b.binary("add", low, b.binary("mul", weight, b.binary("sub", high, low)))


def _quantiles_first(c, values, x, dim):
    """Moves the dimension of quantiles of [..., quantiles] to the front and the dimension that
    was swapped with `dim` back, and reshapes to the result's shape."""
    b, rank = c.b, values.type.rank
    order = [rank - 1, *range(rank - 1)]
    if dim is not None and x.type.rank:
        # The last dimension of `x` was swapped to the place of `dim`.
        dim %= x.type.rank
        rest = list(range(rank - 1))
        if dim < rank - 1:
            moved = rest.pop(dim)
            rest.append(moved)
        order = [rank - 1, *rest]
    return b.reshape(b.transpose(values, order), c.type.shape)
