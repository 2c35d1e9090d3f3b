# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Equal elements in operators that order or choose: values are PyTorch's, and of the equal
ones the first comes first. Unless told to be stable, PyTorch documents no order of them."""

import pytest
import torch
from torch import nn

import cleave

TIED = torch.randint(0, 3, (4, 32), generator=torch.Generator().manual_seed(1)).float()
EMPTY = torch.zeros(4, 32)

#: Whose order PyTorch does not document, and whose it does or follows all the same.
ANY = {
    "topk": lambda x: x.topk(3, -1), "smallest": lambda x: x.topk(3, -1, largest=False),
    "sort": lambda x: x.sort(-1), "descending": lambda x: x.sort(-1, descending=True),
    "kthvalue": lambda x: x.kthvalue(3, -1),
}
FIRST = {
    "max": lambda x: x.max(-1), "min": lambda x: x.min(-1), "median": lambda x: x.median(-1),
    "cummax": lambda x: x.cummax(-1), "stable": lambda x: x.sort(dim=-1, stable=True),
    "stable, descending": lambda x: x.sort(dim=-1, descending=True, stable=True),
}
SPREAD = {"amax": lambda x: (x.amax(-1), None), "amin": lambda x: (x.amin(-1), None),
          "maximum": lambda x: (torch.maximum(x, x.flip(0)), None)}


class Chosen(nn.Module):
    """What `choose` gives of a parameter: values, or indices as numbers."""

    def __init__(self, choose, part=0):
        super().__init__()
        self.choose, self.part = choose, part
        self.weight = nn.Parameter(TIED.clone())
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.choose(self.weight + x)[self.part] * self.scale


def loss_of(values):
    return (values * torch.linspace(1, 2, values.numel()).view(values.shape)).sum()


def trained(choose):
    """Values, gradient and loss, compiled and eager."""
    model = Chosen(choose)
    step = cleave.compile(model, (EMPTY,), loss_of, optimizer=cleave.SGD(lr=1.0))
    values, loss = step.logits(EMPTY), float(step(EMPTY))
    gradient = TIED - step.state_dict()["weight"]
    expected = model(EMPTY)
    loss_of(expected).backward()
    assert loss == pytest.approx(float(loss_of(expected).detach()), rel=1e-5)
    assert torch.equal(values, expected.detach())
    return gradient, model.weight.grad


@pytest.mark.parametrize("name", [*ANY, *FIRST, *SPREAD])
def test_values_and_gradients(name):
    found, expected = trained({**ANY, **FIRST, **SPREAD}[name])
    if name not in ANY:
        torch.testing.assert_close(found, expected)
    # Each of the equal elements together gets what they get in PyTorch.
    for value in (0.0, 1.0, 2.0):
        of = torch.where(TIED == value, 1.0, 0.0)
        torch.testing.assert_close((found * of).sum(-1), (expected * of).sum(-1))


@pytest.mark.parametrize("name", [*ANY, *FIRST])
def test_the_first_of_equal_elements(name):
    choose = {**ANY, **FIRST}[name]
    found = cleave.compile(Chosen(choose, 1), (EMPTY,), loss_of, optimizer=cleave.SGD(lr=1.0)
                           ).logits(EMPTY)
    if name in FIRST:
        assert torch.equal(found, choose(TIED)[1].float())
    else:
        order = TIED.sort(dim=-1, stable=True, descending=name in ("topk", "descending"))[1]
        places = {"topk": slice(3), "smallest": slice(3), "kthvalue": 2}
        assert torch.equal(found, order[:, places.get(name, slice(None))].float())


def test_a_difference_that_may_be_a_tie():
    class Router(nn.Module):
        """Its first choice is among experts that are all alike to it."""

        def __init__(self):
            super().__init__()
            self.router, self.experts = nn.Linear(4, 16), nn.Parameter(torch.randn(16, 4))
            nn.init.zeros_(self.router.weight)
            nn.init.zeros_(self.router.bias)

        def forward(self, x):
            weights, chosen = self.router(x).softmax(-1).topk(2, -1)
            return (self.experts[chosen] * weights[..., None]).sum(-2) * x

    torch.manual_seed(0)
    model, batch = Router(), (torch.randn(4, 4), torch.randn(4, 4))
    with pytest.raises(cleave.CompileError, match=r"Where elements that the model orders \(topk, "
                       r"sort\) are equal, PyTorch may choose others"):
        cleave.compile(model, batch, nn.functional.mse_loss, check="on")
    nn.init.normal_(model.router.weight)
    cleave.compile(model, batch, nn.functional.mse_loss, check="on")
