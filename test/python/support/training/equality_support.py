# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Trainings beside PyTorch, in f64."""

import numpy as np
import torch

import cleave
from training_support import cleave_run, torch_run

STEPS = 20
LR, DECAY = 1e-3, 0.1


def torch_adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=LR, weight_decay=DECAY)


def relative_norms(got, exact):
    """Per tensor: error, and norm of the exact value."""
    return {n: (float((got[n].double() - exact[n]).norm()), float(exact[n].norm()))
            for n in exact}


def trimmed(errors):
    """The norm without the largest 1/500 of the elements, and one at least."""
    kept = errors.numel() - max(1, errors.numel() // 500)
    if kept == 0:
        return 0.0
    return float(errors.abs().reshape(-1).topk(kept, largest=False).values.norm())


def check_equality(case, *, outliers=0.1, **settings):
    """`outliers`: the share of tensors that may exceed the bound by single elements."""
    single = torch_run(case, STEPS, torch_adamw)
    double = torch_run(case, STEPS, torch_adamw, double=True)
    ours = cleave_run(case, STEPS, cleave.AdamW(lr=LR, weight_decay=DECAY), **settings)

    # A rounding may send relu the other way, in PyTorch's f32 as well: f64 judges.
    if not np.allclose(ours.losses, single.losses, rtol=1e-4, atol=0):
        np.testing.assert_allclose(ours.losses, double.losses, rtol=1e-4)
    count = len(case.batches)
    assert np.mean(ours.losses[-count:]) < 0.98 * np.mean(ours.losses[:count])

    whole = float(torch.stack([g.norm() for g in double.gradients.values()]).norm())
    wrong = {}
    for name, (error, norm) in relative_norms(ours.gradients, double.gradients).items():
        # A gradient that is zero but for rounding has no relative error.
        bound = 1e-4 * norm if norm >= 1e-7 * whole else 1e-6 * whole
        if not error <= bound:
            wrong[name] = (error, norm, whole)
    assert not wrong, f"first gradients: {wrong}"

    wrong, single_elements, ratios = {}, {}, []
    for name, exact in double.updates.items():
        error, own = ours.updates[name] - exact, single.updates[name] - exact
        figures = (float(error.norm()), float(own.norm()), float(exact.norm()))
        ratios.append(figures[0] / max(figures[1], 1e-300))
        if figures[0] <= 2 * figures[1]:
            continue
        single_elements[name] = figures
        few = trimmed(error) <= max(2 * trimmed(own), 5e-5 * figures[2])
        if not few or figures[0] > 1e-3 * figures[2]:
            wrong[name] = figures
    print(f"updates: ratios up to {max(ratios):.2f}, median {np.median(ratios):.2f}; above 2: "
          f"{len(single_elements)} of {len(ratios)}")
    assert not wrong, f"updates (error, PyTorch's, norm): {wrong}"
    assert len(single_elements) <= max(1, outliers * len(ratios)), single_elements
    assert np.median(ratios) <= 1.5
