# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Attention whose keys and values are computed of a few rows (DeepSeek-V2, arXiv 2405.04434)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .layers import head_width
from .size import Size


def rope_width(size: Size) -> int:
    """The channels of a head that have positions."""
    return size.rope_width or head_width(size) // 2


class LatentAttention(nn.Module):
    """Causal attention of latent rows. A head has channels without positions, and rotated ones,
    whose keys all heads share; neighbouring channels are the pairs that are turned."""

    def __init__(self, size: Size):
        super().__init__()
        self.heads, self.dropout = size.heads, size.dropout
        self.plain, self.rotated = head_width(size), rope_width(size)
        self.value_width = size.value_width or self.plain
        self.rank = size.latent_rank or 4 * self.plain
        queries = size.query_rank or 12 * self.plain
        width = self.plain + self.rotated
        self.query_down = nn.Linear(size.hidden, queries, bias=False)
        self.query_norm = nn.RMSNorm(queries, eps=1e-6)
        self.query_up = nn.Linear(queries, self.heads * width, bias=False)
        self.latent_down = nn.Linear(size.hidden, self.rank + self.rotated, bias=False)
        self.latent_norm = nn.RMSNorm(self.rank, eps=1e-6)
        self.latent_up = nn.Linear(self.rank, self.heads * (self.plain + self.value_width),
                                   bias=False)
        self.output = nn.Linear(self.heads * self.value_width, size.hidden, bias=False)

    def forward(self, x, table=None, mask=None):
        batch, positions, _ = x.shape

        def heads(y):
            return y.view(batch, positions, self.heads, -1).transpose(1, 2)

        query = heads(self.query_up(self.query_norm(self.query_down(x))))
        plain, rotated = query.split([self.plain, self.rotated], -1)
        query = torch.cat((plain, rotate_pairs(rotated, *table)), -1)
        latent, rotated = self.latent_down(x).split([self.rank, self.rotated], -1)
        plain, value = heads(self.latent_up(self.latent_norm(latent))).split(
            [self.plain, self.value_width], -1)
        rotated = rotate_pairs(rotated[:, None], *table).expand(-1, self.heads, -1, -1)
        key = torch.cat((plain, rotated), -1)
        attended = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.output(attended.transpose(1, 2).reshape(batch, positions, -1))


def rotate_pairs(x, cos, sin):
    """`rotate` of neighbouring channels [b, a, s, d]; the result has the first of all pairs
    before the second ones."""
    half = x.shape[-1] // 2
    cos, sin = cos[:, :half], sin[:, :half]
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
