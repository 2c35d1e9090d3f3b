# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pipelines: the step in stages against the whole one, in f64 by the interpreter.

Loss, every gradient, every updated weight and all optimizer state agree to 1e-10 of
the largest element of their tensor's kind. Dropout is on.
"""

import re

import pytest
import torch
import transformers
from torch import nn

from cleave.testing.tools import ToolError, interpret
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
    ("pp=2,cp=2", "two-ring", 2),
    ("pp=2,ep=2", "expert", 2),
    ("dp=2,pp=2", "zero2", 1),
    ("pp=2,depth=2,row=2,col=2", "summa25d", 1),
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
    models = ["mixtral"] if "expert" in recipes else MODELS
    for offset, name in enumerate(models if ALL else [models[index % len(models)]]):
        check_scheduled(tmp_path_factory, name, mesh, recipes,
                        ["adamw", "sgd"][(index + offset) % 2], micro_batches)


@pytest.mark.parametrize("name, mesh, recipes, micro_batches", SHAPES)
def test_other_shapes(tmp_path_factory, name, mesh, recipes, micro_batches):
    """Values may jump stages."""
    check_scheduled(tmp_path_factory, name, mesh, recipes, "adamw", micro_batches)


#: Schedules, and stages of each position.
SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1),
             ("zb-v", 2), ("v-half", 2), ("v-min", 2), ("dualpipe-v", 2)]
BESIDE = ["", "zero1", "zero3", "megatron", "megatron-sp", "ring", "ulysses", "summa2d", "context"]
AXES = {"zero1": "dp=2", "zero3": "dp=2", "megatron": "tp=2", "megatron-sp": "tp=2",
        "ring": "cp=2", "ulysses": "cp=2", "context": "cp=2", "summa2d": "row=2,col=2"}


@pytest.mark.parametrize("schedule, chunks", SCHEDULES)
def test_schedules_equal_one_device(tmp_path_factory, schedule, chunks):
    """Each schedule, beside recipes in turn; in full beside all of them."""
    index = SCHEDULES.index((schedule, chunks))
    for offset, recipe in enumerate(BESIDE if ALL else BESIDE[index:index + 1]):
        turn = index + offset
        positions = 2 + 2 * (turn % 2)
        mesh = ",".join(filter(None, [f"pp={positions}", AXES.get(recipe)]))
        program = check_scheduled(
            tmp_path_factory, MODELS[turn % len(MODELS)], mesh, recipe,
            ["adamw", "sgd"][turn % 2], 4, flags=[f"--schedule={schedule}", f"--chunks={chunks}"])
        assert f"pipe.stages = {positions * chunks}" in program
        assert program.count(" | ") >= positions - 1


def products(program, name):
    """The products in a part of @train."""
    body = re.search(rf"func.func private @train\.{name}\((.*?)\n  }}", program, re.S).group(1)
    return len(re.findall(r"graph\.(?:contract|linear) ", body))


@pytest.mark.parametrize("mesh, recipes", [("pp=2", ""), ("pp=2,tp=2", "megatron-sp"),
                                           ("pp=2,dp=2", "zero3"), ("pp=2,cp=2", "ring")])
def test_backward_stands_with_forward(tmp_path_factory, mesh, recipes):
    """A stage has two products of backward for each of its forward, and for the head,
    whose product backward makes itself."""
    folder = tmp_path_factory.getbasetemp()
    program = emit(folder, "gpt2", "scheduled", *OPTIMIZERS["sgd"], f"--mesh={mesh}",
                   f"--recipe={recipes}")
    first, second = products(program, "F"), products(program, "1F")
    assert first >= 3 and second >= 3
    assert products(program, "B") == 2 * first
    assert 2 * second <= products(program, "1B") <= 2 * second + 3


@pytest.mark.parametrize("flags, message", [
    (["--mesh=pp=2", "--schedule=2f2b"], "--schedule: .*2f2b.*gpipe"),
    (["--mesh=pp=2", "--schedule=interleaved", "--micro-batches=1"], "interleaved.*multiple"),
    (["--mesh=pp=2", "--schedule=pipedream"], "updates behind each micro-batch"),
    (["--mesh=pp=2", "--chunks=-1"], "--chunks must be positive"),
    (["--mesh=pp=2", "--stages=transformer.g."], "no parameter whose name begins with"),
    (["--mesh=pp=2", "--micro-batches=3"], "micro-batches do not divide"),
    (["--mesh=pp=2", "--recipe=zero1(pp)"], "stages of a pipeline"),
])
def test_bad_flags(tmp_path, flags, message):
    with pytest.raises(ToolError, match=message):
        emit(tmp_path, "gpt2", "scheduled", *flags)


def test_native_code_is_refused(tmp_path):
    with pytest.raises(ToolError, match="several stages, of which no native code"):
        emit(tmp_path, "gpt2", "executable", "--mesh=pp=2")
