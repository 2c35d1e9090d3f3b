# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Variances, vector norms, logarithms of sums of exponentials."""

from __future__ import annotations

import math

from .reduction import dims_of, mean_of, reduced
from ..registry import aten, converts


def _variance(c, x, dim, correction, keepdim):
    """Returns the sum of squared differences from the mean, divided by n - correction."""
    b = c.b
    count = math.prod(x.shape[d] for d in dims_of(x, dim))
    # The variance has no gradient through the mean, because the differences sum to zero.
    centred = b.binary("sub", x, b.unary("stop_gradient", mean_of(c, x, dim, True)))
    squares = b.binary("mul", centred, centred)
    return b.binary("div", reduced(c, "sum", squares, dim, keepdim),
                    b.scalar(count - correction, x.dtype))


@converts(aten.var.correction, aten.var.dim, aten.var.default)
def var(c, x, dim=None, unbiased=True, keepdim=False, correction=None):
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = correction if correction is not None else int(unbiased)
    return _variance(c, x, dim, correction, keepdim)


@converts(aten.std.correction, aten.std.dim, aten.std.default)
def std(c, x, dim=None, unbiased=True, keepdim=False, correction=None):
    return zero_safe_power(c, var(c, x, dim, unbiased, keepdim, correction))


def zero_safe_power(c, total, exponent=0.5):
    """Returns `total` to the power `exponent`, with a gradient of 0 where `total` is 0, as
    norms have. `total` is a sum of squares or of powers of magnitudes."""
    b, dtype = c.b, total.dtype
    flat = b.compare("eq", total, b.scalar(0, dtype))
    safe = b.select(flat, b.scalar(1, dtype), total)
    power = b.unary("sqrt", safe) if exponent == 0.5 else \
        b.binary("pow", safe, b.scalar(exponent, dtype))
    return b.select(flat, b.scalar(0, dtype), power)


@converts(aten.linalg_vector_norm.default, aten.norm.Scalar, aten.norm.ScalarOpt_dim)
def vector_norm(c, x, order=2, dim=None, keepdim=False, dtype=None):
    b = c.b
    order = 2 if order is None else order
    x = b.cast(x, c.type.dtype)
    size = b.unary("abs", x)
    if order == 0:
        nonzero = b.compare("ne", x, b.scalar(0, x.dtype))
        return reduced(c, "sum", b.cast(nonzero, x.dtype), dim, keepdim)
    if abs(order) == math.inf:
        return reduced(c, "max" if order > 0 else "min", size, dim, keepdim)
    if order == 1:
        return reduced(c, "sum", size, dim, keepdim)
    if order == 2:
        return zero_safe_power(c, reduced(c, "sum", b.binary("mul", x, x), dim, keepdim))
    power = (zero_safe_power(c, size, order) if order > 0 else
             b.binary("pow", size, b.scalar(order, x.dtype)))
    return zero_safe_power(c, reduced(c, "sum", power, dim, keepdim), 1 / order)


@converts(aten.var_mean.correction, aten.var_mean.dim, aten.var_mean.default)
def var_mean(c, x, dim=None, unbiased=True, keepdim=False, correction=None):
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = correction if correction is not None else int(unbiased)
    return _variance(c, x, dim, correction, keepdim), mean_of(c, x, dim, keepdim)


@converts(aten.logsumexp.default)
def logsumexp(c, x, dim, keepdim=False):
    b, dims = c.b, dims_of(x, dim)
    # The largest element is subtracted to keep exponentials finite, unless it is not finite
    # itself. Where it is infinite, all smaller elements have a weight of 0.
    infinity = b.scalar(math.inf, x.dtype)
    top = b.unary("stop_gradient", reduced(c, "max", x, dims, True))
    infinite = b.compare("eq", top, infinity)
    finite = b.compare("lt", b.unary("abs", top), infinity)
    top = b.select(finite, top, b.scalar(0, x.dtype))
    shifted = b.select(b.binary("and", infinite, b.compare("lt", x, infinity)),
                       b.scalar(-math.inf, x.dtype), b.binary("sub", x, top))
    total = reduced(c, "sum", b.unary("exp", shifted), dims, True)
    result = b.binary("add", b.unary("log", total), top)
    return b.reshape(result, c.type.shape)
