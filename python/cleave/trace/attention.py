# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Builds `graph.attention` from the queries, keys, masks and biases of a model."""

from __future__ import annotations

from .evaluate import Evaluator
from .builder import Builder
from .ir import TensorType, Value, broadcast_shapes
from .masks import MaskAnalysis
from .matching import scaled_by


def build_attention(b: Builder, evaluator: Evaluator, query: Value, key: Value, value: Value, *,
                    scale: float, mask: Value | None = None, bias: Value | None = None,
                    biases: list[tuple[Value, float]] = (),
                    masks: list[tuple[Value, bool, float]] = (),
                    top_left_causal: bool = False, rng: Value | None = None,
                    dropout: float = 0.0, dropout_id: int = 0) -> Value | None:
    """Builds attention of queries [b, a, q, d] over keys [b, g, k, d] and values
    [b, g, k, e]; the result is [b, a, q, e]. Heads `a` are a multiple of the key heads `g`.

    A boolean `mask` is true for visible keys, and a `bias` is added to the scores; both broadcast
    to [b, a, q, k]. `biases` are pairs (value, factor). `masks` are triples (condition, negated,
    number): scores are replaced by the number where the condition is false (true, if negated). With
    `top_left_causal`, query i sees keys 0 to i. Returns None if the masks cannot be expressed as
    attention over a subset of the keys."""
    query, factor = _unscaled(b, query)
    scale *= factor
    key, value = _shared_heads(b, query, key, value)
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    analysis = MaskAnalysis(b, evaluator, shape)
    if mask is not None:
        analysis.mask(mask)
    for condition, negated, number in masks:
        if not analysis.replaced(condition, negated, number):
            return None
    if bias is not None:
        analysis.bias(bias)
    for term, factor in biases:
        analysis.bias(term, factor)
    if top_left_causal and shape[2] == shape[3]:
        analysis.causal()
    elif top_left_causal:
        row = b.iota(TensorType((shape[2], 1), "i64"), 0)
        column = b.iota(TensorType((1, shape[3]), "i64"), 1)
        analysis.mask(b.compare("le", column, row))
    if not analysis.finish():
        return None
    seen = analysis.result
    if seen.causal and seen.window is not None and seen.window >= shape[3]:
        seen.window = None
    return b.attention(query, key, value, scale=scale, bias=_joined(b, "add", seen.biases),
                       mask=_joined(b, "and", seen.masks), segments=seen.segments, rng=rng,
                       causal=seen.causal, window=seen.window, dropout=dropout,
                       dropout_id=dropout_id)


def _unscaled(b: Builder, x: Value) -> tuple[Value, float]:
    """Returns (y, f) with x = f * y, also if `x` is a reshape or transpose of a tensor scaled by
    the number f."""
    if x.is_op("transpose", "reshape") and x.op.operands[0].type.is_float:
        inner, factor = _unscaled(b, x.op.operands[0])
        if factor == 1.0:
            return x, 1.0
        if x.op.name == "reshape":
            return b.reshape(inner, x.shape), factor
        return b.transpose(inner, x.op.attrs["permutation"]), factor
    return scaled_by(x)


def _joined(b: Builder, name: str, values: list[Value]) -> Value | None:
    """Combines `values` by the op `name` into one tensor of rank 4; None if there are none."""
    result = None
    for value in values:
        while value.is_op("broadcast"):
            value = value.op.operands[0]
        value = b.reshape(value, (1,) * (4 - value.type.rank) + value.shape)
        result = value if result is None else b.binary(name, result, value)
    return result


def _shared_heads(b: Builder, query: Value, key: Value, value: Value) -> tuple[Value, Value]:
    """Removes the repetition of key and value heads that groups of query heads share
    (grouped-query attention)."""
    plain_key, plain_value = (_unrepeated(b, x) for x in (key, value))
    if plain_key is not None and plain_value is not None \
            and plain_key.shape[1] == plain_value.shape[1] \
            and query.shape[1] % plain_key.shape[1] == 0:
        return plain_key, plain_value
    if key.shape[1] != value.shape[1]:
        heads = broadcast_shapes(key.shape[1:2], value.shape[1:2])
        key = b.broadcast(key, key.shape[:1] + heads + key.shape[2:])
        value = b.broadcast(value, value.shape[:1] + heads + value.shape[2:])
    return key, value


def _unrepeated(b: Builder, x: Value) -> Value | None:
    """Returns the tensor [b, g, k, d] whose heads `x` [b, a, k, d] repeats; None if it repeats
    none."""
    if x.is_op("broadcast") and x.op.operands[0].type.rank == 4:
        inner = x.op.operands[0]
        if inner.shape[1] == 1 and inner.shape[0] == x.shape[0] and inner.shape[2:] == x.shape[2:]:
            return inner
    if not x.is_op("reshape") or not x.op.operands[0].is_op("broadcast"):
        return None
    repeated = x.op.operands[0]
    inner = repeated.op.operands[0]
    if repeated.type.rank != 5 or inner.type.rank != 5:
        return None
    batch, groups, times, *rest = repeated.shape
    if inner.shape != (batch, groups, 1, *rest) or x.shape != (batch, groups * times, *rest):
        return None
    return b.reshape(inner, (batch, groups, *rest))
