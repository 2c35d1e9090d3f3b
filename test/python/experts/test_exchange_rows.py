# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Experts that drop no token, over ranks: rows go to the ranks of their experts, and weights stay.
Layouts against one device, by the interpreter in f64 and natively in f32, for experts that are
chosen evenly, all at once, or never."""

import json
import re

import pytest
from expert_rows import CHOICES, LAYERS, ROUTINGS, SAMPLES, TOKENS, WIDTH, drawn, emitted, written
from native_layouts import Expected, check_native
from recipe_runs import OPTIMIZERS, agree, agree_for_steps

from cleave.testing.tools import interpret, run_tool, tool
from proofs import ALL

FLAT, BY_NODE = "--expert-dispatch=flat", "--expert-dispatch=hierarchical"

#: Mesh, plan and further flags.
LAYOUTS = [
    ("ep=2", "expert", ()),
    ("ep=4", "expert", ()),
    ("ep=2", "expert", ("--micro-batches=2",)),
    ("dp=2,ep=2", "expert", ("--micro-batches=2",)),
    ("ep=2,dp=2", "expert,zero1", ()),
    ("dp=2,ep=2", "expert,zero2", ("--micro-batches=2",)),
    ("dp=2,ep=2", "expert,zero3", ()),
    ("ep=2,tp=2", "expert,megatron", ()),
    ("ep=2,tp=2", "megatron-sp,expert", ("--micro-batches=2",)),
    ("dp=2", "expert(dp)", ()),
    ("ep=2", "expert", ("--recompute=full",)),
    ("pp=2,ep=2", "expert", ("--micro-batches=4", "--schedule=1f1b", "--stages=gate1")),
    ("pp=2,ep=2", "expert", ("--micro-batches=4", "--schedule=zb-h1", "--stages=gate1")),
    # Experts over two axes: one all-to-all over both, or over the one along which tokens differ.
    ("node=2,ep=2", "expert(node),expert(ep)", (FLAT,)),
    ("ep=2,node=2", "expert(node),expert(ep)", ("--micro-batches=2", FLAT)),
    ("ep=2,node=2", "expert(ep),expert(node)", ()),
    ("dp=2,tp=2", "megatron,expert(tp),expert(dp)", ()),
    ("dp=2,tp=2", "megatron-sp,expert(tp),expert(dp)", ()),
    ("tp=2,dp=2", "megatron-sp,expert(tp),expert(dp)", ("--micro-batches=2",)),
    ("node=2,ep=2", "expert(node),expert(ep)", ("--recompute=full", FLAT)),
    # Tokens go to nodes first, and rows from there.
    ("node=2,ep=2", "expert(node),expert(ep)", (BY_NODE,)),
    ("node=2,ep=2", "expert(node),expert(ep)", ()),
    ("ep=2,node=2", "expert(node),expert(ep)", ("--micro-batches=2", BY_NODE)),
    ("node=2,dp=2,ep=2", "expert(node),expert(ep)", (BY_NODE,)),
    ("node=2,ep=2,tp=2", "megatron,expert(node),expert(ep)", ()),
    ("node=2,ep=2,tp=2", "expert(node),expert(ep),megatron-sp", ("--micro-batches=2", BY_NODE)),
    ("node=2,ep=2", "expert(node),expert(ep)", ("--recompute=full", BY_NODE)),
    ("dp=2,node=2,ep=2", "expert(node),expert(ep),zero3", ()),
    ("pp=2,node=2,ep=2", "expert(node),expert(ep)",
     ("--micro-batches=2", "--schedule=1f1b", "--stages=gate1", BY_NODE)),
]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_rows_that_travel_equal_one_device(tmp_path, number):
    mesh, plan, flags = LAYOUTS[number]
    path = written(tmp_path, bias=number % 3 == 2)
    own = OPTIMIZERS["adamw"]
    step = emitted(path, "step", *own)
    layout = [f"--mesh={mesh}", f"--plan={plan}", "--expert-buffer=worst", *flags]
    phases = {phase: emitted(path, phase, *own, *layout) for phase in ("local", "scheduled")}
    train = phases["local"].split("func.func @train")[1]
    assert "spmd.all_to_all_rows" in train and "grouped_linear" not in train
    if BY_NODE in flags:
        assert set(re.findall(r"all_to_all_rows .* over @mesh {(.*?)}", train)) == {'"node"', '"ep"'}
    assert not re.search(r"spmd.all_gather %\S+ by <@mesh, \[{\"[de]p\"}, {}, {}\]>.*f64> -> tensor<4x", train)
    names = ["any", "one", "some", "samples"]
    for routing in ROUTINGS if ALL else [names[number % 4], "one"]:
        inputs = drawn(step, routing)
        expected, gradients = interpret(step, inputs, entry="train")
        for phase, text in phases.items():
            found, own_gradients = interpret(text, inputs, entry="train")
            agree(found, expected)
            if phase == "local":
                agree(own_gradients, gradients)
    check_native(path, own, layout, inputs, Expected(step, inputs, expected))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("mesh, plan, flags", LAYOUTS[1:2] + LAYOUTS[3:4] + LAYOUTS[6:8] + LAYOUTS[20:21],
                         ids=lambda part: " ".join(part) if isinstance(part, tuple) else part)
def test_rows_in_16_bits_equal_one_device(tmp_path, mesh, plan, flags, precision):
    """Rows that are sent in 16 bits are the same sums: without rounding, a step is that of one device, and
    after three steps parameters and state are. Sums that nodes return are not rounded."""
    path = written(tmp_path)
    path.write_text(path.read_text().replace("f64", "f32"))
    own = [*OPTIMIZERS["adamw"], f"--precision={precision}"]
    if precision == "fp16":
        own.append("--loss-scale=1")
    step = emitted(path, "step", *own)
    local = emitted(path, "local", *own, f"--mesh={mesh}", f"--plan={plan}", "--expert-buffer=worst", *flags)
    back = re.findall(r"spmd.all_to_all_rows .*xf32>", re.sub(r'.*over @mesh {"node"}.*', "", local))
    assert not back or "tp" in mesh
    agree_for_steps(step, local, drawn(step, "any"))


def test_bytes_are_those_of_the_papers(tmp_path):
    """Four all-to-alls of rows in each layer, of an even share each, and contractions of those rows:
    what the closed form says."""
    path = written(tmp_path)
    path.write_text(path.read_text().replace("f64", "f32"))
    report = json.loads(run_tool([tool("cleave-compile"), str(path), "--mesh=ep=4", "--plan=expert",
                                  "--plan-only", "--report=-"]))
    [rows] = [row for row in report["communication"]["train"]["totals"] if row["kind"] == "all_to_all_rows"]
    each = SAMPLES // 4 * TOKENS * CHOICES * WIDTH * 3 / 4
    assert (rows["count"], rows["elements"]) == (4 * LAYERS, 4 * LAYERS * each)
    assert report["cost"]["operations"]["ratio"] == 1
    assert not report["cost"]["excesses"]
