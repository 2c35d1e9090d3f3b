# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Experts of the transformers library, in a form of static shapes.

The library computes expert by expert what was routed to it, whose shape depends
on values. While a model is exported, its layers of experts compute the same on
a buffer with a place for every choice.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Callable, Iterator

import torch
import torch.nn.functional as F

from .. import moe


@contextlib.contextmanager
def static_experts(module: torch.nn.Module, groups: int) -> Iterator[None]:
    """Lets the experts in `module` compute in static shapes, a group for each of
    `groups` samples where their tokens are such groups."""
    replaced: list[tuple[torch.nn.Module, str]] = []

    def replace(owner: torch.nn.Module, name: str, function: Callable) -> None:
        # Beside the class, so that what was there is seen again afterwards.
        owner.__dict__[name] = function
        replaced.append((owner, name))

    for part in module.modules():
        if _is_stack_of_experts(part):
            replace(part, "forward", types.MethodType(_stack_of_experts(groups), part))
        elif isinstance(part, _classes("SwitchTransformersSparseMLP")):
            replace(part, "forward", types.MethodType(_switch, part))
        elif isinstance(part, _classes("SwitchTransformersTop1Router")):
            # It would bring its weights to its own type for good.
            replace(part.classifier, "to", lambda *_, layer=part.classifier: layer)
            replace(part.classifier, "forward", types.MethodType(_linear, part.classifier))
    try:
        yield
    finally:
        for owner, name in replaced:
            del owner.__dict__[name]


def stacks(module: torch.nn.Module) -> dict[str, list[str]]:
    """Parameters in `module` that experts have one of each, which are computed
    with as one: their names in order, by a name of the whole."""
    found = {}
    for name, part in module.named_modules():
        if isinstance(part, _classes("SwitchTransformersExperts")):
            lead = f"{name}.expert_" if name else "expert_"
            for weight in ("wi.weight", "wo.weight"):
                found[f"{lead}*.{weight}"] = [f"{lead}{i}.{weight}"
                                              for i in range(part.num_experts)]
    return found


def _classes(name: str) -> tuple[type, ...]:
    """The library's class of this name, where it is loaded."""
    modules = "transformers.models.switch_transformers.modeling_switch_transformers"
    found = getattr(sys.modules.get(modules), name, None)
    return () if found is None else (found,)


def _is_stack_of_experts(part: torch.nn.Module) -> bool:
    """Whether the library may choose how `part` computes its experts."""
    return all(hasattr(part, name) for name in
               ("_apply_gate", "has_gate", "has_bias", "is_transposed", "down_proj"))


def _linear(self, x):
    """The forward of a linear layer, in the type of its input."""
    bias = None if self.bias is None else self.bias.to(x.dtype)
    return F.linear(x, self.weight.to(x.dtype), bias)


def _project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
             transposed: bool) -> torch.Tensor:
    """Each expert's own product: [g, e, c, i] by [e, o, i], or [e, i, o]."""
    y = torch.einsum("geci,eio->geco" if transposed else "geci,eoi->geco", x, weight)
    return y if bias is None else y + bias[:, None]


def _stack_of_experts(groups: int):
    """The forward of a layer whose experts' weights are stacked: nothing is
    dropped, so that an expert has a place for each token of a group."""
    def experts(self, hidden_states, top_k_index, top_k_weights):
        count, width = hidden_states.shape
        own = groups if count % groups == 0 else 1
        tokens = count // own
        place, _ = moe.places(top_k_index.view(own, tokens, -1), self.num_experts, tokens)
        x = moe.dispatch(hidden_states.view(own, tokens, width), place, None,
                         self.num_experts, tokens)
        first = "gate_up_proj" if self.has_gate else "up_proj"

        def project(x, name):
            bias = getattr(self, f"{name}_bias") if self.has_bias else None
            return _project(x, getattr(self, name), bias, self.is_transposed)

        y = project(x, first)
        y = self._apply_gate(y) if self.has_gate else self.act_fn(y)
        y = project(y, "down_proj")
        if getattr(self, "has_post_expert_norm", False):
            y = self.post_expert_norm(y)
        y = moe.combine(y, place, top_k_weights.view(own, tokens, -1))
        return y.reshape(count, width).to(hidden_states.dtype)

    return experts


def _switch(self, hidden_states):
    """The forward of a Switch layer: a group is a sequence, and tokens that find
    their expert full are dropped."""
    groups, tokens, _ = hidden_states.shape
    chosen, weight, _ = self.router(hidden_states)
    experts = chosen.shape[-1]
    capacity = min(self.router.expert_capacity, tokens)
    kept = chosen.sum(-1, keepdim=True) > 0
    # Those that were dropped are not counted, and came after all that were not.
    first = torch.arange(experts, device=chosen.device) * capacity
    place = (chosen * (chosen.cumsum(1) - 1 + first)).sum(-1, keepdim=True)
    # As it is; said where indices are looked at.
    place = place.clamp(0, experts * capacity - 1)
    x = moe.dispatch(hidden_states, place, kept, experts, capacity)
    layers = [self.experts[f"expert_{i}"] for i in range(experts)]
    like = layers[0]
    y = _project(x, torch.stack([layer.wi.weight for layer in layers]), None, False)
    y = like.dropout(like.act(y))
    y = _project(y.to(like.wo.weight.dtype),
                 torch.stack([layer.wo.weight for layer in layers]), None, False)
    weight = weight * kept.to(weight.dtype)
    return moe.combine(y, place, weight).to(hidden_states.dtype)
