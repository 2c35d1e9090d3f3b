# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Feed-forward parts of experts whose routers and activations differ from those of `cleave.moe`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .. import moe
from .layers import FeedForward
from .size import Size


class GroupRouter(nn.Module):
    """Sigmoid scores of experts in groups (DeepSeek-V3, arXiv 2412.19437): a token chooses among
    the experts of the groups whose two best ones have the largest sum. `correction` is added to
    the scores by which it chooses, not to their weights; a step changes it by `correction_rate`
    (`moe.update_correction`)."""

    def __init__(self, size: Size):
        super().__init__()
        if size.groups > 1 and size.experts // size.groups < 2:
            raise ValueError(f"{size.groups} groups of {size.experts} experts: groups must have "
                             "two at least")
        if size.choices > size.experts // size.groups * size.chosen_groups:
            raise ValueError(f"choices ({size.choices}) must not exceed the experts of "
                             f"{size.chosen_groups} of {size.groups} groups of {size.experts}")
        self.choices, self.scale = size.choices, size.expert_scale
        self.groups, self.chosen_groups = size.groups, size.chosen_groups
        self.rate = size.correction_rate
        self.logits = nn.Linear(size.hidden, size.experts, bias=False)
        self.register_buffer("correction", torch.zeros(size.experts))

    def forward(self, x):
        """Of tokens [g, t, h]: weights and experts [g, t, k], and what balances them [g, t, e]."""
        scores = F.linear(x.float(), self.logits.weight.float()).sigmoid()
        corrected = scores.detach() + self.correction
        if self.groups > 1:
            grouped = corrected.unflatten(-1, (self.groups, -1))
            best = grouped.topk(2, dim=-1)[0].sum(-1).topk(self.chosen_groups, dim=-1)[1]
            allowed = F.one_hot(best, self.groups).sum(-2) > 0
            corrected = grouped.masked_fill(~allowed[..., None], -torch.inf).flatten(-2)
        index = corrected.topk(self.choices, dim=-1)[1]
        if self.training and self.rate:
            moe.update_correction(self.correction, index, self.rate)
        weight = scores.gather(-1, index)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * self.scale
        return weight, index, scores / (scores.sum(-1, keepdim=True) + 1e-20)


class ChosenRouter(nn.Module):
    """Softmax over the logits of the chosen experts alone (gpt-oss, arXiv 2508.10925)."""

    def __init__(self, size: Size):
        super().__init__()
        self.choices = size.choices
        self.logits = nn.Linear(size.hidden, size.experts)

    def forward(self, x):
        logits = F.linear(x.float(), self.logits.weight.float(), self.logits.bias.float())
        best, index = logits.topk(self.choices, dim=-1)
        return best.softmax(-1), index, logits.softmax(-1)


class ExpertWeights(nn.Module):
    """The experts' gated layers, stacked, with biases if `bias`, and `activation` of what the
    gate and the layer beside it compute."""

    def __init__(self, size: Size, inner: int, bias: bool, activation):
        super().__init__()
        experts, hidden = size.experts, size.hidden
        self.activation = activation
        self.gate = nn.Parameter(torch.randn(experts, inner, hidden) * 0.02)
        self.up = nn.Parameter(torch.randn(experts, inner, hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, hidden, inner) * 0.02)
        self.gate_bias, self.up_bias, self.down_bias = (
            nn.Parameter(torch.zeros(experts, width)) if bias else None
            for width in (inner, inner, hidden))

    def forward(self, x, index=None):
        """Of places [g, e, c, h], or of rows [g, t, k, h] of the experts `index` [g, t, k]: as
        many outputs."""
        def layer(x, weight, bias):
            if index is not None:
                y = moe.grouped_linear(x, weight, index, transpose=True)
                return y if bias is None else y + F.embedding(index, bias)
            y = torch.einsum("gech,eih->geci", x, weight)
            return y if bias is None else y + bias[:, None]

        y = self.activation(layer(x, self.gate, self.gate_bias), layer(x, self.up, self.up_bias))
        return layer(y, self.down, self.down_bias)


class Mixture(nn.Module):
    """Experts that tokens choose by a router, beside a `shared` part that computes all of them.
    A group is a sequence; with `capacity`, the factor of `moe.capacity_of`, what has no place is
    left out."""

    def __init__(self, router: nn.Module, experts: ExpertWeights, capacity: float | None,
                 shared: FeedForward | None = None):
        super().__init__()
        self.router, self.experts, self.shared = router, experts, shared
        self.capacity = capacity or None

    def forward(self, x):
        """Of tokens [g, t, h]: the sum of their experts' outputs, and the loss that balances
        experts: `e / k * sum(f * p)`, of the share f of choices and the mean p (arXiv
        2412.19437)."""
        tokens, experts, choices = x.shape[1], len(self.experts.gate), self.router.choices
        weight, index, probabilities = self.router(x)
        if self.capacity is None:
            y = self.experts(moe.rows_of(x, index), index)
            y = moe.combine_rows(y, weight.to(y.dtype))
        else:
            capacity = moe.capacity_of(tokens, experts, choices, self.capacity)
            place, kept = moe.places(index, experts, capacity)
            if capacity == tokens:
                kept = None
            else:
                weight = weight * kept.to(weight.dtype)
            y = self.experts(moe.dispatch(x, place, kept, experts, capacity))
            y = moe.combine(y, place, weight.to(y.dtype))
        if self.shared is not None:
            y = y + self.shared(x)
        return y, moe.balance_loss(probabilities, index, every=True)


def swiglu(gate, up):
    return F.silu(gate) * up


def bounded_swiglu(gate, up):
    """SwiGLU of gpt-oss: a sigmoid that is steeper, and bounds of its operands."""
    gate = gate.clamp(max=7.0)
    return (up.clamp(-7.0, 7.0) + 1) * (gate * torch.sigmoid(1.702 * gate))
