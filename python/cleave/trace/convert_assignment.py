# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Writes to elements by index: assignment, accumulation, scatter, diagonals, bags."""

from __future__ import annotations

import math

from .convert_shape import reduced, wrapped_index
from .ir import TensorType, broadcast_shapes
from .registry import Unsupported, aten, converts

#: The largest number of pairs of positions that are compared.
LARGEST_COMPARISON = 1 << 24
#: The integers below this are exact in f32.
LARGEST_COUNT = 1 << 24


def _last_of_duplicates(c, positions):
    """Returns, for each of the `positions` [..., n], whether no later one along the last
    dimension is equal. Raises Unsupported where too many pairs would be compared."""
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


def _assigned(c, rows, positions, values, last=None):
    """Returns `rows` [p, ...] with `values` [n, ...] written at `positions` [n]; of equal
    positions, the last value is written. `last` tells which positions have no later equal
    one, if the caller knows. Each row gathers the value written to it, which works for every
    element type."""
    b = c.b
    if positions.type.elements == 0:
        return rows
    n, size = positions.shape[0], rows.shape[0]
    known = c.known(positions)
    if last is None and not (known is not None and known.unique().numel() == known.numel()):
        last = _last_of_duplicates(c, positions)
    if n >= LARGEST_COUNT:
        raise Unsupported(f"assignment to {n} positions at once")
    number = b.iota(TensorType((n,), "f32"), 0, 1)
    if last is not None:
        number = b.binary("mul", number, b.cast(last, "f32"))
    number = b.scatter_add(number, b.cast(positions, "i64"), 0, size)
    given = b.compare("gt", number, b.scalar(0, "f32"))
    which = b.binary("maximum", b.binary("sub", b.cast(number, "i64"), b.scalar(1, "i64")),
                     b.scalar(0, "i64"))
    taken = b.gather(values, which, 0)
    given = b.reshape(given, [size] + [1] * (rows.type.rank - 1))
    if last is not None and values.trained:
        # All values written to one position receive its gradient, as in the framework.
        fixed = b.unary("stop_gradient", values)
        finite = b.compare("lt", b.unary("abs", values), b.scalar(math.inf, values.dtype))
        nothing = b.select(finite, b.binary("sub", values, fixed), b.scalar(0, values.dtype))
        flow = b.scatter_add(nothing, b.cast(positions, "i64"), 0, size)
        taken = b.binary("add", b.unary("stop_gradient", taken), flow)
    return b.select(given, taken, rows)


def _added(c, rows, positions, values):
    """Returns `rows` [p, ...] with `values` [n, ...] added at `positions` [n]."""
    b = c.b
    if positions.type.elements == 0:
        return rows
    if not rows.type.is_float:
        raise Unsupported(f"accumulation of {rows.dtype} by index")
    return b.binary("add", rows, b.scatter_add(values, b.cast(positions, "i64"), 0, rows.shape[0]))


# By index along several dimensions ----------------------------------------------------


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


def _masked(c, x, indices, values):
    """x[mask] = values, where all positions of the mask get the same value."""
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
    order, count, position, first = linear_index(c, x, indices)
    rest = [x.shape[d] for d in order[sum(i is not None for i in indices):]]
    # x[indices] has the indices' shape at dimension `first`, the other dimensions around it.
    spread = rest[:first] + list(position.shape) + rest[first:]
    values = b.broadcast(b.cast(values, x.dtype), spread)
    moved = (list(range(first, first + position.type.rank)) + list(range(first))
             + list(range(first + position.type.rank, len(spread))))
    values = b.reshape(b.transpose(values, moved), [position.type.elements, *rest])
    rows = b.reshape(b.transpose(x, order), [count, *rest])
    change = _added if accumulate else _assigned
    rows = change(c, rows, b.reshape(position, [position.type.elements]), values)
    rows = b.reshape(rows, [x.shape[d] for d in order])
    return b.transpose(rows, [order.index(d) for d in range(x.type.rank)])


def index_nonadjacent(c, x, indices):
    """x[indices] where the indexed dimensions are not adjacent."""
    b = c.b
    order, count, position, first = linear_index(c, x, indices)
    rest = [x.shape[d] for d in order[sum(i is not None for i in indices):]]
    rows = b.reshape(b.transpose(x, order), [count, *rest])
    return b.gather(rows, position, 0)


