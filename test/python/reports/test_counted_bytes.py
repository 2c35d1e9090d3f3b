# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The bytes that rank 0 sends are those of its plan, by kind and axes, as the runtime counts them
in a step of ranks that are threads."""

import pathlib

import pytest

from counted_bytes import TABLE, counted, planned, row, trained
from proofs import ALL

#: Model, mesh, plan and options.
LAYOUTS = [
    ("gpt2", "dp=2", "", dict()),
    ("llama", "dp=4", "", dict(precision="bf16")),
    ("gpt2", "dp=2", "zero1", dict(precision="bf16", micro_batches=2)),
    ("llama", "dp=4", "zero1", dict(precision="fp16")),
    ("llama", "dp=2", "zero2", dict(micro_batches=4)),
    ("gpt2", "dp=4", "zero2", dict(precision="bf16")),
    ("llama", "dp=2", "zero3", dict(micro_batches=2)),
    ("gpt2", "dp=4", "zero3", dict(precision="bf16", micro_batches=2)),
    ("llama", "dp=2", "zero3", dict(pipe_gather="once", micro_batches=4)),
    ("llama", "dp=2", "zero1", dict(precision="bf16", gradient_dtype="bf16")),
    ("gpt2", "tp=2", "megatron", dict()),
    ("llama", "tp=4", "megatron", dict(precision="bf16")),
    ("grouped", "tp=2", "megatron", dict(precision="bf16", activation_reduction="16bit")),
    ("gpt2", "tp=2", "megatron-sp", dict(precision="bf16")),
    ("llama", "tp=4", "megatron-sp", dict(micro_batches=2)),
    ("llama", "dp=2,tp=2", "megatron,zero1", dict(precision="bf16")),
    ("gpt2", "dp=2,tp=2", "megatron,zero2", dict(micro_batches=2)),
    ("llama", "dp=2,tp=2", "megatron,zero3", dict(precision="fp16")),
    ("gpt2", "dp=2,tp=2", "megatron-sp,zero1", dict(precision="bf16")),
    ("llama", "dp=2,tp=2", "megatron-sp,zero3", dict()),
    ("llama", "cp=2", "context", dict()),
    ("grouped", "cp=4", "context", dict(precision="bf16")),
    ("llama", "cp=2", "ring", dict(precision="bf16")),
    ("grouped", "cp=4", "ring", dict()),
    ("llama", "cp=2", "two-ring", dict()),
    ("gpt2", "cp=2", "two-ring", dict(precision="bf16")),
    ("llama", "cp=4", "ulysses", dict(precision="bf16")),
    ("gpt2", "cp=2", "ulysses", dict(micro_batches=2)),
    ("llama", "dp=2,cp=2", "ring,zero1", dict()),
    ("gpt2", "dp=2,cp=2", "context,zero2", dict(precision="bf16")),
    ("llama", "cp=2,tp=2", "ulysses,megatron", dict()),
    ("llama", "cp=2,tp=2", "ring,megatron-sp", dict(precision="bf16")),
    ("grouped", "node=2,cp=2", "ulysses,ring(node)", dict()),
    ("llama", "node=2,cp=2", "ulysses,context(node)", dict(precision="bf16")),
    ("mixtral", "ep=2", "expert", dict()),
    ("mixtral", "ep=4", "expert", dict(precision="bf16")),
    ("mixtral", "tp=2", "megatron,expert(tp)", dict()),
    ("mixtral", "dp=2,ep=2", "expert,zero1", dict(micro_batches=2)),
    ("gpt2", "row=2,col=2", "summa2d", dict()),
    ("llama", "row=2,col=2", "summa2d", dict(precision="bf16")),
    ("llama", "depth=2,row=2,col=2", "summa25d", dict()),
    ("gpt2", "pp=2", "", dict(micro_batches=4)),
    ("llama", "pp=2", "", dict(micro_batches=4, schedule="gpipe", precision="bf16")),
    ("llama", "pp=2,dp=2", "zero1", dict(micro_batches=4)),
    ("llama", "pp=2,tp=2", "megatron", dict(micro_batches=2)),
    ("gpt2", "pp=2,tp=2", "megatron-sp", dict(micro_batches=2, precision="bf16")),
    ("llama", "pp=2", "", dict(micro_batches=4, schedule="zb-h1")),
]

#: A few, of recipes, precisions and schedules.
SAMPLE = [LAYOUTS[index] for index in (17, 26, 43)]


@pytest.mark.parametrize("name, mesh, plan, settings", LAYOUTS if ALL else SAMPLE, ids=str)
def test_bytes_are_those_of_the_plan(name, mesh, plan, settings):
    step = trained(name, mesh, plan, **settings)
    found = counted(step)
    assert found == planned(step)
    assert sum(entry[2] for entry in found.values()) > 1000


@pytest.mark.parametrize("entry", TABLE if ALL else TABLE[:1], ids=lambda entry: " ".join(entry[:3]))
def test_the_page_has_these_bytes(entry):
    """The table of docs/Parallelism.md: by the closed form, in the plan, and counted."""
    page = pathlib.Path(__file__).parents[3] / "docs/Parallelism.md"
    assert row(*entry) in page.read_text().splitlines()
