# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Positions that each sample gives (left padding, packed or shuffled rows), where ranks share a
sequence: values, gradients and parameters of three steps are those of one rank, in f64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cleave.testing.tools import interpret, run_tool, tool
from cleave.trace import trace
from proofs import ALL
from recipe_runs import OPTIMIZERS, agree, random_inputs
from trace_support import text_in_double

ROWS, LENGTH, WORDS = 4, 16, 96


def turned(x, cos, sin):
    """Rotary positions (arXiv 2104.09864, section 3.2.2) of `[rows, heads, positions, 8]`."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Model(nn.Module):
    """An attention that reads positions in one way."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.embed, self.places = nn.Embedding(WORDS, 32), nn.Embedding(LENGTH, 32)
        self.qkv, self.head = nn.Linear(32, 96), nn.Linear(32, WORDS)
        self.distances = nn.Embedding(2 * LENGTH, 4)
        angles = torch.arange(LENGTH)[:, None] / 100 ** (torch.arange(4) / 4)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, input_ids, labels, position_ids):
        x = self.embed(input_ids)
        if self.way == "learned":
            x = x + self.places(position_ids)
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.way == "table":
            cos, sin = self.cos[position_ids][:, None], self.sin[position_ids][:, None]
            q, k = turned(q, cos, sin), turned(k, cos, sin)
        if self.way == "angles":
            angles = position_ids[:, :, None].to(x.dtype) * 0.3 ** torch.arange(4, dtype=x.dtype)
            angles = torch.cat((angles, angles), -1)[:, None]
            q, k = (turned(t, angles.cos(), angles.sin()) for t in (q, k))
        mask, rows, columns = None, position_ids[:, None, :, None], position_ids[:, None, None, :]
        if self.way == "mask":
            mask = rows >= columns
        if self.way == "distance":
            mask = self.distances((rows - columns)[:, 0] + LENGTH).permute(0, 3, 1, 2)
        x = x + F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.head(x[:, :-1]).flatten(0, 1), labels[:, 1:].flatten())


WAYS = ["learned", "table", "angles", "mask", "distance"]
LAYOUTS = [("cp=2", "two-ring"), ("cp=4", "two-ring"), ("cp=4", "ring"), ("cp=4", "context"),
           ("cp=2", "ulysses"), ("dp=2,cp=2", "two-ring,zero1"), ("cp=2,tp=2", "two-ring,megatron")]


def steps(text, inputs):
    for _ in range(3):
        results, gradients = interpret(text, inputs, entry="train")
        inputs = {**inputs, **{name: value.reshape(inputs[name].shape)
                               for name, value in results.items() if name in inputs}}
    return results, gradients


@pytest.mark.parametrize("way", WAYS)
def test_positions_of_samples(tmp_path, way):
    ids = torch.randint(3, WORDS, (ROWS, LENGTH))
    positions = torch.stack([torch.randperm(LENGTH) for _ in range(ROWS)])
    path = tmp_path / "model.mlir"
    path.write_text(text_in_double(trace(Model(way).train().double(), dict(
        input_ids=ids, labels=ids, position_ids=positions)).mlir))

    def emit(phase, *flags):
        return run_tool([tool("cleave-compile"), str(path), f"--emit={phase}",
                         *OPTIMIZERS["adamw"], *flags])

    whole = emit("step")
    inputs = {**random_inputs(whole), "position_ids": positions.numpy()}
    results, gradients = steps(whole, inputs)
    for mesh, plan in LAYOUTS if ALL else LAYOUTS[:4]:
        found, own = steps(emit("local", f"--mesh={mesh}", f"--plan={plan}"), inputs)
        agree(found, results)
        agree(own, gradients)
