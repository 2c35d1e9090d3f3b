# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Windows over dimensions: pooling, interpolation.

Operators that are linear along one dimension (averages, interpolation) become a matrix of weights,
which PyTorch itself computes for the size; each output is the weighted sum of the few inputs whose
weights are not 0.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .padding import index_table
from ..ir import TensorType
from ..registry import Unsupported, aten, converts


# Windows ------------------------------------------------------------------------------


def per_dim(value, n):
    """Returns a list of n numbers, from one number or a list of one or n."""
    value = [value] if isinstance(value, int) else list(value)
    return value * n if len(value) == 1 else value


def windows(c, x, dim, indices):
    """Replaces dimension `dim` by two, the windows and the elements of each window, whose
    indices are `indices` [windows, elements]."""
    return c.b.gather(x, index_table(c, indices), dim)


def _window_indices(size, kernel, stride, dilation):
    """Returns the indices [windows, kernel] of windows over a dimension."""
    count = max((size - dilation * (kernel - 1) - 1) // stride + 1, 0)
    return torch.arange(count)[:, None] * stride + torch.arange(kernel) * dilation


@converts(aten.unfold.default, aten.unfold_copy.default)
def unfold(c, x, dim, size, step):
    if x.type.rank == 0:
        return c.b.broadcast(c.b.reshape(x, [1]), c.type.shape)
    dim %= x.type.rank
    result = windows(c, x, dim, _window_indices(x.shape[dim], size, step, 1))
    order = [d for d in range(result.type.rank) if d != dim + 1] + [dim + 1]
    return c.b.transpose(result, order)


def with_samples(c, x, n):
    """Returns `x` as [samples, channels, spatial...] with `n` spatial dimensions, and whether its
    dimension of samples was missing."""
    return (c.b.reshape(x, (1, *x.shape)), True) if x.type.rank == n + 1 else (x, False)


# Maxima -------------------------------------------------------------------------------


def _window_maxima(c, x, tables, sizes):
    """Returns the largest element of each window (of equal ones the first) and its row-major
    index in the image of `sizes`. `tables` hold, for each spatial dimension, the indices of
    the windows' elements in `x` and in the image, both [windows, elements]."""
    b, n = c.b, len(tables)
    for i, (indices, _) in enumerate(tables):
        x = windows(c, x, 2 + 2 * i, indices)
    counts = [t.shape[0] for t, _ in tables]
    kernel = [t.shape[1] for t, _ in tables]
    order = [0, 1] + [2 + 2 * i for i in range(n)] + [3 + 2 * i for i in range(n)]
    x = b.reshape(b.transpose(x, order), (*x.shape[:2], *counts, math.prod(kernel)))
    values, which = b.top_k(x, 1)
    shape = x.shape[:-1]
    values, which = b.reshape(values, shape), b.reshape(which, shape)
    position = b.scalar(0, "i64")
    for i, (_, own) in enumerate(tables):
        below = b.scalar(math.prod(kernel[i + 1:]), "i64")
        part = b.binary("div", which, below)
        above = b.scalar(kernel[i], "i64")
        part = b.binary("sub", part, b.binary("mul", b.binary("div", part, above), above))
        window = b.iota(TensorType(shape, "i64"), 2 + i)
        entry = b.binary("add", b.binary("mul", window, above), part)
        part = b.gather(index_table(c, own.reshape(-1)), entry, 0)
        position = b.binary("add", b.binary("mul", position, b.scalar(sizes[i], "i64")), part)
    return values, position


def _max_pool(c, x, n, kernel, stride, padding, dilation, ceil_mode):
    if not x.type.is_float:
        raise Unsupported("max pooling of integers")
    kernel, padding, dilation = per_dim(kernel, n), per_dim(padding, n), per_dim(dilation, n)
    stride = per_dim(stride, n) if stride else kernel
    x, single = with_samples(c, x, n)
    sizes, tables, high = x.shape[2:], [], []
    for i in range(n):
        count = _outputs(sizes[i], kernel[i], stride[i], padding[i], dilation[i], ceil_mode)
        indices = torch.arange(count)[:, None] * stride[i] + torch.arange(kernel[i]) * dilation[i]
        reach = int(indices.max()) + 1 if indices.numel() else 0
        high.append(max(reach - padding[i] - sizes[i], 0))
        tables.append((indices, (indices - padding[i]).clamp(0, sizes[i] - 1)))
    x = c.b.pad(x, -math.inf, [0, 0, *padding], [0, 0, *high])
    values, position = _window_maxima(c, x, tables, sizes)
    shape = values.shape[1:] if single else values.shape
    return c.b.reshape(values, shape), c.b.reshape(position, shape)


def _outputs(size, kernel, stride, padding, dilation, ceil_mode):
    """Returns the number of windows along a dimension, by PyTorch's formula."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1 if ceil_mode else 0)
    count = room // stride + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1
    return count


for _n, _plain, _indexed in ((1, aten.max_pool1d.default, aten.max_pool1d_with_indices.default),
                             (2, aten.max_pool2d.default, aten.max_pool2d_with_indices.default),
                             (3, aten.max_pool3d.default, aten.max_pool3d_with_indices.default)):
    def _convert_max(c, x, kernel, stride=None, padding=0, dilation=1, ceil_mode=False, *, _n=_n):
        return _max_pool(c, x, _n, kernel, stride, padding, dilation, ceil_mode)[0]

    def _convert_max_indexed(c, x, kernel, stride=None, padding=0, dilation=1, ceil_mode=False,
                             *, _n=_n):
        return _max_pool(c, x, _n, kernel, stride, padding, dilation, ceil_mode)
    converts(_plain)(_convert_max)
    converts(_indexed)(_convert_max_indexed)


def _adaptive_indices(size, count):
    """Returns the indices [windows, elements] of windows of adaptive pooling; shorter windows
    repeat their first element."""
    rows = [list(range(i * size // count, -(-(i + 1) * size // count))) for i in range(count)]
    length = max(map(len, rows), default=1)
    return torch.tensor([row + [row[0]] * (length - len(row)) for row in rows])


for _n, _overload in ((1, aten.adaptive_max_pool1d.default), (2, aten.adaptive_max_pool2d.default),
                      (3, aten.adaptive_max_pool3d.default)):
    def _convert_adaptive_max(c, x, output, *, _n=_n):
        x, single = with_samples(c, x, _n)
        if 0 in x.shape or 0 in output:
            raise Unsupported("adaptive pooling of no elements")
        tables = [(t, t) for t in map(_adaptive_indices, x.shape[2:], per_dim(output, _n))]
        values, position = _window_maxima(c, x, tables, x.shape[2:])
        shape = values.shape[1:] if single else values.shape
        return c.b.reshape(values, shape), c.b.reshape(position, shape)
    converts(_overload)(_convert_adaptive_max)


# Linear along a dimension: averages, interpolation ------------------------------------


def linear_along(c, x, dim, matrix):
    """Multiplies dimension `dim` of `x` by the sparse `matrix` [outputs, inputs], as a gather
    and a weighted sum."""
    b = c.b
    taps = [row.nonzero().reshape(-1).tolist() or [0] for row in matrix]
    length = max(map(len, taps), default=0)
    if length == 0:
        return b.slice(x, [0] * x.type.rank, [0 if d == dim else s for d, s in enumerate(x.shape)])
    indices = torch.tensor([row + [row[0]] * (length - len(row)) for row in taps])
    weights = matrix.gather(1, indices)
    for i, row in enumerate(taps):
        weights[i, len(row):] = 0
    if length == 1 and bool((weights == 1).all()):
        return b.gather(x, index_table(c, indices[:, 0]), dim)
    rows = windows(c, x, dim, indices)
    shape = [1] * dim + list(indices.shape) + [1] * (x.type.rank - dim - 1)
    scale = b.constant(weights.to(torch.float64 if x.dtype == "f64" else torch.float32))
    rows = b.binary("mul", rows, b.cast(b.reshape(scale, shape), x.dtype))
    return b.reduce("sum", rows, [dim + 1])


def _matrix(function, size):
    """Returns the matrix [n, size] of a linear function along the last dimension, which maps
    the unit vectors [1, size, size] to [1, size, n]."""
    if size == 0:
        raise Unsupported("a dimension without elements")
    return function(torch.eye(size, dtype=torch.float64)[None])[0].T.contiguous()


def _average(c, x, n, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
             divisor_override=None):
    kernel, padding = per_dim(kernel, n), per_dim(padding, n)
    stride = per_dim(stride, n) if stride else kernel
    even = not ceil_mode and not divisor_override and (count_include_pad or not any(padding))
    if n == 2 and even and x.type.rank == 4:
        rows = c.b.patches(x, kernel, stride, padding, [1, 1])
        total = c.b.reduce("sum", rows, [4, 5])
        mean = c.b.binary("div", total, c.b.scalar(kernel[0] * kernel[1], x.dtype))
        return c.b.transpose(mean, [0, 3, 1, 2])
    for i in range(n):
        dim = x.type.rank - n + i
        matrix = _matrix(lambda eye: F.avg_pool1d(eye, kernel[i], stride[i], padding[i], ceil_mode,
                                                  count_include_pad), x.shape[dim])
        if divisor_override:
            matrix = (matrix != 0).to(matrix.dtype)
        x = linear_along(c, x, dim, matrix)
    if divisor_override:
        x = c.b.binary("div", x, c.b.scalar(divisor_override, x.dtype))
    return x


for _n, _overload in ((1, aten.avg_pool1d.default), (2, aten.avg_pool2d.default),
                      (3, aten.avg_pool3d.default)):
    def _convert_average(c, x, *args, _n=_n, **named):
        return _average(c, x, _n, *args, **named)
    converts(_overload)(_convert_average)


for _n, _overloads in ((1, (aten.adaptive_avg_pool1d.default,)),
                       (2, (aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)),
                       (3, (aten.adaptive_avg_pool3d.default, aten._adaptive_avg_pool3d.default))):
    def _convert_adaptive(c, x, output, *, _n=_n):
        for i, count in enumerate(per_dim(output, _n)):
            dim = x.type.rank - _n + i
            x = linear_along(c, x, dim, _matrix(
                lambda eye: F.adaptive_avg_pool1d(eye, count), x.shape[dim]))
        return x
    converts(*_overloads)(_convert_adaptive)


def _interpolated(c, x, n, resize):
    """Resizes the last `n` dimensions of `x`; `resize(line, i)` resizes [1, size, size] along
    its last dimension as the operator resizes dimension i."""
    for i in range(n):
        dim = x.type.rank - n + i
        x = linear_along(c, x, dim, _matrix(lambda line: resize(line, i), x.shape[dim]))
    return x


def _register_upsampling():
    modes = {"upsample_nearest": (1, 2, 3), "_upsample_nearest_exact": (1, 2, 3),
             "upsample_linear": (1,), "upsample_bilinear": (2,), "upsample_trilinear": (3,),
             "upsample_bicubic": (2,), "_upsample_bilinear": (2,), "_upsample_bicubic": (2,)}
    for mode, ranks in modes.items():
        for n in ranks:
            antialiased = mode in ("_upsample_bilinear", "_upsample_bicubic")
            name = f"{mode}{n}d" + ("_aa" if antialiased else "")
            packet = getattr(aten, name)
            nearest = "nearest" in mode

            def by_scales(c, x, output, *rest, n=n, nearest=nearest):
                """Converts the overload with a list of scale factors, or the output size."""
                corners = () if nearest else rest[:1]
                scales = rest[-1]

                def resize(line, i):
                    size = None if output is None else [1] * (n - 1) + [c.type.shape[-n + i]]
                    factor = None if scales is None else [1.0] * (n - 1) + [scales[i]]
                    image = line.reshape(1, line.shape[1], *[1] * (n - 1), line.shape[2])
                    return c.target(image, size, *corners, factor).reshape(1, line.shape[1], -1)
                return _interpolated(c, x, n, resize)

            def by_size(c, x, output, *rest, n=n, nearest=nearest):
                """Converts the overload with the output size, and a scale factor or None for each
                dimension."""
                corners = () if nearest else rest[:1]
                scales = list(rest[len(corners):]) + [None] * n

                def resize(line, i):
                    image = line.reshape(1, line.shape[1], *[1] * (n - 1), line.shape[2])
                    factors = [None] * (n - 1) + [scales[i]]
                    size = [1] * (n - 1) + [output[i]]
                    return c.target(image, size, *corners, *factors).reshape(1, line.shape[1], -1)
                return _interpolated(c, x, n, resize)

            converts(packet.vec)(by_scales)
            converts(packet.default)(by_size)


_register_upsampling()
