# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Activations spelled out in arithmetic.

There are many spellings of the same curve; instead of listing them, the
arithmetic is computed at sample points and compared with the curve.
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
    """x * sigmoid(x) is silu; both forms of gelu likewise."""
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
    points = torch.linspace(-6, 6, 97, dtype=torch.float64)
    gelu = torch.nn.functional.gelu
    return points, [("gelu", {}, gelu(points)),
                    ("gelu", {"tanh": True}, gelu(points, approximate="tanh")),
                    ("silu", {}, torch.nn.functional.silu(points))]


def _is_arithmetic(value: Value, root: Value) -> bool:
    return value.is_op(*_UNARY, *_BINARY) and value.type == root.type


def _starts(root: Value) -> list[Value]:
    """Tensors from which alone, and numbers, `root` is computed by arithmetic
    that holds one curved function."""
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
    if value is start:
        return points
    number = scalar_of(value)
    if number is not None:
        return torch.tensor(number, dtype=torch.float64)
    inputs = [_compute(v, start, points) for v in value.op.operands]
    return (_UNARY.get(value.op.name) or _BINARY[value.op.name])(*inputs)
