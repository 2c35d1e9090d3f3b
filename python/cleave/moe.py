# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mixtures of experts in plain PyTorch, with static shapes.

Tokens are routed in *groups*: capacity is counted for each expert and group, so that
tokens of different groups do not compete. The result of a model depends on its groups,
and not on the number of devices or micro-batches. A group is a sequence, unless a model
defines it otherwise.

Letters of shapes: g groups, t tokens of a group, h features, k choices of a token, e
experts, c places (the capacity) of an expert for a group.
"""

from __future__ import annotations

import contextlib
import math
from typing import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

from .grouped import grouped_linear

__all__ = ["Experts", "balance_loss", "capacity_of", "combine", "combine_rows", "dispatch",
           "grouped_linear", "places", "rows_of"]


def capacity_of(tokens: int, experts: int, choices: int = 1, factor: float = 1.0) -> int:
    """The capacity of each expert for a group of `tokens` tokens: its equal share of
    the tokens times `factor`, rounded up, for each choice; at most `tokens`, since a
    token chooses an expert once."""
    if experts < 1 or not 1 <= choices <= experts:
        raise ValueError(f"a token chooses {choices} of {experts} experts; there must be at least as "
                         "many experts as choices, and both must be positive")
    return min(choices * math.ceil(tokens / experts * factor), tokens)


def places(index: torch.Tensor, experts: int, capacity: int,
           counted: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The place of each choice among all places of a group, and whether it has one.

    `index` [g, t, k] holds the chosen experts, the first choice first. Experts accept
    first choices before second ones, and those in the order of the tokens. Returns
    places [g, t, k], numbered expert by expert, and flags [g, t, k]: false if the
    expert was full; the place is then that of another token. Choices that are false in
    `counted` [g, t, k] take no place.
    """
    groups, tokens, choices = index.shape
    order = index.transpose(1, 2).reshape(groups, choices * tokens)
    chosen = F.one_hot(order, experts)
    if counted is not None:
        chosen = chosen * counted.transpose(1, 2).reshape(groups, choices * tokens, 1)
    position = (chosen.cumsum(1) * chosen).sum(-1) - 1
    position = position.view(groups, choices, tokens).transpose(1, 2)
    kept = position < capacity if counted is None else (position < capacity) & counted
    return index * capacity + position.clamp(0, capacity - 1), kept


def dispatch(x: torch.Tensor, place: torch.Tensor, kept: torch.Tensor | None, experts: int,
             capacity: int) -> torch.Tensor:
    """Tokens [g, t, h] in the experts' places, [g, e, c, h]; empty places are 0.

    `place` and `kept` are the results of `places`; without `kept` all choices have a
    place."""
    groups, tokens, choices = place.shape
    width = x.shape[-1]
    rows = x[:, :, None].expand(groups, tokens, choices, width)
    if kept is not None:
        rows = rows * kept[..., None].to(x.dtype)
    flat = place.reshape(groups, -1, 1).expand(-1, -1, width)
    result = x.new_zeros(groups, experts * capacity, width)
    result = result.scatter_add(1, flat, rows.reshape(groups, -1, width))
    return result.view(groups, experts, capacity, width)


