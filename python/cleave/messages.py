# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The words in which sizes, names and places are given to people."""

from __future__ import annotations

import difflib
from typing import Iterable


def format_bytes(count: float) -> str:
    """`264 B`, `16.0 KiB`, `1.2 MiB`, `3.0 GiB`."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB"):
        if count < 1024:
            break
        count /= 1024
        unit = larger
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def close_names(name: str, names: Iterable[str]) -> list[str]:
    """At most three of `names` that are like `name`: those that hold it, else those
    written alike, else the closest one; none of no names."""
    names = list(names)
    holding = sorted((n for n in names if name and name in n), key=len)
    return (holding[:3] or difflib.get_close_matches(name, names, n=3)
            or difflib.get_close_matches(name, names, n=1, cutoff=0.0))
