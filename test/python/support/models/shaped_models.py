# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models that are not a row of layers: an encoder with a decoder, and a U."""

import types

import torch
import transformers
from torch import nn


class EncoderDecoder(nn.Module):
    """Each decoder layer reads what the encoder ended with, and all layers of one
    share a table of positions' biases."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.model = transformers.T5ForConditionalGeneration(transformers.T5Config(
            vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
            dropout_rate=dropout, decoder_start_token_id=0))
        self.config = self.model.config

    def forward(self, input_ids, labels, use_cache=False):
        return self.model(input_ids=input_ids, labels=labels, use_cache=use_cache)


class Skips(nn.Module):
    """A U: the layers going up read what those going down gave, in reverse."""

    def __init__(self, width=32, depth=3, dropout=0.1):
        super().__init__()
        self.table = nn.Embedding(96, width)
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.dropout = nn.Dropout(dropout)
        self.config = types.SimpleNamespace()

    def forward(self, input_ids, labels):
        x, kept = self.table(input_ids), []
        for layer in self.down:
            x = torch.tanh(layer(x))
            kept.append(x)
        for layer in self.up:
            x = self.dropout(torch.relu(layer(torch.cat([x, kept.pop()], -1))))
        logits = x @ self.table.weight.T
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return types.SimpleNamespace(loss=loss, logits=logits)
