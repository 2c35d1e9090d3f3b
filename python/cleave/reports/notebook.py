# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The pictures of a step in a notebook: memory (memory_picture.py), placement and schedule as
SVG."""

from __future__ import annotations

import html
import math
import re
from typing import TYPE_CHECKING, Any

from ..messages import format_bytes
from .memory_picture import memory_svg
from .svg import open_svg as _open
from .svg import text as _text

if TYPE_CHECKING:
    from .text import Reports


def fold_layers(name: str) -> str:
    """`h.3.mlp.w` as `h.*.mlp.w`."""
    return re.sub(r"(?<=\w\.)\d+(?=\.\w)", "*", name)


def placement_svg(report: dict[str, Any], most: int = 24) -> str:
    """A row for each tensor, of which those that differ in the numbers of layers alone
    are one: the share of it that a rank holds, and the axes over which it is sharded.

    Args:
        report: what `Step.report` returns.
        most: rows that are drawn, of the largest tensors; the rest is counted.
    """
    placement = report["placement"]
    mesh = placement.get("mesh", [])
    #: By name, shape and axes: tensors, bytes, and parts of one.
    rows: dict[tuple[str, tuple[int, ...], tuple[tuple[str, ...], ...]], list[int]] = {}
    for name, tensor in placement.get("tensors", {}).items():
        axes = tuple(tuple(axis["axis"] for axis in dim) for dim in tensor["dims"])
        shares = math.prod(axis["size"] for dim in tensor["dims"] for axis in dim)
        key = (fold_layers(name), tuple(tensor["shape"]), axes)
        row = rows.setdefault(key, [0, 0, shares])
        row[0] += 1
        row[1] += math.prod(tensor["shape"]) * tensor["element_bits"] // 8
    ordered = sorted(rows.items(), key=lambda item: -item[1][1])
    shown = ordered[:most]
    names, wide, high, top = 330, 160, 22, 34
    left_out = len(ordered) - len(shown)
    height = top + high * len(shown) + (24 if left_out else 6)
    title = ", ".join(f"{axis['axis']}={axis['size']}" for axis in mesh) or "one device"
    out = [_open(names + wide + 330, height), _text(10, 18, f"placement on {title}", size=14)]
    for i, ((name, shape, axes), (count, total, shares)) in enumerate(shown):
        y = top + high * i
        text = name if len(name) <= 46 else "..." + name[-43:]
        out.append(_text(10, y + 13, (f"{count} x " if count > 1 else "") + text))
        out.append(f'<rect x="{names}" y="{y}" width="{wide}" height="{high - 6}" fill="#eee" '
                   'stroke="#999"/>')
        out.append(f'<rect x="{names}" y="{y}" width="{wide / shares:.1f}" height="{high - 6}" '
                   'fill="hsl(210,60%,75%)" stroke="#555">'
                   f"<title>a rank holds 1/{shares}</title></rect>")
        dims = " x ".join(f"{size}/{'+'.join(over)}" if over else str(size)
                          for size, over in zip(shape, axes)) or "scalar"
        out.append(_text(names + wide + 8, y + 13, f"{dims}, {format_bytes(total)}"))
    if left_out:
        out.append(_text(10, height - 8, f"and {left_out} more"))
    return "\n".join([*out, "</svg>"])


def page(step: Reports) -> str:
    """The HTML that a notebook shows for a step."""
    report = step.report()
    parts = [f"<p><b>{html.escape(repr(step))}</b></p>",
             f"<pre>{html.escape(step.explain())}</pre>", memory_svg(report),
             "<details><summary>placement</summary>", placement_svg(report), "</details>"]
    if report.get("schedule"):
        with step._making_ir():
            drawing = step._live.compiled.schedule("svg", "")
        parts += ["<details><summary>schedule</summary>", drawing, "</details>"]
    return "<div>" + "\n".join(parts) + "</div>"
