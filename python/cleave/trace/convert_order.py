# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Sorting, selection by rank, scans, products, quantiles."""

from __future__ import annotations

import math

import torch

from .convert_shape import reduced, take_along, wrapped_index
from .ir import TensorType, broadcast_shapes
from .registry import Unsupported, aten, converts


#: The largest number of elements that are selected by top_k; more are ranked by comparing
#: all pairs.
LARGEST_TOP_K = 64
#: The largest number of pairs that are compared.
LARGEST_PAIR_COUNT = 1 << 20


def _order(c, x, k, dim, descending=False):
    """Returns the indices of the first k elements along `dim` in sorted order. The order is
    stable, and NaN is the largest element. Raises Unsupported for too many pairs."""
    b = c.b
    if x.dtype in ("i1", "i8"):
        x = b.cast(x, "f32")
    if x.type.is_float and not x.constant:
        x = b.unary("stop_gradient", x)
    line = b.swap(x, dim, -1)
    if x.type.is_float and k <= LARGEST_TOP_K:
        key = line
        if not descending:
            # NaN sorts last, after infinity; -inf is the smallest key.
            key = b.select(b.compare("eq", line, line), b.unary("neg", line),
                           b.scalar(-math.inf, x.dtype))
        indices = b.top_k(key, k)[1]
    else:
        indices = b.narrow(_by_ranks(c, line, descending), -1, 0, k)
    return b.swap(indices, dim, -1)


def _by_ranks(c, x, descending):
    """Returns the indices that sort the last dimension, from each element's rank: the number
    of elements that come before it. Raises Unsupported for more than MOST_PAIRS pairs."""
    b, n = c.b, x.shape[-1]
    if n * x.type.elements > LARGEST_PAIR_COUNT:
        raise Unsupported(f"sorting of {x.type.elements} elements: more than {LARGEST_TOP_K} are "
                          "sorted by comparing each pair")
    here, there = b.reshape(x, (*x.shape, 1)), b.reshape(x, (*x.shape[:-1], 1, n))
    place = [b.iota(TensorType(shape, "i64"), d) for d, shape in enumerate(((n, 1), (1, n)))]
    equal = b.compare("eq", there, here)
    before = b.compare("gt" if descending else "lt", there, here)
    if x.type.is_float:
        known = [b.compare("eq", v, v) for v in (here, there)]
        first, second = known if descending else known[::-1]
        before = b.binary("or", before, b.binary("and", first, b.unary("not", second)))
        equal = b.binary("or", equal, b.unary("not", b.binary("or", *known)))
    earlier = b.binary("and", equal, b.compare("lt", place[1], place[0]))
    before = b.cast(b.binary("or", before, earlier), "f32")
    rank = b.cast(b.reduce("sum", before, [before.type.rank - 1]), "i64")
    number = b.iota(TensorType(x.shape, "f32"), x.type.rank - 1)
    lead = x.type.rank - 1
    return b.cast(b.scatter_add(number, rank, lead, n, batch=lead), "i64")


def _sorted(c, x, k, dim, descending):
    """Returns the first k elements along `dim` in sorted order, and their indices."""
    if x.type.rank == 0:
        return x, c.b.scalar(0, "i64")
    indices = _order(c, x, k, dim, descending)
    return take_along(c, x, dim, indices), indices


@converts(aten.sort.default)
def sort(c, x, dim=-1, descending=False):
    return _sorted(c, x, x.shape[dim] if x.type.rank else 1, dim, descending)


@converts(aten.sort.stable)
def sort_stable(c, x, stable=None, dim=-1, descending=False):
    return sort(c, x, dim, descending)


@converts(aten.argsort.default, aten.argsort.stable)
def argsort(c, x, dim=-1, descending=False, stable=False):
    return sort(c, x, dim, descending)[1]


@converts(aten.msort.default)
def msort(c, x):
    return sort(c, x, 0)[0]


def _ranked(c, x, rank, dim, keepdim):
    """Returns the element of `rank` (from 0) in increasing order along `dim`, and its index."""
    if x.type.rank == 0:
        return x, c.b.scalar(0, "i64")
    where = c.b.narrow(_order(c, x, rank + 1, dim), dim, rank, 1)
    value = take_along(c, x, dim, where)
    if keepdim:
        return value, where
    shape = [s for d, s in enumerate(x.shape) if d != dim % x.type.rank]
    return c.b.reshape(value, shape), c.b.reshape(where, shape)


@converts(aten.kthvalue.default)
def kthvalue(c, x, k, dim=-1, keepdim=False):
    return _ranked(c, x, k - 1, dim, keepdim)


@converts(aten.median.dim)
def median_dim(c, x, dim, keepdim=False):
    if x.type.rank == 0:
        return x, c.b.scalar(0, "i64")
    value, where = _ranked(c, x, (x.shape[dim] - 1) // 2, dim, keepdim)
    if not x.type.is_float:
        return value, where
    # The median of elements with a NaN is NaN.
    b = c.b
    unknown = b.cast(b.compare("ne", x, x), "f32")
    first = _order(c, unknown, 1, dim, True)
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


@converts(aten.cumprod.default)
def cumprod(c, x, dim, dtype=None):
    x = c.b.cast(x, c.type.dtype)
    if x.type.rank == 0:
        return x
    return scan(c, [x], dim, lambda a, b: [c.b.binary("mul", a[0], b[0])])[0]


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


# Products -----------------------------------------------------------------------------


def product_along(c, x, dim):
    """Returns the product along `dim`, which is removed. Halves are multiplied repeatedly, so
    that the gradient is right where factors are 0."""
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


# Quantiles ----------------------------------------------------------------------------


def _sorted_lines(c, x, dim):
    """Returns `x` sorted in increasing order along its last dimension, which is `dim` moved to
    the end, or all elements if `dim` is None."""
    if dim is None or x.type.rank == 0:
        x = c.b.reshape(x, [x.type.elements])
        dim = 0
    x = c.b.swap(x, dim, -1)
    return _sorted(c, x, x.shape[-1], -1, False)[0]


def _count_not_nan(c, lines):
    """Returns the number of elements of each line that are not NaN, [..., 1], in the type of
    the lines."""
    b = c.b
    return reduced(c, "sum", b.cast(b.compare("eq", lines, lines), lines.dtype), -1, True)


@converts(aten.nanmedian.dim)
def nanmedian_dim(c, x, dim, keepdim=False):
    if not x.type.is_float:
        return median_dim(c, x, dim, keepdim)
    if x.type.rank == 0:
        return x, c.b.scalar(0, "i64")
    b = c.b
    place = _order(c, x, x.shape[dim], dim)
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
    from .convert_functions import rounded
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


@converts(aten.take_along_dim.default)
def take_along_dim(c, x, indices, dim=None):
    """Dimensions other than `dim` broadcast; negative indices count from the end."""
    b = c.b
    if dim is None:
        x, indices = (b.reshape(v, [v.type.elements]) for v in (x, indices))
        dim = 0
    dim %= x.type.rank
    shape = [broadcast_shapes((p,), (q,))[0] if d != dim else None
             for d, (p, q) in enumerate(zip(x.shape, indices.shape))]
    x, indices = (b.broadcast(v, [v.shape[d] if s is None else s for d, s in enumerate(shape)])
                  for v in (x, indices))
    return take_along(c, x, dim, wrapped_index(c, indices, x.shape[dim]))
