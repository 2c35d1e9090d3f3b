# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mixtures of experts of the transformers library, computed with static shapes.

The library computes each expert on the tokens routed to it, whose number depends on values. While a
model is exported, the forwards of its expert layers are replaced by ones that compute the same
results of as many rows as tokens make choices, or in a buffer of a fixed capacity.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from typing import Callable, Iterator

import torch
import torch.nn.functional as F

from .. import moe


@contextlib.contextmanager
def static_experts(module: torch.nn.Module, groups: int) -> Iterator[None]:
    """Context manager that makes the expert layers of `module` compute with static shapes. Tokens
    are routed in `groups` groups, one for each sample, if their number is divisible by `groups`."""
    replaced: list[tuple[torch.nn.Module, str]] = []

    def replace(owner: torch.nn.Module, name: str, function: Callable) -> None:
        # Set on the instance, so that deleting it restores the attribute of the class.
        owner.__dict__[name] = function
        replaced.append((owner, name))

    for part in module.modules():
        if _is_stack_of_experts(part):
            replace(part, "forward", types.MethodType(_stack_of_experts(groups), part))
        elif _is_container_of_experts(part):
            replace(part, "forward", types.MethodType(_container_of_experts(groups), part))
        elif _is_switch(part):
            replace(part, "forward", types.MethodType(_switch, part))
            # The router would cast its weights in place, and they would stay cast.
            layer = part.router.classifier
            replace(layer, "to", lambda *_, layer=layer: layer)
            replace(layer, "forward", types.MethodType(_linear, layer))
    try:
        yield
    finally:
        for owner, name in replaced:
            del owner.__dict__[name]


def expert_stacks(module: torch.nn.Module) -> dict[str, list[str]]:
    """Returns the expert parameters of `module` that are stacked into one tensor: the name of
    each stack, and the names of its parameters in order."""
    found = {}
    for name, part in module.named_modules():
        if _is_switch(part):
            lead = f"{name}.experts.expert_" if name else "experts.expert_"
            for weight in ("wi.weight", "wo.weight"):
                found[f"{lead}*.{weight}"] = [f"{lead}{i}.{weight}"
                                              for i in range(len(part.experts))]
        elif _is_container_of_experts(part):
            for layer, copies in (_linear_layers(_experts_of(part)) or {}).items():
                for kind, _ in copies[0].named_parameters():
                    found[_joined(name, "*", layer, kind)] = [
                        _joined(name, key, layer, kind) for key, _ in part.named_children()]
    return found


def _joined(*names: str) -> str:
    return ".".join(n for n in names if n)


def _is_switch(part: torch.nn.Module) -> bool:
    """Returns whether `part` is a layer of a Switch Transformer: a router sends each token to one
    of several experts of the same structure, two linear layers without biases, each with a capacity
    of tokens per sequence."""
    router, experts = getattr(part, "router", None), getattr(part, "experts", None)
    if not isinstance(experts, torch.nn.ModuleDict) or not len(experts) or not all(
            hasattr(router, name) for name in ("classifier", "expert_capacity", "num_experts")):
        return False
    if list(experts) != [f"expert_{i}" for i in range(router.num_experts)]:
        return False
    layers = list(experts.values())
    return set(dict(part.named_children())) == {"router", "experts"} and all(
        type(layer) is type(layers[0]) and hasattr(layer, "act") and hasattr(layer, "dropout")
        and all(isinstance(getattr(layer, n, None), torch.nn.Linear)
                and getattr(layer, n).bias is None for n in ("wi", "wo")) for layer in layers)


def _is_stack_of_experts(part: torch.nn.Module) -> bool:
    """Returns whether `part` holds the stacked weights of experts, in the library's interface for
    alternative implementations."""
    return all(hasattr(part, name) for name in
               ("_apply_gate", "has_gate", "has_bias", "is_transposed", "down_proj"))


