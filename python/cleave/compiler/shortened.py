# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A copy of a large model with few layers, and inputs with few positions, to be compared with eager
PyTorch in little time and memory."""

from __future__ import annotations

import copy
from typing import Any, Iterator, Union

import torch

#: Lists of fewer layers are not shortened.
FEWEST = 3
#: The fewest positions that are compared.
POSITIONS = 16

Inputs = tuple[torch.Tensor, ...]
Layers = Union[torch.nn.ModuleList, torch.nn.Sequential]


def with_few_layers(model: torch.nn.Module, loss_fn: Any) -> tuple[torch.nn.Module, Any, str]:
    """Returns a copy of a model and its loss function whose lists of layers have only the last and
    the first of each kind, and a text that says so, "" if there are no such lists. The tensors are
    those of the model."""
    owners = [m for m in (model, loss_fn) if isinstance(m, torch.nn.Module)]
    memo = {id(t): t for m in owners for t in (*m.parameters(), *m.buffers())}
    model, loss_fn = copy.deepcopy((model, loss_fn), memo)
    kept, all_ = 0, 0
    for layers in _outermost(model):
        children = list(layers)
        first: dict[Any, int] = {}
        for i, child in enumerate(children):
            first.setdefault(_kind(child), i)
        chosen = sorted({*first.values(), len(children) - 1})
        if len(children) < FEWEST or len(chosen) == len(children):
            continue
        kept, all_ = kept + len(chosen), all_ + len(children)
        layers._modules.clear()
        for i, place in enumerate(chosen):
            layers._modules[str(i)] = children[place]
    return model, loss_fn, f"{kept} of {all_} layers" if all_ else ""


def _outermost(model: torch.nn.Module) -> Iterator[Layers]:
    """Yields the lists of layers that are in no other list that is shortened."""
    for child in model.children():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)) and len(child) >= FEWEST and (
                len({_kind(c) for c in child}) < len(child)):
            yield child
        else:
            yield from _outermost(child)


def _kind(layer: torch.nn.Module) -> Any:
    """Returns what layers of one structure have in common."""
    return (tuple((name, type(part)) for name, part in layer.named_modules()),
            tuple((name, tuple(p.shape), p.dtype, p.requires_grad)
                  for name, p in layer.named_parameters()))


def with_few_positions(inputs: Inputs, positions: int) -> Iterator[Inputs]:
    """Yields inputs with the first positions, and with the last ones, if the first input of integers
    has more: sequences of tokens."""
    tokens = next((t for t in inputs if t.dim() == 2 and t.dtype in (torch.int64, torch.int32)),
                  None)
    length = tokens.shape[1] if tokens is not None else 0
    positions = max(positions, POSITIONS)
    if positions >= length:
        yield inputs
        return
    for start in (0, length - positions):
        def cut(t: torch.Tensor, start: int = start) -> torch.Tensor:
            for dim in range(1, t.dim()):
                if t.shape[dim] == length:
                    t = t.narrow(dim, start, positions)
            return t
        yield tuple(map(cut, inputs))
