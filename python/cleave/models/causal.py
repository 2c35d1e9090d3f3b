# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Decoders: from tokens to logits of the next token."""

from __future__ import annotations

import torch
from torch import nn

from ..moe import Experts
from .layers import (Attention, Block, BlockGroup, FeedForward, feed_forward_width, gelu_tanh,
                     initialize, next_token_loss, rotary_table)
from .size import Size


def blocks_of(size: Size, sparse: bool) -> int:
    """The number of blocks of each of the layers that are alike."""
    return size.every if sparse else 1


class CausalModel(nn.Module):
    """A decoder: from tokens to logits of the next token. With `sparse` the last one of
    `every` blocks has experts; several blocks of which one has some are an item of `blocks`."""

    #: Lists of layers that are alike.
    LAYERS = ("blocks",)

    def __init__(self, size: Size, *, rotary: bool, sparse: bool = False):
        super().__init__()
        self.balance = size.balance if sparse else None
        self.width = size.hidden // size.heads
        if rotary and self.width % 2:
            raise ValueError(f"hidden / heads is {self.width}; rotary positions turn pairs of "
                             "channels, so it must be even")
        norm = (lambda n: nn.RMSNorm(n, eps=1e-5)) if rotary else nn.LayerNorm
        self.tokens = nn.Embedding(size.vocab, size.hidden)
        self.positions = None if rotary else nn.Embedding(size.seq, size.hidden)
        self.dropout = nn.Dropout(size.dropout)

        def block(routed):
            part = FeedForward(size, rotary, not rotary, gelu_tanh) if not routed else Experts(
                size.hidden, feed_forward_width(size, rotary), size.experts,
                choices=size.choices, capacity=size.capacity or None, noisy=size.noisy,
                gated=rotary)
            return Block(size, Attention(size, True, not rotary, rotary), part, norm)

        def group():
            if blocks_of(size, sparse) == 1:
                return block(sparse)
            return BlockGroup([*(block(False) for _ in range(size.every - 1)), block(True)])

        self.blocks = nn.ModuleList(group() for _ in range(size.layers // blocks_of(size, sparse)))
        self.norm = norm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocab, bias=False)
        tied = (not rotary) if size.tied is None else size.tied
        initialize(self, size.layers)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, input_ids, labels):
        length = input_ids.shape[1]
        x = self.tokens(input_ids)
        table = None
        if self.positions is not None:
            x = x + self.positions(torch.arange(length, device=input_ids.device))
        else:
            table = rotary_table(length, self.width, input_ids.device)
        x = self.dropout(x)
        balance = 0
        for block in self.blocks:
            losses = []
            x = block(x, table, losses=losses)
            # Added at each block, so that all of them are alike.
            balance = sum(losses, balance)
        logits = self.head(self.norm(x))
        loss = next_token_loss(logits, labels)
        if self.balance is not None:
            loss = loss + self.balance * balance
        return loss, logits
