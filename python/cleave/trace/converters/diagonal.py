# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Diagonals and triangles of matrices."""

from __future__ import annotations

from ..ir import TensorType
from ..registry import aten, converts


# Diagonals ----------------------------------------------------------------------------


def _diagonal_mask(c, rows, columns, offset):
    """Returns [rows, columns] booleans: whether an element is on the diagonal `offset`."""
    b = c.b
    row = b.iota(TensorType((rows, 1), "i64"), 0)
    column = b.iota(TensorType((1, columns), "i64"), 1)
    return b.compare("eq", b.binary("add", row, b.scalar(offset, "i64")), column)


def _to_end(c, x, dims):
    """Moves the dimensions `dims` to the end."""
    rest = [d for d in range(x.type.rank) if d not in dims]
    return c.b.transpose(x, rest + list(dims))


def _from_end(c, x, dims):
    """Moves the last dimensions back to `dims`, as the inverse of `_to_end`."""
    rest = [d for d in range(x.type.rank) if d not in dims]
    order = rest + list(dims)
    return c.b.transpose(x, [order.index(d) for d in range(x.type.rank)])


@converts(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(c, x, offset=0, dim1=0, dim2=1):
    b = c.b
    x = _to_end(c, x, (dim1 % x.type.rank, dim2 % x.type.rank))
    rows, columns = x.shape[-2:]
    size = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    size = c.type.shape[-1] if c.type else size
    if size == 0:
        return b.slice(b.reshape(x, (*x.shape[:-2], rows * columns)), [0] * (x.type.rank - 1),
                       (*x.shape[:-2], 0))
    start = offset if offset >= 0 else -offset * columns
    flat = b.reshape(x, (*x.shape[:-2], rows * columns))
    return b.narrow(flat, -1, start, size, columns + 1)


@converts(aten.diag_embed.default)
def diag_embed(c, x, offset=0, dim1=-2, dim2=-1):
    b, n, rank = c.b, x.shape[-1], x.type.rank + 1
    square = b.select(_diagonal_mask(c, n, n, 0), b.reshape(x, (*x.shape, 1)), b.scalar(0, x.dtype))
    low, high = [0] * rank, [0] * rank
    low[-1], high[-2] = max(offset, 0), max(offset, 0)
    low[-2], high[-1] = max(-offset, 0), max(-offset, 0)
    return _from_end(c, b.pad(square, 0, low, high), (dim1 % rank, dim2 % rank))


@converts(aten.diag.default)
def diag(c, x, diagonal_=0, **named):
    offset = named.get("diagonal", diagonal_)
    return diag_embed(c, x, offset) if x.type.rank == 1 else diagonal(c, x, offset)


@converts(aten.diagonal_scatter.default)
def diagonal_scatter(c, x, source, offset=0, dim1=0, dim2=1):
    b = c.b
    dims = (dim1 % x.type.rank, dim2 % x.type.rank)
    moved = _to_end(c, x, dims)
    rows, columns = moved.shape[-2:]
    low = max(-offset, 0)
    widths = [0] * (source.type.rank - 1)
    line = b.pad(source, 0, [*widths, low], [*widths, rows - low - source.shape[-1]])
    mask = _diagonal_mask(c, rows, columns, offset)
    result = b.select(mask, b.reshape(line, (*line.shape, 1)), moved)
    return _from_end(c, result, dims)


# Triangles ----------------------------------------------------------------------------


def _triangle(c, x, diagonal, keep):
    """Returns `x` with zeros except where column `keep` (le or ge) row + diagonal."""
    shape = x.shape[-2:]
    row = c.b.iota(TensorType((shape[0], 1), "i64"), 0)
    column = c.b.iota(TensorType((1, shape[1]), "i64"), 1)
    bound = c.b.binary("add", row, c.b.scalar(diagonal, "i64"))
    mask = c.b.compare(keep, column, bound)
    if x.dtype == "i1":
        return c.b.binary("and", x, mask)
    return c.b.select(mask, x, c.b.scalar(0, x.dtype))


@converts(aten.tril.default)
def tril(c, x, diagonal=0):
    return _triangle(c, x, diagonal, "le")


@converts(aten.triu.default)
def triu(c, x, diagonal=0):
    return _triangle(c, x, diagonal, "ge")
