# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Threads of a process, and what a process that is forked from it has: its memory, but of
its threads only the one that forked."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import weakref
from typing import Callable, Concatenate, Iterable, Iterator, ParamSpec, Protocol, TypeVar

#: Held while a model is traced: torch.export changes what all threads have.
TRACING = threading.RLock()


class Holder(Protocol):
    """An object that has native ones."""

    def natives(self) -> Iterable[object]:
        """They, or None for one that is not there."""


class Owned(Protocol):
    """An object that one thread at a time of one process uses."""

    _process: int
    _lock: threading.RLock


P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound=Owned)

_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
#: The threads that compile, load, run or free programs, which takes locks of native libraries.
_busy: set[int] = set()
#: Whether another thread was doing this when this process was forked.
_interrupted = False


def keep_in_child(holder: Holder) -> None:
    """Lets forked processes keep the native objects of `holder` until they end: freeing them
    would wait for threads that are not there."""
    _holders.add(holder)


@contextlib.contextmanager
def _marked() -> Iterator[None]:
    """Marks this thread as one that may hold a native lock."""
    own = threading.get_ident()
    outer = own in _busy
    _busy.add(own)
    try:
        yield
    finally:
        if not outer:
            _busy.discard(own)


@contextlib.contextmanager
def freeing() -> Iterator[None]:
    """Around what closes sessions, and unloads what was compiled."""
    with _marked():
        yield


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Around what compiles, and loads what was compiled. Raises RuntimeError where it could
    wait forever."""
    refuse_interrupted()
    with _marked():
        yield


def refuse_interrupted() -> None:
    """Raises RuntimeError in a process that was forked while another thread compiled, ran or
    freed a step: what that thread held is never released here."""
    if _interrupted:
        raise RuntimeError("this process was forked while another thread compiled, ran or freed a step, "
                           "and cannot compile one: fork it before or after, or start it by \"spawn\"")


def alone(method: Callable[Concatenate[O, P], R]) -> Callable[Concatenate[O, P], R]:
    """A method of a `Step` that one thread at a time calls, where others wait, in the
    process that compiled the step."""

    @functools.wraps(method)
    def run(self: O, /, *args: P.args, **named: P.kwargs) -> R:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this process was forked from process {self._process}, which compiled the step: "
                "it has no threads to run it. Compile a step here, or save it there "
                "(step.save(folder)) and go on from that (step.load(folder))")
        with self._lock, _marked():
            return method(self, *args, **named)

    return run


def _after_fork() -> None:
    global _interrupted
    for holder in list(_holders):
        for native in holder.natives():
            if native is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))
    if TRACING.acquire(blocking=False):
        TRACING.release()
    else:
        _interrupted = True
        TRACING._at_fork_reinit()  # type: ignore[attr-defined]  # a method of CPython's, as for its own locks
    _interrupted |= bool(_busy - {threading.get_ident()})


os.register_at_fork(after_in_child=_after_fork)