def _along(c, x, dim, index, source, change):
    """Applies `change` (_assigned or _added) to the slices of `x` along `dim` at a vector
    of indices."""
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
    return _along(c, x, dim, index, source, _assigned)


@converts(aten.index_add.default)
def index_add(c, x, dim, index, source, alpha=1):
    if alpha != 1:
        source = c.b.binary("mul", source, c.b.scalar(alpha, source.dtype))
    return _along(c, x, dim, index, source, _added)


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


@converts(aten.take.default)
def take(c, x, index):
    flat = c.b.reshape(x, [x.type.elements])
    return c.b.gather(flat, wrapped_index(c, index, x.type.elements), 0)


@converts(aten.put.default)
def put(c, x, index, source, accumulate=False):
    b, n = c.b, index.type.elements
    index = b.cast(wrapped_index(c, b.reshape(index, [n]), x.type.elements), "i64")
    change = _added if accumulate else _assigned
    rows = change(c, b.reshape(x, [x.type.elements]), index, b.reshape(source, [n]))
    return b.reshape(rows, x.shape)


# Scatter: an index for each element ---------------------------------------------------


def _flat_positions(c, x, dim, index):
    """Returns the row-major index into `x` of each element of `index`, as one vector."""
    b = c.b
    position = None
    for d in range(x.type.rank):
        own = index if d == dim else b.iota(TensorType(index.shape, "i64"), d)
        own = b.binary("mul", own, b.scalar(math.prod(x.shape[d + 1:]), "i64"))
        position = own if position is None else b.binary("add", position, own)
    return b.reshape(position, [index.type.elements])


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
    # Only elements that differ in `dim` alone can be written to the same position.
    line = b.swap(index, dim, -1)
    last = b.swap(_last_of_duplicates(c, line), dim, -1)
    n = index.type.elements
    rows = _assigned(c, b.reshape(x, [x.type.elements]), _flat_positions(c, x, dim, index),
                     b.reshape(source, [n]), b.reshape(last, [n]))
    return b.reshape(rows, shape)


def scatter_add_flat(c, x, dim, index, source):
    """scatter_add over row-major indices of all elements, for operands of any shapes."""
    b, shape = c.b, x.shape
    if index.type.elements == 0:
        return x
    x, dim, index, source = _scattered(c, x, dim, index, source)
    rows = _added(c, b.reshape(x, [x.type.elements]), _flat_positions(c, x, dim, index),
                  b.reshape(source, [index.type.elements]))
    return b.reshape(rows, shape)


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
    from .convert_order import product_along
    b, dtype = c.b, x.dtype
    zero, one = b.scalar(0, dtype), b.scalar(1, dtype)
    flat = b.reshape(x, [x.type.elements])
    positions = _flat_positions(c, x, dim, index)
    ones = b.full(1, TensorType(positions.shape, dtype))
    count = b.reshape(b.scatter_add(ones, positions, 0, x.type.elements), x.shape)
    hit = b.compare("gt", count, zero)
    if reduce in ("sum", "mean"):
        total = b.reshape(b.scatter_add(b.reshape(source, positions.shape), positions, 0,
                                        flat.shape[0]), x.shape)
        start = x if include_self else b.select(hit, zero, x)
        total = b.binary("add", start, total)
        if reduce == "sum":
            return total
        count = b.binary("add", count, one) if include_self else b.select(hit, count, one)
        return b.binary("div", total, count)
    # Each position of the result along `dim` is compared with each index along `dim`.
    size, n = x.shape[dim], index.shape[dim]
    if size * index.type.elements > LARGEST_COMPARISON:
        raise Unsupported(f"scatter with {reduce} of {index.type.elements} elements")
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
    size = c.type.shape[-1] if c.type else max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
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


# Bags ---------------------------------------------------------------------------------


@converts(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(c, weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False,
                  per_sample_weights=None, include_last_offset=False, padding_idx=-1):
    """The sum (mode 0), mean (1) or maximum (2) of the embedding rows of each bag; a bag
    begins at its offset. Of the operator's four results only the first is computed."""
    b, n, bags = c.b, indices.shape[0], offsets.shape[0] - int(include_last_offset)
    if scale_grad_by_freq:
        raise Unsupported("scale_grad_by_freq")
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
        every = b.select(b.reshape(member, (bags, 1, n)), b.reshape(b.swap(rows, 0, 1), (1, *shape[1:])),
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
