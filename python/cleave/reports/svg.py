# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Elements of the pictures that the package draws."""

from __future__ import annotations

import html


def open_svg(width: float, height: float) -> str:
    """The opening tag of a picture of `width` x `height` pixels."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12">')


def text(x: float, y: float, words: str, size: int = 12) -> str:
    """A line of text that begins at (x, y), in pixels."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{html.escape(words)}</text>'
