# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Simplifies moves of elements that are due to PyTorch's interfaces: reshapes around row-wise
ops, gathers of known rows, slices of linears."""

from __future__ import annotations

import math
import string

import torch

from ..ir import Value, scalar_of

_MAPS = ("neg", "abs", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh",
         "erf", "sigmoid", "silu", "relu", "floor", "stop_gradient", "not", "gelu", "dropout",
         "cast", "layer_norm", "rms_norm", "softmax")


def gather_of_known(b, evaluator, op):
    """Replaces a gather of known indices start, start + step, ... (position embeddings) by a
    slice."""
    if op.name != "gather":
        return None
    x, indices = op.operands
    known = evaluator.value(indices)
    if known is None or known.numel() == 0:
        return None
    dim = op.attrs["dim"]
    if "padding_index" in op.attrs and bool((known == op.attrs["padding_index"]).any()):
        return None
    for _ in range(op.attrs.get("batch", 0)):
        if not bool((known == known[:1]).all()):
            return None
        known = known[0]
    line, lead = known, 0
    while line.dim() > 1 and bool((line == line[:1]).all()):
        line, lead = line[0], lead + 1
    flat = line.reshape(-1)
    steps = torch.diff(flat)
    step = int(steps[0]) if steps.numel() else 1
    start, count = int(flat[0]), flat.numel()
    if count > 1 and not bool((steps == step).all()):
        return None
    if step == 0:
        count, step, shape = 1, 1, (1,) * line.dim()
    else:
        shape = tuple(line.shape)
    if step < 1 or start < 0 or start + (count - 1) * step >= x.shape[dim]:
        return None
    rows = b.narrow(x, dim, start, count, step)
    rows = b.reshape(rows, x.shape[:dim] + (1,) * lead + shape + x.shape[dim + 1:])
    return [b.broadcast(rows, op.results[0].shape)]


def contraction_to_linear(b, evaluator, op):
    """Replaces the matmul of x with a transposed matrix by a linear, the form that losses fuse
    with."""
    if op.name != "contract":
        return None
    inputs, output = op.head.strip('"').split("->")
    left, right = inputs.split(",")
    x, weight = op.operands
    if len(right) == 2 and len(left) > 1 and right[1] == left[-1] \
            and right[0] not in left and output == left[:-1] + right[0]:
        return [b.linear(x, weight)]
    return None


def slice_of_linear(b, evaluator, op):
    """Replaces a slice of rows of a linear's result by the linear of a slice of its input."""
    if op.name != "slice" or not op.operands[0].is_op("linear"):
        return None
    linear = op.operands[0].op
    attrs = op.attrs
    if attrs["sizes"][-1] != linear.results[0].shape[-1]:
        return None
    x = linear.operands[0]
    rows = b.slice(x, attrs["offsets"][:-1] + [0], attrs["sizes"][:-1] + [x.shape[-1]],
                   attrs["strides"])
    return [b.linear(rows, linear.operands[1], linear.keywords.get("bias"))]


def _merged(b, value: Value) -> Value | None:
    """Returns x where `value` is x with leading dimensions merged, or None. Last dimensions
    that are merged too (heads and channels) are merged in the result."""
    if not value.is_op("reshape"):
        return None
    x = value.op.operands[0]
    if x.type.rank <= value.type.rank or not value.type.rank:
        return None
    if x.shape[-1] == value.shape[-1] or _merges_all(x, value):
        return x
    if value.type.rank != 2:
        return None
    # Both the leading dimensions (rows) and the last ones (heads and channels) are merged.
    for lead in range(2, x.type.rank):
        if math.prod(x.shape[:lead]) == value.shape[0]:
            return b.reshape(x, (*x.shape[:lead], value.shape[1]))
    return None


def _merges_all(x: Value, value: Value) -> bool:
    return value.type.rank == 1 and value.shape[0] == math.prod(x.shape)


def rows_of_reshape(b, evaluator, op):
    """Moves a reshape that merges leading dimensions from the operands of a row-wise op to its
    result, until it meets the reshape that undoes it."""
    if op.name in ("linear", *_MAPS):
        return _past_map(b, op)
    if op.name == "contract":
        return _past_contract(b, op)
    if op.name in ("add", "sub", "mul", "div", "compare", "and", "or", "maximum", "minimum"):
        return _past_binary(b, op)
    if op.name == "select":
        return _past_select(b, op)
    if op.name == "cross_entropy":
        return _past_loss(b, op)
    return None


