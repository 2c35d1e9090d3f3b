# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Random models with random options of a step, by the interpreter in f64.

The optimizer with all of its settings, where updates run, meshes, recipes, schedules, gathers,
slices, grains and more are drawn, from what is registered. What is scheduled, two steps of it and
all entries, is compared with the step on one device. Combinations that contradict themselves, or
are not for the model, are refused, for reasons that are listed here: any other is a failure. They
are then changed in a few places, so that nearly every model is compared.
40 models by default, 2000 with ``CLEAVE_TEST_ALL=1``.
"""

import json
import os
import re
import subprocess

import pytest

from cleave.testing.tools import run_tool, tool

from proofs import ALL

#: Choices that are drawn, and that no random model takes, and why.
NEVER_TAKEN = {
    "grad_horizon=true": "the models have no numbered list of layers; test_interlock.py",
    "modules=2": "they are those of grad_horizon",
}

#: Passes that are never drawn, and why.
NEVER_RUN = {
    "spmd-place": "the former name of spmd-seed-shardings",
    "exec-merge-launches": "programs of GPUs alone have it: test_cuda_device.py, MemoryTest.cpp",
}

#: Reasons to refuse, by a part of the message.
REFUSALS = [
    "do not divide", "not divisible", "fewer than the", "too few for the", "both split",
    "never gathers them",
    "optimizer fusion into backward is not possible",
    "whether all of them are finite", "stages, and has only",
    "less than the", "no pair of products with weights", "no product with a weight",
    "the model has no experts",
    "ulysses: no input", "no input has the sequence dimension", "the model has no attention",
    "the scores of this softmax",
    "begin the stages elsewhere", "cannot be cut into", "has no update after all of them",
    "updates in the next step, after its checks",
    "a gradient horizon does not go with buffers",
    "no numbered list of layers", "schedule:", "deterministic:", "optimizer-fusion: an asynch",
    "pipe-gather: an asynchronous", "leave --post-validation or --optimizer-fusion=forward out",
    "an asynchronous schedule", "name one of them", "the samples are split over",
    "max-staleness", "steps need equal numbers", "than that of the grains",
    "offload: there are no masters", "matches no parameter that",
    "weight of a contraction", "no rank has the whole gradient", "of which a rank holds a shard",
    "nothing can be compressed", "stages that send each other rows of floats",
    "no axis of the mesh shards samples", "no gradient that waits is summed over ranks",
    "reads a gradient whose reduction is delayed",
]


def drawn(count, seed=1):
    return json.loads(run_tool([tool("cleave-fuzz"), "--list-options", f"--count={count}",
                                f"--seed={seed}"]))


def registered_passes():
    text = run_tool([tool("cleave-opt"), "--help"])
    return set(re.findall(r"^ +--((?:graph|spmd|pipe|exec)-[a-z0-9-]+)", text, re.M))


def named_by(message):
    """The names that a message lists after `there are`."""
    return set(re.findall(r"[\w-]+", re.split("[;\n]", message.split("there are", 1)[1])[0]))


def refusal(*flags):
    return subprocess.run([tool("cleave-compile"), os.devnull, "--emit=step", *flags],
                          capture_output=True, text=True).stderr


def test_every_registered_pass_is_drawn():
    missing = registered_passes() - drawn(2000)["passes"].keys()
    assert len(registered_passes()) > 30
    assert missing == NEVER_RUN.keys()


def test_every_recipe_is_drawn():
    recipes = named_by(refusal("--mesh=dp=2", "--plan=none-such"))
    assert len(recipes) > 10
    assert {f"recipe={name}" for name in recipes} <= drawn(2000)["choices"].keys()


def test_every_update_rule_is_drawn():
    rules = named_by(refusal("--optimizer=none-such")) - {"and"}
    assert len(rules) > 5
    assert {f"optimizer={name}" for name in rules} <= drawn(200)["choices"].keys()


@pytest.mark.parametrize("first", range(1, 2000, 100) if ALL else [1])
def test_what_is_scheduled_is_the_step(first):
    """The tool ends with an error, which names the seed, where any differ."""
    count = 100 if ALL else 40
    report = json.loads(run_tool([tool("cleave-fuzz"), "--options", f"--seed={first}",
                                  f"--count={count}"]))
    assert report["failures"] == 0
    # A refused draw is changed until it is legal.
    assert report["agree"] >= 0.9 * count and report["refused"] <= 0.05 * count, report
    # A step that is not finite is not an agreement.
    assert report["not_finite"] <= 2, report
    unknown = [text for text in report["refusals"]
               if not any(reason in text for reason in REFUSALS)]
    assert not unknown, unknown
    for fusion in ("none", "backward", "forward"):
        assert report["choices"].get(f"optimizer_fusion={fusion}"), report["choices"]


@pytest.mark.skipif(not ALL, reason="proved with CLEAVE_TEST_ALL=1")
def test_every_choice_is_taken():
    """By some model, unless a table says why not."""
    report = json.loads(run_tool([tool("cleave-fuzz"), "--options", "--seed=1", "--count=1500"]))
    wanted = {name for name in drawn(1500)["choices"] if not name.endswith("=false")}
    assert wanted - report["choices"].keys() <= NEVER_TAKEN.keys()
