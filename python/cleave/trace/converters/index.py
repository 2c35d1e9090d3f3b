# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Reads of elements by index: indexing, gather, embedding."""

from __future__ import annotations

import math

import torch

from ..ir import TensorType, broadcast_shapes
from ..registry import Unsupported, aten, converts


# Indexing -----------------------------------------------------------------------------


def wrapped_index(c, index, size):
    """Returns `index` with negative indices of a dimension of `size` counted from the end."""
    index = c.b.cast(index, "i64") if index.dtype == "i8" else index
    known = c.known(index)
    if known is not None and bool((known >= 0).all()):
        return index
    negative = c.b.compare("lt", index, c.b.scalar(0, index.dtype))
    shifted = c.b.binary("add", index, c.b.scalar(size, index.dtype))
    return c.b.select(negative, shifted, index)


def linear_index(c, x, indices):
    """Linearises the indices of x[indices]. Returns the permutation of dimensions that
    puts the indexed ones first, the product of their sizes, the row-major index of each
    selected position, and the dimension of the result at which the indices' shape begins."""
    b = c.b
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(indices[d].dtype == "i1" for d in used):
        raise Unsupported("indexing by a boolean mask, whose result has no static shape; "
                          "use torch.where")
    shape = broadcast_shapes(*(indices[d].shape for d in used))
    position = None
    for d in used:
        i = b.cast(wrapped_index(c, b.cast(indices[d], "i64"), x.shape[d]), "i64")
        if position is not None:
            i = b.binary("add", b.binary("mul", position, b.scalar(x.shape[d], "i64")), i)
        position = i
    position = b.broadcast(position, shape)
    order = used + [d for d in range(x.type.rank) if d not in used]
    count = math.prod(x.shape[d] for d in used)
    neighbours = used == list(range(used[0], used[0] + len(used)))
    return order, count, position, used[0] if neighbours else 0


@converts(aten.index_select.default)
def index_select(c, x, dim, index):
    if x.type.rank == 0:
        return x
    if index.type.rank == 0:
        index = c.b.reshape(index, [1])
    return c.b.gather(x, wrapped_index(c, index, x.shape[dim]), dim)


@converts(aten.index.Tensor)
def index(c, x, indices):
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(indices[d].dtype == "i1" for d in used):
        raise Unsupported("indexing by a boolean mask, whose result has no static shape; "
                          "use torch.where")
    if len(used) == 1:
        return c.b.gather(x, wrapped_index(c, indices[used[0]], x.shape[used[0]]), used[0])
    if used != list(range(used[0], used[0] + len(used))):
        return index_nonadjacent(c, x, indices)
    # Adjacent indexed dimensions are merged into one, with a row-major index.
    position = None
    for d in used:
        i = c.b.cast(wrapped_index(c, indices[d], x.shape[d]), "i64")
        if position is not None:
            scaled = c.b.binary("mul", position, c.b.scalar(x.shape[d], "i64"))
            i = c.b.binary("add", scaled, i)
        position = i
    first, last = used[0], used[-1]
    joint = x.shape[:first] + (math.prod(x.shape[first:last + 1]),) + x.shape[last + 1:]
    identity = _identity(c, x, position, first, last)
    if identity is not None:
        return identity
    rows = _gather_from_rows(c, x, *(indices[d] for d in used)) if used == [0, 1] else None
    return c.b.gather(c.b.reshape(x, joint), position, first) if rows is None else rows


def index_nonadjacent(c, x, indices):
    """Converts x[indices] where the indexed dimensions are not adjacent."""
    b = c.b
    order, count, position, first = linear_index(c, x, indices)
    rest = [x.shape[d] for d in order[sum(i is not None for i in indices):]]
    rows = b.reshape(b.transpose(x, order), [count, *rest])
    return b.gather(rows, position, 0)


def columns_of_rows(c, x, rows, columns):
    """Recognises the indices of x[arange(n), columns], such as the last token of each sample.
    Returns the index into dimension 1 [n, positions] of each row, so that rows can be sharded, and
    the shape of the selected positions; or None for other `rows`."""
    known, shape = c.known(rows), torch.broadcast_shapes(rows.shape, columns.shape)
    lengths = (x.shape[0],) + (1,) * (len(shape) - 1)
    if known is None or rows.shape != lengths or shape[:1] != lengths[:1] or not torch.equal(
            known.reshape(-1), torch.arange(x.shape[0])):
        return None
    b = c.b
    chosen = b.broadcast(b.cast(wrapped_index(c, columns, x.shape[1]), "i64"), shape)
    return b.reshape(chosen, (shape[0], math.prod(shape[1:]))), tuple(shape)


def _gather_from_rows(c, x, rows, columns):
    """Returns x[rows, columns] gathered from each row separately, or None where `rows` is not
    each row once, in order."""
    found = columns_of_rows(c, x, rows, columns)
    if found is None:
        return None
    chosen, shape = found
    return c.b.reshape(c.b.gather(x, chosen, 1, batch=1), shape + x.shape[2:])


def _identity(c, x, position, first, last):
    """Recognises indices that select all elements in order, such as
    x[arange(n)[:, None], arange(m)] of mask code, and returns `x` reshaped; else None."""
    known = c.known(position)
    count = math.prod(x.shape[first:last + 1])
    if known is None or known.numel() != count:
        return None
    if not torch.equal(known.reshape(-1), torch.arange(count)):
        return None
    return c.b.reshape(x, x.shape[:first] + position.shape + x.shape[last + 1:])


