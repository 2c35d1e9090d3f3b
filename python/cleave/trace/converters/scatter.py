# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Scatter operators, which have an index for each element, and reductions by index."""

from __future__ import annotations

import math

from .assignment import LARGEST_COMPARISON, add_rows, assign_rows
from .index import inverse_permutation, split_dims
from .reduction import reduced
from .scan import product_along
from ..ir import TensorType, scalar_of
from ..registry import Unsupported, aten, converts


def _lines(c, x, dim, *operands):
    """Returns `x`, as far as the first of `operands` (the indices) reaches in the other
    dimensions, and the operands, each with dimension `dim` last: only elements of one line along
    `dim` have to do with each other, and lines can be sharded."""
    b = c.b
    sizes = [s if d == dim else operands[0].shape[d] for d, s in enumerate(x.shape)]
    return [b.swap(v, dim, -1) for v in (b.slice(x, [0] * x.type.rank, sizes), *operands)]


def _from_lines(c, x, dim, lines):
    """Returns `x` with what `_lines` took of it replaced by `lines`."""
    b, changed = c.b, c.b.swap(lines, dim, -1)
    for d, size in enumerate(x.shape):
        done = changed.shape[d]
        if done < size:
            start = [done if e == d else 0 for e in range(x.type.rank)]
            rest = [size - done if e == d else s for e, s in enumerate(changed.shape)]
            changed = b.concat([changed, b.slice(x, start, rest)], d)
    return changed


def _scattered(c, x, dim, index, source):
    """Returns the operands of a scatter (x, dim, index, source), with at least one
    dimension, indices in i64 and the source in the shape of the indices."""
    b = c.b
    if x.type.rank == 0:
        x = b.reshape(x, [1])
    if index.type.rank == 0:
        index = b.reshape(index, [1])
    if isinstance(source, (int, float)) or source.type.rank == 0:
        source = b.broadcast(c.operand(source, x.dtype), index.shape)
    source = b.slice(source, [0] * source.type.rank, index.shape)
    return x, dim % x.type.rank, b.cast(index, "i64"), b.cast(source, x.dtype)


@converts(aten.scatter.src, aten.scatter.value)
def scatter(c, x, dim, index, source):
    b, shape = c.b, x.shape
    if index.type.elements == 0:
        return x
    x, dim, index, source = _scattered(c, x, dim, index, source)
    rows, positions, values = _lines(c, x, dim, index, source)
    rows = assign_rows(c, rows, positions, values)
    return b.reshape(_from_lines(c, x, dim, rows), shape)


@converts(aten.scatter_add.default)
def scatter_add(c, x, dim, indices, source):
    b = c.b
    if not x.type.is_float:
        raise Unsupported("scatter_add of integers")
    if x.type.rank == 0 or indices.type.rank == 0 or indices.type.elements == 0:
        return scatter_add_lines(c, x, dim, indices, source)
    dim %= x.type.rank
    given, source = indices, b.slice(source, [0] * x.type.rank, indices.shape)
    indices, batch, slices = split_dims(indices, x, dim)
    if any(indices.shape[d] != x.shape[d] for d in batch):
        return scatter_add_lines(c, x, dim, given, source)
    order = batch + [dim] + slices
    chosen = b.reshape(b.transpose(indices, order),
                       [indices.shape[d] for d in batch + [dim]])
    added = b.scatter_add(b.transpose(source, order), b.cast(chosen, "i64"), len(batch),
                          x.shape[dim], batch=len(batch))
    added = b.transpose(added, inverse_permutation(order))
    return added if scalar_of(x) == 0 else b.binary("add", x, added)


def scatter_add_lines(c, x, dim, index, source):
    """Converts scatter_add of operands of any shape, with an index for each element."""
    b, shape = c.b, x.shape
    if index.type.elements == 0:
        return x
    x, dim, index, source = _scattered(c, x, dim, index, source)
    rows, positions, values = _lines(c, x, dim, index, source)
    return b.reshape(_from_lines(c, x, dim, add_rows(c, rows, positions, values)), shape)


