# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The states of random numbers that a loop may draw, as text that a checkpoint keeps."""

from __future__ import annotations

import base64
import contextlib
import random
from typing import Any, Iterator, Sequence

import numpy
import torch


def states(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """The states of the global generators of PyTorch (on the CPU), Python and NumPy, and of
    `generators`."""
    version, words, gauss = random.getstate()
    kind, keys, at, has_gauss, cached = numpy.random.get_state(legacy=True)
    return {
        "torch": _text(torch.get_rng_state().numpy()),
        "python": [version, _text(numpy.array(words, dtype="<u4")), gauss],
        "numpy": [kind, _text(numpy.asarray(keys, dtype="<u4")), int(at), int(has_gauss), float(cached)],
        "generators": [_text(one.get_state().numpy()) for one in generators],
    }


def restore(found: dict[str, Any], generators: Sequence[torch.Generator] = ()) -> None:
    """Sets what `states` has returned. Raises ValueError if it was of other generators."""
    if len(found["generators"]) != len(generators):
        raise ValueError(f"the data has {len(generators)} generators of its own, and had "
                         f"{len(found['generators'])} when the state was saved")
    torch.set_rng_state(torch.from_numpy(_array(found["torch"], "u1")))
    version, words, gauss = found["python"]
    random.setstate((version, tuple(_array(words, "<u4").tolist()), gauss))
    kind, keys, *rest = found["numpy"]
    numpy.random.set_state((kind, _array(keys, "<u4"), *rest))
    for one, text in zip(generators, found["generators"]):
        one.set_state(torch.from_numpy(_array(text, "u1")))


@contextlib.contextmanager
def untouched(generators: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """Around what may draw numbers, none of which the loop then misses."""
    before = states(generators)
    try:
        yield
    finally:
        restore(before, generators)


def generators_of(data: object) -> list[torch.Generator]:
    """The generators that a loader of PyTorch and its sampler have of their own."""
    found = [getattr(data, "generator", None),
             getattr(getattr(data, "sampler", None), "generator", None),
             getattr(getattr(data, "batch_sampler", None), "generator", None)]
    own = {id(one): one for one in found if isinstance(one, torch.Generator)}
    return list(own.values())


def _text(values: numpy.typing.NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


def _array(text: str, kind: str) -> numpy.typing.NDArray[Any]:
    values: numpy.typing.NDArray[Any] = numpy.frombuffer(base64.b64decode(text), dtype=kind).copy()
    return values
