# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The tensors of a batch, in the order of a step's arguments."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch

from ..runtime.state import not_dense

Tensors = tuple[torch.Tensor, ...]
#: Arranges the tensors of a batch as a person gave them.
Arrange = Callable[[Tensors], Any]


def flatten(inputs: Any) -> tuple[Tensors, Arrange]:
    """The tensors of `inputs` as a tuple, and a function that arranges such a tuple
    like `inputs`. Raises TypeError if something else is in it."""
    flat, arrange = _parts(inputs)
    for value in flat:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"example_inputs holds {value!r}, which is not a tensor")
        if kind := not_dense(value):
            raise TypeError(f"example_inputs holds a tensor that {kind}")
    return flat, arrange


def _parts(inputs: Any) -> tuple[tuple[Any, ...], Arrange]:
    if isinstance(inputs, torch.Tensor):
        return (inputs,), tuple
    if isinstance(inputs, Mapping):
        names = list(inputs)
        return tuple(inputs.values()), lambda flat: dict(zip(names, flat))
    if not isinstance(inputs, (tuple, list)):
        raise TypeError(
            f"example_inputs is {type(inputs).__name__}, not a tuple of tensors or a "
            "dict by name"
        )
    inputs = tuple(inputs)
    if len(inputs) == 2 and all(isinstance(x, (tuple, list)) for x in inputs):
        count = len(inputs[0])
        return (*inputs[0], *inputs[1]), lambda flat: (flat[:count], flat[count:])
    return inputs, tuple


def first_part(inputs: Tensors, batch: int, parts: int) -> Tensors:
    """The inputs of the first of `parts` micro-batches of `batch` samples. Raises
    ValueError if they are not divisible."""
    if batch % parts:
        raise ValueError(
            f"a batch of {batch} is not divisible into {parts} micro-batches, each of "
            "which is a step of its own"
        )
    return tuple(
        value[: batch // parts] if value.ndim and value.shape[0] == batch else value
        for value in inputs
    )
