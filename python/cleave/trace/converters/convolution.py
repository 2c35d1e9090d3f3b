# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Convolutions of one to three dimensions, and transposed convolutions."""

from __future__ import annotations

import itertools

import torch

from .padding import index_table, pad
from .windows import per_dim, with_samples
from ..registry import aten, converts


def _pair(value):
    value = [value] if isinstance(value, int) else list(value)
    return value * 2 if len(value) == 1 else value


def convolution2d(c, x, weight, bias, stride, padding, dilation, groups):
    """Convolves [n, c, h, w] with the weight [o, c / groups, kh, kw] as a contraction of patches;
    the result is [n, o, h', w']."""
    b = c.b
    kernel = list(weight.shape[2:])
    stride, dilation = _pair(stride), _pair(dilation)
    if isinstance(padding, str):
        extra = [(k - 1) * d if padding == "same" else 0 for k, d in zip(kernel, dilation)]
        padding = [e // 2 for e in extra]
        # Odd padding is one larger at the end.
        x = b.pad(x, 0, [0] * 4, [0, 0, *(e % 2 for e in extra)])
    rows = b.patches(x, kernel, stride, _pair(padding), dilation)
    if groups == 1:
        result = b.contract("nhwcij,ocij->nohw", rows, weight)
    else:
        n, h, w, channels = rows.shape[:4]
        rows = b.reshape(rows, [n, h, w, groups, channels // groups, *kernel])
        split = b.reshape(weight, [groups, weight.shape[0] // groups, *weight.shape[1:]])
        result = b.contract("nhwgcij,gocij->ngohw", rows, split)
        result = b.reshape(result, [n, weight.shape[0], h, w])
    if bias is not None:
        result = b.binary("add", result, b.reshape(bias, [weight.shape[0], 1, 1]))
    return result


@converts(aten.conv1d.default, aten.conv1d.padding)
def conv1d(c, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    def first(value, unit):
        return value if isinstance(value, str) else [unit, _pair(value)[0]]
    image = c.b.reshape(x, (*((1,) if x.type.rank == 2 else ()), *x.shape[:-1], 1, x.shape[-1]))
    kernel = c.b.reshape(weight, (*weight.shape[:2], 1, weight.shape[2]))
    result = convolution2d(c, image, kernel, bias, first(stride, 1), first(padding, 0),
                           first(dilation, 1), groups)
    return c.b.reshape(result, c.type.shape)


@converts(aten.conv2d.default, aten.conv2d.padding)
def conv2d(c, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    lead = x.type.rank == 3
    x = c.b.reshape(x, (1, *x.shape)) if lead else x
    result = convolution2d(c, x, weight, bias, stride, padding, dilation, groups)
    return c.b.reshape(result, result.shape[1:]) if lead else result


def _convolution3d(c, x, weight, bias, stride, padding, dilation, groups):
    """Convolves [n, c, d, h, w] with the weight [o, c / groups, kd, kh, kw] as the sum over the
    kernel's depth of two-dimensional convolutions."""
    b = c.b
    stride, dilation = per_dim(stride, 3), per_dim(dilation, 3)
    if isinstance(padding, str):
        around = [(0, 0)] * 3
        if padding == "same":
            extra = [(k - 1) * d for k, d in zip(weight.shape[2:], dilation)]
            around = [(e // 2, e - e // 2) for e in extra]
    else:
        around = [(p, p) for p in per_dim(padding, 3)]
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
    x, _ = with_samples(c, x, 3)
    result = _convolution3d(c, x, weight, bias, stride, padding, dilation, groups)
    return c.b.reshape(result, c.type.shape)


def transposed_convolution(c, x, weight, bias, stride, padding, output_padding, groups, dilation,
                           n):
    """Computes the transposed convolution of [n, c, spatial...] with the weight [c, o / groups,
    kernel...]: a convolution of the input, with zeros between its elements, by the flipped
    kernel."""
    b = c.b
    stride, padding, dilation = per_dim(stride, n), per_dim(padding, n), per_dim(dilation, n)
    output_padding = per_dim(output_padding, n)
    x, _ = with_samples(c, x, n)
    kernel = weight.shape[2:]
    low = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding)]
    high = [l + o for l, o in zip(low, output_padding)]
    x = b.pad(x, 0, [0] * x.type.rank, [0] * x.type.rank, [0, 0, *(s - 1 for s in stride)])
    x = pad(c, x, list(itertools.chain(*reversed(list(zip(low, high))))))
    for i, size in enumerate(kernel):
        weight = b.gather(weight, index_table(c, torch.arange(size).flip(0)), 2 + i)
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


@converts(aten.convolution.default)
def convolution(c, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    if transposed:
        return transposed_convolution(c, x, weight, bias, stride, padding, output_padding, groups,
                                      dilation, weight.type.rank - 2)
    convert = {3: conv1d, 4: conv2d, 5: conv3d}[weight.type.rank]
    return convert(c, x, weight, bias, stride, padding, dilation, groups)
