# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Sorting and selection by rank."""

from __future__ import annotations

import math

from .index import take_along
from .reduction import reduced
from ..ir import TensorType
from ..registry import Unsupported, aten, converts

#: The largest number of elements that are selected by top_k; more are ranked by comparing
#: all pairs.
LARGEST_TOP_K = 64
#: The largest number of pairs that are compared.
LARGEST_PAIR_COUNT = 1 << 20


# Sorting ------------------------------------------------------------------------------


def sorted_indices(c, x, k, dim, descending=False):
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
    """Returns the indices that sort the last dimension, from each element's rank: the number of
    elements that come before it. Raises Unsupported for more than LARGEST_PAIR_COUNT pairs."""
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


def sorted_values(c, x, k, dim, descending):
    """Returns the first k elements along `dim` in sorted order, and their indices."""
    if x.type.rank == 0:
        return x, c.b.scalar(0, "i64")
    indices = sorted_indices(c, x, k, dim, descending)
    return take_along(c, x, dim, indices), indices


@converts(aten.sort.default)
def sort(c, x, dim=-1, descending=False):
    return sorted_values(c, x, x.shape[dim] if x.type.rank else 1, dim, descending)


@converts(aten.sort.stable)
def sort_stable(c, x, stable=None, dim=-1, descending=False):
    return sort(c, x, dim, descending)


@converts(aten.argsort.default, aten.argsort.stable)
def argsort(c, x, dim=-1, descending=False, stable=False):
    return sort(c, x, dim, descending)[1]


@converts(aten.msort.default)
def msort(c, x):
    return sort(c, x, 0)[0]


# Selection ----------------------------------------------------------------------------


def ranked(c, x, rank, dim, keepdim):
    """Returns the element of `rank` (from 0) in increasing order along `dim`, and its index."""
    if x.type.rank == 0:
        return x, c.b.scalar(0, "i64")
    where = c.b.narrow(sorted_indices(c, x, rank + 1, dim), dim, rank, 1)
    value = take_along(c, x, dim, where)
    if keepdim:
        return value, where
    shape = [s for d, s in enumerate(x.shape) if d != dim % x.type.rank]
    return c.b.reshape(value, shape), c.b.reshape(where, shape)


@converts(aten.kthvalue.default)
def kthvalue(c, x, k, dim=-1, keepdim=False):
    return ranked(c, x, k - 1, dim, keepdim)


def _extreme_integers(c, x, k, dim, kind):
    """Returns values and indices of the k largest (`kind` "max") or smallest integers along
    `dim`; of equal ones, the first."""
    b, dim = c.b, dim % x.type.rank
    if k != 1:
        values, indices = sort(c, x, dim, kind == "max")
        return b.narrow(values, dim, 0, k), b.narrow(indices, dim, 0, k)
    number = b.cast(x, "i64")
    best = reduced(c, kind, number, dim, True)
    place = b.iota(TensorType(x.shape, "i64"), dim)
    beyond = b.scalar(x.shape[dim], "i64")
    place = b.select(b.compare("eq", number, best), place, beyond)
    return b.cast(best, x.dtype), reduced(c, "min", place, dim, True)


def _largest(c, x, k, dim):
    """Returns values and indices of the k largest floats along `dim`."""
    if x.type.rank == 0:
        return x, c.b.scalar(0, "i64")
    values, indices = c.b.top_k(c.b.swap(x, dim, -1), k)
    return c.b.swap(values, dim, -1), c.b.swap(indices, dim, -1)


@converts(aten.topk.default)
def topk(c, x, k, dim=-1, largest=True, sorted=True):
    if not x.type.is_float and x.type.rank:
        return _extreme_integers(c, x, k, dim, "max" if largest else "min")
    if largest:
        return _largest(c, x, k, dim)
    values, indices = _largest(c, c.b.unary("neg", x), k, dim)
    return c.b.unary("neg", values), indices


def _extreme(c, x, dim, keepdim, negated=False):
    """Returns the largest element along `dim`, or the smallest if `negated`, and its index;
    only that element has a gradient."""
    values, indices = topk(c, x, 1, dim, not negated)
    if keepdim or x.type.rank == 0:
        return values, indices
    shape = [s for d, s in enumerate(x.shape) if d != dim % x.type.rank]
    return c.b.reshape(values, shape), c.b.reshape(indices, shape)


@converts(aten.max.dim)
def max_dim(c, x, dim, keepdim=False):
    return _extreme(c, x, dim, keepdim)


@converts(aten.min.dim)
def min_dim(c, x, dim, keepdim=False):
    return _extreme(c, x, dim, keepdim, negated=True)


@converts(aten.argmax.default, aten.argmin.default)
def arg_extreme(c, x, dim=None, keepdim=False):
    negated = c.target is aten.argmin.default
    if dim is None:
        x, dim = c.b.reshape(x, [x.type.elements]), 0
    return c.b.reshape(_extreme(c, x, dim, True, negated)[1], c.type.shape)
