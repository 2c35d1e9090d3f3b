# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Reports: text (those of a step), memory_picture, visualize and svg (pictures), notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .text import Reports as Reports


def __getattr__(name: str) -> type[Reports]:
    """The class has a module of its own; it is imported when it is asked for."""
    if name != "Reports":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .text import Reports
    return Reports
