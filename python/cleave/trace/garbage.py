# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""How often Python looks for garbage while a model is traced."""

from __future__ import annotations

import contextlib
import gc
from typing import Iterator

#: The number of new objects after which Python looks for those of them that are garbage. A trace
#: makes millions, of which most stay until it ends, and by Python's default (700) spends a sixth of
#: its time looking at them.
OBJECTS = 100_000


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Context manager in which the collector of garbage runs once in `OBJECTS` new objects, if it
    would run more often; it stays off where it is off."""
    before = gc.get_threshold()
    if 0 < before[0] < OBJECTS:
        gc.set_threshold(OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
