# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pipelines: the step in stages against the whole one, in f64 by the interpreter.

Loss, every gradient, every updated weight and all optimizer state agree to 1e-10 of
the largest element of their tensor's kind. Dropout is on.
"""

import pytest

from cleave.testing.tools import interpret
import test_expert_recipes  # noqa: F401 (its models)
from test_recipes import BATCH, LENGTH, OPTIMIZERS, agree, emit, whole_run
from training_support import ALL

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
