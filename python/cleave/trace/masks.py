# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Analyses attention masks.

A boolean mask is a conjunction of terms. Each term becomes, in this order of preference,
nothing (if all true), `causal`, `window`, `segments`, or part of the `mask` operand. Terms
that depend on no input are evaluated, so that all spellings of a causal mask are recognised.

An additive mask is a bias: its numbers are added to the scores. -inf masks a key. A finite number
does not: if all keys of a row have it, the softmax of the row depends on the scores, or is uniform
if the sum rounds the scores away. A finite number is treated as a mask only if the result is
bitwise the same: the number is so low that exp gives 0 beside any visible key, and every row is
known to have a visible key. A bias that is not known at trace time remains a bias.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from .evaluate import Evaluator
from .builder import Builder
from .ir import Value, scalar_of

#: A finite number at or below this masks a key in a row with a visible key: exp of the
#: difference is 0, since scores are much smaller in magnitude.
MASKED = -1e30


@dataclasses.dataclass
class Visibility:
    """The keys that are visible to each query, and the biases of their scores."""

    causal: bool = False
    window: int | None = None
    segments: Value | None = None
    masks: list[Value] = dataclasses.field(default_factory=list)
    biases: list[Value] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Finite:
    """A term that masks keys by a finite number, in rows with other visible keys."""

    #: The visible keys, as known elements and as a condition (negated if `negated`).
    kept: torch.Tensor
    condition: Value
    negated: bool
    #: The bias (value, factor) of the visible keys' scores, or None.
    rest: tuple[Value, float] | None = None
    #: The bias (value, factor) of all scores, used if no mask is equivalent; None if the number
    #: replaces the scores.
    whole: tuple[Value, float] | None = None


