# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A batch of another shape traces the model again: what has changed since, and a model that trains
other parameters for it, are errors or warnings, and what a step has is not lost."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4
FULL, PART = (X, Y), (X[:6], Y[:6])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.scale = 1.0

    def forward(self, x):
        return self.last(F.gelu(self.norm(self.first(x)))) * self.scale


class Branching(nn.Module):
    """Reads other parameters for another number of samples."""

    def __init__(self):
        super().__init__()
        self.first, self.full, self.part = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        return self.first(x) + (self.full(x) if x.shape[0] == 8 else self.part(x))


class Eager:
    """Training by PyTorch."""

    def __init__(self, model, **settings):
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, **settings)

    def __call__(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def check(self, step):
        own = step.state_dict()
        for name, value in self.model.state_dict().items():
            torch.testing.assert_close(own[name], value, rtol=1e-5, atol=1e-6)


def compiled(model, **settings):
    return cleave.compile(model, FULL, F.cross_entropy, optimizer=cleave.SGD(lr=0.1, **settings))


def test_other_parameters_without_state():
    model = Branching()
    eager, step = Eager(model), compiled(model)
    for batch in (FULL, PART, FULL, PART, FULL):
        assert float(step(*batch)) == pytest.approx(eager(*batch), rel=1e-5)
        eager.check(step)


def test_other_parameters_with_state():
    """Their momentum would be lost; the step goes on with batches of the first shape."""
    model = Branching()
    eager, step = Eager(model, momentum=0.9), compiled(model, momentum=0.9)
    for _ in range(3):
        assert float(step(*FULL)) == pytest.approx(eager(*FULL), rel=1e-5)
        with pytest.raises(cleave.CompileError, match=r"the state full.\w+.\w+ and .* would be lost"):
            step(*PART)
        eager.check(step)
    assert step.step == 3


CHANGED = {
    "frozen": (lambda m: m.first.requires_grad_(False), lambda m: m.first.requires_grad_(True),
               r"parameter first.weight is frozen \[8, 4\], and was trained \[8, 4\]"),
    "shape": (lambda m: setattr(m, "last", nn.Linear(8, 5)), None,
              r"parameter last.weight is trained \[5, 8\], and was trained \[4, 8\]"),
    "added": (lambda m: m.register_parameter("more", nn.Parameter(torch.ones(3))),
              lambda m: delattr(m, "more"), r"parameter more is trained \[3\], and was not there"),
    "removed": (lambda m: delattr(m, "norm"), lambda m: setattr(m, "norm", nn.LayerNorm(8)),
                "parameter norm.weight is not there, and was"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_other_parameters_since(name):
    change, back, message = CHANGED[name]
    model = Net()
    eager, step = Eager(model, momentum=0.9), compiled(model, momentum=0.9)
    eager(*FULL), step(*FULL)
    change(model)
    with pytest.raises(ValueError, match=message):
        step(*PART)
    # What is compiled goes on.
    assert float(step(*FULL)) == pytest.approx(eager(*FULL), rel=1e-5)
    if back:
        back(model)
        assert float(step(*PART)) == pytest.approx(eager(*PART), rel=1e-5)
    eager.check(step)


@pytest.mark.parametrize("change, name", [
    (lambda m: setattr(m, "scale", 2.0), "scale"),
    (lambda m: setattr(m.norm, "eps", 1.0), "norm.eps"),
    (lambda m: m.norm.register_forward_hook(lambda *args: args[2] * 2), "the hooks of norm"),
    (lambda m: setattr(m, "norm", nn.BatchNorm1d(8, track_running_stats=False)),
     "the class of norm"),
], ids=["attribute", "attribute of a part", "hook", "class"])
def test_other_facts_since(change, name):
    model = Net()
    step = compiled(model)
    step(*FULL)
    change(model)
    with pytest.warns(UserWarning, match=f"was changed since it was compiled: {name}"):
        step(*PART)


def test_nothing_is_said_of_a_model_that_is_used():
    """By eager code, in another mode."""
    model = Net()
    step = compiled(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in (FULL, PART, FULL):
            step(*batch)
            model.eval()(batch[0]).sum().backward()
