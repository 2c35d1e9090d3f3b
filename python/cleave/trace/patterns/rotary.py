# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Recognises rotary position embeddings that are composed of smaller ops."""

from __future__ import annotations

from typing import NamedTuple

from ..ir import GraphError, Value, broadcast_shapes
from ..matching import pairs


class _Half(NamedTuple):
    """The first or second half of the last dimension of `source`, or if `interleaved` the first
    or second element of each pair."""

    source: Value
    second: bool
    interleaved: bool


def rope(b, evaluator, op):
    """Recognises x * cos + rotate(x) * sin, and the concatenation of its two halves computed
    separately."""
    if op.name == "add":
        return _rotated(b, op.results[0])
    if op.name in ("concat", "reshape"):
        return _joined_halves(b, op.results[0])
    return None


def _rotated(b, root: Value):
    for plain, turned in pairs(root, "add"):
        for x, cos in pairs(plain, "mul"):
            for rotated, sin in pairs(turned, "mul"):
                interleaved = _rotation_of(rotated, x)
                if interleaved is not None and _is_table(cos, x) and _is_table(sin, x):
                    return [b.rope(x, cos, sin, interleaved)]
    return None


def _is_table(table: Value, x: Value) -> bool:
    """Returns whether `table` can be an operand of rope: it has no gradient and broadcasts to
    `x`."""
    if table.trained or x.type.rank != 4 or table.dtype != x.dtype:
        return False
    try:
        return broadcast_shapes(table.shape, x.shape) == x.shape
    except GraphError:
        return False


def _rotation_of(rotated: Value, x: Value) -> bool | None:
    """Returns `interleaved` if `rotated` is rotate(x), else None."""
    halves = _halves(rotated)
    if halves is None or not halves[0].is_op("neg"):
        return None
    second, first = _half(halves[0].op.operands[0]), _half(halves[1])
    if first is None or second is None or first.source is not x or second.source is not x:
        return None
    if first.second or not second.second or first.interleaved != second.interleaved:
        return None
    joined_pairs = not rotated.is_op("concat")
    return first.interleaved if first.interleaved == joined_pairs else None


def _halves(value: Value) -> tuple[Value, Value] | None:
    """Returns (a, b) if `value` is a and b concatenated or interleaved along the last
    dimension, else None."""
    pairs_joined = value.is_op("reshape")
    joined = value.op.operands[0] if pairs_joined else value
    if not joined.is_op("concat") or len(joined.op.operands) != 2:
        return None
    if joined.op.attrs["dim"] != joined.type.rank - 1:
        return None
    a, b = joined.op.operands
    if not pairs_joined:
        return (a, b) if a.shape == b.shape else None
    half = value.shape[:-1] + (value.shape[-1] // 2,)
    if joined.shape != half + (2,) or not (a.is_op("reshape") and b.is_op("reshape")):
        return None
    a, b = a.op.operands[0], b.op.operands[0]
    return (a, b) if a.shape == b.shape == half else None


def _half(value: Value) -> _Half | None:
    """Returns the half of a tensor that `value` is, or None."""
    if value.is_op("reshape") and value.op.operands[0].is_op("slice"):
        part = value.op.operands[0]
        pairs_of = part.op.operands[0]
        if part.shape != value.shape + (1,) or pairs_of.shape != value.shape + (2,) \
                or not pairs_of.is_op("reshape"):
            return None
        source = pairs_of.op.operands[0]
        if source.shape != value.shape[:-1] + (2 * value.shape[-1],):
            return None
        return _Half(source, part.op.attrs["offsets"][-1] == 1, True)
    if not value.is_op("slice"):
        return None
    source, attrs, size = value.op.operands[0], value.op.attrs, value.shape[-1]
    if source.shape != value.shape[:-1] + (2 * size,):
        return None
    offset, stride = attrs["offsets"][-1], attrs["strides"][-1]
    if stride == 1 and offset in (0, size):
        return _Half(source, offset == size, False)
    if stride == 2 and offset in (0, 1):
        return _Half(source, offset == 1, True)
    return None


def _joined_halves(b, root: Value):
    """Recognises [x1 cos - x2 sin, x2 cos + x1 sin], whose tables have half the size."""
    halves = _halves(root)
    if halves is None or not halves[0].is_op("sub") or not halves[1].is_op("add"):
        return None
    minuend, subtrahend = halves[0].op.operands
    for x1, cos in pairs(minuend, "mul"):
        first = _half(x1)
        if first is None or first.second or first.interleaved != root.is_op("reshape"):
            continue
        for x2, sin in pairs(subtrahend, "mul"):
            if _half(x2) != _Half(first.source, True, first.interleaved):
                continue
            if not (_is_half_table(cos, x1) and _is_half_table(sin, x1)):
                continue
            for left, right in pairs(halves[1], "add"):
                if _is_product(left, x2, cos) and _is_product(right, x1, sin):
                    return [b.rope(first.source, _doubled(b, cos, first.interleaved),
                                   _doubled(b, sin, first.interleaved), first.interleaved)]
    return None


def _is_half_table(table: Value, x1: Value) -> bool:
    return _is_table(table, x1) and table.type.rank > 0 and table.shape[-1] == x1.shape[-1]


def _is_product(value: Value, a: Value, b: Value) -> bool:
    return any(x is a and y is b for x, y in pairs(value, "mul"))


def _doubled(b, table: Value, interleaved: bool) -> Value:
    """Repeats a table of half the size for both halves, or for both elements of each pair."""
    if not interleaved:
        return b.concat([table, table], -1)
    wide = b.broadcast(b.reshape(table, table.shape + (1,)), table.shape + (2,))
    return b.reshape(wide, table.shape[:-1] + (2 * table.shape[-1],))
