# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The layers of the transformers of `cleave.models`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .size import Size

#: Positions that models were trained with before YaRN stretches them.
STRETCHED = 4096


class Attention(nn.Module):
    """Attention with grouped heads and, with `rotary`, rotated positions. Keys and values are
    computed of `x`, or of `memory`, the output of an encoder. `scale` is the factor of the
    scores; None: 1 / sqrt(width of a head).

    With `normed`, heads of queries and keys are normed. A query sees `window` keys, itself the
    last of them. Scores are bounded by `cap * tanh(scores / cap)`. With `sinks`, each head has a
    learned score beside those of the keys, which has no value."""

    def __init__(self, size: Size, causal: bool, bias: bool, rotary: bool,
                 scale: float | None = None, *, normed: bool = False, window: int | None = None,
                 cap: float | None = None, sinks: bool = False):
        super().__init__()
        self.heads, self.kv_heads = size.heads, size.kv_heads
        self.width = head_width(size)
        self.causal, self.rotary, self.scale = causal, rotary, scale
        self.window, self.cap = window, cap
        self.dropout = size.dropout
        self.query = nn.Linear(size.hidden, self.heads * self.width, bias=bias)
        self.key = nn.Linear(size.hidden, self.kv_heads * self.width, bias=bias)
        self.value = nn.Linear(size.hidden, self.kv_heads * self.width, bias=bias)
        self.output = nn.Linear(self.heads * self.width, size.hidden, bias=bias)
        self.query_norm, self.key_norm = (
            nn.RMSNorm(self.width, eps=1e-6) if normed else None for _ in range(2))
        self.sinks = nn.Parameter(torch.zeros(self.heads)) if sinks else None

    def forward(self, x, table=None, mask=None, memory=None):
        batch, positions, _ = x.shape
        memory = x if memory is None else memory

        def split(y, heads, norm=None):
            y = y.view(batch, -1, heads, self.width)
            return (y if norm is None else norm(y)).transpose(1, 2)

        query = split(self.query(x), self.heads, self.query_norm)
        key = split(self.key(memory), self.kv_heads, self.key_norm)
        value = split(self.value(memory), self.kv_heads)
        if self.rotary:
            query, key = rotate(query, *table), rotate(key, *table)
        if self.cap is not None or self.sinks is not None:
            attended = self._bounded(query, key, value)
        else:
            if self.window is not None:
                mask = visible(positions, self.window, x.device)
            attended = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=self.causal and mask is None,
                dropout_p=self.dropout if self.training else 0.0, scale=self.scale,
                enable_gqa=self.heads != self.kv_heads)
        return self.output(attended.transpose(1, 2).reshape(batch, positions, -1))

    def _bounded(self, query, key, value):
        """Causal attention with a cap or sinks: probabilities are exp(scores - total), where the
        total is the logarithm of the sum over keys, and the sink."""
        batch, _, positions, width = query.shape
        grouped = query.reshape(batch, self.kv_heads, -1, positions, width)
        scores = torch.einsum("bgrqd,bgkd->bgrqk", grouped, key)
        scores = scores * (width ** -0.5 if self.scale is None else self.scale)
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        scores = scores.masked_fill(~visible(positions, self.window, query.device), -math.inf)
        if self.sinks is None:
            probabilities = scores.softmax(-1)
        else:
            sinks = self.sinks.view(self.kv_heads, -1, 1, 1)
            total = torch.logaddexp(scores.logsumexp(-1, keepdim=True), sinks)
            probabilities = (scores - total).exp()
        probabilities = F.dropout(probabilities, self.dropout, self.training)
        attended = torch.einsum("bgrqk,bgkd->bgrqd", probabilities.to(value.dtype), value)
        return attended.reshape(batch, self.heads, positions, width)


def head_width(size: Size) -> int:
    """The channels of a head."""
    return size.head_width or size.hidden // size.heads


def visible(positions: int, window: int | None, device):
    """Which keys a query sees, [positions, positions]: itself and those before it, `window` in
    all."""
    place = torch.arange(positions, device=device)
    distance = place[:, None] - place[None, :]
    seen = distance >= 0
    return seen if window is None or window >= positions else seen & (distance < window)


def rotate(x, cos, sin):
    """Rotary position embedding (arXiv 2104.09864) of [b, a, s, d]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def rotary_table(positions: int, width: int, device, base: float = 10000.0, factor: float = 1.0):
    """cos and sin of the angles, [positions, width] each. With a `factor` above 1, wavelengths
    of which few fit into STRETCHED positions are longer by it (YaRN, arXiv 2309.00071)."""
    index = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    frequency = torch.exp(index * (-math.log(base) / width))
    if factor > 1:
        # Channels between these turn from 32 times to once in STRETCHED positions.
        first, last = (width * math.log(STRETCHED / (2 * math.pi * turns)) / math.log(base)
                       for turns in (32, 1))
        first, last = max(first, 0), min(last, 2 * (width - 1))
        slow = ((index - first) / (last - first)).clamp(0, 1)
        frequency = frequency * (1 - slow * (1 - 1 / factor))
    angle = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequency
    angle = torch.cat((angle, angle), dim=-1)
    if factor == 1:
        return angle.cos(), angle.sin()
    longer = 0.1 * math.log(factor) + 1
    return angle.cos() * longer, angle.sin() * longer


class FeedForward(nn.Module):
    """Two layers with `activation` between them, or with `gated` the SwiGLU, whose gate has
    `gate_activation`. `inner` is the width between them; None: that of the size."""

    def __init__(self, size: Size, gated: bool, bias: bool, activation=F.gelu,
                 gate_activation=F.silu, inner: int | None = None):
        super().__init__()
        inner = inner or feed_forward_width(size, gated)
        self.gate = nn.Linear(size.hidden, inner, bias=bias) if gated else None
        self.up = nn.Linear(size.hidden, inner, bias=bias)
        self.down = nn.Linear(inner, size.hidden, bias=bias)
        self.activation = gate_activation if gated else activation

    def forward(self, x):
        if self.gate is not None:
            return self.down(self.activation(self.gate(x)) * self.up(x))
        return self.down(self.activation(self.up(x)))


def gelu_tanh(x):
    """gelu, approximated by tanh (arXiv 1606.08415)."""
    return F.gelu(x, approximate="tanh")


def feed_forward_width(size: Size, gated: bool) -> int:
    """`ffn`, or by default four times `hidden`; for SwiGLU two thirds of that, up to a
    multiple of 256."""
    default = math.ceil(8 * size.hidden / 3 / 256) * 256 if gated else 4 * size.hidden
    return size.ffn or default


class Block(nn.Module):
    """Attention and feed-forward with residual connections; with `post` the norms
    follow each sum instead of preceding each part."""

    def __init__(self, size: Size, attention: Attention, feed_forward: FeedForward, norm,
                 post: bool = False):
        super().__init__()
        self.norm1, self.attention = norm(size.hidden), attention
        self.norm2, self.feed_forward = norm(size.hidden), feed_forward
        self.dropout = nn.Dropout(size.dropout)
        self.post = post

    def forward(self, x, table=None, mask=None, losses=None):
        """A loss of the feed-forward part's own is appended to `losses`."""
        if self.post:
            x = self.norm1(x + self.dropout(self.attention(x, table, mask)))
            return self.norm2(x + self.dropout(self.feed_forward(x)))
        x = x + self.dropout(self.attention(self.norm1(x), table, mask))
        y = self.feed_forward(self.norm2(x))
        if isinstance(y, tuple):
            y, loss = y
            losses.append(loss)
        return x + self.dropout(y)


class BlockGroup(nn.ModuleList):
    """Blocks one after the other, called as one."""

    def forward(self, x, table=None, mask=None, losses=None):
        for block in self:
            x = block(x, table, mask, losses)
        return x


def initialize(module: nn.Module, layers: int) -> None:
    """Normal weights of deviation 0.02, smaller for the last layer of a block's
    part."""
    for name, child in module.named_modules():
        if isinstance(child, (nn.Linear, nn.Embedding)):
            last = name.endswith((".output", ".down"))
            nn.init.normal_(child.weight, std=0.02 / math.sqrt(2 * layers) if last else 0.02)
        if isinstance(child, nn.Linear) and child.bias is not None:
            nn.init.zeros_(child.bias)


def next_token_loss(logits, labels):
    """Mean cross entropy of predicting position i + 1 of `labels` at i."""
    targets = F.pad(labels[:, 1:], (0, 1), value=-100)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
