# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Recognises attention composed of contractions: softmax(scale * Q K^T + biases) V."""

from __future__ import annotations

import dataclasses

from ..attention import build_attention
from ..ir import Value, scalar_of
from ..masks import masking_number
from ..matching import pairs


@dataclasses.dataclass
class _Scores:
    """The operand of softmax: `factor` times the `product` of queries and keys, with biases
    (value, factor) and masks (condition, negated, number)."""

    product: Value
    factor: float = 1.0
    biases: list[tuple[Value, float]] = dataclasses.field(default_factory=list)
    masks: list[tuple[Value, bool, float]] = dataclasses.field(default_factory=list)


def composed_attention(b, evaluator, op):
    """Recognises the contraction of softmax probabilities, possibly after dropout, with values."""
    if op.name != "contract":
        return None
    inputs, output = op.head.strip('"').split("->")
    terms = inputs.split(",")
    for i in range(2):
        found = _probabilities(op.operands[i])
        if found is not None:
            softmax, dropout = found
            return _build(b, evaluator, softmax, dropout, terms[i], op.operands[i],
                          terms[1 - i], op.operands[1 - i], output)
    return None


def _probabilities(value: Value):
    """Returns (softmax, dropout op or None) if `value` is a softmax, possibly after dropout."""
    value = _past_reshape(value)
    dropout = None
    if value.is_op("dropout"):
        dropout = value.op
        value = _past_reshape(value.op.operands[0])
    if value.is_op("softmax") and not value.op.attrs.get("log"):
        return value, dropout
    return None


def _past_reshape(value: Value) -> Value:
    """Returns `value` without a reshape that keeps its last two dimensions."""
    if value.is_op("reshape"):
        inner = value.op.operands[0]
        if inner.type.rank >= 3 and value.type.rank >= 3 and inner.shape[-2:] == value.shape[-2:]:
            return inner
    return value


def _build(b, evaluator, softmax, dropout, p_letters, p_value, v_letters, v_value, output):
    """Builds attention for the contraction of probabilities (`p_`) and values (`v_`), given with
    their einsum letters; None if it is not attention."""
    probabilities = softmax
    shape = probabilities.shape
    if len(shape) not in (3, 4) or len(p_letters) not in (3, 4):
        return None
    q, k = p_letters[-2:]
    batch = p_letters[:-2]
    extra = [l for l in v_letters if l not in p_letters]
    if k not in v_letters or k in output or q in v_letters or len(extra) != 1 \
            or sorted(output) != sorted(batch + q + extra[0]):
        return None
    heads = shape[:-2] if len(shape) == 4 else (shape[0], 1)
    scores = _scores(b, softmax.op.operands[0], (*heads, *shape[-2:]))
    if scores is None:
        return None
    product = _query_and_key(b, scores.product, heads)
    value = _to_rank4(b, v_value, v_letters, batch, k, extra[0], p_value.shape[:-2], heads)
    if product is None or value is None:
        return None
    query, key = product
    attrs = dropout.attrs if dropout is not None else {}
    result = build_attention(
        b, evaluator, query, key, value, scale=scores.factor, biases=scores.biases,
        masks=scores.masks, rng=dropout.operands[1] if dropout is not None else None,
        dropout=attrs.get("probability", 0.0), dropout_id=attrs.get("id", 0))
    if result is None:
        return None
    # From [b, a, q, e] to the dimensions of the contraction, in its order.
    result = b.reshape(result, p_value.shape[:-2] + result.shape[2:])
    order = batch + q + extra[0]
    return [b.transpose(result, [order.index(letter) for letter in output])]


def _broadcast_to_rank4(b, term: Value, scores: Value, shape: tuple[int, ...]) -> Value:
    """Reshapes `term`, which broadcasts to `scores`, so that it broadcasts to the rank-4
    `shape`."""
    if scores.type.rank == 4 or term.type.rank < 3:
        return term
    if term.shape[0] == 1:
        return b.reshape(term, (1, *term.shape))
    return b.reshape(term, (*shape[:2], *term.shape[1:]))