def combine(y: torch.Tensor, place: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """For each token the sum of its experts' outputs, [g, t, h], times `weight` [g, t,
    k], which is 0 if a choice has no place. `y`: [g, e, c, h]."""
    groups, tokens, choices = place.shape
    width = y.shape[-1]
    flat = place.reshape(groups, -1, 1).expand(-1, -1, width)
    rows = y.reshape(groups, -1, width).gather(1, flat)
    return (rows.view(groups, tokens, choices, width) * weight[..., None]).sum(2)


def rows_of(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Tokens [g, t, h] as a row for each choice in `index` [g, t, k], [g, t, k, h]: what
    `grouped_linear` multiplies, with `index` as groups, where no token is dropped."""
    return x[:, :, None].expand(*index.shape, x.shape[-1])


def combine_rows(y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """For each token the sum of its rows [g, t, k, h] times `weight` [g, t, k], [g, t, h]."""
    return (y * weight[..., None]).sum(2)


#: The number of equal parts of a batch over which `balance_loss` is taken, and how often it was; 0
#: parts: the groups that it is given.
_parts, _count = 0, []


@contextlib.contextmanager
def balanced_over(parts: int) -> Iterator[list[int]]:
    """Context manager in which `balance_loss` is the mean of those of `parts` equal parts of the
    batch, whatever groups tokens are routed in; 0: of the groups. It yields a list that has an item
    for each call."""
    global _parts, _count
    before = _parts, _count
    _parts, _count = parts, []
    try:
        yield _count
    finally:
        _parts, _count = before


#: Functions that are told the choices of each layer: its name, the experts that its tokens chose,
#: and their number.
_tell: list = []


@contextlib.contextmanager
def told_choices(tell: Callable[[str, torch.Tensor, int], None]) -> Iterator[None]:
    """Context manager in which `tell` is called with the choices of each layer."""
    _tell.append(tell)
    try:
        yield
    finally:
        _tell.pop()


def count_choices(index: torch.Tensor, experts: int, name: str = "") -> None:
    """Lets a step count how often each of `experts` experts is chosen in `index`, before any choice
    is dropped, for `Loss.expert_counts`, if `expert_counts` of `cleave.Numerics` says so. Layers
    without a name get their number. `balance_loss`, and the experts of transformers, do so
    themselves."""
    for tell in _tell:
        tell(name, index.detach(), experts)


def balance_loss(probabilities: torch.Tensor, index: torch.Tensor,
                 every: bool = False) -> torch.Tensor:
    """The load-balancing loss `e * sum(f * p)`, 1 if experts are used equally: f is the
    fraction of a group's tokens whose first choice is the expert, before any is
    dropped, and is not differentiated; p is its mean probability. The mean over groups,
    a scalar. With `every`, f is the fraction of all choices.

    A step takes it over other tokens than those of a group if `balance_loss` of
    `cleave.Numerics` says so.

    `probabilities`: [g, t, e]; `index`: [g, t, k]."""
    experts = probabilities.shape[-1]
    count_choices(index, experts)
    if _parts:
        _count.append(_parts)
        if probabilities.shape[0] % _parts:
            raise ValueError(f"a loss that balances experts is taken over {_parts} parts of a "
                             f"batch, and {probabilities.shape[0]} groups of tokens are not "
                             "divisible by them")
        probabilities, index = (x.reshape(_parts, -1, x.shape[-1]) for x in (probabilities, index))
    if every:
        used = F.one_hot(index, experts).to(probabilities.dtype).sum(2).mean(1)
    else:
        used = F.one_hot(index[..., 0], experts).to(probabilities.dtype).mean(1)
    factor = experts / index.shape[-1] if every else experts
    return factor * (used * probabilities.mean(1)).sum(-1).mean()


def z_loss(logits: torch.Tensor) -> torch.Tensor:
    """The loss that keeps a router's logits [..., e] small (arXiv 2202.08906): the mean over
    tokens of the square of the logarithm of the sum of their exponentials."""
    return logits.float().logsumexp(-1).square().mean()


def jitter(x: torch.Tensor, amount: float) -> torch.Tensor:
    """The input of a router in training (arXiv 2101.03961): x times uniform numbers of
    `1 - amount` to `1 + amount`."""
    return x * torch.empty_like(x).uniform_(1 - amount, 1 + amount)


@torch.no_grad()
def update_correction(correction: torch.Tensor, index: torch.Tensor, rate: float) -> None:
    """Balances experts without a loss (arXiv 2408.15664): the buffer `correction` [e], which is
    added to the scores by which tokens choose, grows by `rate` for experts that fewer tokens of the
    batch chose than the mean, and shrinks by it for others. `index` [..., k]: the choices.

    A compiled step does so once, with the choices of all ranks and micro-batches."""
    load = F.one_hot(index, len(correction)).flatten(0, -2).sum(0).to(correction.dtype)
    correction += rate * torch.sign(load.mean() - load)


class Experts(nn.Module):
    """A feed-forward part whose tokens choose among experts: two layers with gelu between
    them, or with `gated` SwiGLU (arXiv 2002.05202). A group is a sequence.

    With one choice (Switch, arXiv 2101.03961) the expert's output is weighted with its
    probability; with two (GShard, arXiv 2006.16668) or more the weights of those that
    have a place sum to 1. `capacity` is the factor of `capacity_of`; with None no choice
    is dropped, and experts compute the tokens that chose them (MegaBlocks, arXiv
    2211.15841). With `noisy` (Shazeer et al., arXiv 1701.06538) logits have normal
    noise in training, whose scale is computed by a second projection. The router
    computes in f32.
    """

    def __init__(self, hidden: int, inner: int, experts: int, *, choices: int = 1,
                 capacity: float | None = 1.25, noisy: bool = False, gated: bool = False):
        super().__init__()
        if experts < 1:
            raise ValueError(f"experts is {experts}; it must be at least 1")
        if not 1 <= choices <= experts:
            raise ValueError(f"choices is {choices}; {experts} experts allow 1 to {experts}")
        if capacity is not None and not capacity > 0:
            raise ValueError(f"capacity is {capacity}; it must be positive, or None")
        self.choices, self.capacity = choices, capacity
        self.router = nn.Linear(hidden, experts, bias=False)
        self.noise = nn.Linear(hidden, experts, bias=False) if noisy else None
        self.gate = nn.Parameter(torch.randn(experts, inner, hidden) * 0.02) if gated else None
        self.up = nn.Parameter(torch.randn(experts, inner, hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, hidden, inner) * 0.02)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For tokens [g, t, h]: the combined outputs of their experts, [g, t, h], 0 for
        a token without a place; and `balance_loss`."""
        experts, tokens = len(self.up), x.shape[1]
        wide = x.float()
        logits = F.linear(wide, self.router.weight.float())
        if self.noise is not None and self.training:
            deviation = F.softplus(F.linear(wide, self.noise.weight.float()))
            logits = logits + torch.randn_like(logits) * deviation
        probabilities = logits.softmax(-1)
        weight, index = probabilities.topk(self.choices, dim=-1)
        if self.capacity is None:
            return self._of_chosen(x, index, weight), balance_loss(probabilities, index)
        capacity = capacity_of(tokens, experts, self.choices, self.capacity)
        place, kept = places(index, experts, capacity)
        weight = weight * kept.to(weight.dtype)
        if self.choices > 1:
            # The weights of a token without a place sum to 0.
            weight = weight / weight.sum(-1, keepdim=True).clamp(min=1e-9)
        y = dispatch(x, place, None if capacity == tokens else kept, experts, capacity)
        up = torch.einsum("gech,eih->geci", y, self.up)
        if self.gate is None:
            y = F.gelu(up)
        else:
            y = F.silu(torch.einsum("gech,eih->geci", y, self.gate)) * up
        y = torch.einsum("geci,ehi->gech", y, self.down)
        return combine(y, place, weight.to(y.dtype)), balance_loss(probabilities, index)

    def _of_chosen(self, x, index, weight):
        """The outputs of all choices, summed."""
        if self.choices > 1:
            weight = weight / weight.sum(-1, keepdim=True).clamp(min=1e-9)
        rows = rows_of(x, index)
        up = grouped_linear(rows, self.up, index, transpose=True)
        if self.gate is None:
            y = F.gelu(up)
        else:
            y = F.silu(grouped_linear(rows, self.gate, index, transpose=True)) * up
        y = grouped_linear(y, self.down, index, transpose=True)
        return combine_rows(y, weight.to(y.dtype))
