# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The user's choice of the precision of individual ops."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from .ir import Function, Op


class PrecisionPolicy:
    """Patterns of module paths or names of ops, each with "f32" or "16bit". The last matching
    pattern applies to an op. A pattern that matches a module applies to all ops in it. The
    compiler matches them (Graph/Transforms/PrecisionPatterns.h), as those of a module in a file."""

    def __init__(self, entries: Sequence[tuple[str, str]] = ()):
        self._patterns = None
        if entries:
            from .. import _cleave

            try:
                self._patterns = _cleave.precision_patterns(entries)
            except ValueError as error:
                raise ValueError(f"precision_policy: {error}") from None

    @property
    def patterned(self) -> bool:
        """Whether there are patterns."""
        return self._patterns is not None

    @classmethod
    def of(cls, value: Any) -> PrecisionPolicy:
        """Returns the policy that the user specifies. Raises TypeError or ValueError."""
        if value is None:
            return cls()
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(
                isinstance(entry, (tuple, list)) and len(entry) == 2
                and all(isinstance(part, str) for part in entry) for entry in value):
            raise TypeError("precision_policy must be a list of pairs (pattern of modules or ops, "
                            '"f32" or "16bit")')
        return cls([tuple(entry) for entry in value])

    def apply(self, function: Function) -> None:
        """Sets the precision of the ops of a function."""
        if self._patterns is None:
            return
        for op in function.ops:
            if precision := self._patterns.match(_names_of(op)):
                op.origin = dataclasses.replace(op.origin, precision=precision)

    def unmatched(self) -> list[str]:
        """Returns the patterns that have matched no op."""
        return [] if self._patterns is None else self._patterns.unmatched()


def _names_of(op: Op) -> list[str]:
    """Returns the names that a pattern may match: that of the op, with its dialect or without, and
    the paths of the modules that contain it."""
    parts = op.origin.module.split(".") if op.origin.module else []
    return [op.name, f"graph.{op.name}", *(".".join(parts[:i + 1]) for i in range(len(parts)))]
