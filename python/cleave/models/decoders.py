# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The parts of each family of decoders."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ..moe import Experts
from .causal import Design
from .latent import LatentAttention, rope_width
from .layers import Attention, Block, FeedForward, feed_forward_width, gelu_tanh, head_width
from .mixtures import ChosenRouter, ExpertWeights, GroupRouter, Mixture, bounded_swiglu, swiglu
from .size import Size
from .state_space import StateSpace


def plain(size: Size, rotary: bool, sparse: bool = False, normed: bool = False) -> Design:
    """Learned positions, LayerNorm and gelu, or with `rotary` those of Llama: RMSNorm and SwiGLU.
    With `sparse` the last one of `every` blocks has experts; with `normed` heads are normed."""
    norm = partial(nn.RMSNorm, eps=1e-6 if normed else 1e-5) if rotary else nn.LayerNorm
    last = size.every - 1

    def block(number):
        part = FeedForward(size, rotary, not rotary, gelu_tanh) if not (
            sparse and number == last) else Experts(
            size.hidden, feed_forward_width(size, rotary), size.experts, choices=size.choices,
            capacity=size.capacity or None, noisy=size.noisy, gated=rotary)
        return Block(size, Attention(size, True, not rotary, rotary, normed=normed), part, norm)

    return Design(norm, block, positions=not rotary,
                  rotated=head_width(size) if rotary else None, tied=not rotary, sparse=sparse)


def deepseek(size: Size) -> Design:
    """Latent attention, and experts in groups beside shared ones; leading blocks have none."""
    norm = partial(nn.RMSNorm, eps=1e-6)
    inner = size.expert_ffn or max(feed_forward_width(size, True)
                                   // (size.choices + size.shared), 1)

    def mixture():
        return Mixture(GroupRouter(size), ExpertWeights(size, inner, False, swiglu),
                       size.capacity, FeedForward(size, True, False, inner=inner * size.shared))

    def block(part):
        return Block(size, LatentAttention(size), part, norm)

    return Design(norm, lambda _: block(mixture()),
                  leading=lambda: block(FeedForward(size, True, False)),
                  rotated=rope_width(size), sparse=True)


def gpt_oss(size: Size) -> Design:
    """Attention with sinks, by turns of a window of keys and of all; experts with biases."""
    norm = partial(nn.RMSNorm, eps=1e-5)
    inner = feed_forward_width(size, True)

    def block(number):
        attention = Attention(size, True, True, True, window=None if number else size.window,
                              sinks=True)
        return Block(size, attention, Mixture(
            ChosenRouter(size), ExpertWeights(size, inner, True, bounded_swiglu),
            size.capacity), norm)

    return Design(norm, block, rotated=head_width(size), sparse=True)


class OffsetNorm(nn.Module):
    """An RMSNorm whose weight is added to 1."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, 1 + self.weight, 1e-6)


def gemma(size: Size) -> Design:
    """Scaled embeddings, norms with an offset, and a gate of gelu."""
    def block(_):
        return Block(size, Attention(size, True, False, True), _gelu_gated(size), OffsetNorm)

    return Design(OffsetNorm, block, rotated=head_width(size), tied=True,
                  scale=size.hidden ** 0.5)


def gemma2(size: Size) -> Design:
    """As `gemma`, with bounds of scores and logits, norms around each part, and by turns a window
    of keys and all of them."""
    def block(number):
        attention = Attention(size, True, False, True, scale=size.score_width ** -0.5
                              if size.score_width else None,
                              window=None if number else size.window, cap=50.0)
        return NormedBlock(size, attention, _gelu_gated(size))

    return Design(OffsetNorm, block, rotated=head_width(size), tied=True,
                  scale=size.hidden ** 0.5, cap=30.0)


def _gelu_gated(size: Size) -> FeedForward:
    return FeedForward(size, True, False, gate_activation=gelu_tanh)


class NormedBlock(nn.Module):
    """Attention and feed-forward with residual connections, and norms before and after each."""

    def __init__(self, size: Size, attention: Attention, feed_forward: FeedForward):
        super().__init__()
        self.norm1, self.attention = OffsetNorm(size.hidden), attention
        self.norm2, self.norm3 = OffsetNorm(size.hidden), OffsetNorm(size.hidden)
        self.feed_forward, self.norm4 = feed_forward, OffsetNorm(size.hidden)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x, table=None, mask=None, losses=None):
        x = x + self.dropout(self.norm2(self.attention(self.norm1(x), table, mask)))
        return x + self.dropout(self.norm4(self.feed_forward(self.norm3(x))))


class StateBlock(nn.Module):
    """A state-space layer with a residual connection."""

    def __init__(self, size: Size, norm):
        super().__init__()
        self.norm, self.mixer = norm(size.hidden), StateSpace(size)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x, table=None, mask=None, losses=None):
        return x + self.dropout(self.mixer(self.norm(x)))


def mamba2(size: Size) -> Design:
    """State-space layers alone."""
    norm = partial(nn.RMSNorm, eps=1e-5)
    return Design(norm, lambda _: StateBlock(size, norm), tied=True)
