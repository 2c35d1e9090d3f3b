# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Options of `cleave.compile` in the form of the compiler, which checks them by its table."""

from __future__ import annotations

import json
import numbers
import operator
import os
import re
from typing import Any, Callable, Mapping

from .. import _cleave
from ..runtime.state import check_text
from ..training.loss_scale import LossScale
from .entrance import table
from .shardings import AXIS


#: The forms of options that are paths.
PATHS = ("file", "folder")


class OptionError(_cleave.CompileError, ValueError):
    """An option of `cleave.compile` is out of range, contradicts another one, or has no effect."""


def encode(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names of Python as the compiler's, without those that are None. Raises
    TypeError for a value of a type that the option has not, and OSError if the file of a schedule
    cannot be read."""
    rows = {row["key"]: row for row in table()}
    given: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        check_text(name, value)
        special = _SPECIAL.get(name)
        encoded = special(value) if special else None
        given.update(encoded if encoded is not None else {name: _encode(rows[name], value)})
    return given


def check(options: Mapping[str, Any]) -> None:
    """Raises OptionError, with the reason that all entrances give."""
    if mistake := _cleave.check_options(json.dumps(options)):
        raise OptionError(explained(mistake, options))


def with_plan_file(options: dict[str, Any]) -> dict[str, Any]:
    """Options with the mesh and the plan of the file that the plan names, if it does. Raises
    OptionError."""
    own: dict[str, Any] = {name: options[name] for name in ("mesh", "plan") if name in options}
    if not own.get("plan", "").endswith(".plan"):
        return options
    check(own)
    return {**options, **json.loads(_cleave.plan_of(json.dumps(own)))}


def explained(mistake: str, options: Mapping[str, Any]) -> str:
    """A mistake, with what only Python knows of it."""
    schedule = options.get("schedule")
    problem = _cleave.schedule_problem(schedule) if schedule else ""
    if problem and problem in mistake:
        mistake += "; there is no file of this name either"
    return mistake


def facts(options: Mapping[str, Any]) -> dict[str, bool]:
    """What follows from options that are valid: "updates_each", whether there is an update
    after each micro-batch, and "reduces_next", whether ranks add up gradients in the next step."""
    found: dict[str, bool] = json.loads(_cleave.option_facts(json.dumps(options)))
    return found


def _encode(row: Mapping[str, Any], value: Any) -> Any:
    """A value of the option's kind as JSON has it."""
    kind = row["kind"]
    if value == "" and row["form"] in (*PATHS, "rates"):
        raise OptionError(f"{row['key']} is empty; leave it out")
    if isinstance(value, str) or (kind == "flag" and isinstance(value, bool)):
        return value
    if kind in ("integer", "size") and not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    if kind == "number" and isinstance(value, numbers.Real) and not isinstance(value, bool):
        # JSON has no others.
        return float(value) if abs(float(value)) < float("inf") else str(value)
    if kind == "text" and row["form"] in ("file", "folder", "rates") and isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(_other_type(row, value))


def _other_type(row: Mapping[str, Any], value: Any) -> str:
    """What the option is, by the table, and what it is not."""
    # No option takes a list.
    mistake = _cleave.check_options(json.dumps({row["key"]: ["?"]}))
    if row["form"] in PATHS:
        mistake = mistake.replace("is a text", "is a path")
    return mistake.replace('["?"]', _shown(value))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 and "\n" not in text else f"a {type(value).__name__}"


# Options that Python takes in further forms
# ------------------------------------------------------------------


def _schedule(value: Any) -> dict[str, str] | None:
    """The name of a schedule, the text of one written by hand, or the path of its file."""
    if isinstance(value, os.PathLike) or (isinstance(value, str) and os.path.isfile(value)):
        try:
            with open(value, encoding="utf-8") as file:
                text = file.read()
        except UnicodeDecodeError:
            raise OptionError(f"{os.fspath(value)} is not a schedule: it is not text") from None
        if "\0" in text:
            raise OptionError(f"{os.fspath(value)} is not a schedule: it is not text")
        return {"schedule_text": text, "schedule_file": os.fspath(value)}
    if isinstance(value, str) and _is_order(value):
        return {"schedule_text": value, "schedule_file": "<schedule>"}
    return None


def _is_order(text: str) -> bool:
    """Whether a string is an order of actions, valid or not, instead of the name of a
    schedule or of a missing file."""
    order = text.partition("#")[0]
    if "\n" not in text and re.search(r"[/\\]|\.[A-Za-z]\w*$", order):
        return False
    # A single action is one word, as names are.
    return order != text or bool(re.search(r"\s|[|{}<>,;]|^-?$|^\d*[A-Z]\d*$", order))


def _list_of(name: str, example: str,
             unordered: bool = False) -> Callable[[Any], dict[str, str] | None]:
    """Encodes a sequence of words as the text with commas that the compiler takes; where their
    order says nothing (`unordered`), also a set, and an empty one."""

    def encode_list(value: Any) -> dict[str, str] | None:
        if unordered and isinstance(value, (set, frozenset)):
            value = sorted(value, key=str)
        if not isinstance(value, (list, tuple)):
            return None
        if not all(isinstance(word, str) for word in value):
            raise TypeError(f"{name} is a list of texts, such as ['{example}'], not {_shown(value)}")
        for word in value:
            if not word.strip() or "," in word:
                raise OptionError(f"{name} has {word!r}; an entry is a text without a comma, such as "
                                  f"'{example}'")
        if not value and not unordered:
            raise OptionError(f"{name} is empty; it is a list of texts, such as ['{example}']")
        return {name: ",".join(dict.fromkeys(value) if unordered else value)} if value else {}

    return encode_list


def _modules(value: Any) -> dict[str, str] | None:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return {"modules": str(int(value))}
    return _list_of("modules", "layers.2.")(value)


def _prune(value: Any) -> dict[str, str] | None:
    is_share = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return {"prune": repr(float(value))} if is_share else None


def _update_delay(value: Any) -> dict[str, str] | None:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return {"update_delay": str(int(value))}
    if not isinstance(value, Mapping):
        return None
    entries = []
    for pattern, steps in value.items():
        if not isinstance(pattern, str):
            raise TypeError("update_delay has patterns of parameters' names, such as 'embed*', not "
                            f"{pattern!r}")
        if "," in pattern:
            raise OptionError(f"update_delay has the pattern {pattern!r}; patterns have no comma")
        if isinstance(steps, bool) or not isinstance(steps, (int, str)):
            raise TypeError(f"update_delay has {steps!r} for {pattern!r}; it is a number of steps")
        entries.append(str(steps) if pattern == "*" else f"{pattern}={steps}")
    return {"update_delay": ",".join(entries)}


def _expert_buffer(value: Any) -> dict[str, str] | None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return {"expert_buffer": repr(float(value))} if is_number else None


def _loss_scale(value: Any) -> dict[str, Any] | None:
    if isinstance(value, LossScale):
        return {f"loss_scale_{name}": setting for name, setting in vars(value).items()}
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return {"loss_scale": repr(float(value))}
    return None


def _mesh(value: Any) -> dict[str, str] | None:
    if isinstance(value, str):
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"mesh is {_shown(value)}; it is a dict of axes and sizes, as {{'dp': 2}}")
    parts = []
    for axis, size in value.items():
        if not isinstance(axis, str) or not AXIS.fullmatch(axis):
            raise OptionError(f"mesh has {axis!r}, which is not the name of an axis")
        try:
            if isinstance(size, bool):
                raise TypeError
            parts.append(f"{axis}={operator.index(size)}")
        except TypeError:
            raise TypeError(f'mesh has {size!r} for axis "{axis}"; it is a whole number') from None
    return {"mesh": ",".join(parts)}


_SPECIAL = {
    "schedule": _schedule, "stages": _list_of("stages", "layers.2."), "modules": _modules,
    "offload": _list_of("offload", "state", True), "prune": _prune, "update_delay": _update_delay,
    "loss_scale": _loss_scale, "mesh": _mesh, "expert_buffer": _expert_buffer,
}
