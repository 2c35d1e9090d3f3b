# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What a forward keeps for the next one, in attributes of modules.

A trace leaves attributes as it found them. A tensor that a forward keeps and the next one
reads is computed anew by each step, which is the same where it depends on no input,
parameter or random number, such as a mask or a table of positions; the rest is to be
refused. So are numbers, texts and flags where they change again in the next forward.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from .locations import here

#: Attributes that every module has, of its own.
_OWN = frozenset(torch.nn.Module().__dict__)

_RANDOM = ("rand", "normal", "bernoulli", "multinomial", "dropout", "uniform_", "exponential_")


@dataclasses.dataclass
class Kept:
    """An attribute that a forward has changed, and the line where, or ''."""

    module: torch.nn.Module
    name: str
    value: Any
    place: str = ""

    def tensors(self) -> list[FakeTensor]:
        """The tensors of a trace that it holds."""
        return [x for x in pytree.tree_leaves(self.value) if isinstance(x, FakeTensor)]

    def stand_in(self) -> Any:
        """Its value, with zeros for tensors of a trace."""
        return pytree.tree_map_only(
            FakeTensor, lambda x: torch.zeros(x.shape, dtype=x.dtype), self.value)


class Constants:
    """The tensors of a trace that are the same in every forward, by their memory."""

    def __init__(self, tensors: dict[int, torch.Tensor]):
        # The tensors are kept, so that their memory is not used again.
        self._known = dict(tensors)

    def __contains__(self, memory: int) -> bool:
        return memory in self._known

    def forget(self, memory: int) -> None:
        self._known.pop(memory, None)

    def note(self, function: Any, given: list[int], results: dict[int, torch.Tensor]) -> None:
        """Notes the memory of the results of a function of tensors in the memory `given`."""
        name = getattr(function, "__name__", "")
        if all(m in self._known for m in given) and not any(r in name for r in _RANDOM):
            self._known.update(results)
        else:
            for memory in results:
                self.forget(memory)


@contextlib.contextmanager
def restored(module: torch.nn.Module) -> Iterator[list[Kept]]:
    """Puts attributes back as they were, with the elements of lists and dictionaries. What
    it gives holds, after it, those that were changed to hold tensors of a trace, and those
    of which a number, text or flag was changed."""
    before = [(m, {k: (v, _copied(v)) for k, v in m.__dict__.items() if k not in _OWN})
              for m in module.modules()]
    places: dict[tuple[int, str], str] = {}
    assign = torch.nn.Module.__setattr__

    def noted(part: torch.nn.Module, name: str, value: Any) -> None:
        if name not in _OWN:
            places[id(part), name] = here()
        assign(part, name, value)

    changed: list[Kept] = []
    torch.nn.Module.__setattr__ = noted
    try:
        yield changed
    finally:
        torch.nn.Module.__setattr__ = assign
        for part, attributes in before:
            for name in [k for k in part.__dict__ if k not in _OWN]:
                value, (old, copy) = part.__dict__[name], attributes.get(name, (None, None))
                if value is not old or _differ(value, copy):
                    found = Kept(part, name, _copied(value), places.get((id(part), name), ""))
                    if found.tensors() or _plain(value) != _plain(copy):
                        changed.append(found)
                if name not in attributes:
                    del part.__dict__[name]
            for name, (value, copy) in attributes.items():
                part.__dict__[name] = value
                if isinstance(value, (list, dict)) and _differ(value, copy):
                    value.clear()
                    (value.extend if isinstance(value, list) else value.update)(copy)


def _plain(value: Any) -> list[Any]:
    """The numbers, texts and flags in `value`."""
    return [x for x in pytree.tree_leaves(value) if isinstance(x, (bool, int, float, str))]


def _copied(value: Any) -> Any:
    """`value`, of lists and dictionaries, in containers of their own."""
    return pytree.tree_map(lambda x: x, value)


def _differ(value: Any, other: Any) -> bool:
    """Whether two values of lists and dictionaries hold other elements."""
    (own, shape), (theirs, form) = pytree.tree_flatten(value), pytree.tree_flatten(other)
    return shape != form or any(a is not b for a, b in zip(own, theirs))