class MaskAnalysis:
    """Collects the masks and biases of scores [b, a, q, k] in `result`; `finish` is called
    last."""

    def __init__(self, builder: Builder, evaluator: Evaluator, shape: tuple[int, ...]):
        self.b = builder
        self.evaluator = evaluator
        self.shape = shape
        self.result = Visibility()
        #: Conditions known at trace time, and whether there are unknown conditions or biases, which
        #: may mask any key.
        self._known: list[torch.Tensor] = []
        self._unknown = False
        self._finite: list[_Finite] = []
        #: Whether there is a causal or segment condition, under which only the key at each query's
        #: own position is known to be visible.
        self._own_key = False

    def causal(self) -> None:
        """Masks later keys; there are as many keys as queries."""
        self.result.causal = True
        self._own_key = True

    # Boolean masks -----------------------------------------------------------

    def mask(self, value: Value, negated: bool = False) -> None:
        """Adds the condition `value` (or its negation): keys are visible where it is true."""
        if value.is_op("not"):
            self.mask(value.op.operands[0], not negated)
        elif value.is_op("or" if negated else "and"):
            for operand in value.op.operands:
                self.mask(operand, negated)
        elif value.is_op("broadcast"):
            self.mask(value.op.operands[0], negated)
        elif not self._known_term(value, negated) and not self._segments(value, negated):
            self._unknown = True
            self._masked(value, negated)

    def _masked(self, value: Value, negated: bool) -> None:
        self.result.masks.append(self.b.unary("not", value) if negated else value)

    def _known_term(self, value: Value, negated: bool) -> bool:
        """Adds a condition if its elements are known; returns whether they are."""
        known = self.evaluator.value(value)
        if known is None:
            return False
        known = torch.logical_not(known) if negated else known
        self._known.append(known)
        if not self._pattern(known):
            self._masked(value, negated)
        return True

    def _pattern(self, known: torch.Tensor) -> bool:
        """Adds `known` if it is all true, causal or a window; returns whether it is one of
        these."""
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
        # As bits, and not as distances: a mask is read again in each layer.
        every = torch.ones(queries, keys, dtype=torch.bool)
        causal = every.tril(keys - queries)
        if torch.equal(visible, causal):
            self.result.causal = True
            return True
        window = int(visible[-1].sum())
        near = every.triu(keys - queries - window + 1)
        if window and torch.equal(visible, causal & near):
            self.result.causal = True
        elif not window or not torch.equal(visible, near):
            return False
        if self.result.window is not None:
            window = min(window, self.result.window)
        self.result.window = window
        return True

    def _segments(self, value: Value, negated: bool) -> bool:
        """Adds the condition id[q] == id[k] for one tensor of segment ids; returns whether `value`
        is such a condition."""
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
        self._own_key = True
        return True

    def _positions(self, value: Value, dim: int) -> Value | None:
        """Returns the tensor that `value` broadcasts along dimension 2 or 3 of the scores, or
        None."""
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
            if self._contains_mask(inner):
                self.bias(self.b.cast(inner, value.dtype), factor)
                return
        if value.is_op("add") and factor > 0 and any(map(self._contains_mask, value.op.operands)):
            for operand in value.op.operands:
                self.bias(operand, factor)
        elif factor > 0 and (self._known_bias(value, factor) or self._select(value, factor)):
            pass
        else:
            self._plain_bias(value, factor)

    def _contains_mask(self, value: Value) -> bool:
        """Returns whether the bias `value` contains numbers that may mask keys."""
        if value.is_op("broadcast", "cast"):
            return self._contains_mask(value.op.operands[0])
        if value.is_op("add"):
            return any(map(self._contains_mask, value.op.operands))
        if value.is_op("select"):
            return any(masking_number(v) is not None for v in value.op.operands[1:])
        known = self.evaluator.value(value)
        return known is not None and bool((known <= MASKED).any())

    def _plain_bias(self, value: Value, factor: float) -> None:
        """Adds a bias without a mask."""
        if not value.trained and self.evaluator.value(value) is None:
            self._unknown = True
        if factor != 1.0:
            value = self.b.binary("mul", value, self.b.scalar(factor, value.dtype))
        self.result.biases.append(value)

    def _known_bias(self, value: Value, factor: float) -> bool:
        """Adds a bias as a mask and a bias if its elements are known; returns whether they are."""
        known = self.evaluator.value(value)
        if known is None or bool(known.isnan().any()):
            return False
        kept = known * factor > MASKED
        if bool(kept.all()):
            if bool((known != 0).any()):
                self._plain_bias(value, factor)
            return True
        condition = self.b.compare("gt", value, self.b.scalar(MASKED / factor, value.dtype))
        rest = None
        if bool((known[kept] != 0).any()):
            rest = self.b.select(condition, value, self.b.scalar(0, value.dtype)), factor
        hidden = known[~kept]
        if bool((hidden == -math.inf).all()):
            self._known.append(kept)
            self._mask_keys(kept, condition, False, rest)
        else:
            self._finite.append(_Finite(kept, condition, False, rest, (value, factor)))
        return True

    def _mask_keys(self, kept, condition, negated, rest) -> None:
        """Masks all keys but `kept`, and adds the bias `rest` to the scores of these."""
        if not self._pattern(kept):
            self._masked(condition, negated)
        if rest is not None:
            self._plain_bias(*rest)

    def _select(self, value: Value, factor: float) -> bool:
        """Adds select(c, x, -inf) or select(not c, -inf, x) as the mask c and the bias x; returns
        whether `value` is such a select."""
        if not value.is_op("select"):
            return False
        condition, a, b = value.op.operands
        numbers = masking_number(a, factor), masking_number(b, factor)
        if (numbers[0] is None) == (numbers[1] is None):
            return False
        negated = numbers[0] is not None
        rest, number = (b, numbers[0]) if negated else (a, numbers[1])
        if number == -math.inf:
            self.mask(condition, negated)
            if scalar_of(rest) != 0:
                self.bias(rest, factor)
            return True
        if not rest.trained and self.evaluator.value(rest) is None:
            return False
        return self._finite_term(condition, negated, (rest, factor), (value, factor))

    def replaced(self, condition: Value, negated: bool, number: float) -> bool:
        """Adds a term that replaces scores by `number` where `condition` (or its negation) is
        false; returns whether an equivalent mask is possible, which `finish` decides."""
        if number == -math.inf:
            self.mask(condition, negated)
            return True
        return number <= MASKED and self._finite_term(condition, negated, None, None)

    def _finite_term(self, condition, negated, rest, whole) -> bool:
        known = self.evaluator.value(condition)
        if known is None:
            return False
        kept = torch.logical_not(known) if negated else known
        if rest is not None and scalar_of(rest[0]) == 0:
            rest = None
        self._finite.append(_Finite(kept, condition, negated, rest, whole))
        return True

    # Finite numbers -----------------------------------------------------------------

    def finish(self) -> bool:
        """Decides whether finite numbers mask keys. Returns False if they replace scores without an
        equivalent mask; `result` is then unusable."""
        rows_keep = self._finite and self._every_row_keeps_a_key()
        for term in self._finite:
            if rows_keep:
                self._mask_keys(term.kept, term.condition, term.negated, term.rest)
            elif term.whole is None:
                return False
            else:
                self._plain_bias(*term.whole)
        return True

    def _every_row_keeps_a_key(self) -> bool:
        if self._unknown:
            return False
        kept = torch.ones((1, 1, 1, 1), dtype=torch.bool)
        for known in [*self._known, *(term.kept for term in self._finite)]:
            kept = kept & known
        kept = kept.expand(*kept.shape[:-2], *self.shape[2:])
        if self._own_key:
            return bool(kept.diagonal(dim1=-2, dim2=-1).all())
        return bool(kept.any(-1).all())


def masking_number(value: Value, factor: float = 1.0) -> float | None:
    """Returns `factor * value` if it is one number that may mask keys, else None."""
    number = scalar_of(value)
    if isinstance(number, float) and number * factor <= MASKED:
        return number * factor
    return None
