# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Reductions: sums, means, extremes, logical reductions, histograms."""

from __future__ import annotations

import math

from ..ir import TensorType
from ..registry import Unsupported, aten, converts


def dims_of(x, dim):
    """Returns the list of dimensions that `dim` (None, a number or a list) names."""
    if dim is None or dim == []:
        return list(range(x.type.rank))
    return [d % x.type.rank for d in ([dim] if isinstance(dim, int) else dim)
            if x.type.rank]


def reduced(c, kind, x, dim, keepdim):
    """Reduces `x` over `dim` by `kind`: "sum", "max" or "min"."""
    dims = dims_of(x, dim)
    result = c.b.reduce(kind, x, dims)
    if keepdim:
        result = c.b.reshape(result, [1 if i in dims else s for i, s in enumerate(x.shape)])
    return result


def mean_of(c, x, dim, keepdim):
    """Returns the mean of `x` over `dim`."""
    count = math.prod(x.shape[d] for d in dims_of(x, dim))
    return c.b.binary("div", reduced(c, "sum", x, dim, keepdim), c.b.scalar(count, x.dtype))


@converts(aten.sum.default, aten.sum.dim_IntList)
def sum_(c, x, dim=None, keepdim=False, dtype=None):
    return reduced(c, "sum", c.b.cast(x, c.type.dtype), dim, keepdim)


@converts(aten.mean.default, aten.mean.dim)
def mean(c, x, dim=None, keepdim=False, dtype=None):
    return mean_of(c, c.b.cast(x, c.type.dtype), dim, keepdim)


@converts(aten.amax.default, aten.max.default)
def amax(c, x, dim=None, keepdim=False):
    return reduced(c, "max", x, dim, keepdim)


@converts(aten.amin.default, aten.min.default)
def amin(c, x, dim=None, keepdim=False):
    return reduced(c, "min", x, dim, keepdim)


@converts(aten.any.default, aten.any.dim, aten.any.dims)
def any_(c, x, dim=None, keepdim=False):
    count = c.b.cast(c.b.cast(x, "i1"), "i64")
    return c.b.cast(reduced(c, "max", count, dim, keepdim), "i1")


@converts(aten.all.default, aten.all.dim, aten.all.dims)
def all_(c, x, dim=None, keepdim=False):
    count = c.b.cast(c.b.cast(x, "i1"), "i64")
    return c.b.cast(reduced(c, "min", count, dim, keepdim), "i1")


@converts(aten.histc.default)
def histc(c, x, bins=100, min=0, max=0):
    b = c.b
    if min >= max:
        raise Unsupported("a histogram between the extremes of its elements; give min and max")
    x = b.reshape(x, [x.type.elements, 1])
    # The last bin includes its upper bound.
    scaled = b.binary("mul", b.binary("sub", x, b.scalar(min, x.dtype)),
                      b.scalar(bins / (max - min), x.dtype))
    number = b.select(b.compare("eq", x, b.scalar(max, x.dtype)),
                      b.scalar(bins - 1, x.dtype), b.unary("floor", scaled))
    inside = b.compare("eq", number, b.iota(TensorType((1, bins), x.dtype), 1))
    return b.reduce("sum", b.cast(inside, x.dtype), [0])
