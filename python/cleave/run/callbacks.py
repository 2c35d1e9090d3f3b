# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Callbacks: what a run calls as it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ..messages import warn

if TYPE_CHECKING:
    from .loop import Run

#: The methods that a run calls.
EVENTS = ("on_start", "on_step", "on_evaluate", "on_save", "on_end")


class Callback:
    """A base of callbacks, whose methods do nothing. An object of another class that has some of
    these methods is a callback, too.

    Where ranks are processes, each of them calls its own; `run.leads` is true in the first one.
    An exception ends the run, with its traceback; so a callback that only reports and may fail
    handles its own. `run.stop()` ends the run after this step.

    A callback with `state_dict()`, which returns numbers, texts, lists and dicts, and
    `load_state_dict(state)` is saved in checkpoints and restored from them, before `on_start`.
    """

    def on_start(self, run: Run) -> None:
        """Before the first step; the state is loaded."""

    def on_step(self, run: Run, values: Mapping[str, float]) -> None:
        """After each step, `run.step.step`, with its numbers."""

    def on_evaluate(self, run: Run, values: Mapping[str, float]) -> None:
        """After an evaluation, with its numbers."""

    def on_save(self, run: Run, folder: str) -> None:
        """After a checkpoint is written."""

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """After the last step, or with the exception that ends the run. All callbacks whose
        `on_start` has returned get it."""


class Callbacks:
    """The callbacks of a run, in order."""

    def __init__(self, given: Sequence[Any]) -> None:
        for one in given:
            if isinstance(one, type) or not any(callable(getattr(one, name, None)) for name in EVENTS):
                what = f"the class {one.__name__}" if isinstance(one, type) else type(one).__name__
                raise TypeError(f"{what} is among the callbacks; a callback is an object with one of "
                                f"the methods {', '.join(EVENTS)}")
        self._all = list(given)
        self._begun: list[Any] = []

    def start(self, run: Run) -> None:
        """Calls `on_start` of all."""
        self._begun = []
        for one in self._all:
            if callable(getattr(one, "on_start", None)):
                one.on_start(run)
            self._begun.append(one)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a method of all that have it."""
        for one in self._all:
            method = getattr(one, name, None)
            if callable(method):
                method(*arguments)

    def end(self, run: Run, error: BaseException | None) -> None:
        """Calls `on_end` of all that have begun, also where one raises: the first exception is
        raised in the end, but none hides the one that ended the run."""
        raised: BaseException | None = None
        for one in self._begun:
            try:
                if callable(getattr(one, "on_end", None)):
                    one.on_end(run, error)
            except BaseException as own:
                if error is not None:
                    warn(f"{type(one).__name__}.on_end raised {type(own).__name__}: {own}, after the "
                         "exception that ended the run")
                raised = raised or own
        self._begun = []
        if raised is not None and error is None:
            raise raised

    def _named(self) -> list[tuple[str, Any]]:
        """Those with a state, by class and number."""
        counts: dict[str, int] = {}
        found = []
        for one in self._all:
            kind = type(one).__name__
            counts[kind] = counts.get(kind, -1) + 1
            if callable(getattr(one, "state_dict", None)) and callable(
                    getattr(one, "load_state_dict", None)):
                found.append((f"{kind} {counts[kind]}", one))
        return found

    def state(self) -> dict[str, Any]:
        """The states of all that have one."""
        return {name: one.state_dict() for name, one in self._named()}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Restores the states of those that are there; others stay as they are."""
        for name, one in self._named():
            if name in states:
                one.load_state_dict(states[name])
