# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Trainings on several devices beside one."""

import torch

import cleave
from training_support import assert_close, cleave_run

STEPS = 6


def optimizer():
    return cleave.AdamW(lr=1e-3, weight_decay=0.1, max_grad_norm=1.0)


def check_devices(case, devices, plan=None, **settings):
    """`devices`: their number, or a mesh."""
    mesh = devices if isinstance(devices, dict) else {"dp": devices}
    one = cleave_run(case, STEPS, optimizer(), **settings)
    many = cleave_run(case, STEPS, optimizer(), mesh=mesh, plan=plan, **settings)
    assert_close(many.losses, one.losses, rtol=2e-5)
    assert_close(many.norms, one.norms, rtol=2e-4)
    whole = float(torch.stack([g.norm() for g in one.gradients.values()]).norm())
    for name, gradient in one.gradients.items():
        error = float((many.gradients[name] - gradient).norm())
        assert error <= 2e-5 * float(gradient.norm()) + 1e-6 * whole, name
    return one, many
