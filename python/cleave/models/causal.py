# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Decoders: from tokens to logits of the next token."""

from __future__ import annotations

import dataclasses
from typing import Callable

import torch
from torch import nn

from .layers import BlockGroup, initialize, next_token_loss, rotary_table
from .size import Size


@dataclasses.dataclass
class Design:
    """The parts by which a family of decoders differs from others."""

    #: The norm of a width.
    norm: Callable[[int], nn.Module]
    #: A block, of the number that it has among those of a layer.
    block: Callable[[int], nn.Module]
    #: A block before those of the layers that are alike.
    leading: Callable[[], nn.Module] | None = None
    #: Whether positions are learned, or else the channels that are rotated; None: no positions.
    positions: bool = False
    rotated: int | None = None
    #: Whether the head's weight is the token embedding, if the size does not say.
    tied: bool = False
    #: Factor of the embeddings, and bound of the logits.
    scale: float = 1.0
    cap: float | None = None
    #: Whether blocks have losses of their own, which balance experts.
    sparse: bool = False


class CausalModel(nn.Module):
    """A decoder: from tokens to logits of the next token. Each of the layers that are alike is an
    item of `blocks`, and has `period` blocks; `leading` blocks come before them."""

    #: Lists of layers that are alike.
    LAYERS = ("blocks",)

    def __init__(self, size: Size, design: Design, period: int = 1, leading: int = 0):
        super().__init__()
        self.balance = size.balance if design.sparse else None
        self.rotated, self.scale, self.cap = design.rotated, design.scale, design.cap
        self.base, self.factor = size.rope_base or 10000.0, size.rope_factor or 1.0
        if self.rotated is not None and self.rotated % 2:
            raise ValueError(f"{self.rotated} channels of a head have positions; rotary positions "
                             "turn pairs of channels, so it must be even")
        self.tokens = nn.Embedding(size.vocab, size.hidden)
        self.positions = nn.Embedding(size.seq, size.hidden) if design.positions else None
        self.dropout = nn.Dropout(size.dropout)

        def group():
            blocks = [design.block(i) for i in range(period)]
            return blocks[0] if len(blocks) == 1 else BlockGroup(blocks)

        self.leading = nn.ModuleList(design.leading() for _ in range(leading))
        self.blocks = nn.ModuleList(group() for _ in range((size.layers - leading) // period))
        self.norm = design.norm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocab, bias=False)
        initialize(self, size.layers)
        if design.tied if size.tied is None else size.tied:
            self.head.weight = self.tokens.weight

    def forward(self, input_ids, labels):
        length = input_ids.shape[1]
        x = self.tokens(input_ids)
        if self.scale != 1:
            x = x * self.scale
        table = None
        if self.positions is not None:
            x = x + self.positions(torch.arange(length, device=input_ids.device))
        elif self.rotated is not None:
            table = rotary_table(length, self.rotated, input_ids.device, self.base, self.factor)
        x = self.dropout(x)
        for block in self.leading:
            x = block(x, table)
        balance = 0
        for block in self.blocks:
            losses = []
            x = block(x, table, losses=losses)
            # Added at each block, so that all of them are alike.
            balance = sum(losses, balance)
        logits = self.head(self.norm(x))
        if self.cap is not None:
            logits = self.cap * torch.tanh(logits / self.cap)
        loss = next_token_loss(logits, labels)
        if self.balance is not None:
            loss = loss + self.balance * balance
        return loss, logits
