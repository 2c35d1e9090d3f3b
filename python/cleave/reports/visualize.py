# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pictures of the shards of a tensor."""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
from typing import Any, Iterable, Mapping, Sequence, TypedDict

from ..compiler.shardings import PIPELINE
from ..messages import format_bytes


class Axis(TypedDict):
    """An axis of the mesh."""

    axis: str
    size: int


class Digit(Axis):
    """A part of an axis that shards a dimension: `pre` are the parts of its more significant
    digits."""

    pre: int


Range = tuple[int, int]
#: One of each dimension.
Ranges = tuple[Range, ...]


@dataclasses.dataclass(frozen=True)
class Part:
    """A shard of a tensor and the ranks that hold it."""

    #: For each dimension, its begin and end.
    ranges: Ranges
    ranks: tuple[int, ...]


def parts(shape: Sequence[int], dims: Sequence[Sequence[Digit]], mesh: Sequence[Axis],
          positions: Iterable[int] | None = None) -> list[Part]:
    """The shards of a tensor.

    Args:
        shape: of the global tensor.
        dims: for each dimension the axes that shard it, major to minor, each a
            dict of `axis`, `pre` (the parts of its more significant digits) and
            `size`.
        mesh: the axes, major to minor, each a dict of `axis` and `size`.
        positions: the pipeline positions whose ranks hold the tensor; all if None.

    Returns:
        The shards in the order of their offsets; every rank of these positions
        holds one.
    """
    names = [axis["axis"] for axis in mesh]
    sizes = [axis["size"] for axis in mesh]
    holders: dict[Ranges, list[int]] = {}
    for rank, position in enumerate(itertools.product(*map(range, sizes))):
        coordinates = dict(zip(names, position))
        if positions is not None and coordinates.get(PIPELINE, 0) not in positions:
            continue
        extents = dict(zip(names, sizes))
        ranges: list[Range] = []
        for size, axes in zip(shape, dims):
            index, count = 0, 1
            for axis in axes:
                minor = extents[axis["axis"]] // (axis["pre"] * axis["size"])
                digit = coordinates[axis["axis"]] // minor % axis["size"]
                index = index * axis["size"] + digit
                count *= axis["size"]
            ranges.append((size * index // count, size * (index + 1) // count))
        holders.setdefault(tuple(ranges), []).append(rank)
    return [Part(found, tuple(ranks)) for found, ranks in sorted(holders.items())]


def _ranks(ranks: Iterable[int]) -> str:
    """`0-3, 6`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _grid(found: Sequence[Part]) -> tuple[list[Ranges], list[Ranges],
                                          dict[tuple[Ranges, Ranges], tuple[int, ...]]]:
    """The shards as rows and columns: by their first dimension, and the rest."""
    rows = sorted({part.ranges[:1] for part in found})
    columns = sorted({part.ranges[1:] for part in found})
    cells = {(part.ranges[:1], part.ranges[1:]): part.ranks for part in found}
    return rows, columns, cells


def _label(ranges: Ranges) -> str:
    return " x ".join(f"{a}:{b}" for a, b in ranges)


def _others(found: Sequence[Part], mesh: Sequence[Axis]) -> list[int]:
    """The ranks that hold none of the shards."""
    holding = {rank for part in found for rank in part.ranks}
    return [r for r in range(math.prod(a["size"] for a in mesh)) if r not in holding]


def _empty_ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} holds" if len(ranks) == 1 else f"ranks {_ranks(ranks)} hold"


def describe(name: str, tensor: Mapping[str, Any], mesh: Sequence[Axis]) -> str:
    """A picture in text: a cell for each shard, with the ranks that hold it, and the
    ranks that hold none.

    Args:
        name: of the tensor.
        tensor: what the report's `placement` says of it.
        mesh: as in `parts`.
    """
    shape, positions = tensor["shape"], tensor.get("positions")
    found = parts(shape, tensor["dims"], mesh, positions)
    held = math.prod(b - a for a, b in found[0].ranges) * tensor["element_bits"] / 8
    whole = math.prod(shape) * tensor["element_bits"] / 8
    devices = ", ".join(f"{axis['axis']}={axis['size']}" for axis in mesh)
    lines = [f"{name} {shape} on {devices or 'one device'}"]
    if "framework_shape" in tensor:
        lines.append(f"  in the model {tensor['framework_shape']}")
    for i, axes in enumerate(tensor["dims"]):
        if axes:
            over = " and ".join(f"\"{axis['axis']}\"" for axis in axes)
            count = math.prod(axis["size"] for axis in axes)
            lines.append(f"  dimension {i} in {count} parts over {over}")
    others = _others(found, mesh)
    if others and positions is not None:
        which = "position" if len(positions) == 1 else "positions"
        lines.append(f"  at {which} {_ranks(sorted(positions))} of \"{PIPELINE}\"")
    rows, columns, cells = _grid(found)
    table = [["", *map(_label, columns)]]
    for row in rows:
        table.append([_label(row), *(_ranks(cells.get((row, c), ())) for c in columns)])
    widths = [max(map(len, column)) for column in zip(*table)]
    rule = "  +" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines.append(rule)
    for line in table:
        cells_text = " | ".join(text.ljust(width) for text, width in zip(line, widths))
        lines += [f"  | {cells_text} |", rule]
    size = f"{format_bytes(held)} of {format_bytes(whole)}"
    if others:
        several = len(found) > 1 or len(found[0].ranks) > 1
        lines.append(
            f"  {'each of these ranks' if several else 'this rank'} holds {size}; "
            f"{_empty_ranks(others)} nothing of it"
        )
    else:
        lines.append(f"  each rank holds {size}")
    return "\n".join(lines)


def draw(name: str, tensor: Mapping[str, Any], mesh: Sequence[Axis]) -> str:
    """The same picture as SVG."""
    found = parts(tensor["shape"], tensor["dims"], mesh, tensor.get("positions"))
    others = _others(found, mesh)
    rows, columns, cells = _grid(found)
    wide, high, left, top = 120, 44, 110, 56
    width = max(left + wide * len(columns), 230 if others else 0) + 10
    bottom = top + high * len(rows) + 10
    height = bottom + (20 if others else 0)
    groups = sorted({part.ranks for part in found})
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="10" y="20" font-size="14">{html.escape(name)} '
        f'{html.escape(str(tensor["shape"]))}</text>',
    ]
    for i, column in enumerate(columns):
        out.append(f'<text x="{left + wide * i + 6}" y="{top - 8}">{_label(column)}</text>')
    for j, row in enumerate(rows):
        y = top + high * j
        out.append(f'<text x="10" y="{y + high / 2 + 4}">{_label(row)}</text>')
        for i, column in enumerate(columns):
            ranks = cells.get((row, column), ())
            hue = 360 * groups.index(ranks) // len(groups) if ranks in groups else 0
            out.append(
                f'<rect x="{left + wide * i}" y="{y}" width="{wide - 4}" '
                f'height="{high - 4}" fill="hsl({hue},60%,85%)" stroke="#555"/>'
            )
            out.append(
                f'<text x="{left + wide * i + 6}" y="{y + high / 2 + 4}">'
                f"{_ranks(ranks)}</text>"
            )
    if others:
        out.append(
            f'<text x="10" y="{bottom + 6}" fill="#777">{_empty_ranks(others)} nothing</text>'
        )
    out.append("</svg>")
    return "\n".join(out)
