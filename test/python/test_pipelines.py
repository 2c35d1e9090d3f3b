# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pipelines: the step in stages against the whole one, in f64 by the interpreter.

Loss, every gradient, every updated weight and all optimizer state agree to 1e-10 of
the largest element of their tensor's kind. Dropout is on.
"""

import pytest
import torch
import transformers
from torch import nn

from cleave.testing.tools import interpret
import test_expert_recipes  # noqa: F401 (its models)
from test_recipes import BATCH, LENGTH, MAKERS, OPTIMIZERS, agree, emit, whole_run
from training_support import ALL


class EncoderDecoder(nn.Module):
    """Each decoder layer reads what the encoder ended with, and all layers of one
    share a table of positions' biases."""

    def __init__(self):
        super().__init__()
        self.model = transformers.T5ForConditionalGeneration(transformers.T5Config(
            vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
            dropout_rate=0.1, decoder_start_token_id=0))

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels).loss


class Skips(nn.Module):
    """A U: the layers going up read what those going down gave, in reverse."""

    def __init__(self, width=32, depth=3):
        super().__init__()
        self.table = nn.Embedding(96, width)
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.dropout = nn.Dropout(0.1)

    def forward(self, input_ids, labels):
        x, kept = self.table(input_ids), []
        for layer in self.down:
            x = torch.tanh(layer(x))
            kept.append(x)
        for layer in self.up:
            x = self.dropout(torch.relu(layer(torch.cat([x, kept.pop()], -1))))
        logits = x @ self.table.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


MAKERS["t5"] = EncoderDecoder
MAKERS["skips"] = Skips

#: Mesh, recipes, micro-batches; models in turn.
CASES = [
    ("pp=2", "", 1),
    ("pp=2", "", 4),
    ("pp=4", "", 2),
    ("pp=2,dp=2", "zero1", 2),
    ("dp=2,pp=2", "zero3", 2),
    ("pp=2,tp=2", "megatron-sp", 2),
    ("pp=4,tp=2", "megatron", 2),
    ("pp=2,cp=2", "ring", 2),
    ("pp=2,cp=2", "ulysses", 1),
    ("pp=2,row=2,col=2", "summa2d", 2),
]
MODELS = ["gpt2", "llama", "bert", "mixtral"]

#: Of models that are no row of layers.
SHAPES = [("skips", "pp=2", "", 2), ("skips", "pp=4", "", 1), ("skips", "pp=3,dp=2", "zero3", 2),
          ("t5", "pp=2", "", 2), ("t5", "pp=4", "", 2), ("t5", "pp=2,tp=2", "megatron", 1)]


def check_scheduled(tmp_path_factory, name, mesh, recipes, optimizer, micro_batches,
                    sizes=(BATCH, LENGTH), flags=()):
    folder = tmp_path_factory.getbasetemp()
    inputs, results, gradients = whole_run(name, optimizer, folder, sizes)
    program = emit(folder, name, "scheduled", *OPTIMIZERS[optimizer], f"--mesh={mesh}",
                   f"--recipe={recipes}", f"--micro-batches={micro_batches}", *flags,
                   sizes=sizes)
    own_results, own_gradients = interpret(program, inputs, entry="train")
    agree(own_results, results)
    agree(own_gradients, gradients)
    return program


@pytest.mark.parametrize("mesh, recipes, micro_batches", CASES)
def test_stages_equal_one_device(tmp_path_factory, mesh, recipes, micro_batches):
    index = CASES.index((mesh, recipes, micro_batches))
    for offset, name in enumerate(MODELS if ALL else [MODELS[index % len(MODELS)]]):
        check_scheduled(tmp_path_factory, name, mesh, recipes,
                        ["adamw", "sgd"][(index + offset) % 2], micro_batches)


@pytest.mark.parametrize("name, mesh, recipes, micro_batches", SHAPES)
def test_other_shapes(tmp_path_factory, name, mesh, recipes, micro_batches):
    """Values may jump stages."""
    check_scheduled(tmp_path_factory, name, mesh, recipes, "adamw", micro_batches)
