# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Sizes, inputs and an attention layer for tests of modules written by hand."""

import torch
import torch.nn.functional as F
from torch import nn

from trace_support import check, raised

B, S, H, A, V = 2, 6, 16, 4, 20
D = H // A


def ids(high=V, shape=(B, S), seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def scaled(module, seed=0):
    """The module with weights large enough that every part of it matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.1)
    return module


def language_loss(logits, targets):
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class Heads(nn.Module):
    """Projections around an attention that a test writes in its own way."""

    def __init__(self, attend, **buffers):
        super().__init__()
        self.embed = nn.Embedding(V, H)
        self.qkv = nn.Linear(H, 3 * H)
        self.out = nn.Linear(H, V)
        self.attend = attend
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, tokens, documents=None):
        extra = [] if documents is None else [documents]
        x = self.embed(tokens)
        q, k, v = (y.view(*tokens.shape, A, D).transpose(1, 2)
                   for y in self.qkv(x).split(H, dim=2))
        y = self.attend(self, q, k, v, *extra)
        return self.out(y.transpose(1, 2).reshape(*tokens.shape, H))


def attention_of(attend, documents=None, **buffers):
    """Traces and checks; returns the text of @loss after the phase `model` and the traced
    model."""
    inputs = dict(tokens=ids(), documents=documents, target=ids(seed=1))
    inputs = {k: v for k, v in inputs.items() if v is not None}
    traced = check(scaled(Heads(attend, **buffers)), inputs, language_loss)
    return raised(traced.mlir), traced
