# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The attributes of a step, for the classes that it is made of."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from .program import Program

if TYPE_CHECKING:
    from .. import _cleave
    from ..compiler.padding import Buckets

#: The shape and type of each input, for which a program is compiled.
Key = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class Held:
    """The attributes of a `Step` that reports, checkpoints and the inputs of calls read."""

    #: The program of the last call, which holds the state.
    _live: Program[_cleave.Compiled]
    #: All programs.
    _programs: dict[Key, Program[_cleave.Compiled]]
    #: The lengths to which batches are padded; None if they are not.
    _buckets: Buckets | None
    #: The processes that are the ranks; None for threads of this one.
    _processes: _cleave.Processes | None
    _module: torch.nn.Module
    #: The process that compiled the step.
    _process: int
    #: Of the thread whose call runs.
    _lock: threading.RLock
