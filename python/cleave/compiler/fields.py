# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What the groups of options have in common."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, Iterable, TypeVar

from ..messages import close_names

Group = TypeVar("Group", bound="OptionGroup")


class OptionGroup:
    """Options of `cleave.compile` that belong together, in a dataclass; None is an option that is
    not given."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def given(self) -> dict[str, Any]:
        """The options that are given, by name."""
        return {field.name: value for field in dataclasses.fields(self)
                if (value := getattr(self, field.name)) is not None}

    def __repr__(self) -> str:
        own = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return f"cleave.{type(self).__name__}({own})"


def check_names(kind: type[Group]) -> type[Group]:
    """The class, whose unknown arguments are errors that name the nearest option."""
    made = vars(kind)["__init__"]
    names = [field.name for field in dataclasses.fields(kind)]

    @functools.wraps(made)
    def checked(self: Group, *args: Any, **given: Any) -> None:
        for name in given:
            if name not in names:
                raise TypeError(f"cleave.{kind.__name__} has no option '{name}'"
                                f"{nearest(name, names)}")
        made(self, *args, **given)

    type.__setattr__(kind, "__init__", checked)
    return kind


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'precision'?`"""
    return "; did you mean " + " or ".join(f"'{other}'" for other in close_names(name, names)[:1]) + "?"