def _scores(b, value: Value, shape: tuple[int, ...]) -> _Scores | None:
    """Traces the operand of softmax back to the matmul of queries and keys; None if it does not
    lead there."""
    biases, masks, factor = [], [], 1.0
    while True:
        value = _past_reshape(value)
        if value.is_op("contract"):
            return _Scores(value, factor, biases, masks)
        step = _scaled(value)
        if step is not None:
            value, factor = step[0], factor * step[1]
            continue
        if value.is_op("select"):
            condition, a, c = value.op.operands
            numbers = masking_number(a, factor), masking_number(c, factor)
            if (numbers[0] is None) == (numbers[1] is None):
                return None
            first = numbers[0] is not None
            masks.append((_broadcast_to_rank4(b, condition, value, shape), first,
                          numbers[not first]))
            value = c if first else a
            continue
        if value.is_op("sub") and _holds_product(value.op.operands[0]):
            biases.append((_broadcast_to_rank4(b, value.op.operands[1], value, shape), -factor))
            value = value.op.operands[0]
            continue
        for inner, term in pairs(value, "add"):
            if _holds_product(inner) and inner.shape == value.shape:
                biases.append((_broadcast_to_rank4(b, term, value, shape), factor))
                value = inner
                break
        else:
            return None


def _scaled(value: Value) -> tuple[Value, float] | None:
    """Returns (x, f) if `value` is x scaled by the number f, by a mul or a div; else None."""
    if value.is_op("div"):
        number = scalar_of(value.op.operands[1])
        return (value.op.operands[0], 1 / number) if number else None
    for x, factor in pairs(value, "mul"):
        number = scalar_of(factor)
        if number is not None and x.shape == value.shape:
            return x, number
    return None


def _holds_product(value: Value, depth: int = 8) -> bool:
    """Returns whether a contraction is among the ops, up to `depth`, from which `value` is
    computed."""
    if value.is_op("contract"):
        return True
    if depth == 0 or not value.is_op("add", "sub", "mul", "div", "select", "reshape"):
        return False
    return any(_holds_product(v, depth - 1) for v in value.op.operands)


def _query_and_key(b, product: Value, heads: tuple[int, ...]):
    """Returns the queries [b, a, q, d] and keys [b, g, k, d] of the contraction `product`, or
    None."""
    inputs, output = product.op.head.strip('"').split("->")
    terms = inputs.split(",")
    if len(output) not in (3, 4):
        return None
    batch, q, k = output[:-2], output[-2], output[-1]
    if q in terms[1] or k in terms[0]:
        terms = terms[::-1]
        query, key = product.op.operands[1], product.op.operands[0]
    else:
        query, key = product.op.operands
    summed = [l for l in terms[0] if l not in output]
    if len(summed) != 1 or summed[0] not in terms[1] or q not in terms[0] or k not in terms[1] \
            or q in terms[1] or k in terms[0]:
        return None
    lead = product.shape[:-2]
    query = _to_rank4(b, query, terms[0], batch, q, summed[0], lead, heads)
    key = _to_rank4(b, key, terms[1], batch, k, summed[0], lead, heads)
    if query is None or key is None:
        return None
    return b.broadcast(query, (*heads, *query.shape[2:])), key


def _to_rank4(b, x: Value, letters: str, batch: str, position: str, channel: str,
              lead: tuple[int, ...], heads: tuple[int, ...]) -> Value | None:
    """Transposes and reshapes `x` to [batch, heads, position, channel], with one head if it has no
    letter for heads; None if that is not possible."""
    order = [l for l in batch + position + channel if l in letters]
    if sorted(order) != sorted(letters):
        return None
    x = b.transpose(x, [letters.index(l) for l in order])
    present = [l in letters for l in batch]
    if all(present):
        return b.reshape(x, (*heads, *x.shape[-2:]))
    if lead != heads or not present[0]:
        return None if lead != heads else b.broadcast(
            b.reshape(x, tuple(s if here else 1 for s, here in zip(lead, present)) + x.shape[-2:]),
            (heads[0], *(s if here else 1 for s, here in zip(lead[1:], present[1:])),
             *x.shape[-2:]))
    return b.reshape(x, (heads[0], 1, *x.shape[-2:]))
