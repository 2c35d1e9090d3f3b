# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Recognises activations that are composed of arithmetic ops.

An activation has many equal forms; instead of listing them, the arithmetic is evaluated at
sample points and compared with the values of gelu and silu.
"""

from __future__ import annotations

import functools

import torch

from ..ir import Op, Value, scalar_of

_UNARY = {"tanh": torch.tanh, "erf": torch.erf, "sigmoid": torch.sigmoid, "exp": torch.exp,
          "neg": torch.neg}
_BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
           "pow": torch.pow}
_CURVED = ("tanh", "erf", "sigmoid", "exp")
_LIMIT = 24


def activation(b, evaluator, op: Op):
    """Recognises silu, x * sigmoid(x), and gelu in its exact and its tanh form."""
    root = op.results[0]
    if op.name not in ("mul", "div") or not root.type.is_float:
        return None
    points, curves = _samples()
    for start in _starts(root):
        found = _compute(root, start, points)
        for name, attrs, curve in curves:
            if torch.allclose(found, curve, rtol=1e-6, atol=1e-6):
                return [b.unary(name, start, **attrs)]
    return None


@functools.lru_cache(maxsize=1)
def _samples():
    """Returns the sample points, and (op, attributes, values at the points) of each
    activation."""
    points = torch.linspace(-6, 6, 97, dtype=torch.float64)
    gelu = torch.nn.functional.gelu
    return points, [("gelu", {}, gelu(points)),
                    ("gelu", {"tanh": True}, gelu(points, approximate="tanh")),
                    ("silu", {}, torch.nn.functional.silu(points))]


def _is_arithmetic(value: Value, root: Value) -> bool:
    return value.is_op(*_UNARY, *_BINARY) and value.type == root.type


def _starts(root: Value) -> list[Value]:
    """Returns the values x such that `root` is computed only from x and numbers, by arithmetic
    with exactly one transcendental function."""
    nearby: dict[int, Value] = {}
    pending = [root]
    while pending and len(nearby) < _LIMIT:
        value = pending.pop(0)
        if id(value) in nearby or scalar_of(value) is not None:
            continue
        nearby[id(value)] = value
        if _is_arithmetic(value, root):
            pending.extend(value.op.operands)
    if not any(v.is_op(*_CURVED) for v in nearby.values()):
        return []
    return [v for v in nearby.values()
            if v is not root and v.type == root.type and _starts_at(root, v)]


def _starts_at(root: Value, start: Value) -> bool:
    """Returns whether `root` is computed only from `start` and numbers, by such arithmetic."""
    seen: set[int] = set()
    curved = 0
    pending = [root]
    while pending:
        value = pending.pop()
        if value is start or id(value) in seen or scalar_of(value) is not None:
            continue
        seen.add(id(value))
        if not _is_arithmetic(value, root) or len(seen) > _LIMIT:
            return False
        curved += value.op.name in _CURVED
        pending.extend(value.op.operands)
    return curved == 1


def _compute(value: Value, start: Value, points: torch.Tensor) -> torch.Tensor:
    """Evaluates `value` in f64 with `points` in place of `start`."""
    if value is start:
        return points
    number = scalar_of(value)
    if number is not None:
        return torch.tensor(number, dtype=torch.float64)
    inputs = [_compute(v, start, points) for v in value.op.operands]
    return (_UNARY.get(value.op.name) or _BINARY[value.op.name])(*inputs)
