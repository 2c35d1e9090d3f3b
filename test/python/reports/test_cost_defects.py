# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mutation testing of `--check-cost`: plans that are made dearer, or that are those of other
options than were asked for, exceed their closed forms."""

import json

import pytest

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool

#: Sizes at which what a plan sends is far above the numbers that no form counts.
SIZES = ["--hidden", "128", "--heads", "8", "--layers", "2", "--seq", "64", "--vocab", "512",
         "--batch", "8", "--no-logits"]

#: Options of a step, and the defects that change something of it: an op repeated, a type widened.
SEEDED = [
    (dict(mesh="dp=2,tp=2", plan="megatron,zero3", precision="bf16"),
     {"repeated all_gather", "repeated all_reduce", "repeated reduce_scatter",
      "repeated contraction", "repeated attention", "f32 on the wire",
      "gradients reduced over all axes", "sums reduced again"}),
    (dict(mesh="cp=2", plan="ring"),
     {"repeated all_reduce", "repeated rotate", "repeated contraction", "repeated attention",
      "gradients reduced over all axes", "sums reduced again"}),
    (dict(mesh="dp=2,cp=2", plan="ulysses,zero1"),
     {"repeated all_to_all", "repeated all_gather", "repeated reduce_scatter",
      "repeated contraction", "repeated attention", "gradients reduced over all axes"}),
    (dict(mesh="dp=2,tp=2", plan="megatron-sp"),
     {"repeated all_gather", "repeated all_reduce", "repeated reduce_scatter",
      "repeated contraction", "repeated attention", "sums reduced again"}),
]

#: Options that are asked for, and those that the plan has instead: what is replicated, wider,
#: gathered more often, recomputed, or sharded by another recipe.
OTHERS = [
    ("state whole", dict(mesh="dp=4", plan="zero1"), dict(plan="")),
    ("parameters whole", dict(mesh="dp=4", plan="zero3"), dict(plan="zero2")),
    ("weights replicated", dict(mesh="dp=2,tp=2", plan="megatron"), dict(plan="")),
    ("masters whole", dict(mesh="dp=4", plan="zero1", precision="bf16"), dict(plan="")),
    ("f32 for bf16", dict(mesh="dp=4", plan="zero3", precision="bf16"), dict(precision="f32")),
    ("f32 gradients", dict(mesh="dp=4", precision="bf16", gradient_dtype="bf16"),
     dict(gradient_dtype="f32")),
    ("f32 sums", dict(mesh="tp=2", plan="megatron", precision="bf16",
                      activation_reduction="16bit"), dict(activation_reduction="f32")),
    ("scattered for each micro-batch", dict(mesh="dp=2", plan="zero1", micro_batches=4),
     dict(plan="zero2")),
    ("gathered for each micro-batch",
     dict(mesh="dp=2", plan="zero3", micro_batches=4, pipe_gather="once"),
     dict(pipe_gather="each")),
    ("blocks computed again", dict(recompute="none"), dict(recompute="full")),
    ("some blocks computed again", dict(recompute="1 full; none"), dict(recompute="full")),
    ("sequences gathered", dict(mesh="cp=2", plan="ring"), dict(plan="context")),
    ("sequences exchanged", dict(mesh="cp=4", plan="ring"), dict(plan="ulysses")),
    ("activations sharded between", dict(mesh="tp=2", plan="megatron"),
     dict(plan="megatron-sp")),
    ("sums of features", dict(mesh="tp=2", plan="megatron-sp"), dict(plan="megatron")),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("defects") / "llama.mlir"
    assert write_model(["llama", *SIZES, "-o", str(path)]) == 0
    return path


def judge(model, asked, planned=None):
    """What is said of each defect, and first of none."""
    flags = [f"--step-options={json.dumps(asked)}"]
    if planned is not None:
        flags.append(f"--planned-options={json.dumps({**asked, **planned})}")
    return json.loads(run_tool([tool("cleave-fuzz"), f"--costs-of={model}", "--count=8", *flags]))


@pytest.mark.parametrize("asked, defects", SEEDED, ids=lambda value: (
    value["plan"] if isinstance(value, dict) else ""))
def test_a_dearer_plan_is_reported(model, asked, defects):
    found = {entry["defect"]: entry for entry in judge(model, asked)}
    sound = set(found.pop("none")["excesses"])
    assert defects <= set(found)
    for name, entry in found.items():
        assert entry["seeded"] and set(entry["excesses"]) - sound, name


@pytest.mark.parametrize("name, asked, planned", OTHERS, ids=lambda value: (
    value if isinstance(value, str) else ""))
def test_a_plan_of_other_options_is_reported(model, name, asked, planned):
    first = judge(model, asked, planned)[0]
    assert not first["missing"] and first["excesses"], name
