# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Writes to elements by index: assignment and accumulation."""

from __future__ import annotations

import math

import torch

from .index import columns_of_rows, linear_index, wrapped_index
from .shape import slice_bounds
from ..ir import TensorType, broadcast_shapes
from ..registry import Unsupported, aten, converts

#: The largest number of pairs of positions that are compared.
LARGEST_COMPARISON = 1 << 24
#: The integers below this are exact in f32.
LARGEST_COUNT = 1 << 24


def last_of_duplicates(c, positions):
    """Returns, for each of the `positions` [..., n], whether no later one along the last dimension
    is equal. Raises Unsupported if too many pairs would be compared."""
    b, n = c.b, positions.shape[-1]
    if n * positions.type.elements > LARGEST_COMPARISON:
        raise Unsupported(f"assignment to {n} positions that may be equal; "
                          "use index_add, or indices that are known when tracing")
    here = b.reshape(positions, (*positions.shape, 1))
    there = b.reshape(positions, (*positions.shape[:-1], 1, n))
    row = b.iota(TensorType((n, n), "i64"), 0)
    column = b.iota(TensorType((n, n), "i64"), 1)
    again = b.binary("and", b.compare("eq", here, there), b.compare("lt", row, column))
    count = b.reduce("max", b.cast(again, "f32"), [again.type.rank - 1])
    return b.compare("eq", count, b.scalar(0, "f32"))


def assign_rows(c, rows, positions, values):
    """Returns `rows` [*batch, p, ...] with `values` [*batch, n, ...] written at `positions`
    [*batch, n]; of several values at one position, the last one is kept. Each row gathers the
    value written to it, which works for every element type; what is written at one place of the
    batch depends on that place alone, so that batch dimensions can be sharded."""
    b = c.b
    if positions.type.elements == 0:
        return rows
    batch = positions.type.rank - 1
    n, size = positions.shape[-1], rows.shape[batch]
    last = None if _all_differ(c.known(positions)) else last_of_duplicates(c, positions)
    if n >= LARGEST_COUNT:
        raise Unsupported(f"assignment to {n} positions at once: at most {LARGEST_COUNT - 1}")
    positions = b.cast(positions, "i64")
    number = b.iota(TensorType(positions.shape, "f32"), batch, 1)
    if last is not None:
        number = b.binary("mul", number, b.cast(last, "f32"))
    number = b.scatter_add(number, positions, batch, size, batch=batch)
    given = b.compare("gt", number, b.scalar(0, "f32"))
    which = b.binary("maximum", b.binary("sub", b.cast(number, "i64"), b.scalar(1, "i64")),
                     b.scalar(0, "i64"))
    taken = b.gather(values, which, batch, batch=batch)
    given = b.reshape(given, [*given.shape] + [1] * (rows.type.rank - given.type.rank))
    if last is not None and values.trained:
        # All values written to one position receive its gradient, as in PyTorch.
        fixed = b.unary("stop_gradient", values)
        finite = b.compare("lt", b.unary("abs", values), b.scalar(math.inf, values.dtype))
        nothing = b.select(finite, b.binary("sub", values, fixed), b.scalar(0, values.dtype))
        flow = b.scatter_add(nothing, positions, batch, size, batch=batch)
        taken = b.binary("add", b.unary("stop_gradient", taken), flow)
    return b.select(given, taken, rows)


def _all_differ(known):
    """Tells whether the positions [..., n], where they are known, differ along the last dimension."""
    return known is not None and bool((known.sort(-1).values.diff(dim=-1) != 0).all())


def add_rows(c, rows, positions, values):
    """Returns `rows` [*batch, p, ...] with `values` [*batch, n, ...] added at `positions`
    [*batch, n]."""
    b, batch = c.b, positions.type.rank - 1
    if positions.type.elements == 0:
        return rows
    if not rows.type.is_float:
        raise Unsupported(f"accumulation of {rows.dtype} by index")
    return b.binary("add", rows, b.scatter_add(values, b.cast(positions, "i64"), batch,
                                               rows.shape[batch], batch=batch))


# By index along several dimensions ----------------------------------------------------


def _masked(c, x, indices, values):
    """Converts x[mask] = values, where all positions of the mask get the same value."""
    dim = next(d for d, i in enumerate(indices) if i is not None)
    mask = indices[dim]
    rest = x.type.rank - dim - mask.type.rank
    # The dimension of `values` that enumerates the mask's true positions.
    position = values.type.rank - 1 - rest
    if len([i for i in indices if i is not None]) != 1 or (
            position >= 0 and values.shape[position] != 1):
        raise Unsupported("assignment of several values by a boolean mask; use torch.where")
    shape = list(values.shape)
    if position >= 0:
        shape[position:position + 1] = [1] * mask.type.rank
    mask = c.b.reshape(mask, [1] * dim + list(mask.shape) + [1] * rest)
    return c.b.select(mask, c.b.cast(c.b.reshape(values, shape), x.dtype), x)


