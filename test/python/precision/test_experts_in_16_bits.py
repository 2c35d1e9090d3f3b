# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mixtures of experts in 16 bits, over ranks, against one rank, without rounding: what
is sent in 16 bits, and where sums are rounded, changes no step."""

import json
import re

import numpy as np
import pytest
from recipe_runs import OPTIMIZERS, agree_for_steps, random_inputs

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool
from proofs import ALL

SIZE = ("--hidden 32 --heads 4 --layers 2 --ffn 48 --seq 16 --vocab 96 --batch 8 --experts 4 "
        "--capacity 1.25 --no-logits")
ROWS = SIZE.replace("--capacity 1.25 ", "")
MODELS = {"mixtral": f"mixtral --kv-heads 4 {SIZE}", "switch": f"switch {SIZE}",
          "qwen3": f"qwen3_moe --kv-heads 4 --choices 3 {SIZE}",
          "rows": f"mixtral --kv-heads 4 {ROWS}"}

#: Mesh and plan.
LAYOUTS = [("ep=4", "expert"), ("ep=2,cp=2", "expert,context"), ("ep=2,cp=2", "expert,ulysses"),
           ("ep=2,cp=2", "expert,ring"), ("dp=2,tp=2", "megatron,expert(tp),expert(dp)"),
           ("dp=2,ep=2", "expert,zero3"), ("ep=2,tp=2", "expert,megatron"),
           ("ep=2,tp=2", "expert,megatron-sp"), ("dp=2,tp=2", "megatron,zero1"),
           ("dp=2,tp=2", "megatron-sp,expert(tp)"), ("ep=2,cp=2,tp=2", "expert,context,megatron-sp"),
           ("tp=2", "megatron,expert(tp)"), ("cp=2", "ring,expert(cp)"), ("dp=2,cp=2", "ring,zero1"),
           ("tp=2", "megatron-sp"), ("cp=2", "context"), ("cp=2,tp=2", "ring,megatron-sp"),
           ("cp=2,tp=2", "context,megatron"), ("dp=2,tp=2", "megatron-sp,expert(dp)"),
           ("cp=4,tp=2", "context,megatron"), ("cp=4,tp=2", "ring,megatron-sp")]


@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=lambda i: " ".join(LAYOUTS[i]))
def test_steps_are_those_of_one_rank(tmp_path, number):
    mesh, plan = LAYOUTS[number]
    names = list(MODELS)
    for name in names if ALL else [names[number % len(names)]]:
        path = tmp_path / f"{name}.mlir"
        assert write_model([*MODELS[name].split(), "-o", str(path)]) == 0
        flags = [*OPTIMIZERS["adamw"], "--precision=bf16"]
        emit = lambda phase, *more: run_tool([tool("cleave-compile"), str(path), f"--emit={phase}",
                                              *flags, *more])
        step, local = emit("step"), emit("local", f"--mesh={mesh}", f"--plan={plan}")
        sent = re.findall(r"spmd\.all_to_all %.* -> tensor<(?:\d+x){4}(\w+)>", local.split("@train")[1])
        assert set(sent) <= {"bf16"}
        gathered = re.findall(r"spmd\.all_gather %.*\[{}, {}, {\"cp\"}, {}\]>.* -> tensor<(?:\d+x){4}(\w+)>",
                              local.split("@train")[1])
        assert set(gathered) <= {"bf16"} or "expert" not in plan
        # Of gradients of tokens only that of rows looked up is gathered in f32.
        if name != "rows" and re.search(r"megatron-sp|expert\(cp\)", plan):
            backward = local.split("@train")[1].split("graph.seed")[1]
            wide = re.findall(r"spmd\.all_gather %.* -> tensor<(?:\d+x){2}(?:1x)?32xf32>", backward)
            assert len(wide) <= 1
        # Outputs that are partial sums are added up by tokens before ranks add them.
        if plan.startswith("megatron,"):
            summed = re.findall(r"spmd\.all_reduce sum %.* {\"tp\"} .*tensor<((?:\d+x)+)\w+>$",
                                local.split("@train")[1], re.M)
            assert all(np.prod([int(n) for n in shape.split("x")[:-1]]) <= 8 * 16 * 32 for shape in summed)
        agree_for_steps(step, local, random_inputs(step))


@pytest.mark.parametrize("mesh, plan", [("tp=2", "megatron"), ("ep=2,tp=2", "expert,megatron"),
                                        ("tp=2", "megatron-sp"), ("cp=2,tp=2", "ring,megatron-sp"),
                                        ("tp=2", "megatron-sp,expert(tp)"), ("cp=4,tp=2", "context,megatron")])
@pytest.mark.parametrize("name", MODELS if ALL else ["mixtral", "rows"])
def test_sums_over_features_have_16_bits(tmp_path, name, mesh, plan):
    """Where it is asked for: sums of experts' outputs and of their gradients as those of attention.
    Without rounding they are the same."""
    path = tmp_path / f"{name}.mlir"
    assert write_model([*MODELS[name].split(), "-o", str(path)]) == 0
    flags = [*OPTIMIZERS["adamw"], "--precision=bf16", "--activation-reduction=16bit"]
    emit = lambda phase, *more: run_tool([tool("cleave-compile"), str(path), f"--emit={phase}",
                                          *flags, *more])
    step, local = emit("step"), emit("local", f"--mesh={mesh}", f"--plan={plan}")
    sums = [line for line in local.split("@train")[1].splitlines()
            if re.search(r"spmd\.(all_reduce|reduce_scatter) sum .*\"tp\"", line)]
    tokens = [re.search(r"\[tensor<(?:8x16|8x2x8)x32x(\w+)>\]", line) for line in sums]
    kinds = [found.group(1) for found in tokens if found]
    # One is the gradient of what the head reads.
    assert "bf16" in kinds and kinds.count("f32") <= 1, kinds
    # Gradients of the weights of choices stay f32.
    assert not any(re.search(r"\[tensor<8x16x[1-4]xbf16>\]", line) for line in sums)
    agree_for_steps(step, local, random_inputs(step))


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("mesh, plan", [
    ("pp=2,tp=2", "megatron,expert(tp)"), ("pp=2,ep=2,tp=2", "expert,megatron-sp"),
    ("pp=2,dp=2,tp=2", "megatron,expert(tp),expert(dp)")])
def test_rows_in_stages(tmp_path, mesh, plan, precision):
    """Rows that ranks keep, or send, are verified after values between stages are sliced; one
    gradient is sent, however often it is rounded."""
    path = tmp_path / "rows.mlir"
    assert write_model([*MODELS["rows"].split(), "-o", str(path)]) == 0
    flags = [*OPTIMIZERS["sgd"], f"--precision={precision}"]
    emit = lambda phase, *more: run_tool([tool("cleave-compile"), str(path), f"--emit={phase}",
                                          *flags, *more])
    layout = (f"--mesh={mesh}", f"--plan={plan}", "--micro-batches=2")
    step, scheduled = emit("step"), emit("scheduled", *layout)
    found = json.loads(run_tool([tool("cleave-compile"), str(path), *flags, *layout, "--plan-only",
                                 "--report=-"]))["cost"]["sent"]
    sent = next(row["bytes"] for row in found if row["kind"] == "send")
    assert sent["plan"] <= 1.02 * sent["form"] + 64
    agree_for_steps(step, scheduled, random_inputs(step))