def _is_container_of_experts(part: torch.nn.Module) -> bool:
    """Returns whether `part` is a container of experts of one class that, called with tokens [n,
    h], expert indices [n, k] and weights [n, k], returns the weighted sum of the experts' results.
    This is decided by comparing results for random tokens."""
    if not isinstance(part, (torch.nn.ModuleDict, torch.nn.ModuleList)) or len(part) < 2:
        return False
    experts = _experts_of(part)
    if len({type(e) for e in experts}) > 1 or "forward" not in type(part).__dict__ or len(
            inspect.signature(type(part).forward).parameters) != 4:
        return False
    first = next((m for m in experts[0].modules() if isinstance(m, torch.nn.Linear)), None)
    if first is None or first.weight.is_meta:
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, first.in_features, generator=generator).to(first.weight)
    index = torch.randint(0, len(experts), (6, 3), generator=generator).to(x.device)
    weight = torch.rand(6, 3, generator=generator).to(x)
    modes = {m: m.training for m in part.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            part.eval()
            found = type(part).forward(part, x, index, weight)
            same = _container_of_experts(1)(part, x, index, weight)
        return found.shape == same.shape and torch.allclose(found, same, rtol=1e-3, atol=1e-5)
    except Exception:
        return False
    finally:
        for module, mode in modes.items():
            module.training = mode


def _experts_of(part) -> list[torch.nn.Module]:
    return list(part.values() if isinstance(part, torch.nn.ModuleDict) else part)


def _linear_layers(experts: list[torch.nn.Module]) -> dict[str, list[torch.nn.Linear]] | None:
    """Returns the linear layers of all experts by their name in each; None if experts have other
    parameters or buffers, or differ."""
    found = {name: [e.get_submodule(name) for e in experts]
             for name, layer in experts[0].named_modules() if type(layer) is torch.nn.Linear}
    own = {f"{name}.{kind}".removeprefix(".") for name, layers in found.items()
           for kind, _ in layers[0].named_parameters()}
    shapes = [{n: (p.shape, p.dtype) for n, p in [*e.named_parameters(), *e.named_buffers()]}
              for e in experts]
    alike = all(s == shapes[0] for s in shapes) and set(shapes[0]) == own and all(
        type(layer) is torch.nn.Linear for layers in found.values() for layer in layers)
    return found if alike and found else None


def _container_of_experts(groups: int):
    """Returns the forward of a container of experts: each choice of a token is a row, which the
    first expert computes with the weights of its own one. Experts that have other parameters than
    those of linear layers compute all tokens."""
    def forward(self, hidden_states, index, weights):
        layers = _linear_layers(_experts_of(self))
        if layers is None:
            return _all_experts(self, hidden_states, index, weights)
        count, width = hidden_states.shape
        own = groups if count % groups == 0 else 1
        rows, shares = (t.view(own, count // own, -1) for t in (index, weights))

        def chosen(name):
            weight = torch.stack([layer.weight for layer in layers[name]])
            bias = None if layers[name][0].bias is None else \
                torch.stack([layer.bias for layer in layers[name]])

            def linear(x):
                y = moe.grouped_linear(x, weight, rows, transpose=True)
                return y if bias is None else y + F.embedding(rows, bias)
            return linear

        for name, (first, *_) in layers.items():
            first.__dict__["forward"] = chosen(name)
        try:
            y = _experts_of(self)[0](moe.rows_of(hidden_states.view(own, -1, width), rows))
        finally:
            for first, *_ in layers.values():
                del first.__dict__["forward"]
        return moe.combine_rows(y, shares).reshape(count, width).to(hidden_states.dtype)

    return forward


def _all_experts(self, hidden_states, index, weights):
    """Every expert computes all tokens, with a weight of 0 for those not routed to it."""
    result = torch.zeros_like(hidden_states)
    for number, expert in enumerate(_experts_of(self)):
        chosen = index == number
        share = torch.where(chosen, weights, 0).sum(-1, keepdim=True)
        y = torch.where(chosen.any(-1, keepdim=True), expert(hidden_states), 0)
        result = result + (y * share).to(hidden_states.dtype)
    return result


def _linear(self, x):
    """The forward of a linear layer whose weights are cast to the type of its input."""
    bias = None if self.bias is None else self.bias.to(x.dtype)
    return F.linear(x, self.weight.to(x.dtype), bias)


def _project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
             transposed: bool) -> torch.Tensor:
    """Returns [g, e, c, o], the matmul of [g, e, c, i] with each expert's weight, [e, o, i]
    or if `transposed` [e, i, o], plus the bias [e, o]."""
    y = torch.einsum("geci,eio->geco" if transposed else "geci,eoi->geco", x, weight)
    return y if bias is None else y + bias[:, None]


def _stack_of_experts(groups: int):
    """Returns the forward of a layer with stacked expert weights: each choice of a token is a row,
    which has the weights of its expert."""
    def experts(self, hidden_states, top_k_index, top_k_weights):
        count, width = hidden_states.shape
        own = groups if count % groups == 0 else 1
        index, weights = (t.view(own, count // own, -1) for t in (top_k_index, top_k_weights))
        opening = "gate_up_proj" if self.has_gate else "up_proj"

        def project(x, name):
            y = moe.grouped_linear(x, getattr(self, name), index, not self.is_transposed)
            return y + F.embedding(index, getattr(self, f"{name}_bias")) if self.has_bias else y

        y = project(moe.rows_of(hidden_states.view(own, count // own, width), index), opening)
        y = self._apply_gate(y) if self.has_gate else self.act_fn(y)
        y = project(y, "down_proj")
        if getattr(self, "has_post_expert_norm", False):
            y = self.post_expert_norm(y)
        y = moe.combine_rows(y, weights)
        return y.reshape(count, width).to(hidden_states.dtype)

    return experts


def _switch(self, hidden_states):
    """The forward of a Switch layer: each sequence is a group, and tokens beyond the capacity
    of their expert are dropped."""
    groups, tokens, _ = hidden_states.shape
    chosen, weight, _ = self.router(hidden_states)
    experts = chosen.shape[-1]
    capacity = min(self.router.expert_capacity, tokens)
    kept = chosen.sum(-1, keepdim=True) > 0
    # Positions count only the tokens that were not dropped, which precede the dropped ones.
    first = torch.arange(experts, device=chosen.device) * capacity
    place = (chosen * (chosen.cumsum(1) - 1 + first)).sum(-1, keepdim=True)
    # The clamp does not change the positions; it makes their range known to the check of indices.
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
