# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Losses that compare samples of a batch with each other: the whole batch is trained, also
over several ranks; micro-batches are refused in the model's words, at its line."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.compiler.entrance import grouped

X, Z = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(1))


def contrastive(m, x, z):
    a, b = F.normalize(m.a(x), dim=-1), F.normalize(m.b(z), dim=-1)
    return F.cross_entropy(a @ b.T, torch.arange(len(a)))


def both_ways(m, x, z):
    targets = torch.arange(len(x))
    logits = m.a(x) @ m.b(z).T
    return F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)


def ranked(m, x, z):
    score = m.a(x).sum(-1)
    return F.softplus(score[:, None] - score[None, :]).mean()


def over_samples(m, x, z):
    return (m.a(x).softmax(0) * z).mean()


def in_order(m, x, z):
    return (m.a(x).sort(0).values * z).mean()


def standardized(m, x, z):
    y = m.a(x)
    return (y / y.std()).square().mean() * z.mean()


def of_the_largest(m, x, z):
    y = m.a(x)
    return (y / y.abs().amax()).square().mean() * z.mean()


def beside_the_next(m, x, z):
    return (m.a(x) * m.b(z).roll(1, 0)).mean()


class Pair(nn.Module):
    def __init__(self, loss):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.loss = nn.Linear(4, 4), nn.Linear(4, 4), loss

    def forward(self, x, z):
        return self.loss(self, x, z)


#: Losses, and where the line that couples samples is from the last one.
LOSSES = {contrastive: 0, both_ways: 1, ranked: 0, over_samples: 0, in_order: 0, standardized: 0,
          of_the_largest: 0, beside_the_next: 0}
losses = pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)


@losses
@pytest.mark.parametrize("mesh", [None, {"dp": 2}], ids=str)
def test_whole_batches(loss, mesh):
    model = Pair(loss)
    step = cleave.compile(model, (X, Z), mesh=mesh, check="on", optimizer=cleave.SGD(lr=0.1))
    expected = float(model(X, Z).detach())
    assert float(step(X, Z)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@losses
@pytest.mark.parametrize("options, message", [
    (dict(micro_batches=2), "2 micro-batches are computed one after another.*: micro_batches=1"),
    (dict(deterministic=2), "deterministic=2 computes grains.*: leave out deterministic"),
    (dict(micro_batches=2, mesh={"dp": 2}), "micro_batches=1"),
])
def test_micro_batches(loss, options, message):
    lines, first = inspect.getsourcelines(loss)
    line = first + len(lines) - 1 - LOSSES[loss]
    with pytest.raises(cleave.CompileError, match=f"the model couples samples of the batch: .*"
                       f"{message}") as caught:
        cleave.compile(Pair(loss), (X, Z), **grouped(**options))
    assert str(caught.value).startswith(f"{__file__}:{line}:")
    assert "sharding" not in str(caught.value) and "graph." not in str(caught.value)
