# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pipelines natively, threads as ranks, in f32.

Losses, norms, gradients and updates of SGD are those of one device, to 1e-4 of the
largest in their layer, dropout on; updates of AdamW are as far from PyTorch's in f64
as one device's are, at most twice. A drawn sample has each schedule and recipe; with
``CLEAVE_TEST_ALL=1`` all cases that cover pairs of schedule, positions, recipe and
model.
"""

import numpy as np
import pytest
import torch

import cleave
from pipeline_cases import covering, sample
from test_native_pairs import (CASES, STEPS, adamw, agree, one_device, references, sgd, steps_of)
from training_support import ALL, cleave_run, compile_case

COVERING = covering()
PARAMETERS = dict(argvalues=COVERING if ALL else sample(COVERING, 5), ids=str)


def run(case, model, steps, optimizer):
    return cleave_run(model, steps, optimizer, micro_batches=case.micro_batches,
                      mesh=case.axes, plan=case.recipe or None, schedule=case.schedule,
                      chunks=case.chunks)


@pytest.mark.parametrize("case", **PARAMETERS)
def test_sgd_equals_one_device(case):
    one = one_device(case.model, case.micro_batches)
    many = run(case, CASES[case.model](0.1), STEPS, sgd())
    np.testing.assert_allclose(many.losses, one.losses, rtol=1e-4)
    np.testing.assert_allclose(many.norms, one.norms, rtol=1e-4)
    agree(many.gradients, one.gradients, "gradient")
    agree(many.updates, one.updates, "update")


@pytest.mark.parametrize("case", argvalues=COVERING if ALL else sample(COVERING, 5)[:4], ids=str)
def test_adamw_is_as_exact_as_one_device(case):
    double, single, one = references(case.model, case.micro_batches)
    many = run(case, CASES[case.model](0.0), steps_of(case.model), adamw())
    np.testing.assert_allclose(many.losses, one.losses, rtol=1e-4)
    ratios = []
    for key, exact in double.updates.items():
        error, *own = (float((result.updates[key] - exact).norm()) for result in (many, single, one))
        ratios.append(error / max(*own, 1e-300))
        assert error <= 2 * max(own), (key, error, own)
    assert np.median(ratios) <= 1.5


@pytest.mark.parametrize("mesh, schedule, chunks", [
    ({"pp": 2}, "1f1b", 1), ({"pp": 4}, "zb-h1", 1), ({"pp": 2}, "zb-v", 2),
    ({"pp": 2, "dp": 2}, "1f1b", 1)])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_deterministic_pipelines_have_the_same_bits(name, mesh, schedule, chunks):
    """As one device with the same grains has: losses, norms and weights."""
    def train(**settings):
        case = CASES[name](0.1)
        step = compile_case(case, cleave.AdamW(lr=1e-3, max_grad_norm=1.0), deterministic=4,
                            **settings)
        outputs = []
        for i in range(3):
            outputs.append(step(*case.batches[i % len(case.batches)]))
        return outputs, step.state_dict()

    expected, weights = train()
    found, own = train(mesh=mesh, schedule=schedule, chunks=chunks)
    assert [float(x) for x in found] == [float(x) for x in expected]
    for key, value in weights.items():
        assert torch.equal(own[key], value), key
