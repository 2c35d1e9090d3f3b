# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The memory of a device over a step, by kind, as SVG."""

from __future__ import annotations

import html
from typing import Any, Callable

from ..messages import format_bytes
from .svg import open_svg, text

#: A hue for each kind of the report; from the lowest one up.
_HUES = {
    "parameters": 210, "masters": 230, "state": 260, "constants": 120, "inputs": 150,
    "kept": 300, "gradients": 30, "saved": 0, "temporaries": 50, "communication": 180,
    "library": 90, "fetched": 330,
}
#: Tensors that are listed below the picture.
_LISTED = 12


def memory_svg(report: dict[str, Any], position: int | None = None) -> str:
    """The bytes in use over the commands of a step, stacked by kind, with the peak marked and
    what is in use then listed. Repeated actions are drawn once.

    Args:
        report: what `Step.report` returns.
        position: the pipeline position; if None, the one with the largest arena.
    """
    plan = report["plan"]
    several = plan.get("positions", [])
    if several:
        position = plan["largest"] if position is None else position
        plan = several[position]
    entries = plan["entries"]
    name = "train" if "train" in entries else min(entries)
    entry = entries[name]
    profile = entry.get("profile") or {"actions": [], "times": [0], "kinds": {}}
    times: list[int] = profile["times"]
    arena: int = max(plan["arena_bytes"], 1)
    left, wide, top, high = 20, 640, 40, 240
    end = max(times[-1] + 1, 1)
    kinds = [kind for kind in _HUES if any(profile["kinds"].get(kind, []))]
    listed = sorted([*plan["fixed"], *entry["live_at_peak"]], key=lambda one: -one["bytes"])
    legend = top + high + 34
    height = legend + 18 * (len(kinds) + min(len(listed), _LISTED) + 2) + 12
    where = f", position {position}" if several else ""
    out = [open_svg(left + wide + 160, height),
           text(left, 18, f"memory of a device in {name}{where}", size=14)]

    def x(time: float) -> float:
        return left + wide * time / end

    def y(count: float) -> float:
        return top + high - high * count / arena

    below = [0] * len(times)
    for kind in kinds:
        values = profile["kinds"][kind]
        above = [low + one for low, one in zip(below, values)]
        # A sample holds until the next one.
        points = []
        for i, time in enumerate(times):
            until = times[i + 1] if i + 1 < len(times) else end
            points.append((x(time), x(until), y(above[i]), y(below[i])))
        path = " ".join([f"{a:.1f},{up:.1f} {b:.1f},{up:.1f}" for a, b, up, _ in points]
                        + [f"{b:.1f},{down:.1f} {a:.1f},{down:.1f}"
                           for a, b, _, down in reversed(points)])
        out.append(f'<polygon points="{path}" fill="hsl({_HUES[kind]},60%,75%)" stroke="none">'
                   f"<title>{kind}: at most {format_bytes(max(values))}</title></polygon>")
        below = above
    out.append(f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" fill="none" '
               'stroke="#555"/>')
    out.append(text(left + wide + 6, top + 10, f"{format_bytes(plan['arena_bytes'])} arena"))
    out += _actions(profile["actions"], x, top + high)
    if kinds:
        peak = max(range(len(times)), key=lambda i: below[i])
        out.append(f'<line x1="{x(times[peak]):.1f}" y1="{top - 6}" x2="{x(times[peak]):.1f}" '
                   f'y2="{top + high}" stroke="#000" stroke-dasharray="3,3"/>')
        when = entry.get("peak_time")
        words = f"peak: {format_bytes(below[peak])}"
        if when:
            words += (f" in {when['action']}, command {when['command']} of {when['commands']}, "
                      f"{when['at']}")
        out.append(text(left, top + high + 28, words))
    line = legend
    at_peak = entry["kinds_at_peak"]
    for kind in kinds:
        line += 18
        out.append(f'<rect x="{left}" y="{line - 11}" width="12" height="12" '
                   f'fill="hsl({_HUES[kind]},60%,75%)" stroke="#555"/>')
        out.append(text(left + 20, line, f"{kind}, {format_bytes(at_peak.get(kind, 0))} at the peak"))
    line += 10
    for one in listed[:_LISTED]:
        line += 18
        count = f"{one['count']} x " if one["count"] > 1 else ""
        out.append(text(left, line, f"{format_bytes(one['bytes'])}  {one['kind']}  {count}"
                                    f"{one['name']}"))
    if len(listed) > _LISTED:
        out.append(text(left, line + 18, f"and {len(listed) - _LISTED} more"))
    return "\n".join([*out, "</svg>"])


def _actions(actions: list[dict[str, Any]], x: Callable[[float], float],
             bottom: float) -> list[str]:
    """A tick where each action begins, and its name where there is room."""
    out, last = [], -100.0
    for action in actions:
        at = x(action["begin"])
        out.append(f'<line x1="{at:.1f}" y1="{bottom}" x2="{at:.1f}" y2="{bottom + 4}" '
                   f'stroke="#555"><title>{html.escape(action["name"])}</title></line>')
        if at - last > 8 * len(action["name"]) + 6:
            out.append(text(at + 1, bottom + 13, action["name"], size=10))
            last = at
    return out
