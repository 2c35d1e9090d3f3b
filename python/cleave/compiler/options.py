# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The options of a pipeline, of its updates and of interlocking backpropagation, checked."""

from __future__ import annotations

import os
import re
from typing import Mapping, Sequence

from ..runtime.state import byte_count, flag, path_of, whole
from ..runtime.step import log


def pipeline_options(
    schedule, chunks, stages, pipe_slices, max_saved_bytes, measured_costs, max_staleness,
    post_validation, pipe_gather,
) -> dict:
    """The compiler's options of a pipeline, of the arguments of `cleave.compile`. Raises
    TypeError, ValueError, OSError if the file of a schedule cannot be read, and CompileError if
    there is neither a schedule nor a file of a name."""
    from .. import _cleave

    if pipe_slices not in ("auto", "on", "off"):
        raise ValueError(f"pipe_slices is {pipe_slices!r}; it must be 'auto', 'on' or 'off'")
    options = {"pipe_slices": pipe_slices}
    if isinstance(schedule, os.PathLike):
        options.update(_read_schedule(schedule))
    elif isinstance(schedule, str):
        if os.path.isfile(schedule):
            options.update(_read_schedule(schedule))
        elif _is_order(schedule):
            options.update(schedule_text=schedule, schedule_file="<schedule>")
        elif problem := _cleave.schedule_problem(schedule):
            raise _cleave.CompileError(
                f"schedule: {problem}; there is no file of this name either")
        else:
            options["schedule"] = schedule
    elif schedule is not None:
        raise TypeError(f"schedule is {type(schedule).__name__}, not a name, a text or a path")
    if chunks is not None:
        options["chunks"] = whole("chunks", chunks, 1)
    if max_saved_bytes is not None:
        options["max_saved_bytes"] = byte_count("max_saved_bytes", max_saved_bytes, 0)
    if max_staleness is not None:
        options["max_staleness"] = whole("max_staleness", max_staleness, 0)
    if flag("post_validation", post_validation):
        options["post_validation"] = True
    if pipe_gather is not None:
        if pipe_gather not in ("each", "once", "auto"):
            raise ValueError(
                f"pipe_gather is {pipe_gather!r}; it must be 'each', 'once' or 'auto'"
            )
        options["pipe_gather"] = pipe_gather
    if stages is not None:
        options["stages"] = _beginnings("stages", stages)
    if measured_costs is not None:
        options["measured_costs"] = path_of("measured_costs", measured_costs)
    return options


def stage_compression_options(density) -> dict:
    """The compiler's option of what stages send each other. Raises TypeError, ValueError."""
    if density is None:
        return {}
    if isinstance(density, bool) or not isinstance(density, (int, float)):
        raise TypeError(f"compress_stages is {type(density).__name__}, not a share of elements")
    if not 0 < density <= 1:
        raise ValueError(f"compress_stages is {density}; it must be above 0 and at most 1")
    return {"compress_stages": float(density)}


def offload_options(kinds) -> dict:
    """The compiler's option of what is offloaded. Raises TypeError, ValueError."""
    if kinds is None:
        return {}
    if not isinstance(kinds, (list, tuple, set, frozenset)):
        raise TypeError(f"offload is {type(kinds).__name__}, not a list of what is offloaded, such "
                        "as ['state']")
    if not all(isinstance(kind, str) for kind in kinds):
        raise TypeError("offload is a list of what is offloaded, such as ['state']")
    for kind in kinds:
        if kind not in ("state", "masters", "saved"):
            raise ValueError(
                f"offload has {kind!r}; what can be offloaded is 'state', 'masters' and 'saved'"
            )
    return {"offload": ",".join(dict.fromkeys(kinds))}


def lossy_options(compress, compress_over, prune, quantize) -> dict:
    """The compiler's options of compressed gradients, and of pruned and rounded weights. Raises
    TypeError, ValueError."""
    if isinstance(prune, float):
        prune = repr(prune)
    options = {"compress": compress, "prune": prune, "quantize": quantize}
    examples = {"compress": "powersgd,rank=4", "prune": "2:4", "quantize": "int8"}
    for name, value in options.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} is {type(value).__name__}, not text such as "
                            f"{examples[name]!r}")
        if value == "":
            raise ValueError(f"{name} is empty; it is text such as {examples[name]!r}, or None")
    if not isinstance(compress_over, str):
        raise TypeError(f"compress_over is {type(compress_over).__name__}, not the name of an axis")
    if compress is not None:
        options["compress_over"] = compress_over
    elif compress_over != "dp":
        raise ValueError(f"compress_over is {compress_over!r}, but compress is not given")
    return {name: value for name, value in options.items() if value is not None}


