# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What stages send each other in few elements: the largest of each row, and their gradients.

The step of whole tensors (`--emit=step`) has the masks; one device interprets it in f64. Programs
of stages equal it, whatever their schedule and what else is split.
"""

import json
import re

import numpy as np
import pytest
import torch

import cleave
from cleave.testing.tools import ToolError, interpret, run_tool, tool
from test_pipelines import MAKERS, schedule_report  # noqa: F401 (it adds models)
from test_recipes import BATCH, LENGTH, OPTIMIZERS, agree, emit, random_inputs
from proofs import ALL

DENSITY = 0.1
CASES = [
    ("gpt2", "pp=2", "", 2, ["--schedule=gpipe"]),
    ("llama", "pp=2", "", 4, ["--schedule=1f1b"]),
    ("gpt2", "pp=2,dp=2", "", 2, ["--schedule=interleaved", "--chunks=2"]),
    ("llama", "pp=2,tp=2", "megatron", 2, ["--schedule=zb-h1"]),
    ("gpt2", "pp=2,tp=2", "megatron-sp", 2, ["--stages=transformer.h.1."]),
    ("bert", "pp=2,dp=2", "zero1", 2, ["--schedule=zb-h2"]),
    ("gpt2", "pp=2,dp=2", "zero3", 2, ["--schedule=zb-v"]),
    ("gpt2", "pp=2,cp=2", "ring", 2, ["--stages=transformer.h.1."]),
    ("llama", "pp=2,cp=2", "ulysses", 1, []),
    ("gpt2", "pp=2,tp=2", "megatron", 2, ["--pipe-slices=on"]),
    # The rows themselves are sharded.
    ("gpt2", "pp=2,row=2,col=2", "summa2d", 2, []),
    # Values jump stages, and one goes to several.
    ("t5", "pp=4", "", 2, []),
    ("t5", "pp=4,tp=2", "megatron", 2, []),
    ("skips", "pp=3,dp=2", "zero1", 1, []),
    ("skips", "pp=4", "", 2, ["--recompute=full"]),
]


def masked(folder, name, mesh, *flags, density=DENSITY, optimizer="adamw"):
    """The step of whole tensors."""
    kept = [flag for flag in flags if flag.startswith(("--stages", "--chunks", "--schedule"))]
    return emit(folder, name, "step", *OPTIMIZERS[optimizer], f"--mesh={mesh}",
                f"--compress-stages={density}", *kept)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:4])))
def test_stages_equal_the_step_of_whole_tensors(tmp_path, case):
    name, mesh, recipes, micro_batches, flags = case
    step = masked(tmp_path, name, mesh, *flags)
    assert "graph.top_k" in step
    inputs = random_inputs(step)
    expected = interpret(step, inputs, entry="train")
    text = emit(tmp_path, name, "scheduled", *OPTIMIZERS["adamw"], f"--mesh={mesh}",
                f"--recipe={recipes}", f"--micro-batches={micro_batches}",
                f"--compress-stages={DENSITY}", *flags)
    found = interpret(text, inputs, entry="train")
    agree(found[0], expected[0])
    agree(found[1], expected[1])
