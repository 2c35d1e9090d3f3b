# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Every recipe and every pair of them natively, threads as ranks, in f32.

Losses, gradients and weights of SGD are those of one device, to 1e-4 of the
largest in their layer, dropout on. Updates of AdamW are at most twice as far from
PyTorch's in f64 as PyTorch's in f32 or those of one device, where a rounding may
send relu or a token the other way, are (test_training_equality.py). A drawn sample
has each recipe once or more; with ``CLEAVE_TEST_ALL=1`` every pair, with both
optimizers.
"""

import re

import numpy as np
import pytest

from expert_recipes import devices_of
from native_pairs import (BATCH, CASES, STEPS, adamw, agree, one_device, references, sample, sgd,
                          steps_of)
from pair_models import PAIRS, models_of
from training_support import ALL, assert_close, cleave_run


def chosen(pair):
    """The case of a pair, its micro-batches, and its mesh."""
    index = PAIRS.index(pair)
    names = [n for n in models_of(pair, pair.small) if n in CASES]
    parts = 1 + index % 2 if devices_of(pair.small) < BATCH else 1
    mesh = {axis: int(size) for axis, size in re.findall(r"(\w+)=(\d+)", pair.small)}
    return names[index % len(names)], parts, mesh


PARAMETERS = dict(argvalues=PAIRS if ALL else sample(), ids=lambda pair: f"{pair.plan}@{pair.small}")
HALF = dict(PARAMETERS, argvalues=PAIRS if ALL else sample()[::2])


@pytest.mark.parametrize("pair", **PARAMETERS)
def test_sgd_equals_one_device(pair):
    name, parts, mesh = chosen(pair)
    one = one_device(name, parts)
    many = cleave_run(CASES[name](0.1), STEPS, sgd(), micro_batches=parts,
                      mesh=mesh, plan=pair.plan)
    assert_close(many.losses, one.losses, rtol=1e-4)
    assert_close(many.norms, one.norms, rtol=1e-4)
    agree(many.gradients, one.gradients, "gradient")
    agree(many.updates, one.updates, "update")


@pytest.mark.parametrize("pair", **HALF)
def test_adamw_is_as_exact_as_one_device(pair):
    name, parts, mesh = chosen(pair)
    double, single, one = references(name, parts)
    many = cleave_run(CASES[name](0.0), steps_of(name), adamw(), micro_batches=parts,
                      mesh=mesh, plan=pair.plan)
    assert_close(many.losses, one.losses, rtol=1e-4)
    ratios = []
    for key, exact in double.updates.items():
        error, *own = (float((run.updates[key] - exact).norm()) for run in (many, single, one))
        ratios.append(error / max(*own, 1e-300))
        assert error <= 2 * max(own), (key, error, own)
    assert np.median(ratios) <= 1.5
