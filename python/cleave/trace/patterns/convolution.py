# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Simplifies causal convolutions, which PyTorch has no interface for."""

from __future__ import annotations

_CONTRACTIONS = ("nhwcij,ocij->nohw", "nhwgcij,gocij->ngohw")


def leading_windows(b, evaluator, op):
    """Replaces the first windows of a convolution along its last dimension by one that is padded
    in front alone: `conv1d` with a padding of taps - 1 computes as many windows too many, and its
    result, cut off, is causal. Then all results have the length of the input."""
    if op.name != "slice" or any(op.attrs["offsets"]) or set(op.attrs["strides"]) != {1}:
        return None
    value, length = op.operands[0], op.attrs["sizes"][-1]
    if op.attrs["sizes"][:-1] != list(value.shape[:-1]) or length == value.shape[-1]:
        return None
    # The ops between the slice and the contraction keep the last dimension.
    steps = []
    while not value.is_op("contract"):
        if value.is_op("reshape") and value.op.operands[0].shape[-1:] == value.shape[-1:]:
            steps.append(value)
        elif value.is_op("cast"):
            steps.append(value)
        elif value.is_op("add") and value.op.operands[0].shape == value.shape \
                and value.op.operands[1].shape[-1:] == (1,):
            steps.append(value)
        else:
            return None
        value = value.op.operands[0]
    rows, weight = value.op.operands
    if value.op.head.strip('"') not in _CONTRACTIONS:
        return None
    split = rows.is_op("reshape") and rows.shape[:3] == rows.op.operands[0].shape[:3]
    patches = rows.op.operands[0] if split else rows
    if not patches.is_op("patches"):
        return None
    x, attrs = patches.op.operands[0], patches.op.attrs
    around = attrs["padding"][1]
    if not around or attrs["stride"][1] != 1 or length != x.shape[-1] \
            or around != attrs["dilation"][1] * (attrs["kernel"][1] - 1):
        return None
    # They are what the convolution's own ops are: where they are, and in which type.
    place = b.location, b.origin
    b.location, b.origin = value.op.location, value.op.origin
    result = b.patches(b.pad(x, 0, [0, 0, 0, around], [0] * 4), attrs["kernel"], attrs["stride"],
                       [attrs["padding"][0], 0], attrs["dilation"])
    if split:
        result = b.reshape(result, (*rows.shape[:2], length, *rows.shape[3:]))
    result = b.create("contract", [result, weight],
                      [value.type.with_shape((*value.shape[:-1], length))],
                      keywords=value.op.keywords, attrs=value.op.attrs, head=value.op.head)[0]
    for step in reversed(steps):
        if step.is_op("reshape"):
            result = b.reshape(result, (*step.shape[:-1], length))
        elif step.is_op("cast"):
            result = b.cast(result, step.dtype)
        else:
            result = b.binary("add", result, step.op.operands[1])
    b.location, b.origin = place
    return [result]