@converts(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(c, x, dim, index, source, *, reduce):
    return scatter_reduce(c, x, dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])


@converts(aten.scatter_reduce.two)
def scatter_reduce(c, x, dim, index, source, reduce, include_self=True):
    b, shape = c.b, x.shape
    if index.type.elements == 0:
        return x
    if not x.type.is_float:
        raise Unsupported(f"scatter of {x.dtype} with a reduction")
    x, dim, index, source = _scattered(c, x, dim, index, source)
    return b.reshape(_reduced_by_index(c, x, dim, index, source, reduce, include_self), shape)


@converts(aten.index_reduce.default)
def index_reduce(c, x, dim, index, source, reduce, *, include_self=True):
    b, shape = c.b, x.shape
    if x.type.rank == 0:
        x, source = b.reshape(x, [1]), b.reshape(source, [1])
    dim %= x.type.rank
    if not x.type.is_float:
        raise Unsupported(f"index_reduce of {x.dtype}")
    if index.type.elements == 0:
        return b.reshape(x, shape)
    index = b.reshape(b.cast(index, "i64"), [1] * dim + [index.type.elements]
                      + [1] * (x.type.rank - dim - 1))
    index = b.broadcast(index, source.shape)
    return b.reshape(_reduced_by_index(c, x, dim, index, source, reduce, include_self), shape)


def _reduced_by_index(c, x, dim, index, source, reduce, include_self):
    """Returns `x` reduced with the elements of `source` that `index` sends to each of its
    elements. `reduce` is sum, mean, prod, amax or amin."""
    b, dtype = c.b, x.dtype
    zero, one = b.scalar(0, dtype), b.scalar(1, dtype)
    _, positions, values = _lines(c, x, dim, index, source)
    lead = positions.type.rank - 1

    def added(values):
        """The sum of the values sent to each element of `x`."""
        line = b.scatter_add(values, positions, lead, x.shape[dim], batch=lead)
        return _from_lines(c, b.full(0, x.type), dim, line)

    count = added(b.full(1, TensorType(positions.shape, dtype)))
    hit = b.compare("gt", count, zero)
    if reduce in ("sum", "mean"):
        start = x if include_self else b.select(hit, zero, x)
        total = b.binary("add", start, added(values))
        if reduce == "sum":
            return total
        count = b.binary("add", count, one) if include_self else b.select(hit, count, one)
        return b.binary("div", total, count)
    # Each position of the result along `dim` is compared with each index along `dim`.
    size, n = x.shape[dim], index.shape[dim]
    if size * index.type.elements > LARGEST_COMPARISON:
        raise Unsupported(f"scatter with {reduce} of {index.type.elements} elements: more than "
                          f"{LARGEST_COMPARISON} pairs are compared")
    lead, tail = index.shape[:dim], index.shape[dim + 1:]
    kept = b.iota(TensorType((size, 1) + (1,) * len(tail), "i64"), 0)
    here = b.compare("eq", b.reshape(index, (*lead, 1, n, *tail)), kept)
    neutral = {"prod": 1, "amax": -math.inf, "amin": math.inf}[reduce]
    spread = b.select(here, b.reshape(source, (*lead, 1, n, *tail)), b.scalar(neutral, dtype))
    # Slices of `x` beyond the shape of the index receive nothing.
    high = [0 if d in (dim, dim + 1) else x.shape[d - (d > dim)] - s
            for d, s in enumerate(spread.shape)]
    spread = b.pad(spread, neutral, [0] * spread.type.rank, high)
    if include_self:
        own = b.reshape(x, x.shape[:dim + 1] + (1,) + x.shape[dim + 1:])
        spread = b.concat([own, spread], dim + 1)
    result = (product_along(c, spread, dim + 1) if reduce == "prod" else
              reduced(c, {"amax": "max", "amin": "min"}[reduce], spread, dim + 1, False))
    return result if include_self else b.select(hit, result, x)
