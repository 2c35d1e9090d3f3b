# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Recognises normalisation over the last dimension that is composed of smaller ops."""

from __future__ import annotations

from ..ir import Value, scalar_of
from ..matching import pairs, without_units, vector


def norm(b, evaluator, op):
    """Recognises x * rsqrt(mean(x^2) + epsilon) and x / sqrt(mean(x^2) + epsilon): an RMS norm,
    or a layer norm if x is centred."""
    if op.name == "mul":
        for x, scale in pairs(op.results[0], "mul"):
            epsilon = _inverse_deviation(x, scale)
            if epsilon is not None:
                return [_normalised(b, x, epsilon)]
    elif op.name == "div":
        x, deviation = op.operands
        deviation = without_units(deviation)
        if deviation.is_op("sqrt"):
            epsilon = _epsilon(x, deviation.op.operands[0])
            if epsilon is not None:
                return [_normalised(b, x, epsilon)]
    return None


def _normalised(b, x: Value, epsilon: float) -> Value:
    """Builds the norm of `x`: a layer norm of y if `x` is y - mean(y)."""
    if x.is_op("sub"):
        source, mean = x.op.operands
        if _mean_of(_flowing(mean)) is source:
            return b.layer_norm(source, None, None, epsilon)
    return b.rms_norm(x, None, epsilon)


def _inverse_deviation(x: Value, scale: Value) -> float | None:
    """Returns epsilon if `scale` is 1 / sqrt(mean(x^2) + epsilon), else None."""
    scale = without_units(scale)
    if scale.is_op("rsqrt"):
        return _epsilon(x, scale.op.operands[0])
    if scale.is_op("div") and scalar_of(scale.op.operands[0]) == 1:
        deviation = without_units(scale.op.operands[1])
        if deviation.is_op("sqrt"):
            return _epsilon(x, deviation.op.operands[0])
    return None


def _epsilon(x: Value, shifted: Value) -> float | None:
    """Returns epsilon if `shifted` is mean(x^2) + epsilon over the last dimension, else None."""
    for mean, epsilon in pairs(without_units(shifted), "add"):
        number = scalar_of(epsilon)
        squares = _mean_of(mean)
        if number is not None and squares is not None and squares.is_op("mul") \
                and all(_is_same(v, x) for v in squares.op.operands):
            return number
    return None


def _flowing(value: Value) -> Value:
    """Returns `value` without a stop_gradient."""
    return value.op.operands[0] if value.is_op("stop_gradient") else value


def _is_same(a: Value, b: Value) -> bool:
    """Returns whether both are the same value, or the same value minus its mean; a stop_gradient of
    the mean is ignored, since a variance has no gradient through its mean."""
    if a is b:
        return True
    if not (a.is_op("sub") and b.is_op("sub")) or a.op.operands[0] is not b.op.operands[0]:
        return False
    a_mean, b_mean = (without_units(_flowing(v.op.operands[1])) for v in (a, b))
    return _mean_of(a_mean) is a.op.operands[0] and _mean_of(b_mean) is a.op.operands[0]


def _mean_of(value: Value) -> Value | None:
    """Returns x if `value` is the mean of x over the last dimension, else None."""
    value = without_units(value)
    if not value.is_op("div", "mul"):
        return None
    total, count = value.op.operands
    number = scalar_of(count)
    total = without_units(total)
    if not number or not total.is_op("reduce") or total.op.head != "sum":
        return None
    x = total.op.operands[0]
    count = number if value.op.name == "div" else 1 / number
    if total.op.attrs["dims"] == [x.type.rank - 1] and abs(count - x.shape[-1]) < 1e-6 * count:
        return x
    return None


def norm_weight(b, evaluator, op):
    """Recognises norm(x) * weight, where the weight is a vector along the last dimension."""
    for x, factor in pairs(op.results[0], "mul"):
        if not x.is_op("rms_norm", "layer_norm") or x.index or x.op.keywords:
            continue
        weight = vector(factor, x.shape[-1])
        if weight is None or x.shape != op.results[0].shape:
            continue
        source, epsilon = x.op.operands[0], x.op.attrs["epsilon"]
        if x.op.name == "rms_norm":
            return [b.rms_norm(source, weight, epsilon)]
        return [b.layer_norm(source, weight, None, epsilon)]
    return None


def norm_bias(b, evaluator, op):
    """Recognises layer_norm(x) + bias, where the bias is a vector along the last dimension."""
    for x, term in pairs(op.results[0], "add"):
        if not x.is_op("layer_norm") or x.index or "bias" in x.op.keywords:
            continue
        bias = vector(term, x.shape[-1])
        if bias is None or x.shape != op.results[0].shape:
            continue
        return [b.layer_norm(x.op.operands[0], x.op.keywords.get("weight"), bias,
                             x.op.attrs["epsilon"])]
    return None
