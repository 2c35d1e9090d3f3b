# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Maxima and minima over the batch that a step writes to buffers: those of all micro-batches,
stages and ranks are those of the whole batch, natively and by the interpreter in every phase.
Eager PyTorch, which computes them of the whole batch, is the judge."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.testing.tools import interpret
from cleave.compiler.entrance import grouped
from proofs import ALL

LAYOUTS = [(parts, pp, dp) for parts in (1, 2, 4) for pp in (1, 2) for dp in (1, 2)]


class Extremes(nn.Module):
    """Residual layers, with the extremes of what each one reads and of inputs: of single
    features, of all numbers, of integers, and of numbers that are all negative."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        for i in range(4):
            self.register_buffer(f"highest{i}", torch.zeros(6))
            self.register_buffer(f"lowest{i}", torch.zeros(6))
            self.register_buffer(f"largest{i}", torch.zeros(()))
        self.register_buffer("negative", torch.zeros(()))
        self.register_buffer("most", torch.tensor(0))
        self.register_buffer("least", torch.tensor(0))

    def forward(self, x):
        own = x.detach()
        self.negative = (own - 100).amax()
        self.most = (own * 10 - 500).to(torch.int64).amax()
        self.least = (own * 10 + 500).to(torch.int64).amin()
        h = self.a(x)
        for i, layer in enumerate(self.layers):
            setattr(self, f"highest{i}", h.detach().amax(0))
            setattr(self, f"lowest{i}", h.detach().amin(0))
            before = getattr(self, f"largest{i}")
            setattr(self, f"largest{i}", torch.maximum(0.5 * before, h.detach().abs().amax()))
            h = h + torch.tanh(layer(h))
        return self.b(h)


def data(count=2, samples=16):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(samples, 5, generator=generator) * 3,
             torch.randn(samples, 3, generator=generator)) for _ in range(count)]


def compiled(module, x, y, parts, pp, dp, **settings):
    mesh = {name: size for name, size in (("pp", pp), ("dp", dp)) if size > 1}
    return cleave.compile(module, (x, y), F.mse_loss, optimizer=cleave.SGD(lr=0.1),
                          micro_batches=parts, check="off", mesh=mesh or None,
                          **grouped(**settings))


def same(found, expected, bound=1e-6):
    assert list(found) == list(expected)
    for name, value in expected.items():
        if value.is_floating_point():
            torch.testing.assert_close(found[name], value, rtol=bound, atol=bound, equal_nan=True,
                                       msg=lambda m: f"{name}: {m}")
        else:
            assert torch.equal(found[name], value), name


@pytest.mark.parametrize("parts, pp, dp", LAYOUTS if ALL else LAYOUTS[1::2] + LAYOUTS[4:5])
def test_extremes_of_the_whole_batch(parts, pp, dp):
    module = Extremes()
    expected = copy.deepcopy(module)
    batches = data()
    step = compiled(module, *batches[0], parts, pp, dp)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        F.mse_loss(expected(x), y).backward()
        optimizer.step()
        step(x, y)
        same(step.state_dict(), expected.state_dict(), 1e-5)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_extremes_in_schedules(schedule):
    (x, y), *_ = data()
    expected = Extremes()
    step = compiled(copy.deepcopy(expected), x, y, 4, 2, 1, schedule=schedule)
    step(x, y)
    expected(x)
    own = step.state_dict()
    same({n: own[n] for n, _ in expected.named_buffers()}, dict(expected.named_buffers()), 1e-5)


def test_extremes_in_a_fixed_order():
    """Sums in trees over micro-batches: partial maxima are joined in another order."""
    (x, y), *_ = data()
    expected = Extremes()
    step = cleave.compile(copy.deepcopy(expected), (x, y), F.mse_loss, check="off",
                          optimizer=cleave.SGD(lr=0.1), numerics=cleave.Numerics(deterministic=8))
    assert "accumulate:max" in step.ir("scheduled") and "tree_sums" in step.ir("scheduled")
    step(x, y)
    expected(x)
    own = step.state_dict()
    same({n: own[n] for n, _ in expected.named_buffers()}, dict(expected.named_buffers()), 1e-5)


@pytest.mark.parametrize("parts, pp, dp", [(1, 1, 1), (4, 1, 1), (2, 2, 1), (2, 1, 2)])
def test_a_number_that_is_none_stays(parts, pp, dp):
    """NaN in any micro-batch is the maximum and the minimum, infinity where it is one."""
    (x, y), *_ = data()
    x[9, 2], x[3, 1], x[12, 0] = float("nan"), float("inf"), -float("inf")

    class Inputs(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)
            self.register_buffer("highest", torch.zeros(5))
            self.register_buffer("lowest", torch.zeros(5))

        def forward(self, x):
            self.highest = x.detach().amax(0)
            self.lowest = x.detach().amin(0)
            return self.b(torch.tanh(self.a(torch.where(x.abs() < 50, x, 0.0))))

    expected = Inputs()
    step = compiled(copy.deepcopy(expected), x, y, parts, pp, dp)
    step(x, y)
    expected(x)
    assert expected.highest.isnan().sum() == 1 and expected.highest.isposinf().sum() == 1
    own = step.state_dict()
    same({n: own[n] for n in ("highest", "lowest")}, dict(expected.named_buffers()), 0)


@pytest.mark.parametrize("parts, pp, dp", [(4, 1, 1), (2, 2, 1), (2, 1, 2)])
def test_the_interpreter_agrees_in_every_phase(parts, pp, dp):
    (x, y), *_ = data()
    module = Extremes()
    expected = copy.deepcopy(module)
    step = compiled(module, x, y, parts, pp, dp)
    given = {n: t.numpy() for n, t in step.state_dict().items()}
    given |= {"x": x.numpy(), "target": y.numpy(), "lr": np.float32(0.1), "step": np.int64(1)}
    expected(x)
    for phase in ("step", "placed", "local", "scheduled"):
        results, _ = interpret(step.ir(phase), given, entry="train", mode="typed")
        for name, value in expected.named_buffers():
            np.testing.assert_allclose(results[name], value.numpy(), rtol=1e-5, atol=1e-5,
                                       err_msg=f"{phase}: {name}")
