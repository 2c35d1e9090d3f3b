# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Recognises what an attention mask means.

A mask is a conjunction. Each term becomes, in this order of preference,
nothing (all true), `causal`, `window`, `segments`, or part of the `mask`
operand. Terms that no input decides are evaluated, so that it does not matter
how a model spells "not after me". An additive mask is split into the
conjunction it hides (0 and a very negative number) and a bias.
"""

from __future__ import annotations

import dataclasses

import torch

from .evaluate import Evaluator
from .ir import Builder, Value, scalar_of

#: An additive score at or below this excludes a key.
EXCLUDED = -1e4


@dataclasses.dataclass
class Visibility:
    """Which keys a query sees, and what is added to the scores it has."""

    causal: bool = False
    window: int | None = None
    segments: Value | None = None
    masks: list[Value] = dataclasses.field(default_factory=list)
    biases: list[Value] = dataclasses.field(default_factory=list)


class MaskAnalysis:
    """Sorts masks and biases for scores of shape [b, a, q, k]."""

    def __init__(self, builder: Builder, evaluator: Evaluator, shape: tuple[int, ...]):
        self.b = builder
        self.evaluator = evaluator
        self.shape = shape
        self.result = Visibility()

    # Boolean masks -----------------------------------------------------------

    def mask(self, value: Value, negated: bool = False) -> None:
        """Adds the condition `value` (or its opposite)."""
        if value.is_op("not"):
            self.mask(value.op.operands[0], not negated)
        elif value.is_op("or" if negated else "and"):
            for operand in value.op.operands:
                self.mask(operand, negated)
        elif value.is_op("broadcast"):
            self.mask(value.op.operands[0], negated)
        elif not self._known_term(value, negated) and not self._segments(value, negated):
            self.result.masks.append(self.b.unary("not", value) if negated else value)

    def _known_term(self, value: Value, negated: bool) -> bool:
        known = self.evaluator.value(value)
        if known is None:
            return False
        return self._pattern(torch.logical_not(known) if negated else known)

    def _pattern(self, known: torch.Tensor) -> bool:
        """Whether `known` is all true, causal or a window, which it then adds."""
        if bool(known.all()):
            return True
        queries, keys = self.shape[2:]
        while known.dim() < 2:
            known = known[None]
        if known.shape[-1] != keys or known.shape[-2] != queries:
            return False
        known = known.reshape(-1, queries, keys)
        if known.shape[0] > 1 and not bool((known == known[:1]).all()):
            return False
        visible = known[0]
        distance = (torch.arange(queries)[:, None] + (keys - queries)
                    - torch.arange(keys)[None, :])
        causal = distance >= 0
        window = int(visible[-1].sum())
        if torch.equal(visible, causal):
            self.result.causal = True
            return True
        near = distance < window
        if window and torch.equal(visible, causal & near):
            self.result.causal = True
        elif not window or not torch.equal(visible, near):
            return False
        if self.result.window is not None:
            window = min(window, self.result.window)
        self.result.window = window
        return True

    def _segments(self, value: Value, negated: bool) -> bool:
        """Recognises id[q] == id[k] for one tensor of document ids."""
        if not value.is_op("compare") or value.op.head != ("ne" if negated else "eq"):
            return False
        if self.result.segments is not None or self.shape[2] != self.shape[3]:
            return False
        a, b = value.op.operands
        rows, columns = self._positions(a, 2), self._positions(b, 3)
        if rows is None or columns is None:
            rows, columns = self._positions(b, 2), self._positions(a, 3)
        if rows is None or rows is not columns or rows.type.is_float:
            return False
        batch, size = self.shape[0], self.shape[2]
        if rows.shape not in ((size,), (1, size), (batch, size)) or rows.dtype == "i1":
            return False
        self.result.segments = self.b.broadcast(rows, (batch, size))
        return True

    def _positions(self, value: Value, dim: int) -> Value | None:
        """The tensor that `value` lays out along dimension 2 or 3 of the scores."""
        while value.is_op("broadcast"):
            value = value.op.operands[0]
        shape = (1,) * (4 - value.type.rank) + value.shape
        expected = [1, 1, 1, 1]
        expected[dim] = self.shape[dim]
        if len(shape) != 4 or tuple(shape[1:]) != tuple(expected[1:]):
            return None
        while value.is_op("reshape", "broadcast"):
            value = value.op.operands[0]
        return value

    # Additive masks --------------------------------------------------------------

    def bias(self, value: Value, factor: float = 1.0) -> None:
        """Adds `factor * value` to the scores."""
        if value.is_op("broadcast") or (
                value.is_op("cast") and value.op.operands[0].type.is_float):
            inner = value.op.operands[0]
            if self._hides_mask(inner):
                self.bias(self.b.cast(inner, value.dtype), factor)
                return
        if value.is_op("add") and factor > 0 and any(map(self._hides_mask, value.op.operands)):
            for operand in value.op.operands:
                self.bias(operand, factor)
        elif factor > 0 and (self._known_bias(value, factor) or self._select(value, factor)
                             or self._scaled_mask(value, factor)):
            pass
        else:
            self._plain_bias(value, factor)

    def _hides_mask(self, value: Value) -> bool:
        if value.is_op("broadcast", "cast"):
            return self._hides_mask(value.op.operands[0])
        if value.is_op("add"):
            return any(map(self._hides_mask, value.op.operands))
        if value.is_op("select"):
            return any(_excludes(v) for v in value.op.operands[1:])
        if value.is_op("mul"):
            return any(_excludes(v) for v in value.op.operands)
        known = self.evaluator.value(value)
        return known is not None and bool((known <= EXCLUDED).any())

    def _plain_bias(self, value: Value, factor: float) -> None:
        if factor != 1.0:
            value = self.b.binary("mul", value, self.b.scalar(factor, value.dtype))
        self.result.biases.append(value)

    def _known_bias(self, value: Value, factor: float) -> bool:
        known = self.evaluator.value(value)
        if known is None:
            return False
        visible = known > EXCLUDED
        if not bool(visible.all()) and not self._pattern(visible):
            bound = self.b.scalar(EXCLUDED, value.dtype)
            self.result.masks.append(self.b.compare("gt", value, bound))
        rest = known[visible]
        if bool((rest != 0).any()):
            if not bool(visible.all()):
                bound = self.b.scalar(EXCLUDED, value.dtype)
                value = self.b.select(self.b.compare("gt", value, bound), value,
                                      self.b.scalar(0, value.dtype))
            self._plain_bias(value, factor)
        return True

    def _select(self, value: Value, factor: float) -> bool:
        """select(c, x, -big) is x where c; so is select(not c, -big, x)."""
        if not value.is_op("select"):
            return False
        condition, a, b = value.op.operands
        if _excludes(b) == _excludes(a):
            return False
        self.mask(condition, negated=_excludes(a))
        rest = b if _excludes(a) else a
        if scalar_of(rest) != 0:
            self.bias(rest, factor)
        return True

    def _scaled_mask(self, value: Value, factor: float) -> bool:
        """(1 - m) * -big, with m made of a condition or of integers, is m."""
        if not value.is_op("mul"):
            return False
        for inverse, big in (value.op.operands, value.op.operands[::-1]):
            if not _excludes(big) or not inverse.is_op("sub", "cast"):
                continue
            if inverse.is_op("cast") and inverse.op.operands[0].dtype == "i1":
                self.mask(inverse.op.operands[0], negated=True)
                return True
            if inverse.is_op("cast") or scalar_of(inverse.op.operands[0]) != 1:
                continue
            kept = inverse.op.operands[1]
            while kept.is_op("broadcast", "cast") and kept.type.is_float:
                kept = kept.op.operands[0]
            if kept.dtype != "i1" and kept.type.is_float:
                continue
            if kept.dtype != "i1":
                kept = self.b.compare("ne", kept, self.b.scalar(0, kept.dtype))
            self.mask(kept)
            return True
        return False


def _excludes(value: Value) -> bool:
    number = scalar_of(value)
    return isinstance(number, float) and number <= EXCLUDED
