# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Movement of elements, reductions, indexing."""

from __future__ import annotations

import math

import torch

from .ir import TensorType, broadcast_shapes, scalar_of
from .registry import Unsupported, aten, converts

# Views ----------------------------------------------------------------------------


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


# Slices, concatenation, padding --------------------------------------------------------


@converts(aten.slice.Tensor)
def slice_(c, x, dim=0, start=None, end=None, step=1):
    start, _ = _clip(start, end, x.shape[dim])
    return c.b.narrow(x, dim, start, c.type.shape[dim % x.type.rank], step)


def _clip(start, end, size):
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


@converts(aten.pad.default, aten.constant_pad_nd.default)
def pad(c, x, widths, *rest, mode="constant", value=None):
    rest = list(rest)
    if rest and isinstance(rest[0], str):
        mode = rest.pop(0)
    value = rest[0] if rest else value
    if mode != "constant":
        from .convert_windows import pad_by_mode
        return pad_by_mode(c, x, widths, mode)
    low, high = [0] * x.type.rank, [0] * x.type.rank
    offsets, sizes = [0] * x.type.rank, list(x.shape)
    for i in range(len(widths) // 2):
        dim = x.type.rank - 1 - i
        before, after = widths[2 * i:2 * i + 2]
        low[dim], high[dim] = max(before, 0), max(after, 0)
        offsets[dim] = max(-before, 0)
        sizes[dim] -= offsets[dim] + max(-after, 0)
    return c.b.pad(c.b.slice(x, offsets, sizes), value or 0, low, high)


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


@converts(aten.slice_scatter.default)
def slice_scatter(c, x, source, dim=0, start=None, end=None, step=1):
    dim %= x.type.rank
    start, end = _clip(start, end, x.shape[dim])
    source = c.b.cast(source, x.dtype)
    if step != 1:
        from .convert_assignment import index_copy
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


# Indexing ----------------------------------------------------------------------------


@converts(aten.index_select.default)
def index_select(c, x, dim, index):
    if x.type.rank == 0:
        return x
    if index.type.rank == 0:
        index = c.b.reshape(index, [1])
    return c.b.gather(x, wrapped_index(c, index, x.shape[dim]), dim)


def wrapped_index(c, index, size):
    """Returns `index` with negative indices of a dimension of `size` counted from the end."""
    index = c.b.cast(index, "i64") if index.dtype == "i8" else index
    known = c.known(index)
    if known is not None and bool((known >= 0).all()):
        return index
    negative = c.b.compare("lt", index, c.b.scalar(0, index.dtype))
    shifted = c.b.binary("add", index, c.b.scalar(size, index.dtype))
    return c.b.select(negative, shifted, index)


@converts(aten.index.Tensor)
def index(c, x, indices):
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(indices[d].dtype == "i1" for d in used):
        raise Unsupported("indexing by a boolean mask, whose result has no static shape; "
                          "use torch.where")
    if len(used) == 1:
        return c.b.gather(x, wrapped_index(c, indices[used[0]], x.shape[used[0]]), used[0])
    if used != list(range(used[0], used[0] + len(used))):
        from .convert_assignment import index_nonadjacent
        return index_nonadjacent(c, x, indices)
    # Adjacent indexed dimensions are merged to one, with a row-major index.
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


def _gather_from_rows(c, x, rows, columns):
    """Recognises x[arange(n), columns], such as the last token of each sample, and gathers
    from each row separately, so that rows can be sharded. Returns None for other `rows`."""
    known, shape = c.known(rows), torch.broadcast_shapes(rows.shape, columns.shape)
    lengths = (x.shape[0],) + (1,) * (len(shape) - 1)
    if known is None or rows.shape != lengths or shape[:1] != lengths[:1] or not torch.equal(
            known.reshape(-1), torch.arange(x.shape[0])):
        return None
    b = c.b
    chosen = b.broadcast(b.cast(wrapped_index(c, columns, x.shape[1]), "i64"), shape)
    chosen = b.reshape(chosen, (shape[0], math.prod(shape[1:])))
    return b.reshape(b.gather(x, chosen, 1, batch=1), tuple(shape) + x.shape[2:])


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


def _split_dims(indices, other, dim):
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


def take_along(c, x, dim, indices):
    """Returns the elements of `x` at `indices` along `dim` (torch.gather)."""
    b = c.b
    if x.type.rank == 0 or indices.type.rank == 0:
        one = [b.reshape(v, [1]) if v.type.rank == 0 else v for v in (x, indices)]
        return b.reshape(take_along(c, one[0], 0, one[1]), indices.shape)
    dim %= x.type.rank
    indices, batch, slices = _split_dims(indices, x, dim)
    order = batch + [dim] + slices
    lengths = [indices.shape[d] for d in batch]
    x = b.slice(x, [0] * x.type.rank,
                [indices.shape[d] if d in batch else s for d, s in enumerate(x.shape)])
    chosen = b.reshape(b.transpose(indices, order), lengths + [indices.shape[dim]])
    taken = b.gather(b.transpose(x, order), b.cast(chosen, "i64"), len(batch), batch=len(batch))
    return b.transpose(taken, _inverse(order))


def _inverse(order):
    return [order.index(d) for d in range(len(order))]


@converts(aten.gather.default)
def gather(c, x, dim, indices, **_):
    return take_along(c, x, dim, indices)


@converts(aten.scatter_add.default)
def scatter_add(c, x, dim, indices, source):
    b = c.b
    if not x.type.is_float:
        raise Unsupported("scatter_add of integers")
    from .convert_assignment import scatter_add_flat
    if x.type.rank == 0 or indices.type.rank == 0 or indices.type.elements == 0:
        return scatter_add_flat(c, x, dim, indices, source)
    dim %= x.type.rank
    given, source = indices, b.slice(source, [0] * x.type.rank, indices.shape)
    indices, batch, slices = _split_dims(indices, x, dim)
    if any(indices.shape[d] != x.shape[d] for d in batch):
        return scatter_add_flat(c, x, dim, given, source)
    order = batch + [dim] + slices
    chosen = b.reshape(b.transpose(indices, order),
                       [indices.shape[d] for d in batch + [dim]])
    added = b.scatter_add(b.transpose(source, order), b.cast(chosen, "i64"), len(batch),
                          x.shape[dim], batch=len(batch))
    added = b.transpose(added, _inverse(order))
    return added if scalar_of(x) == 0 else b.binary("add", x, added)


@converts(aten.embedding.default)
def embedding(c, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if scale_grad_by_freq:
        raise Unsupported("scale_grad_by_freq")
    return c.b.gather(weight, indices, 0, padding_idx if padding_idx >= 0 else None)


# Reductions --------------------------------------------------------------------------


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


def _extreme_integers(c, x, k, dim, kind):
    """Returns values and indices of the k largest (`kind` "max") or smallest integers along
    `dim`; of equal ones, the first."""
    b, dim = c.b, dim % x.type.rank
    if k != 1:
        from .convert_order import sort
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


@converts(aten.any.default, aten.any.dim, aten.any.dims)
def any_(c, x, dim=None, keepdim=False):
    count = c.b.cast(c.b.cast(x, "i1"), "i64")
    return c.b.cast(reduced(c, "max", count, dim, keepdim), "i1")


@converts(aten.all.default, aten.all.dim, aten.all.dims)
def all_(c, x, dim=None, keepdim=False):
    count = c.b.cast(c.b.cast(x, "i1"), "i64")
    return c.b.cast(reduced(c, "min", count, dim, keepdim), "i1")


@converts(aten.cumsum.default)
def cumsum(c, x, dim, dtype=None):
    if x.type.rank == 0:
        return c.b.cast(x, c.type.dtype)
    return c.b.cumulative_sum(c.b.cast(x, c.type.dtype), dim)


@converts(aten.diff.default)
def diff(c, x, n=1, dim=-1, prepend=None, append=None):
    if x.dtype == "i1":
        raise Unsupported("difference of booleans")
    if n == 0:
        return x
    parts = [v for v in (prepend, x, append) if v is not None]
    x = c.b.concat([c.b.cast(v, c.type.dtype) for v in parts], dim)
    for _ in range(n):
        size = x.shape[dim]
        if size == 0:
            break
        high, low = c.b.narrow(x, dim, 1, size - 1), c.b.narrow(x, dim, 0, size - 1)
        x = c.b.binary("sub", high, low)
    return x


@converts(aten.one_hot.default)
def one_hot(c, x, num_classes=-1):
    classes = c.b.iota(TensorType((c.type.shape[-1],), x.dtype), 0)
    return c.b.cast(c.b.compare("eq", c.b.reshape(x, (*x.shape, 1)), classes), c.type.dtype)
