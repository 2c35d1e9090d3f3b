# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mutation testing of what guards a partitioned program.

Every movement of every recipe is made wrong in every way: left out, over another
axis or group, with another reduction, summed twice, scaled, with its parts in
another order. What follows from the mistake is derived again, so that it alone is
wrong. `--spmd-verify` rejects at least 95 % of each class (what only changes
numbers, a scale or an order, is left to equality), and equality finds all but what
changes nothing except rounding (softmax shifted by another number than the
maximum), which the verifier rejects. What has the same bits on three inputs is no
fault; at most 10 % are such.
"""

import collections

import pytest

import expert_recipes  # noqa: F401 (its models)
from fault_draws import NUMBERS, draw
from recipe_runs import BATCH, CASES, LENGTH, MODELS
from training_support import ALL

#: Meshes with an axis to take for another, and one with digits.
PROGRAMS = [("dp=2,tp=2", "megatron,zero1"), ("dp=2,tp=2", "megatron-sp,zero2"),
            ("tp=2,dp=2", "megatron-sp,zero3"), ("dp=2,cp=2", "ulysses,zero3"),
            ("dp=4", "zero1"), ("tp=4", "megatron-sp"), ("dp=2,cp=4", "ring"),
            ("row=2,col=2", "summa2d")]
#: A model of experts that drop tokens, and one whose samples, places and vocabulary
#: are padded.
MORE = [("dp=2,ep=2", "expert,zero1", "top1", (BATCH, LENGTH)),
        ("dp=2,tp=2", "megatron-sp,zero3", "gpt2", (7, 7, ("vocab_size", 97)))]


@pytest.fixture(scope="module")
def tallies(tmp_path_factory):
    """The sum over all programs, by class."""
    folder = tmp_path_factory.mktemp("faults")
    total = collections.defaultdict(collections.Counter)
    # Not BERT: the gradient of its keys' biases is 0 but for rounding, and so is
    # what a mistake in its sum changes.
    names = [name for name in MODELS if name != "bert"]
    programs = []
    for index, (mesh, recipes) in enumerate(PROGRAMS + (CASES if ALL else [])):
        # LLaMA has two heads of keys and values here.
        name = "gpt2" if "tp=4" in mesh else names[index % len(names)]
        programs.append((mesh, recipes, name, (BATCH, LENGTH)))
    for index, (mesh, recipes, name, sizes) in enumerate(programs + MORE):
        found = draw(folder, name, mesh, recipes, 60 if ALL else 12, 1000 * index, sizes)
        assert found["movements"] > 0
        for fault, tally in found["classes"].items():
            total[fault].update(tally)
    return total


CLASSES = ["drop", "wrong axis", "wrong group", "wrong reduction", "duplicated sum",
           "scale", "shard order"]


@pytest.mark.parametrize("fault", CLASSES)
def test_faults_are_found(tallies, fault):
    tally = tallies[fault]
    wrong = tally["drawn"] - tally["equivalent"]
    assert tally["drawn"] >= (40 if ALL else 2), tally
    assert tally["equivalent"] <= 0.1 * tally["drawn"] + (0 if ALL else 1), tally
    # The tool has failed where a fault passed both. Of few, one may only round.
    assert tally["unequal"] >= 0.95 * wrong - (0 if ALL else 1), tally
    if fault not in NUMBERS:
        assert tally["rejected"] >= 0.95 * wrong, tally