@converts(aten.take.default)
def take(c, x, index):
    flat = c.b.reshape(x, [x.type.elements])
    return c.b.gather(flat, wrapped_index(c, index, x.type.elements), 0)


# An index for each element ------------------------------------------------------------


def split_dims(indices, other, dim):
    """Splits the dimensions of `indices` other than `dim`. Returns the indices without
    broadcasts, the dimensions along which they differ (batch dimensions), and those along
    which they are broadcast to the size of `other` (whole slices are indexed)."""
    shared = indices
    while shared.is_op("broadcast") and shared.op.operands[0].type.rank == indices.type.rank:
        shared = shared.op.operands[0]
    rank = indices.type.rank
    slices = [d for d in range(rank) if d != dim and shared.shape[d] == 1
              and indices.shape[d] == other.shape[d]]
    batch = [d for d in range(rank) if d != dim and d not in slices]
    return shared, batch, slices


def inverse_permutation(order):
    return [order.index(d) for d in range(len(order))]


def take_along(c, x, dim, indices):
    """Returns the elements of `x` at `indices` along `dim` (torch.gather)."""
    b = c.b
    if x.type.rank == 0 or indices.type.rank == 0:
        one = [b.reshape(v, [1]) if v.type.rank == 0 else v for v in (x, indices)]
        return b.reshape(take_along(c, one[0], 0, one[1]), indices.shape)
    dim %= x.type.rank
    indices, batch, slices = split_dims(indices, x, dim)
    order = batch + [dim] + slices
    lengths = [indices.shape[d] for d in batch]
    x = b.slice(x, [0] * x.type.rank,
                [indices.shape[d] if d in batch else s for d, s in enumerate(x.shape)])
    chosen = b.reshape(b.transpose(indices, order), lengths + [indices.shape[dim]])
    taken = b.gather(b.transpose(x, order), b.cast(chosen, "i64"), len(batch), batch=len(batch))
    return b.transpose(taken, inverse_permutation(order))


@converts(aten.gather.default)
def gather(c, x, dim, indices, **_):
    return take_along(c, x, dim, indices)


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


# Embeddings ---------------------------------------------------------------------------


@converts(aten.embedding.default)
def embedding(c, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if scale_grad_by_freq:
        raise Unsupported("scale_grad_by_freq is not supported")
    return c.b.gather(weight, indices, 0, padding_idx if padding_idx >= 0 else None)


@converts(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(c, weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False,
                  per_sample_weights=None, include_last_offset=False, padding_idx=-1):
    """Returns the sum (mode 0), mean (1) or maximum (2) of the embedding rows of each bag; a bag
    begins at its offset. Only the first of the operator's four results is computed."""
    b, n, bags = c.b, indices.shape[0], offsets.shape[0] - int(include_last_offset)
    if scale_grad_by_freq:
        raise Unsupported("scale_grad_by_freq is not supported")
    dtype = weight.dtype
    if n == 0 or bags == 0:
        return (b.full(0, TensorType((bags, weight.shape[1]), dtype)), None, None, None)
    indices, offsets = b.cast(indices, "i64"), b.cast(offsets, "i64")
    end = b.full(n, TensorType((1,), "i64"))
    ends = offsets if include_last_offset else b.concat([offsets, end], 0)
    position = b.iota(TensorType((1, n), "i64"), 1)
    member = b.binary(
        "and", b.compare("ge", position, b.reshape(b.narrow(offsets, 0, 0, bags), [bags, 1])),
        b.compare("lt", position, b.reshape(b.narrow(ends, 0, 1, bags), [bags, 1])))
    if padding_idx >= 0:
        kept = b.compare("ne", indices, b.scalar(padding_idx, "i64"))
        member = b.binary("and", member, b.reshape(kept, [1, n]))
    rows = b.gather(weight, indices, 0)
    ones = b.cast(member, dtype)
    count = b.reduce("sum", ones, [1])
    if mode == 2:
        shape = (bags, weight.shape[1], n)
        every = b.select(b.reshape(member, (bags, 1, n)),
                         b.reshape(b.swap(rows, 0, 1), (1, *shape[1:])),
                         b.scalar(-math.inf, dtype))
        most, _ = b.top_k(every, 1)
        some = b.reshape(b.compare("gt", count, b.scalar(0, dtype)), (bags, 1))
        result = b.select(some, b.reshape(most, shape[:2]), b.scalar(0, dtype))
        return (result, None, None, None)
    if per_sample_weights is not None:
        ones = b.binary("mul", ones, b.reshape(b.cast(per_sample_weights, dtype), (1, n)))
    result = b.contract("bn,nd->bd", ones, rows)
    if mode == 1:
        count = b.binary("maximum", count, b.scalar(1, dtype))
        result = b.binary("div", result, b.reshape(count, (bags, 1)))
    return (result, None, None, None)


@converts(aten.one_hot.default)
def one_hot(c, x, num_classes=-1):
    classes = c.b.iota(TensorType((c.type.shape[-1],), x.dtype), 0)
    return c.b.cast(c.b.compare("eq", c.b.reshape(x, (*x.shape, 1)), classes), c.type.dtype)
