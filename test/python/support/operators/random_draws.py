# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A module that draws random numbers, and the comparison of its step with eager code by means."""

import torch
from torch import nn

import cleave


class Drawing(nn.Module):
    def __init__(self, draw):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.draw = nn.Linear(6, 6), draw

    def forward(self, x):
        return self.draw(self.a(x), x).pow(2).mean()


def check_draws(module, x):
    """The step draws other numbers each time, around the mean of eager code; the check of compilation
    compares both on the same numbers."""
    step = cleave.compile(module, (x,), target=cleave.Target(threads=1),
                          optimizer=cleave.SGD(lr=0.0), check="on")
    ours = torch.tensor([float(step(x)) for _ in range(40)])
    with torch.no_grad():
        theirs = torch.tensor([float(module(x)) for _ in range(40)])
    spread = ((ours.var() + theirs.var()) / 40).sqrt()
    assert ours.unique().numel() > 30 and abs(ours.mean() - theirs.mean()) < 5 * spread
