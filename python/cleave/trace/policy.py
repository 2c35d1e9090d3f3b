# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The user's choice of the precision of individual ops."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase
from typing import Any, Sequence

from .ir import Function, Op

_PRECISIONS = ("f32", "16bit")


class PrecisionPolicy:
    """Patterns of module paths or names of ops, each with "f32" or "16bit". The last matching
    pattern applies to an op. A pattern that matches a module applies to all ops in it."""

    def __init__(self, entries: Sequence[tuple[str, str]] = ()):
        self.entries = tuple(entries)
        #: The patterns that have matched an op.
        self.matched: set[str] = set()

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
        for pattern, precision in value:
            if precision not in _PRECISIONS:
                raise ValueError(f"precision_policy gives {pattern!r} {precision!r}; it must be "
                                 "'f32' or '16bit'")
        return cls([tuple(entry) for entry in value])

    def apply(self, function: Function) -> None:
        """Sets the precision of the ops of a function."""
        if not self.entries:
            return
        for op in function.ops:
            names = _names_of(op)
            for pattern, precision in self.entries:
                if any(fnmatchcase(name, pattern) for name in names):
                    self.matched.add(pattern)
                    op.origin = dataclasses.replace(op.origin, precision=precision)

    def unmatched(self) -> list[str]:
        """Returns the patterns that have matched no op."""
        return [p for p, _ in self.entries if p not in self.matched]


def _names_of(op: Op) -> list[str]:
    """Returns the names that a pattern may match: that of the op, and the paths of the modules that
    contain it."""
    parts = op.origin.module.split(".") if op.origin.module else []
    return [op.name, *(".".join(parts[:i + 1]) for i in range(len(parts)))]