def _past_map(b, op):
    x = _merged(b, op.operands[0])
    if x is None or (x.shape[-1] != op.operands[0].shape[-1]
                     and op.name in ("linear", "layer_norm", "rms_norm", "softmax")):
        return None
    old = op.results[0]
    shape = x.shape[:-1] + old.shape[-1:] if op.name == "linear" else x.shape
    if len(op.results) > 1:
        if op.name == "layer_norm":
            result = b.layer_norm(x, op.keywords.get("weight"), op.keywords.get("bias"),
                                  op.attrs["epsilon"])
        else:
            result = b.rms_norm(x, op.keywords.get("weight"), op.attrs["epsilon"])
    else:
        result = b.create(op.name, [x, *op.operands[1:]], [old.type.with_shape(shape)],
                          keywords=op.keywords, attrs=op.attrs)[0]
    return [b.reshape(result, old.shape)]


def _past_contract(b, op):
    inputs, output = op.head.strip('"').split("->")
    left, right = inputs.split(",")
    x = _merged(b, op.operands[0])
    if x is None or len(left) != 2 or len(right) != 2 or left[0] in right \
            or len(output) != 2 or output[0] != left[0] or left[1] not in right \
            or left[1] in output:
        return None
    rows = string.ascii_lowercase[:x.type.rank - 1]
    k, n = string.ascii_lowercase[len(rows):len(rows) + 2]
    weight = k + n if right[0] == left[1] else n + k
    result = b.contract(f"{rows}{k},{weight}->{rows}{n}", x, op.operands[1])
    return [b.reshape(result, op.results[0].shape)]


def _past_binary(b, op):
    result = op.results[0]
    lhs, rhs = (_merged(b, v) for v in op.operands)
    if lhs is not None and rhs is not None and lhs.shape == rhs.shape \
            and op.operands[0].shape == op.operands[1].shape:
        operands = [lhs, rhs]
    else:
        operands = None
        for i, x in enumerate((lhs, rhs)):
            other = op.operands[1 - i]
            if x is None or op.operands[i].shape != result.shape:
                continue
            kept = x.shape[-1] == result.shape[-1]
            if other.type.elements == 1:
                other = b.reshape(other, ())
            elif kept and other.type.elements == other.shape[-1]:
                other = b.reshape(other, other.shape[-1:])
            else:
                continue
            operands = [x, other] if i == 0 else [other, x]
            break
        if operands is None:
            return None
    if op.name == "compare":
        moved = b.compare(op.head, *operands)
    else:
        moved = b.binary(op.name, *operands)
    return [b.reshape(moved, result.shape)]


def _past_select(b, op):
    shape = op.results[0].shape
    sources = [_merged(b, v) for v in op.operands]
    full = next((x for x in sources if x is not None), None)
    if full is None:
        return None
    operands = []
    for value, source in zip(op.operands, sources):
        if scalar_of(value) is not None and value.type.rank == 0:
            operands.append(value)
        elif source is not None and source.shape == full.shape and value.shape == shape:
            operands.append(source)
        else:
            return None
    return [b.reshape(b.select(*operands), shape)]


def _past_loss(b, op):
    logits, targets = op.operands
    x = _merged(b, logits)
    if x is None or x.shape[-1] != logits.shape[-1]:
        return None
    rows = b.cross_entropy(x, b.reshape(targets, x.shape[:-1]), op.attrs["ignore_index"],
                           op.attrs["label_smoothing"])
    return [b.reshape(rows, targets.shape)]


def reduce_of_reshape(b, evaluator, op):
    """Removes a reshape before a reduction of all elements, which does not depend on their
    shape."""
    if op.name != "reduce" or op.results[0].type.rank or not op.operands[0].is_op("reshape"):
        return None
    x = op.operands[0].op.operands[0]
    if not x.type.rank:
        return None
    return [b.reduce(op.head, x, range(x.type.rank))]
