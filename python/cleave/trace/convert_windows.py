# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Windows over dimensions: padding, pooling, interpolation, transposed and 3-d convolutions.

Operators that are linear along one dimension (averages, interpolation) become a matrix of
weights, which the framework itself computes for the size; each output is the weighted sum
of the few inputs whose weights are not 0.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F

from .convert_contraction import convolution2d
from .convert_shape import pad as pad_constant
from .ir import TensorType
from .registry import Unsupported, aten, converts

#: The largest number of elements of a table of indices.
LARGEST_TABLE = 1 << 20


def _per_dim(value, n):
    """Returns a list of n numbers, from one number or a list of one or n."""
    value = [value] if isinstance(value, int) else list(value)
    return value * n if len(value) == 1 else value


def _table(c, indices):
    """Returns indices as an i64 constant. Raises Unsupported for more than LARGEST_TABLE."""
    indices = torch.as_tensor(indices, dtype=torch.int64)
    if indices.numel() > LARGEST_TABLE:
        raise Unsupported(f"a table of {indices.numel()} indices")
    return c.b.constant(indices)


# Padding ------------------------------------------------------------------------------


def pad_by_mode(c, x, widths, mode):
    """Pads with elements of `x`: "reflect", "replicate" or "circular". `widths` are (low, high)
    of each dimension, the last one first; negative widths crop."""
    lead = x.type.rank - len(widths) // 2
    for i in range(len(widths) // 2):
        dim = x.type.rank - 1 - i
        low, high = widths[2 * i:2 * i + 2]
        if low == high == 0 or dim < lead:
            continue
        size = x.shape[dim]
        indices = torch.arange(-low, size + high)
        if mode == "replicate":
            indices = indices.clamp(0, size - 1)
        elif mode == "circular":
            # Elements that a negative width crops do not wrap around.
            first, last = max(-low, 0), size - max(-high, 0)
            indices = torch.arange(-max(low, 0), last - first + max(high, 0)) % (last - first)
            indices = first + indices
        else:
            indices = (size - 1) - ((size - 1) - indices.abs()).abs()
        x = c.b.gather(x, _table(c, indices), dim)
    return x


@converts(aten.reflection_pad1d.default, aten.reflection_pad2d.default,
          aten.reflection_pad3d.default)
def reflection_pad(c, x, widths):
    return pad_by_mode(c, x, widths, "reflect")


@converts(aten.replication_pad1d.default, aten.replication_pad2d.default,
          aten.replication_pad3d.default)
def replication_pad(c, x, widths):
    return pad_by_mode(c, x, widths, "replicate")


@converts(aten._pad_circular.default)
def pad_circular(c, x, widths):
    return pad_by_mode(c, x, widths, "circular")


# Windows ------------------------------------------------------------------------------


def windows(c, x, dim, indices):
    """Replaces dimension `dim` by two, the windows and the elements of each window, whose
    indices are `indices` [windows, elements]."""
    return c.b.gather(x, _table(c, indices), dim)


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


def _spatial(c, x, n):
    """Returns `x` as [samples, channels, spatial...] with `n` spatial dimensions, and whether
    it had no dimension of samples."""
    return (c.b.reshape(x, (1, *x.shape)), True) if x.type.rank == n + 1 else (x, False)


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
        part = b.gather(_table(c, own.reshape(-1)), entry, 0)
        position = b.binary("add", b.binary("mul", position, b.scalar(sizes[i], "i64")), part)
    return values, position


def _max_pool(c, x, n, kernel, stride, padding, dilation, ceil_mode):
    if not x.type.is_float:
        raise Unsupported("max pooling of integers")
    kernel, padding, dilation = _per_dim(kernel, n), _per_dim(padding, n), _per_dim(dilation, n)
    stride = _per_dim(stride, n) if stride else kernel
    x, single = _spatial(c, x, n)
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
    """Returns the number of windows along a dimension, by the framework's formula."""
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
        x, single = _spatial(c, x, _n)
        if 0 in x.shape or 0 in output:
            raise Unsupported("adaptive pooling of no elements")
        tables = [(t, t) for t in map(_adaptive_indices, x.shape[2:], _per_dim(output, _n))]
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
        return b.gather(x, _table(c, indices[:, 0]), dim)
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
    kernel, padding = _per_dim(kernel, n), _per_dim(padding, n)
    stride = _per_dim(stride, n) if stride else kernel
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
        for i, count in enumerate(_per_dim(output, _n)):
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
            name = f"{mode}{n}d" + ("_aa" if mode in ("_upsample_bilinear", "_upsample_bicubic") else "")
            packet = getattr(aten, name)
            nearest = "nearest" in mode

            def by_scales(c, x, output, *rest, n=n, nearest=nearest):
                """The overload with a list of scale factors, or the output size."""
                corners = () if nearest else rest[:1]
                scales = rest[-1]

                def resize(line, i):
                    size = None if output is None else [1] * (n - 1) + [c.type.shape[-n + i]]
                    factor = None if scales is None else [1.0] * (n - 1) + [scales[i]]
                    image = line.reshape(1, line.shape[1], *[1] * (n - 1), line.shape[2])
                    return c.target(image, size, *corners, factor).reshape(1, line.shape[1], -1)
                return _interpolated(c, x, n, resize)

            def by_size(c, x, output, *rest, n=n, nearest=nearest):
                """The overload with the output size, and a scale factor or None for each
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


# Convolutions -------------------------------------------------------------------------


def _convolution3d(c, x, weight, bias, stride, padding, dilation, groups):
    """Convolution of [n, c, d, h, w] with the weight [o, c / groups, kd, kh, kw], as the sum
    over the kernel's depth of two-dimensional convolutions."""
    b = c.b
    stride, dilation = _per_dim(stride, 3), _per_dim(dilation, 3)
    if isinstance(padding, str):
        around = [(0, 0)] * 3
        if padding == "same":
            extra = [(k - 1) * d for k, d in zip(weight.shape[2:], dilation)]
            around = [(e // 2, e - e // 2) for e in extra]
    else:
        around = [(p, p) for p in _per_dim(padding, 3)]
    x = b.pad(x, 0, [0, 0, *(low for low, _ in around)], [0, 0, *(high for _, high in around)])
    depth = (x.shape[2] - dilation[0] * (weight.shape[2] - 1) - 1) // stride[0] + 1
    total = None
    for k in range(weight.shape[2]):
        planes = b.narrow(x, 2, k * dilation[0], depth, stride[0])
        planes = b.reshape(b.swap(planes, 1, 2), (x.shape[0] * depth, x.shape[1], *x.shape[3:]))
        part = b.reshape(b.narrow(weight, 2, k, 1), weight.shape[:2] + weight.shape[3:])
        part = convolution2d(c, planes, part, None, stride[1:], [0, 0], dilation[1:], groups)
        total = part if total is None else b.binary("add", total, part)
    total = b.swap(b.reshape(total, (x.shape[0], depth, *total.shape[1:])), 1, 2)
    if bias is not None:
        total = b.binary("add", total, b.reshape(bias, [weight.shape[0], 1, 1, 1]))
    return total


@converts(aten.conv3d.default, aten.conv3d.padding)
def conv3d(c, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    x, _ = _spatial(c, x, 3)
    result = _convolution3d(c, x, weight, bias, stride, padding, dilation, groups)
    return c.b.reshape(result, c.type.shape)


def transposed_convolution(c, x, weight, bias, stride, padding, output_padding, groups, dilation, n):
    """Transposed convolution of [n, c, spatial...] with the weight [c, o / groups,
    kernel...]: a convolution of the input, with zeros between its elements, by the flipped
    kernel."""
    b = c.b
    stride, padding, dilation = _per_dim(stride, n), _per_dim(padding, n), _per_dim(dilation, n)
    output_padding = _per_dim(output_padding, n)
    x, _ = _spatial(c, x, n)
    kernel = weight.shape[2:]
    low = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding)]
    high = [l + o for l, o in zip(low, output_padding)]
    x = b.pad(x, 0, [0] * x.type.rank, [0] * x.type.rank, [0, 0, *(s - 1 for s in stride)])
    x = pad_constant(c, x, list(itertools.chain(*reversed(list(zip(low, high))))))
    for i, size in enumerate(kernel):
        weight = b.gather(weight, _table(c, torch.arange(size).flip(0)), 2 + i)
    split = b.reshape(weight, (groups, weight.shape[0] // groups, *weight.shape[1:]))
    split = b.swap(split, 1, 2)
    weight = b.reshape(split, (groups * split.shape[1], *split.shape[2:]))
    # Computed in three dimensions; added dimensions have size 1.
    ones = [1] * (3 - n)
    x = b.reshape(x, (*x.shape[:2], *ones, *x.shape[2:]))
    weight = b.reshape(weight, (*weight.shape[:2], *ones, *weight.shape[2:]))
    result = _convolution3d(c, x, weight, bias, 1, 0, [*ones, *dilation], groups)
    return b.reshape(result, c.type.shape)


for _n, _overload in ((1, aten.conv_transpose1d.default), (2, aten.conv_transpose2d.input),
                      (3, aten.conv_transpose3d.input)):
    def _convert_transposed(c, x, weight, bias=None, stride=1, padding=0, output_padding=0,
                            groups=1, dilation=1, *, _n=_n):
        return transposed_convolution(c, x, weight, bias, stride, padding, output_padding, groups,
                                      dilation, _n)
    converts(_overload)(_convert_transposed)
