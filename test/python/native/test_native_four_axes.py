# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Sixteen threads as ranks of a pipeline, data, tensor and context parallelism, in f32.

As test_native_pipelines.py compares: SGD with one device, dropout on, AdamW with PyTorch's
in f64. Three cases by default; with ``CLEAVE_TEST_ALL=1`` any two of schedule, plan, order
of the axes and model meet.
"""

import collections
import functools

import pytest

import cleave
from four_axes import MICRO_BATCHES, FourAxes, covering
from native_pipelines import check_adamw, check_sgd
from training_support import ALL, Case, compile_case, token_batches
from volumes_support import A, B, D, H, S, model, sizes_of

#: By default a whole and a split backward, one stage of a position and two.
SAMPLE = [FourAxes("1f1b", "ring", "pp,dp,cp,tp", "gpt2", "sgd"),
          FourAxes("zb-v", "ulysses", "tp,cp,dp,pp", "llama", "sgd"),
          FourAxes("interleaved", "ulysses", "dp,pp,tp,cp", "gpt2", "adamw")]


@pytest.mark.parametrize("case", covering() if ALL else SAMPLE, ids=str)
def test_sixteen_ranks_train_as_one_device(case):
    (check_adamw if case.optimizer == "adamw" else check_sgd)(case)


def sent(totals):
    """Elements by axes and kind, of a report or of counters."""
    found = collections.Counter()
    for entry in totals:
        axes = tuple(axis.strip('" ') for axis in entry["axes"].split(","))
        found[axes, entry["kind"].replace("-", "_")] += entry["elements"]
    return {key: elements for key, elements in found.items() if elements}


def expected(position, sequence):
    """The elements that a rank of a position sends in a step: a layer, and the table of tokens or the
    head. In each of m micro-batches it has b / (2 m) samples and s / 2 positions, so that
    values are bsh / 4 in a step; its weights are halves, but those of norms."""
    value = B * S * H // 4
    weights = sizes_of("llama", f"layers.{position}", ["embed_tokens", "lm_head"][position])
    norms = sizes_of("llama", f"layers.{position}.input_layernorm",
                     f"layers.{position}.post_attention_layernorm")
    held = (weights - norms) // 2 + norms + position * H
    # The losses of the micro-batches and their weights, and the sum over all of them.
    numbers = MICRO_BATCHES * (1 + position) + position
    return {
        # Forward to the next stage, or backward to the one before.
        (("pp",), "send"): value,
        # Two sums of a layer forward and two backward, and the rows looked up or the
        # gradient of the head's input, with three numbers of each row of logits.
        (("tp",), "all_reduce"): 5 * value + position * 3 * B * S // 4,
        (("cp",), sequence): {
            # Keys and values around twice, and their gradients once: of half the heads.
            "permute": 6 * (B // 2) * (A // 2) * (S // 2) * D,
            # (N - 1) / N of queries, keys, values and outputs, and of their gradients.
            "all_to_all": 8 * value // 2 // 2}[sequence],
        # 2 (N - 1) / N of the gradients, on the four ranks that have the same weights.
        (("dp", "cp"), "all_reduce"): 1.5 * (held + numbers),
    }


@pytest.mark.parametrize("recipe, sequence", [("ring", "permute"), ("ulysses", "all_to_all")])
def test_what_is_sent_along_each_axis(recipe, sequence):
    """The formulas of the techniques, of the four at once."""
    case = Case(functools.partial(model, "llama"), token_batches(1, batch=B, length=S),
                key=("volumes", "llama"))
    step = compile_case(case, cleave.AdamW(lr=1e-3), mesh=dict(pp=2, dp=2, cp=2, tp=2),
                        plan=["megatron", recipe], micro_batches=MICRO_BATCHES,
                        stages=["model.layers.1."], pipe_slices="off", check_finite=False)
    step(*case.batches[0])
    positions = step.report()["communication"]["train"]["positions"]
    for number, position in enumerate(positions):
        assert sent(position["totals"]) == expected(number, sequence)
    # Counted on rank 0, at position 0.
    assert sent(step.communication()) == expected(0, sequence)
