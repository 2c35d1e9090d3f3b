# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Attention whose keys travel a ring: what is sent, drawn, hidden and computed.

That training is the same is tested in test_recipes.py and test_training_devices.py.
"""

import collections
import json
import re

import numpy as np
import pytest

import cleave
from cleave.models.__main__ import main as write_model
from cleave.testing.tools import interpret, optimize, run_tool, tool
from ring_models import inputs, model
from training_support import assert_close, cleave_run, family

LOCAL = ["--spmd-decompose-attention", "--spmd-seed-shardings", "--spmd-propagate", "--spmd-partition",
         "--spmd-optimize-collectives", "--spmd-verify"]


def split(text, parts, recipe="ring", *passes):
    options = f"mesh=cp={parts} recipes={recipe}"
    return optimize(text, f"--spmd-order-sequence={options}", f"--spmd-apply-recipes={options}",
                    *passes)


@pytest.mark.parametrize("recipe", ["context", "ring", "two-ring"])
@pytest.mark.parametrize("parts, length", [(2, 8), (4, 16), (4, 72), (4, 12)])
@pytest.mark.parametrize("attributes", [("causal",), ("causal", "window = 5 : i64"), ()])
def test_masks_are_those_of_one_device(recipe, parts, length, attributes):
    """Each element is dropped or kept, and each key seen or hidden, as on one
    device; chunks of 9 places share groups of 64 draws."""
    text = model(length, attributes)
    whole, _ = interpret(text, inputs(length), entry="logits")
    own, _ = interpret(split(text, parts, recipe, *LOCAL), inputs(length), entry="logits")
    assert (whole["dropped"] == own["dropped"]).all()
    assert 0.1 < (own["dropped"] == 0).mean() < 0.4
    assert ((whole["probabilities"] == 0) == (own["probabilities"] == 0)).all()
    assert np.abs(whole["probabilities"] - own["probabilities"]).max() < 1e-14


def places(text, name, op):
    """The constant that operand `name` of each attention reads."""
    constants = dict(re.findall(r"(%\S+) = graph.constant dense<\[?([\d, ]+)\]?>", text))
    return [[int(n) for n in constants[value].split(",")]
            for value in re.findall(rf"graph\.{op} .*?{name} (%\w+)", text)]


def seen(queries, keys):
    """The keys that queries see, by their places."""
    return sum(k <= q for q in queries for k in keys)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_devices_do_the_same(parts):
    """Causal scores of each device, over all steps: at most 1.05 of the mean."""
    length = 48 * parts
    text = split(model(length, dropout=False), parts, "ring", "--spmd-decompose-attention")
    queries, keys = (places(text, f"{name}_starts", "attention") for name in ("query", "key"))
    assert len(queries) == len(keys) == parts
    work = np.zeros(parts)
    pairs = set()
    for rows, columns in zip(queries, keys):
        pieces = len(rows) // parts
        chunk = length // len(rows)
        for device in range(parts):
            own, other = ([place for start in starts[device * pieces:(device + 1) * pieces]
                           for place in range(start, start + chunk)] for starts in (rows, columns))
            work[device] += seen(own, other)
            pairs |= {(q, k) for q in own for k in other}
    assert len(pairs) == length * length
    assert work.sum() == length * (length + 1) / 2
    assert work.max() <= 1.05 * work.mean()


def test_hidden_blocks_are_no_numbers_of_their_own():
    """In a sequence of 4 x 3 places, which has no zig-zag order, the first device
    sees nothing of what three others have."""
    case = family("gpt2", batch=4, length=12)
    one = cleave_run(case, 3, cleave.AdamW(lr=1e-3))
    ring = cleave_run(case, 3, cleave.AdamW(lr=1e-3), mesh={"cp": 4}, plan="ring")
    assert np.isfinite(ring.losses).all()
    assert_close(ring.losses, one.losses, rtol=2e-5)


@pytest.mark.parametrize("zero", ["zero1", "zero2", "zero3"])
@pytest.mark.parametrize("family_name", ["gpt", "llama"])
def test_state_over_the_axis_of_a_ring(tmp_path, family_name, zero):
    """ZeRO over the axis of a ring adds what it exchanges of parameters and gradients: activations
    stay sharded along the sequence, so that keys travel as without it and nothing is regrouped."""
    path, report = tmp_path / "model.mlir", tmp_path / "report.json"
    write_model([family_name, *"--hidden 64 --heads 8 --layers 1 --seq 64 --vocab 512".split(),
                 "--batch", "8", "--no-logits", "-o", str(path)])

    def sent(recipe):
        run_tool([tool("cleave-compile"), str(path), "--mesh=cp=4", f"--plan={recipe}",
                  "--plan-only", "--report", str(report)])
        found = collections.Counter()
        for entry in json.loads(report.read_text())["communication"]["train"]["collectives"]:
            found[entry["kind"]] += entry["elements"]
        return found

    alone, found = sent("ring"), sent(f"ring,{zero}(cp)")
    assert found["permute"] == alone["permute"]
    assert not found["all_to_all"]
    # Of parameters alone: once, and with zero3 in forward and backward.
    assert found["all_gather"] <= (2 if zero == "zero3" else 1) * alone["all_reduce"]
