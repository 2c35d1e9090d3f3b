# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The wording of sizes, names and locations in messages."""

from __future__ import annotations

import difflib
import os
import re
import sys
import warnings
from typing import Iterable

#: Whether `warn` says nothing: in all processes of a launch but the first.
quiet = False
#: How often `warn` was called.
warned = 0

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

_STRING = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(rf"{_STRING}|[()]")
_LINE = re.compile(rf"({_STRING}):(\d+):(\d+)")


def format_bytes(count: float) -> str:
    """`264 B`, `16.0 KiB`, `1.2 MiB`, `3.0 GiB`."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB"):
        if count < 1024:
            break
        count /= 1024
        unit = larger
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def some_names(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a and 4 more`."""
    first, *rest = names
    if not rest:
        return first
    return f"{first} and {rest[0] if len(rest) == 1 else f'{len(rest)} more'}"


def close_names(name: str, names: Iterable[str]) -> list[str]:
    """At most three of `names` that are similar to `name`: those that contain it, else
    those that differ in case only, else the closest one; empty if `names` is empty."""
    names = list(names)
    holding = sorted((n for n in names if name and name in n), key=len)
    return (holding[:3] or difflib.get_close_matches(name, names, n=3)
            or difflib.get_close_matches(name, names, n=1, cutoff=0.0))


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line that called this package."""
    global warned
    warned += 1
    if quiet:
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_code.co_filename.startswith(_HERE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def readable_places(text: str) -> str:
    """A diagnostic of the compiler with readable locations: `model.py:3:9: `, or the
    name of an argument if the message does not have it, or nothing if no location is
    known."""
    out, at = [], 0
    while (start := text.find("loc(", at)) >= 0:
        end = _closing(text, start + 3)
        if end is None or text[start - 1 : start].isidentifier():
            out.append(text[at : start + 4])
            at = start + 4
            continue
        separator = ": " if text.startswith(": ", end) else ""
        rest = text[end + len(separator) :]
        place = _place(text[start:end], rest.partition("\n")[0])
        out += [text[at:start], place, separator if place else ""]
        at = len(text) - len(rest)
    return "".join([*out, text[at:]])


def _closing(text: str, start: int) -> int | None:
    """The position after the parenthesis that closes the one at `start`."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += (token[0] == "(") - (token[0] == ")")
        if not depth:
            return token.end()
    return None


def _place(location: str, message: str) -> str:
    # A fused location begins with a reason, which is not a location.
    location = re.sub(rf"<{_STRING}>", "", location)
    # Nor is the number of a checkpoint region.
    location = re.sub(r'"graph\.checkpoint [0-9]+"', "", location)
    if line := _LINE.search(location):
        file = "<traced model>" if line[1] == '"-"' else line[1][1:-1]
        return f"{file}:{line[2]}:{line[3]}"
    name = re.search(_STRING, location)
    return f"'{name[0][1:-1]}'" if name and name[0] not in message else ""
