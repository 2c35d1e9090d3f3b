# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Random numbers of which a forward sets or reads the state. A compiled step draws all of its numbers
from the seed of `cleave.compile`, anew in each step, so such code is refused."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Iterable, Iterator

import numpy as np
import torch

from .errors import EagerError
from .locations import LIBRARY
from .patches import patched

_STATE = ("the forward {} ({}), and a compiled step draws its random numbers by the seed of "
          "cleave.compile, other ones in each step. Remove it; numbers that are the same in each "
          "step are drawn once, outside of the forward, and kept in a buffer (register_buffer)")

#: The file of torch's functions of random numbers, and others between a call and the generator.
_RANDOM = LIBRARY + "random.py"
_BETWEEN = (_RANDOM, contextlib.__file__, LIBRARY + "_compile.py", LIBRARY + "_dynamo" + os.sep)
_WORDS = {"manual_seed": "sets the seed of random numbers", "seed": "seeds random numbers",
          "set_state": "sets the state of random numbers",
          "get_state": "reads the state of random numbers",
          "initial_seed": "reads the seed of random numbers"}
#: Functions of `torch.cuda` for random numbers of GPUs.
_CUDA = ("manual_seed", "manual_seed_all", "seed", "seed_all", "initial_seed", "get_rng_state",
         "get_rng_state_all", "set_rng_state", "set_rng_state_all")


def _asked_by_the_model() -> str | None:
    """Returns the name of the function of torch.random that the model calls, "" if it calls none;
    None if torch itself uses the generator, as checkpoints do."""
    frame, name = sys._getframe(2), ""
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        if frame.f_code.co_filename == _RANDOM:
            name = frame.f_code.co_name
        frame = frame.f_back
    if frame is not None and frame.f_code.co_filename.startswith(LIBRARY):
        return None
    return name.removesuffix("_impl").lstrip("_")


class _Refusing:
    """Replaces torch's default generator in a trace."""

    def __init__(self, generator: torch.Generator):
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        function = _asked_by_the_model() if name in _WORDS else None
        if function is not None:
            raise EagerError(_STATE.format(_WORDS[name], f"torch.{function or name}"))
        return getattr(self._generator, name)


def refuse_generator(arguments: Iterable[Any]) -> None:
    """Raises EagerError if a generator is among the arguments of a function, without containers."""
    if any(isinstance(x, torch.Generator) for x in arguments):
        raise EagerError(_STATE.format("draws random numbers by a generator of its own",
                                       "generator=..."))


def _on_gpus(name: str) -> Any:
    """Returns the replacement of a function of `torch.cuda` for random numbers."""
    original = vars(torch.cuda)[name]

    def called(*args, **kwargs):
        asked = _asked_by_the_model()
        if asked is not None:
            raise EagerError(_STATE.format(
                _WORDS.get(asked or name, "sets or reads the state of random numbers"),
                f"torch.{asked or 'cuda.' + name}"))
        return original(*args, **kwargs)
    return called


def _numpy_generator(original):
    def default_rng(seed=None):
        if seed is None:
            raise EagerError("the forward draws random numbers of NumPy (default_rng), which a "
                             "compiled step would draw once for all steps; draw them by torch")
        return original(seed)
    return default_rng


@contextlib.contextmanager
def only_the_seed_of_the_step() -> Iterator[None]:
    """Context manager that raises EagerError for code that sets or reads the state of torch's
    random numbers."""
    generator = torch.random.default_generator
    before = generator.get_state()
    with patched((torch.random, "default_generator", _Refusing(generator)),
                 *((torch.cuda, name, _on_gpus(name)) for name in _CUDA),
                 (np.random, "default_rng", _numpy_generator(np.random.default_rng))):
        yield
    if not torch.equal(generator.get_state(), before):
        raise EagerError(_STATE.format("sets the state of random numbers",
                                       "torch.default_generator"))
