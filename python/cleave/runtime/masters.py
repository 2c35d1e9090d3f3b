# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The f32 values that a step trains of what the module has in 16 bits, in a training state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping

import torch

from ..messages import some_names
from .native import TensorFacts
from .state import TORCH_TYPES, logical_shape, problem

if TYPE_CHECKING:
    from ..trace.model_tensors import Tensor


def _rounded(entries: Iterable[Tensor], tensors: Mapping[str, TensorFacts]) -> Iterator[Tensor]:
    """The entries that the module has in fewer bits than the step."""
    for entry in entries:
        facts = tensors.get(entry.name)
        if facts is not None and entry.dtype != (own := TORCH_TYPES[facts["dtype"]]) \
                and entry.dtype.is_floating_point and own.is_floating_point:
            yield entry


def masters(entries: Iterable[Tensor], tensors: Mapping[str, TensorFacts],
            view: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values of the step by the framework's names; `view` gives those of a tensor."""
    found: dict[str, torch.Tensor] = {}
    for entry in _rounded(entries, tensors):
        value = view(entry.name)
        found.update(zip(entry.parts, value) if entry.parts else [(entry.name, value)])
    return found


def choose_masters(entries: Iterable[Tensor], tensors: Mapping[str, TensorFacts],
                   state: Mapping[str, Any],
                   view: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
    """The masters of a training state by the name of the program's tensor; none if it has none.

    Raises:
        KeyError: names are missing or unknown.
        TypeError, ValueError: a value does not fit, or is not a master of the weight that the
            step has, which it must be rounded.
    """
    given = state.get("masters", {})
    if not isinstance(given, Mapping):
        raise TypeError(f"'masters' is {type(given).__name__}, not a dict of tensors by name")
    if not given:
        return {}
    own = list(_rounded(entries, tensors))
    names = [n for e in own for n in (e.parts or (e.name,))]
    for word, wrong in (("missing", [n for n in names if n not in given]),
                        ("unknown", [n for n in given if n not in names])):
        if wrong:
            raise KeyError(f"'masters' does not match the model: {word} {', '.join(wrong)}")
    chosen, others = {}, []
    for entry in own:
        shape = logical_shape(tensors[entry.name])
        kind = TORCH_TYPES[tensors[entry.name]["dtype"]]
        for part in entry.parts or (entry.name,):
            error = problem(given[part], kind, shape[1:] if entry.parts else shape)
            if error:
                raise type(error)(f"'masters' does not fit the model: {part}: {error}")
        value = (torch.stack([given[part] for part in entry.parts]) if entry.parts
                 else given[entry.name])
        chosen[entry.name] = value
        if not torch.equal(*(_bits(v.to("cpu", entry.dtype)) for v in (value, view(entry.name)))):
            others.append(entry.name)
    if others:
        raise ValueError(
            f"the masters of {some_names(others)} in the training state are not those of the "
            "weights that the step has, which are these rounded to 16 bits: first load the "
            "state_dict of the same step; or leave 'masters' out, to train on from the weights "
            "as they are")
    return chosen


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)