def update_delay_options(delay) -> dict:
    """The compiler's option of delayed updates. Raises TypeError, ValueError."""
    if isinstance(delay, str):
        return {"update_delay": delay}
    given = delay if isinstance(delay, Mapping) else {"*": delay}
    entries = []
    for pattern, steps in given.items():
        if not isinstance(pattern, str):
            raise TypeError("update_delay has patterns of parameters' names, such as 'embed*', "
                            f"not {pattern!r}")
        if "," in pattern:
            raise ValueError(f"update_delay has the pattern {pattern!r}: patterns have no comma")
        if pattern == "reduce" and isinstance(steps, str):
            entries.append(f"reduce={steps}")
            continue
        steps = whole("update_delay", steps, 0)
        entries.append(str(steps) if pattern == "*" else f"{pattern}={steps}")
    if not isinstance(delay, Mapping) and not delay:
        return {}
    return {"update_delay": ",".join(entries)}


def recompute_options(recompute, memory_limit, fused_attention) -> dict:
    """The compiler's options of recomputation. Raises TypeError, ValueError."""
    options: dict = {}
    if recompute is not None:
        if not isinstance(recompute, str):
            raise TypeError(f"recompute is {type(recompute).__name__}, not the name of a policy")
        options["recompute"] = recompute
    if memory_limit is not None:
        options["memory_limit"] = byte_count("memory_limit", memory_limit, 1)
        options.setdefault("recompute", "auto")
    if not flag("fused_attention", fused_attention):
        options["fused_attention"] = False
    return options


def machine_options(machine) -> dict:
    """The compiler's options of the rates of a device. Raises TypeError, ValueError."""
    if machine is None:
        return {}
    if not isinstance(machine, (str, os.PathLike)):
        raise TypeError(f"machine is {type(machine).__name__}, not rates, as "
                        '"flops=1e12,link=1e10", or the path of a file with them')
    if not os.fspath(machine):
        raise ValueError("machine is empty; leave it out for the default rates")
    return {"machine": os.fspath(machine)}


def updates_each(pipeline) -> bool:
    """Whether the schedule has an update after each micro-batch."""
    from .. import _cleave

    return _cleave.updates_each(pipeline.get("schedule", ""), pipeline.get("schedule_text", ""))


def remark_pipeline(pipeline, interlock):
    """Warns of given options that need a pipeline, if there is none. An order written
    by hand may also be for one device, and modules begin where stages do."""
    for name in ("schedule", "chunks", "stages", "pipe_slices", "max_saved_bytes"):
        if (name in pipeline and pipeline[name] != "auto"
                and not (name == "stages" and interlock)):
            log.warning('remark: %s needs a pipeline, and the mesh has no axis "pp"', name)


def interlock_options(grad_horizon, modules, head) -> dict:
    """The compiler's options of interlocking backpropagation. Raises TypeError,
    ValueError."""
    if grad_horizon is None:
        if modules is not None or head is not None:
            raise ValueError("modules and head are those of a grad_horizon, which is not given")
        return {}
    options = {"grad_horizon": whole("grad_horizon", grad_horizon, 1)}
    if isinstance(modules, (str, Sequence)):
        if not modules:
            raise ValueError("modules is empty: name where the second and later ones begin")
        options["modules"] = _beginnings("modules", modules)
    elif modules is not None:
        options["modules"] = str(whole("modules", modules, 2))
    if head is not None:
        if not isinstance(head, str):
            raise TypeError(f"head is {type(head).__name__}, not the beginning of a name")
        options["head"] = head
    return options


def module_remarks(interlock, compiled) -> list[str]:
    """The head that trains each module of a gradient horizon."""
    if not interlock:
        return []
    names = interlock.get("modules", "")
    if names.isdecimal():
        count, begins = int(names), []
    elif names:
        begins = names.split(",")
        count = len(begins) + 1
    else:
        count, begins = compiled.stages, []
    horizon = interlock["grad_horizon"]
    lines = []
    for module in range(1, count + 1):
        head = min(module + horizon - 1, count)
        trainer = "the model's head" if head == count else f"the head after module {head}"
        begin = f" from {begins[module - 2]}" if begins and module > 1 else ""
        lines.append(f"module {module} of {count}{begin}: trained by {trainer}")
    return lines


def _is_order(text: str) -> bool:
    """Whether a string is an order of actions, valid or not, instead of the name of a
    schedule or of a missing file."""
    order = text.partition("#")[0]
    if "\n" not in text and re.search(r"[/\\]|\.[A-Za-z]\w*$", order):
        return False
    # A single action is one word, as names are.
    return order != text or bool(re.search(r"\s|[|{}<>,;]|^-?$|^\d*[A-Z]\d*$", order))


def _beginnings(what, names) -> str:
    if not isinstance(names, Sequence) or isinstance(names, str) or not all(
            isinstance(name, str) for name in names):
        raise TypeError(f"{what} is not a sequence of beginnings of parameters' names")
    for name in names:
        if not name.strip() or "," in name:
            raise ValueError(f"{what} has {name!r}, with which no parameter's name begins")
    return ",".join(names)


def _read_schedule(path) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except UnicodeDecodeError:
        raise ValueError(f"{os.fspath(path)} is not a schedule: it is not text") from None
    return {"schedule_text": text, "schedule_file": os.fspath(path)}
