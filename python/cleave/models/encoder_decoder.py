# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""An encoder and a decoder, as T5 (arXiv 1910.10683) has them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .layers import Attention, FeedForward, initialize
from .size import Size

#: Buckets of distances between positions, the last of which has those of FARTHEST and above.
BUCKETS, FARTHEST = 32, 128


class PositionBias(nn.Module):
    """A learned bias of the scores by head and bucket of distances, [1, heads, queries, keys];
    with `causal`, later keys have -inf."""

    def __init__(self, heads: int, causal: bool):
        super().__init__()
        self.causal = causal
        self.bias = nn.Embedding(BUCKETS, heads)

    def forward(self, length: int, device):
        position = torch.arange(length, device=device)
        distance = position[None, :] - position[:, None]
        bias = self.bias(self._bucket(distance)).permute(2, 0, 1)[None]
        return bias.masked_fill(distance > 0, -math.inf) if self.causal else bias

    def _bucket(self, distance):
        """Small distances have buckets of their own, larger ones share them logarithmically.
        With `causal` all buckets are those of earlier keys, else half of them."""
        count = BUCKETS if self.causal else BUCKETS // 2
        first = 0 if self.causal else (distance > 0).long() * count
        distance = (-distance).clamp(min=0) if self.causal else distance.abs()
        exact = count // 2
        far = (distance.clamp(min=1).float() / exact).log() / math.log(FARTHEST / exact)
        # A distance at which a bucket begins is in it however logarithms are rounded.
        far = (exact + (far * (count - exact) + 1e-3).long()).clamp(max=count - 1)
        return first + torch.where(distance < exact, distance, far)


class Layer(nn.Module):
    """Self-attention, with `cross` attention to the encoder's output, and feed-forward, each
    with a norm before it and a residual connection."""

    def __init__(self, size: Size, cross: bool):
        super().__init__()

        def attention():
            return Attention(size, False, False, False, scale=1.0)

        def norm():
            return nn.RMSNorm(size.hidden, eps=1e-6)

        self.norm1, self.attention = norm(), attention()
        self.norm2, self.cross = (norm(), attention()) if cross else (None, None)
        self.norm3 = norm()
        self.feed_forward = FeedForward(size, False, False,
                                        nn.Sequential(nn.ReLU(), nn.Dropout(size.dropout)))
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x, bias, memory=None):
        x = x + self.dropout(self.attention(self.norm1(x), mask=bias))
        if self.cross is not None:
            x = x + self.dropout(self.cross(self.norm2(x), memory=memory))
        return x + self.dropout(self.feed_forward(self.norm3(x)))


class EncoderDecoderModel(nn.Module):
    """From tokens, and the labels before each position, to logits of the labels. Before the
    first label, and in place of one that is ignored, the decoder reads token 0."""

    #: Lists of layers that are alike.
    LAYERS = ("encoder", "decoder")

    def __init__(self, size: Size):
        super().__init__()
        self.tokens = nn.Embedding(size.vocab, size.hidden)
        self.encoder_bias = PositionBias(size.heads, causal=False)
        self.encoder = nn.ModuleList(Layer(size, False) for _ in range(size.layers))
        self.encoder_norm = nn.RMSNorm(size.hidden, eps=1e-6)
        self.decoder_bias = PositionBias(size.heads, causal=True)
        self.decoder = nn.ModuleList(Layer(size, True) for _ in range(size.layers))
        self.decoder_norm = nn.RMSNorm(size.hidden, eps=1e-6)
        self.dropout = nn.Dropout(size.dropout)
        self.head = nn.Linear(size.hidden, size.vocab, bias=False)
        initialize(self, size.layers)
        for child in self.modules():
            if isinstance(child, Attention):
                # The factor that its scores do not have.
                nn.init.normal_(child.query.weight, std=0.02 * child.width ** -0.5)
        self.scale = 1.0
        if size.tied is not False:
            nn.init.normal_(self.tokens.weight)
            self.head.weight = self.tokens.weight
            self.scale = size.hidden ** -0.5

    def forward(self, input_ids, labels):
        memory = self.dropout(self.tokens(input_ids))
        bias = self.encoder_bias(input_ids.shape[1], input_ids.device)
        for layer in self.encoder:
            memory = layer(memory, bias)
        memory = self.dropout(self.encoder_norm(memory))
        before = F.pad(labels[:, :-1], (1, 0)).clamp(min=0)
        x = self.dropout(self.tokens(before))
        bias = self.decoder_bias(labels.shape[1], labels.device)
        for layer in self.decoder:
            x = layer(x, bias, memory)
        logits = self.head(self.dropout(self.decoder_norm(x)) * self.scale)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits
