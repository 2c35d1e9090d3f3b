# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Work that one other thread does, until it is asked for."""

from __future__ import annotations

import threading
from typing import Callable, Generic, Hashable, Mapping, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Background(Generic[K, T]):
    """Jobs by key, done in order by a thread that ends after the last of them.

    The interpreter waits at its end for the job that is being done, and for no other.
    """

    def __init__(self, jobs: Mapping[K, Callable[[], T]]) -> None:
        self._waiting = dict(jobs)
        #: The result of a job, or its exception.
        self._done: dict[K, tuple[T] | BaseException] = {}
        self._running: K | None = None
        self._changed = threading.Condition()
        # Not a daemon: those are stopped in the middle of native code.
        self._thread = threading.Thread(target=self._work, name="cleave-compile")
        self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running = None
                if not self._waiting or not threading.main_thread().is_alive():
                    self._waiting.clear()
                    self._changed.notify_all()
                    return
                key = self._running = next(iter(self._waiting))
                job = self._waiting.pop(key)
            result: tuple[T] | BaseException
            try:
                result = (job(),)
            except BaseException as error:
                result = error
            del job
            with self._changed:
                self._done[key] = result
                self._changed.notify_all()

    def __contains__(self, key: K) -> bool:
        """Whether the job is to be done, is being done, or is done."""
        with self._changed:
            return key in self._waiting or key == self._running or key in self._done

    def take(self, key: K) -> T:
        """The result of a job, which is the next to be done if it was not begun. Raises
        what the job has raised, each time."""
        with self._changed:
            if key in self._waiting:
                self._waiting = {key: self._waiting.pop(key), **self._waiting}
            self._changed.wait_for(lambda: key in self._done or (
                key not in self._waiting and key != self._running))
            if key not in self._done:
                raise KeyError(key)
            result = self._done[key]
            if isinstance(result, BaseException):
                raise result
            del self._done[key]
            return result[0]

    def stop(self) -> None:
        """Drops the jobs that were not begun."""
        with self._changed:
            self._waiting.clear()

    def join(self) -> None:
        """Waits for the thread to end."""
        self._thread.join()
