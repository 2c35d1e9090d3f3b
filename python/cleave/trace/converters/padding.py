# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Padding with a number or with elements of the tensor."""

from __future__ import annotations

import torch

from ..registry import Unsupported, aten, converts

#: The largest number of elements of a table of indices.
LARGEST_TABLE = 1 << 20


def index_table(c, indices):
    """Returns indices as an i64 constant. Raises Unsupported for more than LARGEST_TABLE."""
    indices = torch.as_tensor(indices, dtype=torch.int64)
    if indices.numel() > LARGEST_TABLE:
        raise Unsupported(f"a table of {indices.numel()} indices: at most {LARGEST_TABLE}")
    return c.b.constant(indices)


@converts(aten.pad.default, aten.constant_pad_nd.default)
def pad(c, x, widths, *rest, mode="constant", value=None):
    rest = list(rest)
    if rest and isinstance(rest[0], str):
        mode = rest.pop(0)
    value = rest[0] if rest else value
    if mode != "constant":
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
        x = c.b.gather(x, index_table(c, indices), dim)
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
