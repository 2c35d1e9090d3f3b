# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The checkpoints of a run: `step-N` in its folder, the latest of which it is resumed from."""

from __future__ import annotations

import os
import re
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..runtime.processes import lead
from ..runtime.state import path_of, whole

if TYPE_CHECKING:
    from ..runtime.step import Step

#: The form of what a run keeps in a checkpoint beside the step's own state.
VERSION = 1


class RunCheckpoints:
    """Writes the checkpoints of a run, and finds them.

    Args:
        step: the step whose state they hold.
        folder: the folder of all of them; None to save nothing.
        every: steps between two checkpoints.
        minutes: minutes between two, by the clock of the first rank.
        keep: how many of the latest ones stay; None for all.
    """

    def __init__(self, step: Step, folder: str | os.PathLike[str] | None, every: int | None,
                 minutes: float | None, keep: int | None) -> None:
        self._step = step
        self.folder = None if folder is None else path_of("folder", folder)
        self._every = None if every is None else whole("save_every", every, 1)
        self._minutes = minutes
        self._keep = None if keep is None else whole("keep", keep, 1)
        if minutes is not None and (isinstance(minutes, bool) or not isinstance(minutes, (int, float))):
            raise TypeError(f"save_minutes is {minutes!r}; it must be a number")
        if minutes is not None and not minutes > 0:
            raise ValueError(f"save_minutes is {minutes!r}; it must be above 0")
        for name, given in (("save_every", every), ("save_minutes", minutes), ("keep", keep)):
            if given is not None and folder is None:
                raise ValueError(f"{name} is given, but no folder to save in: give folder=")
        #: The step of the last checkpoint that this run has written or read.
        self.saved: int | None = None
        self._last = monotonic()

    def late(self) -> bool:
        """Whether this process finds that `save_minutes` are over."""
        return self._minutes is not None and monotonic() - self._last >= 60 * self._minutes

    def due(self, number: int) -> bool:
        """Whether one is due after step `number` by the count of steps."""
        return self.folder is not None and self._every is not None and number % self._every == 0

    def latest(self) -> str | None:
        """The latest checkpoint in the folder, as the first rank finds it."""
        folder = self.folder
        if folder is None:
            return None
        found: str | None = lead(self._step._processes, "look for checkpoints",
                                 lambda: next((path for _, path in reversed(_found(folder))), None))
        return found

    def save(self, kept: dict[str, Any]) -> str:
        """Writes the state as it is now, and removes older ones. Returns the folder."""
        assert self.folder is not None
        folder, number = self.folder, self._step.step
        path = os.path.join(folder, f"step-{number}")
        self._step.save(path, kept={"run": {"version": VERSION, **kept}})
        self.saved, self._last = number, monotonic()
        if self._keep is not None:
            lead(self._step._processes, "remove old checkpoints",
                 lambda: self._remove_old(folder, number))
        return path

    def _remove_old(self, folder: str, number: int) -> None:
        from .. import _cleave

        assert self._keep is not None
        own = [path for at, path in _found(folder) if at <= number]
        for path in own[:-self._keep]:
            try:
                _cleave.remove_checkpoint(path)
            except _cleave.CompileError as error:
                raise OSError(str(error)) from None

    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Reads a checkpoint into the step. Returns what a run kept in it; empty if the
        checkpoint was written by something else."""
        kept = self._step.load(path).get("run", {})
        if not isinstance(kept, dict) or kept.get("version", VERSION) != VERSION:
            raise ValueError(f"{os.fspath(path)}: the part of the run is not of version {VERSION}, "
                             "which is read here")
        self.saved, self._last = self._step.step, monotonic()
        return kept


def _found(folder: str) -> list[tuple[int, str]]:
    """The checkpoints `step-N` of a folder, by N."""
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        match = re.fullmatch(r"step-(\d+)", name)
        if match and os.path.isfile(os.path.join(folder, name, "training.json")):
            found.append((int(match[1]), os.path.join(folder, name)))
    return sorted(found)
