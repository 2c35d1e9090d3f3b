# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Sums of many gathers by two index tensors: their gradients are as many scatters, added
up one by one."""

import pytest
import torch
from torch import nn

import cleave
from cleave import P
from cleave.compiler.entrance import grouped


class Gathers(nn.Module):
    """`read(model, x, i, j)` gathers `count` times."""

    def __init__(self, read, count):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.read, self.count = read, count
        self.layer = nn.Linear(6, 6)
        self.table = nn.Parameter(torch.randn(6, 6, generator=generator))
        self.places = torch.randint(0, 6, (2, count, 5), generator=generator)
        self.layer.load_state_dict({"weight": torch.randn(6, 6, generator=generator),
                                    "bias": torch.randn(6, generator=generator)})

    def forward(self, x, i, j):
        return self.read(self, self.layer(x), i, j).square().mean()


def of_places(m, x, i, j):
    return sum(x[:, a, b].tanh() for a, b in zip(*m.places))


def of_grids(m, x, i, j):
    return sum(x[:, a[:, None], b[None]] for a, b in zip(*m.places))


def of_samples(m, x, i, j):
    return sum(x[i[:, k], j[:, k]] for k in range(m.count))


def of_a_parameter(m, x, i, j):
    return sum(m.table[i[:, k], j[:, k]] for k in range(m.count)) * x[:, 0, 0]


@pytest.mark.parametrize("read, count, settings", [
    (of_places, 12, {}), (of_places, 40, {}), (of_places, 13, dict(mesh={"dp": 2})),
    (of_places, 12, dict(mesh={"pp": 2}, micro_batches=2)), (of_grids, 12, {}),
    (of_grids, 14, dict(micro_batches=2)), (of_samples, 12, {}), (of_samples, 13, dict(mesh={"dp": 2})),
    (of_a_parameter, 40, {}), (of_a_parameter, 13, dict(mesh={"tp": 2}, plan={"table": P("tp", None)})),
    (of_a_parameter, 12, dict(mesh={"dp": 2}, plan="zero3")),
], ids=lambda x: x.__name__ if callable(x) else "-".join(map(str, x)) if isinstance(x, dict) else str(x))
def test_sums_of_gathers(read, count, settings):
    module = Gathers(read, count)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 6, 6, generator=generator)
    # Samples are read by their place in the batch.
    i, j = (torch.randint(0, 4, (4, count), generator=generator) for _ in range(2))
    loss = module(x, i, j)
    loss.backward()
    step = cleave.compile(module, (x, i, j), optimizer=cleave.SGD(lr=0.5),
                          **grouped(threads=1, **settings))
    assert float(step(x, i, j)) == pytest.approx(loss.item(), rel=1e-5)
    state = step.state_dict()
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(state[name], parameter.detach() - 0.5 * parameter.grad,
                                       rtol=1e-4, atol=1e-5 * float(parameter.grad.abs().max()))
