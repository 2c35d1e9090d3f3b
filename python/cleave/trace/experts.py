# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mixtures of experts of the transformers library, computed with static shapes.

The library computes each expert on the tokens routed to it, whose number depends on values. While a
model is exported, the forwards of its expert layers are replaced by ones that compute the same
results in a buffer of a fixed capacity.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from typing import Callable, Iterator

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from .. import moe


@contextlib.contextmanager
def static_experts(module: torch.nn.Module, groups: int) -> Iterator[None]:
    """Context manager that makes the expert layers of `module` compute with static shapes. Tokens
    are routed in `groups` groups, one for each sample, if their number is divisible by `groups`."""
    replaced: list[tuple[torch.nn.Module, str]] = []
    distinct = _DistinctIndices()

    def replace(owner: torch.nn.Module, name: str, function: Callable) -> None:
        # Set on the instance, so that deleting it restores the attribute of the class.
        owner.__dict__[name] = function
        replaced.append((owner, name))

    for part in module.modules():
        if _is_stack_of_experts(part):
            replace(part, "forward", types.MethodType(_stack_of_experts(groups, distinct), part))
        elif _is_container_of_experts(part):
            replace(part, "forward", types.MethodType(_container_of_experts, part))
        elif _is_switch(part):
            replace(part, "forward", types.MethodType(_switch, part))
            # The router would cast its weights in place, and they would stay cast.
            layer = part.router.classifier
            replace(layer, "to", lambda *_, layer=layer: layer)
            replace(layer, "forward", types.MethodType(_linear, layer))
    try:
        with distinct:
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
    return found


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
            same = _container_of_experts(part, x, index, weight)
        return found.shape == same.shape and torch.allclose(found, same, rtol=1e-3, atol=1e-5)
    except Exception:
        return False
    finally:
        for module, mode in modes.items():
            module.training = mode


def _experts_of(part) -> list[torch.nn.Module]:
    return list(part.values() if isinstance(part, torch.nn.ModuleDict) else part)


def _container_of_experts(self, hidden_states, index, weights):
    """The forward of a container of experts: every expert computes all tokens, with a weight
    of 0 for those not routed to it."""
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


class _DistinctIndices(TorchFunctionMode):
    """Records index tensors whose elements along the last dimension are distinct: those of
    topk, sort and argsort, also after conversions that preserve the property."""

    _SORTING = ("topk", "sort", "argsort")
    _KEEPING = ("to", "long", "int", "detach", "clone", "contiguous", "view", "reshape")

    def __init__(self):
        super().__init__()
        # By id. The tensors are kept alive, since the id of a freed object is reused.
        self._known: dict[int, torch.Tensor] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._known

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if name in self._SORTING:
            index = result if isinstance(result, torch.Tensor) else result[1]
            # Only if the operator ran along the last dimension.
            dim = (kwargs or {}).get("dim")
            at = 2 if name == "topk" else 1
            if dim is None:
                dim = args[at] if len(args) > at else -1
            if type(dim) is int and dim in (-1, index.dim() - 1):
                self._known[id(index)] = index
        elif name in self._KEEPING and args and isinstance(result, torch.Tensor) and (
                id(args[0]) in self._known and result.shape[-1:] == args[0].shape[-1:]):
            self._known[id(result)] = result
        return result


def _merge_repeated(index: torch.Tensor, weights: torch.Tensor
                    ) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges repeated choices of an expert by a token. Returns which choices [g, t, k] are the
    first of their expert, and the weights, summed into the first choice."""
    same = index[..., :, None] == index[..., None, :]
    first = ~(same & torch.ones_like(same).tril(-1)).any(-1)
    return first, torch.where(same, weights[..., None, :], 0).sum(-1) * first.to(weights.dtype)


def _stack_of_experts(groups: int, distinct: _DistinctIndices):
    """Returns the forward of a layer with stacked expert weights. No token is dropped: the
    capacity of an expert is the number of tokens of a group."""
    def experts(self, hidden_states, top_k_index, top_k_weights):
        count, width = hidden_states.shape
        own = groups if count % groups == 0 else 1
        tokens = count // own
        index, weights = (t.view(own, tokens, -1) for t in (top_k_index, top_k_weights))
        first = None
        if top_k_index not in distinct and index.shape[-1] > 1:
            first, weights = _merge_repeated(index, weights)
        place, _ = moe.places(index, self.num_experts, tokens, first)
        x = moe.dispatch(hidden_states.view(own, tokens, width), place, first,
                         self.num_experts, tokens)
        opening = "gate_up_proj" if self.has_gate else "up_proj"

        def project(x, name):
            bias = getattr(self, f"{name}_bias") if self.has_bias else None
            return _project(x, getattr(self, name), bias, self.is_transposed)

        y = project(x, opening)
        y = self._apply_gate(y) if self.has_gate else self.act_fn(y)
        y = project(y, "down_proj")
        if getattr(self, "has_post_expert_norm", False):
            y = self.post_expert_norm(y)
        y = moe.combine(y, place, weights)
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
