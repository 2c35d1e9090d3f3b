# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The progress of a run on standard output."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Mapping

from .callbacks import Callback
from .rates import duration

if TYPE_CHECKING:
    from .loop import Run

FORMS = ("auto", "bar", "lines", "none")


class Progress(Callback):
    """Loss, tokens per second and the time that is left.

    Args:
        form: "bar": a line that is overwritten and fits the terminal; "lines": a line for each
            step that is logged; "none"; "auto": a bar on a terminal, else nothing, so that a
            file has no step twice.
    """

    def __init__(self, form: str) -> None:
        if form not in FORMS:
            raise ValueError(f"progress is {form!r}; it must be {', '.join(map(repr, FORMS[:-1]))} or "
                             f"{FORMS[-1]!r}")
        self._form = form
        self._width = 0

    def _shows(self, run: Run) -> str:
        if not run.leads:
            return "none"
        if self._form == "auto":
            return "bar" if sys.stdout.isatty() else "none"
        return self._form

    def on_step(self, run: Run, values: Mapping[str, float]) -> None:
        form = self._shows(run)
        if form == "none" or (form == "lines" and not run.logs):
            return
        text = _line(run, values)
        if form == "lines":
            print(text, flush=True)
            return
        text = text[:shutil.get_terminal_size().columns - 1]
        print("\r" + text.ljust(self._width), end="", flush=True)
        self._width = len(text)

    def on_evaluate(self, run: Run, values: Mapping[str, float]) -> None:
        self._note(run, f"step {run.step.step}: evaluated, " + ", ".join(
            f"{name} {value:.4f}" for name, value in values.items()))

    def on_save(self, run: Run, folder: str) -> None:
        self._note(run, f"step {run.step.step}: saved {folder}")

    def on_end(self, run: Run, error: BaseException | None) -> None:
        if self._width:
            print(flush=True)
        self._width = 0

    def _note(self, run: Run, text: str) -> None:
        """A line of its own, which stays."""
        if self._shows(run) == "none":
            return
        print(("\r" + text.ljust(self._width)) if self._width else text, flush=True)
        self._width = 0


def _line(run: Run, values: Mapping[str, float]) -> str:
    total = "" if run.until is None else f"/{run.until}"
    parts = [f"step {run.step.step}{total}"]
    if "loss" in values:
        parts.append(f"loss {values['loss']:.4f}")
    else:
        parts.append("skipped")
    parts.append(f"{values['tokens_per_s']:,.0f} tokens/s")
    if "mfu" in values:
        parts.append(f"MFU {values['mfu']:.1%}")
    left = run.seconds_left
    if left is not None:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)
