# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The arguments of `cleave.compile`: groups of options, and the names that options had before."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any, Mapping

from ..messages import warn
from .fields import OptionGroup, nearest
from .groups import GROUPS

#: The arguments that are options themselves.
PLAIN = ("optimizer", "micro_batches", "mesh", "plan", "seed", "check")

#: The argument that takes each option of a group.
OWNERS = {field.name: argument for argument, (kind, _) in GROUPS.items()
          for field in dataclasses.fields(kind)}


@functools.cache
def table() -> list[dict[str, Any]]:
    """The rows of the compiler's table of options."""
    from .. import _cleave

    rows: list[dict[str, Any]] = json.loads(_cleave.option_table())
    return rows


@functools.cache
def former_names() -> dict[str, str]:
    """The options by the names that they had in an earlier version, of the table."""
    return {former["name"].replace("-", "_"): row["key"]
            for row in table() for former in row["former"] if former["unit"] == 1}


def group_of(argument: str, value: Any) -> Any:
    """The group that an argument gives: itself, or one of a plain value. Raises TypeError."""
    kind, plain = GROUPS[argument]
    if value is None or isinstance(value, kind):
        return value or kind()
    if isinstance(value, (OptionGroup, type)) or plain is None:
        other = f"cleave.{value.__name__}, a class" if isinstance(value, type) else (
            f"a {type(value).__name__}")
        raise TypeError(f"{argument} is {other}, not a cleave.{kind.__name__}: write {argument}="
                        f"cleave.{kind.__name__}({plain or next(iter(kind.__dataclass_fields__))}=...)")
    return kind(**{plain: value})


def gather(groups: Mapping[str, Any], plain: Mapping[str, Any], former: Mapping[str, Any],
           quiet: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """The groups by argument, and options that are arguments themselves, of what those give
    (`groups`, `plain`), and of options that are given by former names or outside of their
    groups, of which it warns unless `quiet`.

    Raises:
        TypeError: there is no such argument; the error names the nearest.
        ValueError: an option is given twice, with other values.
    """
    found = {argument: group_of(argument, groups.get(argument)) for argument in GROUPS}
    own = dict(plain)
    for given, value in former.items():
        name = former_names().get(given, given)
        argument = OWNERS.get(name)
        if argument is not None:
            known = getattr(found[argument], name)
            now = f"{argument}=cleave.{type(found[argument]).__name__}({name}={{}})"
        elif name in own and name != given:
            known, now = own[name], f"{name}={{}}"
        else:
            raise TypeError(unknown(given))
        if not quiet:
            warn(f"{given}= of cleave.compile is {now.format('...')} now; the former spelling goes "
                 "with the next version", DeprecationWarning)
        if value is None:
            continue
        if known is not None and not _same(known, value):
            raise ValueError(f"{given}={value!r} and {now.format(repr(known))} contradict each other: "
                             "leave the first out")
        if argument is not None:
            found[argument] = dataclasses.replace(found[argument], **{name: value})
        else:
            own[name] = value
    return found, own


def grouped(**given: Any) -> dict[str, Any]:
    """Arguments of `cleave.compile` of single options by their names, each in its group."""
    given = {former_names().get(name, name): value for name, value in given.items()}
    groups = {name: value for name, value in given.items() if name in GROUPS}
    own = {name: value for name, value in given.items() if name in OWNERS and name not in GROUPS}
    others = {name: value for name, value in given.items()
              if name not in GROUPS and name not in OWNERS}
    touched = {*groups, *(OWNERS[name] for name in own)}
    found, _ = gather(groups, {}, own, quiet=True)
    return {**others, **{argument: found[argument] for argument in touched}}


def unknown(name: str) -> str:
    """What is wrong with an argument that there is not, and the nearest one."""
    names = [*PLAIN, *GROUPS, *OWNERS]
    text = f"cleave.compile has no argument '{name}'{nearest(name, names)}"
    close = text.rpartition("'")[0].rpartition("'")[2]
    if close in OWNERS and close not in GROUPS:
        argument = OWNERS[close]
        text += f" It is given as {argument}=cleave.{GROUPS[argument][0].__name__}({close}=...)"
    return text


def _same(a: Any, b: Any) -> bool:
    try:
        return type(a) is type(b) and bool(a == b)
    except (RuntimeError, TypeError, ValueError):
        return a is b
