# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Offload to a file: the bits are those of a run that keeps everything in memory, over
optimizers, recipes and schedules; what is moved is counted; checkpoints go through it."""

import itertools
import json

import numpy
import pytest
import torch

import cleave
from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool
from offload_runs import CONFIG, FUSIONS, OPTIMIZERS, PLACES, batches, compiled
from proofs import ALL
from training_support import gpt2, same_bits, snapshot

KINDS = [["state"], ["saved"], ["state", "saved"]]
WIDE = [["masters"], ["state", "masters"], ["state", "masters", "saved"]]

#: Each place and each optimizer with some of the others.
SAMPLE = [
    ("one", "none", "adamw", "f32", ["state"]),
    ("one", "backward", "adamw", "bf16", ["state", "masters"]),
    ("parts", "forward", "lamb", "f32", ["state", "saved"]),
    ("zero1", "clip", "adamw", "bf16", ["state", "masters", "saved"]),
    ("zero3", "none", "adagrad", "f32", ["state", "saved"]),
    ("tp", "none", "adafactor", "bf16", ["state", "masters", "saved"]),
    ("1f1b", "clip", "adamw8bit", "f32", ["state", "saved"]),
    ("zb-v", "validated", "adamw", "bf16", ["state", "masters"]),
    ("interleaved", "none", "lion", "f32", ["saved"]),
    ("pipedream", "none", "sgd", "f32", ["state"]),
    ("many", "none", "adamw", "f32", ["saved"]),
    ("grains", "clip", "plain", "bf16", ["masters"]),
    ("one", "none", "adamw8bit", "f32", ["state"]),
    ("one", "backward", "lamb", "bf16", ["masters"]),
    ("tp", "none", "adamw", "f32", ["state"]),
    ("one", "none", "adamw8bit", "bf16", ["masters"]),
]


def legal(place, fusion, optimizer, precision, kinds):
    """The compiler refuses the rest, with or without offload."""
    if fusion == "backward" and place not in ("one", "zero1", "tp"):
        return False
    if fusion == "validated" and place not in ("1f1b", "zb-v", "interleaved"):
        return False
    if place == "pipedream" and (fusion != "none" or optimizer in ("lamb", "adafactor")):
        return False
    if place == "grains" and fusion in ("backward", "forward"):
        return False
    return ("masters" in kinds) <= (precision == "bf16")


EVERY = [case for case in itertools.product(PLACES, FUSIONS, OPTIMIZERS, ("f32", "bf16"),
                                            KINDS + WIDE) if legal(*case)]


@pytest.mark.parametrize("place, fusion, optimizer, precision, kinds", EVERY if ALL else SAMPLE[1::2],
                         ids=lambda value: "+".join(value) if isinstance(value, list) else value)
def test_bits(place, fusion, optimizer, precision, kinds):
    case = (place, fusion, optimizer, precision)
    kept, moved = compiled(None, *case), compiled(kinds, *case)
    # Backward fuses the sums of LAMB's norms with other ops where copies of weights are read from their
    # masters once: they are added in another order.
    exact = (fusion, optimizer) != ("backward", "lamb") or "masters" not in kinds
    for batch in batches(place):
        assert moved(*batch) == (kept(*batch) if exact else pytest.approx(float(kept(*batch)), rel=1e-6))
    if exact:
        assert same_bits(snapshot(moved), snapshot(kept))
    else:
        torch.testing.assert_close(snapshot(moved), snapshot(kept), rtol=1e-5, atol=1e-7)
    evaluated = kept.evaluate(*batch)
    assert moved.evaluate(*batch) == (evaluated if exact else pytest.approx(float(evaluated), rel=1e-6))
    if (optimizer, kinds) != ("plain", ["state"]):
        assert moved.memory()["tier"] > 0 and "tier" not in kept.memory()


def moves(step, entry="train"):
    return step.report()["plan"]["entries"][entry].get("offload")


def test_state_moves_16_bytes_per_parameter():
    kept, step = compiled(None), compiled(["state"])
    parameters = sum(p.numel() for p in gpt2(**CONFIG).parameters())
    assert moves(step) == {"fetched_bytes": 8 * parameters, "evicted_bytes": 8 * parameters}
    assert moves(step, "evaluate") is None and moves(kept) is None
    plan = step.report()["plan"]
    assert "state" not in plan["bytes"]
    assert kept.report()["plan"]["bytes"]["state"] == 8 * parameters <= plan["tier_bytes"]
    kinds = plan["entries"]["train"]["profile"]["kinds"]
    assert "state" not in kinds and max(kinds["fetched"]) > 0
    assert "fetched from the second tier" in step.explain("memory")


def test_masters_are_read_for_their_copies_and_by_the_update():
    step = compiled(["masters"], precision="bf16", optimizer_fusion="none")
    moved = moves(step)
    assert moved["fetched_bytes"] == 2 * moved["evicted_bytes"] > 0
    assert moves(step, "evaluate") == {"fetched_bytes": moved["evicted_bytes"], "evicted_bytes": 0}


def test_what_is_saved_leaves_once_and_comes_back():
    step = compiled(["saved"], micro_batches=2)
    moved = moves(step)
    assert moved["fetched_bytes"] >= moved["evicted_bytes"] > 0
    kept = compiled(None, micro_batches=2)
    assert step.memory()["arena"] < kept.memory()["arena"]


def test_checkpoints_go_through_the_tier(tmp_path):
    """Of one run, resumed by the other: everywhere the same files."""
    data, steps = batches(), {}
    for name, kinds in (("kept", None), ("moved", ["state", "masters", "saved"])):
        steps[name] = compiled(kinds, precision="bf16")
        for batch in data[:2]:
            steps[name](*batch)
        steps[name].save(tmp_path / name)
    def content(name):
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()
                if path.suffix == ".safetensors"}
    assert content("kept") == content("moved") and len(content("kept")) == 2
    for name, other in (("kept", "moved"), ("moved", "kept")):
        steps[name](*data[2])
        steps[name].load(tmp_path / other)
        for batch in data[2:]:
            steps[name](*batch)
    assert same_bits(snapshot(steps["kept"]), snapshot(steps["moved"]))


def test_parameters_in_the_tier_are_initialised_at_random(tmp_path):
    assert write_model(["gpt", "-o", str(tmp_path / "m.mlir"), "--hidden", "32", "--heads", "4",
                        "--layers", "2", "--seq", "16", "--vocab", "96", "--batch", "4"]) == 0
    (numpy.arange(2000) % 96).astype("uint16").tofile(tmp_path / "d.bin")
    losses = []
    for flags in ([], ["--offload=masters,state"]):
        run_tool([tool("cleave-compile"), str(tmp_path / "m.mlir"), "--mesh=dp=2",
                  "--plan=zero1", "--precision=bf16", "--threads=2", *flags, "-o",
                  str(tmp_path / "m.so")])
        run_tool([tool("cleave-run"), str(tmp_path / "m.so"), "--random-init", "--steps", "3",
                  "--data", str(tmp_path / "d.bin"), "--log", str(tmp_path / "log")])
        losses.append([json.loads(line)["loss"] for line in open(tmp_path / "log")])
    assert losses[0] == losses[1] and losses[0][0] > 4


def test_a_step_that_is_refused_changes_nothing():
    step = compiled(["state", "saved"])
    data = batches()
    step(*data[0])
    before = snapshot(step)
    ids, labels = data[1]
    with pytest.raises(cleave.StepError, match="every target of this batch is ignored"):
        step(ids, torch.full_like(labels, -100))
    assert same_bits(snapshot(step), before)
    kept = compiled(None)
    for batch in (data[0], data[1]):
        kept(*batch)
    step(*data[1])
    assert same_bits(snapshot(step), snapshot(kept))


@pytest.mark.parametrize("settings, error, message", [
    (dict(offload=["weights"]), ValueError,
     "unknown kind 'weights'; what can be offloaded is state, masters and saved"),
    (dict(offload=3), TypeError, "offload is a text, not 3"),
    (dict(offload=["masters"]), cleave.CompileError, "there are no masters"),
    (dict(offload=["state"], offload_dir=3), TypeError, "offload_dir is 3"),
])
def test_bad_arguments(settings, error, message):
    with pytest.raises(error, match=message):
        compiled(**settings)
