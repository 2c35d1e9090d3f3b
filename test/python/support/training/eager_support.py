# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A module of two layers, and its loss and gradients in eager code and in a compiled step."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.trace.process_state import process_state
from cleave.compiler.entrance import grouped

X, Y = (torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


class Two(nn.Module):
    """Two layers, around which a test writes its forward."""

    def __init__(self, forward=None, prepare=None):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.compute = forward or (lambda m, x: m.b(m.a(x)))
        if prepare:
            prepare(self)

    def forward(self, x):
        return self.compute(self, x)


def eager(module, loss_fn=F.mse_loss):
    """The loss and the gradients of autograd by name; None where it has none."""
    module = copy.deepcopy(module)
    loss = loss_fn(module(X.clone()), Y)
    loss.backward()
    return float(loss.detach()), {n: p.grad for n, p in module.named_parameters()}


def compiled(module, loss_fn=F.mse_loss, **options):
    """The loss and the gradients of a compiled step, as those of `eager`."""
    step = cleave.compile(module, (X, Y), loss_fn, optimizer=cleave.SGD(lr=0.1, momentum=0.5),
                          **grouped(threads=1, **options))
    loss = step(X, Y)
    slots = step.training_state()["optimizer"]
    return float(loss), {n: slots[n]["momentum_buffer"] if n in slots else None
                         for n, _ in module.named_parameters()}


def same(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    for name, expected in theirs[1].items():
        found = ours[1][name]
        assert (found is None) == (expected is None), name
        if expected is not None:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7, msg=name)


@pytest.fixture(autouse=True)
def nothing_is_left():
    """What a trace enters or sets in the process, it leaves, also if it refuses the model. Active
    in each file of tests that imports it."""
    before = process_state()
    yield
    changed = [i for i, (a, b) in enumerate(zip(before, process_state())) if a != b]
    assert not changed, f"a trace has changed entries {changed} of the state of the process"
    (torch.ones(2) * nn.Parameter(torch.ones(2))).sum().backward()


def train_beside(step, model, batches, lr=0.3, momentum=0.9, **close):
    """Trains `model` as `step` is trained, by SGD, and compares the losses; returns the optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    for batch in batches:
        loss = model(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert float(step(*batch)) == pytest.approx(loss.item(), **close)
    return optimizer
