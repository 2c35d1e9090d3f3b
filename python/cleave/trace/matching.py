# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Applies patterns to a function.

A pattern takes the builder, the evaluator and one op, its root. It matches the root and the
ops that define its operands, and returns values that replace the root's results, or None.
"""

from __future__ import annotations

from typing import Callable

from .evaluate import Evaluator
from .builder import Builder
from .ir import Function, Op, Value

Pattern = Callable[[Builder, Evaluator, Op], "list[Value | None] | None"]


def apply_patterns(function: Function, evaluator: Evaluator, patterns: list[Pattern]) -> None:
    """Rebuilds `function` in place, replacing each root that a pattern matches, in up to 8
    passes."""
    builder = Builder()
    replaced: dict[int, Value] = {}
    for op in function.ops:
        builder.location, builder.origin = op.location, op.origin
        results = _rebuild(builder, op, [replaced.get(id(v), v) for v in op.operands],
                           {k: replaced.get(id(v), v) for k, v in op.keywords.items()})
        for _ in range(8):
            changed = _rewrite(builder, evaluator, patterns, results)
            if changed is None:
                break
            results = changed
        for old, new in zip(op.results, results):
            replaced[id(old)] = new
    function.ops = builder.ops
    for result in (*function.results, *function.checks):
        result.value = replaced.get(id(result.value), result.value)
    function.prune()


def _rewrite(builder, evaluator, patterns, results):
    """Returns the results after the first pattern that matches their op; None if none does."""
    root = results[0].op if results and results[0] is not None else None
    if root is None:
        return None
    for pattern in patterns:
        changed = pattern(builder, evaluator, root)
        if changed is not None:
            return changed + results[len(changed):]
    return None


def _rebuild(b: Builder, op: Op, operands: list[Value], keywords: dict[str, Value]) -> list[Value]:
    """Returns the results of the op with new operands, built by the builder's method if it
    folds."""
    name, type = op.name, op.results[0].type
    if name == "reshape":
        return [b.reshape(operands[0], type.shape)]
    if name == "broadcast":
        return [b.broadcast(operands[0], type.shape)]
    if name == "transpose":
        return [b.transpose(operands[0], op.attrs["permutation"])]
    if name == "contract":
        return [b.contract(op.head.strip('"'), *operands)]
    if name in ("add", "sub", "mul", "div", "rem", "maximum", "minimum", "pow", "and", "or"):
        return [b.binary(name, *operands)]
    return b.create(name, operands, [r.type for r in op.results], head=op.head,
                    keywords=keywords, attrs=op.attrs)
