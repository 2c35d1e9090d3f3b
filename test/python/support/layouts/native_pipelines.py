# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pipelines natively, by update rule."""

import numpy as np

from native_pairs import CASES, STEPS, adamw, agree, one_device, references, sgd, steps_of
from training_support import assert_close, cleave_run


def run(case, model, steps, optimizer):
    return cleave_run(model, steps, optimizer, micro_batches=case.micro_batches,
                      mesh=case.axes, plan=case.recipe or None, schedule=case.schedule,
                      virtual_stages=case.chunks)


def check_sgd(case):
    one = one_device(case.model, case.micro_batches)
    many = run(case, CASES[case.model](0.1), STEPS, sgd())
    assert_close(many.losses, one.losses, rtol=1e-4)
    assert_close(many.norms, one.norms, rtol=1e-4)
    agree(many.gradients, one.gradients, "gradient")
    agree(many.updates, one.updates, "update")


def check_adamw(case):
    double, single, one = references(case.model, case.micro_batches)
    many = run(case, CASES[case.model](0.0), steps_of(case.model), adamw())
    assert_close(many.losses, one.losses, rtol=1e-4)
    ratios = []
    for key, exact in double.updates.items():
        error, *own = (float((result.updates[key] - exact).norm()) for result in (many, single, one))
        ratios.append(error / max(*own, 1e-300))
        assert error <= 2 * max(own), (key, error, own)
    assert np.median(ratios) <= 1.5
