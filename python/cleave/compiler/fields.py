# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What the groups of options have in common."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeVar

from ..messages import close_names

Class = TypeVar("Class", bound=type)


class OptionGroup:
    """Options of `cleave.compile` that belong together; None is an option that is not given."""

    def given(self) -> dict[str, Any]:
        """The options that are given, by name."""
        return {field.name: value for field in dataclasses.fields(self)  # type: ignore[arg-type]
                if (value := getattr(self, field.name)) is not None}

    def __repr__(self) -> str:
        own = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return f"cleave.{type(self).__name__}({own})"


def check_names(kind: Class) -> Class:
    """The class, whose unknown arguments are errors that name the nearest option."""
    made = kind.__init__  # type: ignore[misc]
    names = [field.name for field in dataclasses.fields(kind)]

    @functools.wraps(made)
    def checked(self, *args, **given):
        for name in given:
            if name not in names:
                raise TypeError(f"cleave.{kind.__name__} has no option '{name}'"
                                f"{nearest(name, names)}")
        made(self, *args, **given)

    kind.__init__ = checked  # type: ignore[misc]
    return kind


def nearest(name: str, names) -> str:
    """`; did you mean 'precision'?`"""
    return "; did you mean " + " or ".join(f"'{other}'" for other in close_names(name, names)[:1]) + "?"
