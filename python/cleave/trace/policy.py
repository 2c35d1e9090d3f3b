# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The user's choice of the precision of individual ops."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Iterator, Sequence

from .ir import Function, Op
from .printer import Printer


class PrecisionPolicy:
    """Patterns of module paths or names of ops, each with "f32" or "16bit". The last matching
    pattern applies to an op. A pattern that matches a module applies to all ops in it. The
    compiler matches them (Graph/Transforms/PrecisionPatterns.h), as those of a module in a file.
    Ops are those of the phase `model`: one that the compiler composes of smaller ops takes the
    precision of the last of these."""

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
        for op, name in _raised(function):
            if precision := self._patterns.match(_names_of(op, name)):
                op.origin = dataclasses.replace(op.origin, precision=precision)

    def unmatched(self) -> list[str]:
        """Returns the patterns that have matched no op."""
        return [] if self._patterns is None else self._patterns.unmatched()


def _raised(function: Function) -> Iterator[tuple[Op, str]]:
    """Yields the ops of a function that the compiler keeps, and the name that each has after the
    compiler has replaced the last of several ops by one that they compose."""
    from .. import _cleave

    numbered = [copy.copy(op) for op in function.ops]
    for line, op in enumerate(numbered, 1):
        op.location = "op", line, 1
    printer = Printer(named=True)
    printer.add(dataclasses.replace(function, ops=numbered))
    for line, name in _cleave.raised_ops(printer.text()):
        yield function.ops[line - 1], name


def _names_of(op: Op, name: str) -> list[str]:
    """Returns the names that a pattern may match: that of the op, with its dialect or without, and
    the paths of the modules that contain it."""
    parts = op.origin.module.split(".") if op.origin.module else []
    return [name, f"graph.{name}", *(".".join(parts[:i + 1]) for i in range(len(parts)))]