@converts(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(c, x, indices, values, accumulate=False):
    b = c.b
    if any(i is not None and i.dtype == "i1" for i in indices):
        if accumulate:
            raise Unsupported("accumulation by a boolean mask; use torch.where")
        return _masked(c, x, indices, values)
    change = add_rows if accumulate else assign_rows
    given = [d for d, i in enumerate(indices) if i is not None]
    found = columns_of_rows(c, x, *indices[:2]) if given == [0, 1] else None
    if found is not None:
        chosen, shape = found
        values = b.broadcast(b.cast(values, x.dtype), shape + x.shape[2:])
        return change(c, x, chosen, b.reshape(values, chosen.shape + x.shape[2:]))
    order, count, position, first = linear_index(c, x, indices)
    rest = [x.shape[d] for d in order[sum(i is not None for i in indices):]]
    # x[indices] has the indices' shape at dimension `first`, the other dimensions around it.
    spread = rest[:first] + list(position.shape) + rest[first:]
    values = b.broadcast(b.cast(values, x.dtype), spread)
    moved = (list(range(first, first + position.type.rank)) + list(range(first))
             + list(range(first + position.type.rank, len(spread))))
    values = b.reshape(b.transpose(values, moved), [position.type.elements, *rest])
    rows = b.reshape(b.transpose(x, order), [count, *rest])
    rows = change(c, rows, b.reshape(position, [position.type.elements]), values)
    rows = b.reshape(rows, [x.shape[d] for d in order])
    return b.transpose(rows, [order.index(d) for d in range(x.type.rank)])


@converts(aten.masked_scatter.default)
def masked_scatter(c, x, mask, source):
    """Writes the elements of `source`, in order, where the mask is true."""
    b = c.b
    shape = broadcast_shapes(x.shape, mask.shape)
    x, mask = b.broadcast(x, shape), b.broadcast(mask, shape)
    n = x.type.elements
    chosen = b.reshape(b.cast(mask, "i64"), [n])
    number = b.binary("sub", b.cumulative_sum(chosen, 0), b.scalar(1, "i64"))
    number = b.binary("minimum", b.binary("maximum", number, b.scalar(0, "i64")),
                      b.scalar(source.type.elements - 1, "i64"))
    taken = b.gather(b.reshape(source, [source.type.elements]), number, 0)
    return b.select(mask, b.reshape(taken, shape), x)


@converts(aten.put.default)
def put(c, x, index, source, accumulate=False):
    b, n = c.b, index.type.elements
    index = b.cast(wrapped_index(c, b.reshape(index, [n]), x.type.elements), "i64")
    change = add_rows if accumulate else assign_rows
    rows = change(c, b.reshape(x, [x.type.elements]), index, b.reshape(source, [n]))
    return b.reshape(rows, x.shape)


# By index along one dimension ---------------------------------------------------------


def _along(c, x, dim, index, source, change):
    """Applies `change` (assign_rows or add_rows) to the slices of `x` along `dim` at a vector of
    indices."""
    b = c.b
    if x.type.rank == 0:
        x, source, back = b.reshape(x, [1]), b.reshape(source, [1]), ()
    else:
        back = x.shape
    index = b.reshape(index, [index.type.elements])
    dim %= x.type.rank
    index = b.cast(wrapped_index(c, b.cast(index, "i64"), x.shape[dim]), "i64")
    rows = change(c, b.swap(x, 0, dim), index, b.swap(source, 0, dim))
    return b.reshape(b.swap(rows, 0, dim), back)


@converts(aten.index_copy.default)
def index_copy(c, x, dim, index, source):
    return _along(c, x, dim, index, source, assign_rows)


@converts(aten.index_add.default)
def index_add(c, x, dim, index, source, alpha=1):
    if alpha != 1:
        source = c.b.binary("mul", source, c.b.scalar(alpha, source.dtype))
    return _along(c, x, dim, index, source, add_rows)


@converts(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(c, x, dim, index, value):
    b = c.b
    one = b.reshape(x, [1]) if x.type.rank == 0 else x
    dim %= one.type.rank
    index = b.cast(wrapped_index(c, b.cast(index, "i64"), one.shape[dim]), "i64")
    index = b.reshape(index, [index.type.elements])
    position = b.iota(TensorType((one.shape[dim], 1), "i64"), 0)
    hit = b.compare("eq", position, b.reshape(index, [1, index.type.elements]))
    if index.type.elements == 0:
        return x
    hit = b.compare("gt", b.reduce("max", b.cast(hit, "f32"), [1]), b.scalar(0, "f32"))
    hit = b.reshape(hit, [1] * dim + [one.shape[dim]] + [1] * (one.type.rank - dim - 1))
    return b.reshape(b.select(hit, c.operand(value, x.dtype), one), x.shape)


@converts(aten.slice_scatter.default)
def slice_scatter(c, x, source, dim=0, start=None, end=None, step=1):
    dim %= x.type.rank
    start, end = slice_bounds(start, end, x.shape[dim])
    source = c.b.cast(source, x.dtype)
    if step != 1:
        places = torch.arange(start, end, step)
        return index_copy(c, x, dim, c.b.constant(places), source)
    parts = [c.b.narrow(x, dim, 0, start), source,
             c.b.narrow(x, dim, end, x.shape[dim] - end)]
    return c.b.concat([p for p in parts if p.shape[dim]], dim)


@converts(aten.select_scatter.default)
def select_scatter(c, x, source, dim, index):
    dim %= x.type.rank
    index %= x.shape[dim]
    shape = x.shape[:dim] + (1,) + x.shape[dim + 1:]
    return slice_scatter(c, x, c.b.reshape(source, shape), dim, index, index + 1)
