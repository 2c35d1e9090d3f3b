# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Views, slices, concatenation."""

from __future__ import annotations

import math

from ..ir import TensorType, broadcast_shapes
from ..registry import aten, converts


# Views --------------------------------------------------------------------------------


@converts(aten.view.default, aten._unsafe_view.default, aten.reshape.default,
          aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim,
          aten.squeeze.dims, aten.flatten.using_ints, aten.unflatten.int,
          aten.view_as.default, aten.reshape_as.default, aten.ravel.default)
def reshape(c, x, *_, **__):
    return c.b.reshape(x, c.type.shape)


@converts(aten.permute.default)
def permute(c, x, dims):
    return c.b.transpose(x, dims)


@converts(aten.transpose.int, aten.swapaxes.default)
def transpose(c, x, a, b):
    return c.b.swap(x, a, b)


@converts(aten.movedim.int, aten.movedim.intlist)
def movedim(c, x, source, destination):
    rank = x.type.rank
    source = [source] if isinstance(source, int) else source
    destination = [destination] if isinstance(destination, int) else destination
    source, destination = [s % rank for s in source], [d % rank for d in destination]
    rest = iter([d for d in range(rank) if d not in source])
    order = [source[destination.index(d)] if d in destination else next(rest)
             for d in range(rank)]
    return c.b.transpose(x, order)


@converts(aten.t.default, aten.numpy_T.default, aten.mT.default)
def t(c, x):
    return c.b.swap(x, -1, -2) if x.type.rank >= 2 else x


@converts(aten.expand.default, aten.expand_as.default)
def expand(c, x, *_, **__):
    return c.b.broadcast(x, c.type.shape)


@converts(aten.broadcast_tensors.default)
def broadcast_tensors(c, values):
    shape = broadcast_shapes(*(v.shape for v in values))
    return tuple(c.b.broadcast(v, shape) for v in values)


@converts(aten.repeat.default)
def repeat(c, x, repeats):
    lead = len(repeats) - x.type.rank
    shape = [1] * lead + list(x.shape)
    split, full = [], []
    for times, size in zip(repeats, shape):
        split += [1, size]
        full += [times, size]
    return c.b.reshape(c.b.broadcast(c.b.reshape(x, split), full), c.type.shape)


@converts(aten.repeat_interleave.self_int)
def repeat_interleave(c, x, repeats, dim=None, **_):
    if dim is None:
        x, dim = c.b.reshape(x, [x.type.elements]), 0
    dim %= x.type.rank
    shape = x.shape[:dim + 1] + (1,) + x.shape[dim + 1:]
    full = x.shape[:dim + 1] + (repeats,) + x.shape[dim + 1:]
    return c.b.reshape(c.b.broadcast(c.b.reshape(x, shape), full), c.type.shape)


# Slices, concatenation ----------------------------------------------------------------


@converts(aten.slice.Tensor)
def slice_(c, x, dim=0, start=None, end=None, step=1):
    start, _ = slice_bounds(start, end, x.shape[dim])
    return c.b.narrow(x, dim, start, c.type.shape[dim % x.type.rank], step)


def slice_bounds(start, end, size):
    """Returns the bounds of a Python slice, each in [0, size]."""
    start = 0 if start is None else start
    end = size if end is None else end
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return start, end


@converts(aten.select.int)
def select(c, x, dim, index):
    dim %= x.type.rank
    return c.b.reshape(c.b.narrow(x, dim, index % x.shape[dim], 1), c.type.shape)


@converts(aten.narrow.default)
def narrow(c, x, dim, start, length):
    return c.b.narrow(x, dim, start % max(x.shape[dim], 1), length)


@converts(aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default)
def split(c, x, sizes, dim=0):
    total = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - i) for i in range(0, total, sizes)]
    parts, start = [], 0
    for size in sizes:
        parts.append(c.b.narrow(x, dim, start, size))
        start += size
    return tuple(parts)


@converts(aten.chunk.default)
def chunk(c, x, chunks, dim=0):
    return split(c, x, math.ceil(x.shape[dim] / chunks), dim)


@converts(aten.unbind.int)
def unbind(c, x, dim=0):
    dim %= x.type.rank
    shape = x.shape[:dim] + x.shape[dim + 1:]
    return tuple(c.b.reshape(c.b.narrow(x, dim, i, 1), shape) for i in range(x.shape[dim]))


@converts(aten.cat.default, aten.concat.default)
def cat(c, values, dim=0):
    # Operands without elements are dropped: native code has no such tensors.
    values = [v for v in values if v.type.elements]
    if not values:
        return c.b.full(0, c.type)
    return c.b.concat([c.b.cast(v, c.type.dtype) for v in values], dim)


@converts(aten.stack.default)
def stack(c, values, dim=0):
    dim %= values[0].type.rank + 1
    shape = values[0].shape[:dim] + (1,) + values[0].shape[dim:]
    return c.b.concat([c.b.reshape(c.b.cast(v, c.type.dtype), shape) for v in values], dim)


@converts(aten.roll.default)
def roll(c, x, shifts, dims=()):
    if not dims:
        flat = roll(c, c.b.reshape(x, [x.type.elements]), shifts, [0])
        return c.b.reshape(flat, x.shape)
    for shift, dim in zip(shifts, dims):
        size = x.shape[dim]
        cut = (size - shift) % size
        if cut:
            x = c.b.concat([c.b.narrow(x, dim, cut, size - cut),
                            c.b.narrow(x, dim, 0, cut)], dim)
    return x


@converts(aten.flip.default)
def flip(c, x, dims):
    for dim in dims:
        last = c.b.scalar(x.shape[dim] - 1, "i64")
        order = c.b.binary("sub", last, c.b.iota(TensorType((x.shape[dim],), "i64"), 0))
        x = c.b.gather(x, order, dim)
    return x
