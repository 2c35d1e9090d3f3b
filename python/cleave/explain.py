# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What a report says, in words."""

from __future__ import annotations

from .messages import format_bytes

_FUSION = {
    "backward": "backward: each update runs behind its gradient, which dies there",
    "forward": "forward: each update runs in the next step, before its parameter is "
    "read first",
}


def explain(report: dict, remarks=()) -> list[str]:
    """A line for each thing that was decided.

    Args:
        report: what `cleave-compile --report` writes.
        remarks: further lines, of the program as a whole.
    """
    communication = report["communication"]
    positions = report["plan"].get("positions", [report["plan"]])
    several = len(positions) > 1
    entries = {name: entry for position in positions
               for name, entry in position.get("entries", {}).items()}
    names = sorted({*entries, *communication}, key=lambda name: (name != "train", name))
    # Of the entries the facts say more than these lines, which are of one position.
    given = [line for line in report["decisions"]
             if not line.startswith(tuple(f"{name}: " for name in names))]
    parts = [line for line in given if line.startswith("micro-batches: ")]
    lines = [*(line for line in given if line not in parts), *remarks]
    if several:
        for name, entry in entries.items():
            prefix = f"all positions, {name}: "
            lines += [*_fusion(entry, prefix), *_recomputed(entry, prefix)]
        largest = largest_position(report)
        for i, position in enumerate(positions):
            note = ", the largest" if i == largest else ""
            size = format_bytes(position["arena_bytes"])
            lines.append(f"position {i}: the arena of a device has {size}{note}")
    sent = []
    for i, position in enumerate(positions):
        for name in names:
            prefix = f"position {i}, {name}: " if several else f"{name}: "
            entry = position.get("entries", {}).get(name)
            if entry and several:
                lines += _memory(entry, prefix)
            elif entry:
                lines += [*_fusion(entry, prefix), *_memory(entry, prefix),
                          *_saved(report["schedule"], name), *_recomputed(entry, prefix)]
            own = communication.get(name, {})
            sent += _sent(own["positions"][i] if "positions" in own else own, prefix)
    return [*lines, *parts, *sent]


def largest_position(report: dict) -> int:
    """The position with the largest arena, of several the first; 0 of one."""
    sizes = [p["arena_bytes"] for p in report["plan"].get("positions", ())]
    return sizes.index(max(sizes)) if sizes else 0


def memory_of(report: dict, position: int) -> dict[str, int]:
    """What `Step.memory` gives of a position."""
    facts = report["plan"]["positions"][position]
    sizes = {"arena": facts["arena_bytes"], **facts["bytes"]}
    for name, entry in facts["entries"].items():
        for field, what in (("peak_bytes", "peak"), ("gradient_peak_bytes", "gradients"),
                            ("kept_bytes", "kept")):
            if field in entry:
                sizes[f"{name} {what}"] = entry[field]
    return dict(sorted(sizes.items()))


def _fusion(entry, prefix):
    """Where updates stand, on all positions alike."""
    fusion = entry.get("optimizer_fusion")
    return [f"{prefix}optimizer fusion {_FUSION.get(fusion, fusion)}"] if fusion else []


def _recomputed(entry, prefix):
    """What backward computes again, of all positions together."""
    lines = []
    for group in entry["recomputed"]:
        place = f" at {group['name']}" if group["name"] else ""
        lines.append(
            f"{prefix}computes again in backward: {group['ops']} {group['op']}{place}, "
            f"{format_bytes(group['bytes'])} not saved"
        )
    if lines:
        size = format_bytes(entry["unsaved_bytes"])
        lines.append(f"{prefix}recomputation saves {size} less for each micro-batch")
    return lines


def _memory(entry, prefix):
    """What gradients and copies take of one device."""
    lines = []
    if "gradient_peak_bytes" in entry:
        size = format_bytes(entry["gradient_peak_bytes"])
        lines.append(f"{prefix}gradients take {size} at most at a time")
    if "kept_bytes" in entry:
        lines.append(
            f"{prefix}updates are validated behind them; what they overwrite is kept "
            f"until then, {format_bytes(entry['kept_bytes'])}"
        )
    return lines


def _saved(schedule, name):
    """What backward reads of forward; the lines of a pipeline say it of each stage."""
    if schedule.get("entry") != name:
        return []
    size = sum(stage["saved_bytes_per_micro_batch"] for stage in schedule["stages"])
    return [f"{name}: saves {format_bytes(size)} for backward of each micro-batch"]


def _sent(entry, prefix):
    """What one device sends in one run of an entry, by place."""
    if not entry.get("count"):
        return []
    lines = [
        f"{prefix}each device sends {format_bytes(entry['bytes'])} in {entry['count']} "
        "collectives"
    ]
    for place in entry["collectives"]:
        cause = f", since {place['cause']}" if place["cause"] else ""
        # A parameter stands for the line, and may be in the cause already.
        known = not place["line"] or f'"{place["line"]}"' in cause
        line = "" if known else f" at {place['line']}"
        lines.append(
            f"{prefix}{place['count']} {place['kind']} over {place['axes']}, "
            f"{format_bytes(place['bytes'])}{line}{cause}"
        )
    return lines
