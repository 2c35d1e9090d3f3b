# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Counts of the choices of experts, which a step returns beside its loss."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator

import torch
import torch.nn.functional as F

from .. import moe
from .experts import _is_stack_of_experts

#: The beginning of the names of these results.
PREFIX = "expert_counts."


def is_counts(name: str) -> bool:
    """Returns whether a result of this name has counts."""
    return name.startswith(PREFIX)


@contextlib.contextmanager
def counted(module: torch.nn.Module, wanted: bool) -> Iterator[dict[str, torch.Tensor]]:
    """Context manager that yields the counts of the layers that compute within it, by the names of
    results: [e], how often each expert was chosen. Experts of the transformers library have the
    names of their modules."""
    found: dict[str, torch.Tensor] = {}
    if not wanted:
        yield found
        return

    def tell(name: str, index: torch.Tensor, experts: int) -> None:
        name = name or str(len(found))
        while PREFIX + name in found:
            name += "'"
        found[PREFIX + name] = F.one_hot(index, experts).flatten(0, -2).sum(0)

    def telling(name: str, part: Any, forward: Callable[..., Any], x: torch.Tensor,
                top_k_index: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        moe.count_choices(top_k_index, part.num_experts, name)
        return forward(x, top_k_index, *args, **kwargs)

    before = {}
    for name, part in module.named_modules():
        if _is_stack_of_experts(part):
            before[part] = part.__dict__.get("forward")
            part.__dict__["forward"] = functools.partial(telling, name, part, part.forward)
    try:
        with moe.told_choices(tell):
            yield found
    finally:
        for part, forward in before.items():
            if forward is None:
                del part.__dict__["forward"]
            else:
                part.__dict__["forward"] = forward
