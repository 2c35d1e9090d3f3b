# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Encoders: of tokens, some of which are masked, and of image patches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .layers import Attention, Block, FeedForward, initialize
from .size import Size


class MaskedModel(nn.Module):
    """An encoder: from tokens, some of them masked, to logits of the masked ones."""

    #: Lists of layers that are alike.
    LAYERS = ("blocks",)

    def __init__(self, size: Size):
        super().__init__()
        self.tokens = nn.Embedding(size.vocab, size.hidden)
        self.positions = nn.Embedding(size.seq, size.hidden)
        self.norm = nn.LayerNorm(size.hidden)
        self.dropout = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(
            Block(size, Attention(size, False, True, False), FeedForward(size, False, True),
                  nn.LayerNorm, post=True) for _ in range(size.layers))
        self.transform = nn.Linear(size.hidden, size.hidden)
        self.transform_norm = nn.LayerNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocab)
        initialize(self, size.layers)
        if size.tied is not False:
            self.head.weight = self.tokens.weight

    def forward(self, input_ids, attention_mask, labels):
        x = self.tokens(input_ids)
        x = x + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        x = self.dropout(self.norm(x))
        mask = attention_mask.bool()[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask=mask)
        logits = self.head(self.transform_norm(F.gelu(self.transform(x))))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


class ImageModel(nn.Module):
    """An encoder of image patches that classifies by a class token."""

    #: Lists of layers that are alike.
    LAYERS = ("blocks",)

    def __init__(self, size: Size):
        super().__init__()
        if size.patch > size.image:
            raise ValueError(f"a patch of {size.patch} pixels is larger than an image of "
                             f"{size.image}")
        count = (size.image // size.patch) ** 2
        self.patches = nn.Conv2d(3, size.hidden, size.patch, size.patch)
        self.summary = nn.Parameter(torch.zeros(1, 1, size.hidden))
        self.positions = nn.Parameter(torch.zeros(1, count + 1, size.hidden))
        self.dropout = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(
            Block(size, Attention(size, False, True, False), FeedForward(size, False, True),
                  nn.LayerNorm) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocab)
        initialize(self, size.layers)
        for parameter in (self.summary, self.positions):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, pixel_values, labels):
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat((self.summary.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x[:, 0]))
        return F.cross_entropy(logits, labels), logits
