# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The layers of the transformers of `cleave.models`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .size import Size


class Attention(nn.Module):
    """Attention with grouped heads and, with `rotary`, rotated positions. Keys and values are
    computed of `x`, or of `memory`, the output of an encoder. `scale` is the factor of the
    scores; None: 1 / sqrt(width of a head)."""

    def __init__(self, size: Size, causal: bool, bias: bool, rotary: bool,
                 scale: float | None = None):
        super().__init__()
        self.heads, self.kv_heads = size.heads, size.kv_heads
        self.width = size.hidden // size.heads
        self.causal, self.rotary, self.scale = causal, rotary, scale
        self.dropout = size.dropout
        self.query = nn.Linear(size.hidden, self.heads * self.width, bias=bias)
        self.key = nn.Linear(size.hidden, self.kv_heads * self.width, bias=bias)
        self.value = nn.Linear(size.hidden, self.kv_heads * self.width, bias=bias)
        self.output = nn.Linear(self.heads * self.width, size.hidden, bias=bias)

    def forward(self, x, table=None, mask=None, memory=None):
        batch, positions, _ = x.shape
        memory = x if memory is None else memory

        def split(y, heads):
            return y.view(batch, -1, heads, self.width).transpose(1, 2)

        query = split(self.query(x), self.heads)
        key = split(self.key(memory), self.kv_heads)
        value = split(self.value(memory), self.kv_heads)
        if self.rotary:
            query, key = rotate(query, *table), rotate(key, *table)
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=self.causal,
            dropout_p=self.dropout if self.training else 0.0, scale=self.scale,
            enable_gqa=self.heads != self.kv_heads)
        return self.output(attended.transpose(1, 2).reshape(batch, positions, -1))


def rotate(x, cos, sin):
    """Rotary position embedding (arXiv 2104.09864) of [b, a, s, d]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def rotary_table(positions: int, width: int, device, base: float = 10000.0):
    """cos and sin of the angles, [positions, width] each."""
    index = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    frequency = torch.exp(index * (-math.log(base) / width))
    angle = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


class FeedForward(nn.Module):
    """Two layers with `activation` between them, or with `gated` the SwiGLU."""

    def __init__(self, size: Size, gated: bool, bias: bool, activation=F.gelu):
        super().__init__()
        inner = feed_forward_width(size, gated)
        self.gate = nn.Linear(size.hidden, inner, bias=bias) if gated else None
        self.up = nn.Linear(size.hidden, inner, bias=bias)
        self.down = nn.Linear(inner, size.hidden, bias=bias)
        self.activation = activation

    def forward(self, x):
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
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
