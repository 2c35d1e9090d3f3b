# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Work that one other thread does, until it is asked for."""

from __future__ import annotations

import threading
from typing import Any, Callable, Hashable, Mapping


class Background:
    """Jobs by key, done in order by a thread that ends after the last of them.

    The interpreter waits at its end for the job that is being done, and for no other.
    """

    def __init__(self, jobs: Mapping[Hashable, Callable[[], Any]]):
        self._waiting = dict(jobs)
        self._done: dict[Hashable, tuple[Any, BaseException | None]] = {}
        self._running: Hashable | None = None
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
                self._running = next(iter(self._waiting))
                job = self._waiting.pop(self._running)
            try:
                result = job(), None
            except BaseException as error:
                result = None, error
            del job
            with self._changed:
                self._done[self._running] = result
                self._changed.notify_all()

    def __contains__(self, key: Hashable) -> bool:
        """Whether the job is to be done, is being done, or is done."""
        with self._changed:
            return key in self._waiting or key == self._running or key in self._done

    def take(self, key: Hashable) -> Any:
        """The result of a job, which is the next to be done if it was not begun. Raises
        what the job has raised, each time."""
        with self._changed:
            if key in self._waiting:
                self._waiting = {key: self._waiting.pop(key), **self._waiting}
            self._changed.wait_for(lambda: key in self._done or (
                key not in self._waiting and key != self._running))
            if key not in self._done:
                raise KeyError(key)
            result, error = self._done[key]
            if error is not None:
                raise error
            del self._done[key]
            return result

    def stop(self) -> None:
        """Drops the jobs that were not begun."""
        with self._changed:
            self._waiting.clear()

    def join(self) -> None:
        """Waits for the thread to end."""
        self._thread.join()
